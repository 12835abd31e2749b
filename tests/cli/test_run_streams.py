# SPDX-License-Identifier: Apache-2.0
"""What a command prints comes out as it comes, whole and unchanged, and no reader can hold up a deadline."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pty
import select
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from hosts import Host, within

# Of one kind with namespaces and one without; tests/cases and tests/library/test_supervisor_life.py have them all.
HOSTS = ("user", "no-userns-no-cgroup")

PIPES: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def _shell(host: Host, redirect: str, *words: str, **options: Any) -> subprocess.Popen[bytes]:
    """deadstop started by a shell that arranges its descriptors, as `>&-` can only be written there."""
    script = f'exec "$@" {redirect}'
    return host.popen(["bash", "-c", script, "bash", host.python, "-m", "deadstop", *words], **options)


def _communicate(process: subprocess.Popen[bytes], within: float, given: bytes | None = None) -> tuple[bytes, bytes]:
    try:
        return process.communicate(given, timeout=within)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate(timeout=10)
        raise


def _end(process: subprocess.Popen[bytes], within: float) -> int:
    """Its exit status, though nobody reads what it prints."""
    try:
        return process.wait(timeout=within)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(timeout=10)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream:
                stream.close()


# -- as it comes, whole, unchanged --------------------------------------------------------------------------------


def test_a_line_is_seen_while_the_command_still_runs(host: Host) -> None:
    """The payload prints when it printed, and goes on only when its reader answers."""
    payload = "import time; print(time.monotonic(), flush=True); print('answered', input())"
    process = host.start(
        "run", "--timeout", "20", "--stdin", "--", host.python, "-c", payload, **{**PIPES, "stdin": subprocess.PIPE}
    )
    assert process.stdout
    ready, _, _ = select.select([process.stdout], [], [], 15)
    assert ready, "nothing came"
    printed = float(process.stdout.readline())
    assert 0 <= time.monotonic() - printed < 1
    assert process.poll() is None
    out, _ = _communicate(process, 10, b"yes\n")
    assert (process.returncode, out) == (0, b"answered yes\n")


def test_both_streams_are_separate_complete_and_byte_exact(host: Host) -> None:
    paths = [host.folder / "random.out", host.folder / "random.err"]
    try:
        for path in paths:
            path.write_bytes(os.urandom(10 << 20))
        script = 'cat "$1" & cat "$2" >&2; wait'
        words = ["run", "--timeout", "40", "--", "bash", "-c", script, "bash", *map(str, paths)]
        done = host.cli(*words, bound=50)
        wanted = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
        assert done.returncode == 0
        assert len(done.stdout) == 10 << 20
        assert hashlib.sha256(done.stdout).hexdigest() == wanted[0]
        assert hashlib.sha256(done.stderr[: 10 << 20]).hexdigest() == wanted[1]
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def test_stdout_and_stderr_may_be_the_same_pipe(one_host: Host) -> None:
    """Whole and each in its own order; how the two are interleaved nobody can promise."""
    script = "for i in {10000..19999}; do printf %s $i; printf abcde >&2; done"
    process = one_host.start(
        "run", "--timeout", "20", "--", "bash", "-c", script, **{**PIPES, "stderr": subprocess.STDOUT}
    )
    out, _ = _communicate(process, 25)
    assert process.returncode == 0
    assert bytes(byte for byte in out if byte in b"0123456789") == b"".join(b"%d" % i for i in range(10000, 20000))
    assert bytes(byte for byte in out if byte not in b"0123456789") == b"abcde" * 10000


def test_carriage_returns_zeros_and_half_characters_pass(one_host: Host) -> None:
    done = one_host.cli("run", "--", "printf", r"a\r\n\0\033[31m\303")
    assert (done.returncode, done.stdout) == (0, b"a\r\n\0\x1b[31m\xc3")


# -- slow readers, and readers that leave -------------------------------------------------------------------------


def test_a_deadline_is_kept_though_the_reader_sleeps(host: Host) -> None:
    process = host.start("run", "--timeout", "1", "--", "yes", **PIPES)
    begin = time.monotonic()
    within(10, lambda: any(words == "yes " for words in host.survivors()))
    within(3, lambda: not any(words == "yes " for words in host.survivors()))
    assert time.monotonic() - begin < 2.5  # dead at its deadline, with nothing read and a full pipe before it
    within(3, lambda: time.monotonic() - begin > 1.5)
    out, err = _communicate(process, 5)
    assert process.returncode == 124
    assert out and not out.replace(b"y\n", b"").strip(b"y")
    assert b"timed out after 1s" in err


def test_it_ends_though_nobody_ever_reads(host: Host) -> None:
    begin = time.monotonic()
    process = host.start("run", "--timeout", "1", "--", "bash", "-c", "yes & yes >&2", **PIPES)
    assert _end(process, within=8) == 124
    assert time.monotonic() - begin < 5  # start, the limit, and the two seconds that a slow reader is given


def test_output_of_a_command_that_ended_waits_for_a_slow_reader(host: Host) -> None:
    """The command can end while its output is still on the way: what we hold then is not lost."""
    mark = host.folder / "printed"
    script = 'head -c 150000 /dev/zero; touch "$1"'
    try:
        process = host.start("run", "--timeout", "20", "--", "bash", "-c", script, "bash", str(mark), **PIPES)
        within(15, mark.exists)
        within(5, lambda: not any("head -c" in words and "deadstop" not in words for words in host.survivors()))
        out, _ = _communicate(process, 10)
        assert (process.returncode, len(out)) == (0, 150_000)
    finally:
        mark.unlink(missing_ok=True)


def test_a_reader_that_leaves_ends_the_command_by_sigpipe(host: Host) -> None:
    process = host.start("run", "--timeout", "20", "--", "yes", **PIPES)
    assert process.stdout and process.stderr
    assert process.stdout.readline() == b"y\n"
    left = time.monotonic()
    process.stdout.close()
    assert _end(process, within=10) == 128 + 13
    assert time.monotonic() - left < 2


def test_a_pipeline_with_head_ends_soon(one_host: Host) -> None:
    script = '"$@" | head -1'
    words = ["bash", "-c", script, "bash", one_host.python, "-m", "deadstop", "run", "--timeout", "20", "--", "yes"]
    begin = time.monotonic()
    process = one_host.popen(words, **PIPES)
    out, err = _communicate(process, 10)
    assert out == b"y\n"
    assert b"Traceback" not in err
    assert time.monotonic() - begin < 5


# -- where stdout may lead ----------------------------------------------------------------------------------------


def test_a_file_opened_for_appending_is_appended_to(one_host: Host) -> None:
    path = one_host.folder / "log"
    try:
        path.write_bytes(b"before\n")
        with path.open("ab") as log:
            process = one_host.start("run", "--", "bash", "-c", "echo out; echo err >&2", stdout=log, stderr=log)
            assert _end(process, 15) == 0
        lines = path.read_bytes().splitlines()
        assert lines[0] == b"before" and sorted(lines[1:]) == [b"err", b"out"]
    finally:
        path.unlink(missing_ok=True)


def test_a_file_is_written_at_the_position_that_its_other_users_share(one_host: Host) -> None:
    path = one_host.folder / "shared"
    try:
        with path.open("wb", buffering=0) as shared:
            shared.write(b"one ")
            process = one_host.start("run", "--", "printf", "two ", stdout=shared, stderr=subprocess.DEVNULL)
            assert _end(process, 15) == 0
            shared.write(b"three")
        assert path.read_bytes() == b"one two three"
    finally:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("redirect", [">/dev/null", ">/dev/full"])
def test_devices_are_written_to(one_host: Host, redirect: str) -> None:
    process = _shell(one_host, redirect, "run", "--timeout", "5", "--", "echo", "out", **PIPES)
    out, err = _communicate(process, 15)
    assert (process.returncode, out) == (0, b"")
    assert b"Traceback" not in err


@pytest.mark.parametrize("redirect", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_descriptors_hurt_nobody(one_host: Host, redirect: str) -> None:
    """Their numbers must not pass to files of ours, which the command's output would then be written to."""
    script = "echo out; echo err >&2; exit 3"
    process = _shell(one_host, redirect, "run", "--timeout", "5", "--", "bash", "-c", script, **PIPES)
    out, err = _communicate(process, 15)
    assert process.returncode == 3, err.decode()
    assert out == (b"" if ">&-" in redirect.split() else b"out\n")
    assert err == (b"" if "2>&-" in redirect.split() else b"err\n")


def _flags(fds: list[int]) -> list[int]:
    return [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in fds]


@pytest.mark.parametrize("kind", ["pipe", "terminal"])
@pytest.mark.parametrize("words", [["--stdin"], ["--tty", "--stdin"]], ids=" ".join)
def test_flags_of_our_own_descriptors_never_change(one_host: Host, kind: str, words: list[str]) -> None:
    """O_NONBLOCK belongs to the open file, which the shell and its next command share."""
    pairs = [pty.openpty() if kind == "terminal" else os.pipe() for _ in range(3)]
    given = [pairs[0][1 if kind == "terminal" else 0], pairs[1][1], pairs[2][1]]
    read = pairs[1][0]
    before = _flags(given)
    process = one_host.start(
        "run", "--timeout", "2", *words, "--", "bash", "-c", "echo line; sleep 30",
        stdin=given[0], stdout=given[1], stderr=given[2],
    )  # fmt: skip
    try:
        assert select.select([read], [], [], 15)[0]
        during = _flags(given)
        assert _end(process, 15) == 124
        assert (during, _flags(given)) == (before, before)
    finally:
        _end(process, 10)
        for pair in pairs:
            for fd in pair:
                os.close(fd)


# -- what is ours on stdout and stderr ----------------------------------------------------------------------------


def test_a_plain_success_prints_nothing_of_ours(host: Host) -> None:
    done = host.cli("run", "--", "echo", "out")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"out\n", b"")


def test_a_command_that_fails_by_itself_prints_nothing_of_ours(host: Host) -> None:
    done = host.cli("run", "--", "bash", "-c", "echo err >&2; exit 4")
    assert (done.returncode, done.stdout, done.stderr) == (4, b"", b"err\n")


def test_the_verdict_is_on_stderr(host: Host) -> None:
    done = host.cli("run", "--timeout", "0.5", "--", "bash", "-c", "echo out; sleep 30")
    assert (done.returncode, done.stdout) == (124, b"out\n")
    lines = done.stderr.decode().splitlines()
    assert all(line.startswith("deadstop: ") for line in lines), lines
    assert "timed out after 500ms" in lines[0]
    assert "none left" in lines[1] and host.proof in lines[1]


@pytest.mark.parametrize("words", [["true"], ["no-such-program"], ["bash", "-c", "echo out; echo err >&2; sleep 30"]])
def test_json_is_exactly_one_object_and_nothing_else(one_host: Host, words: list[str]) -> None:
    done = one_host.cli("run", "--json", "--timeout", "0.5", "--", *words)
    assert done.stdout.endswith(b"\n") and done.stdout.count(b"\n") == 1
    assert json.loads(done.stdout)["schema"] == "deadstop.result/1"
    assert done.stderr == b""


@pytest.mark.parametrize(("words", "status"), [(["echo", "out"], 0), (["bash", "-c", "echo out; sleep 30"], 124)])
def test_quiet_prints_nothing(one_host: Host, words: list[str], status: int) -> None:
    done = one_host.cli("run", "--quiet", "--timeout", "0.5", "--", *words)
    assert (done.returncode, done.stdout, done.stderr) == (status, b"", b"")


def test_quiet_still_says_why_nothing_ran(one_host: Host) -> None:
    done = one_host.cli("run", "--quiet", "--", "no-such-program")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (127, b"", 1)
    assert b"no-such-program" in done.stderr


# -- exit statuses ------------------------------------------------------------------------------------------------


EXITS = [
    ([], ["true"], 0, "completed"),
    ([], ["bash", "-c", "exit 3"], 3, "completed"),
    ([], ["bash", "-c", "exit 255"], 255, "completed"),
    (["--timeout", "0.3"], ["sleep", "30"], 124, "timeout"),
    (["--idle-timeout", "0.3"], ["sleep", "30"], 124, "timeout"),
    ([], ["no-such-program"], 127, "error"),
    ([], ["/no/such/program"], 127, "error"),
    ([], ["/etc/passwd"], 126, "error"),
    ([], ["/"], 126, "error"),
    ([], ["bash", "-c", "kill -TERM $$"], 128 + 15, "signaled"),
    ([], ["bash", "-c", "kill -KILL $$"], 128 + 9, "signaled"),
    ([], ["bash", "-c", "kill -SEGV $$"], 128 + 11, "signaled"),
    (["--output-limit", "1K", "--timeout", "5"], ["yes"], 122, "resource_limit"),
]


@pytest.mark.parametrize(("options", "words", "exit_status", "status"), EXITS)
def test_exit_statuses(one_host: Host, options: list[str], words: list[str], exit_status: int, status: str) -> None:
    done = one_host.cli("run", "--json", *options, "--", *words)
    assert (done.returncode, json.loads(done.stdout)["status"]) == (exit_status, status)


def test_a_refusal_is_125(one_host: Host) -> None:
    done = one_host.cli("run", "--json", "--isolation", "sandbox", "--", "true", env={"DEADSTOP_DENY": "userns"})
    result = json.loads(done.stdout)
    assert (done.returncode, result["status"], result["reason"]) == (125, "refused", "policy")


def test_a_command_that_kills_its_reaper_is_123_and_never_a_success(host: Host) -> None:
    """In a pid namespace it cannot; on a host without one it can, and that is said."""
    done = host.cli("run", "--json", "--timeout", "5", "--", "bash", "-c", "kill -9 $PPID; sleep 0.2; exit 0")
    result = json.loads(done.stdout)
    if host.namespaces:
        assert (done.returncode, result["status"]) == (0, "completed")
    else:
        assert (done.returncode, result["status"]) == (123, "crashed")


# -- stdin --------------------------------------------------------------------------------------------------------


def test_stdin_is_closed_unless_asked_for(host: Host) -> None:
    result = host.run("--timeout", "5", "--", "bash", "-c", "cat; echo $?; readlink /proc/self/fd/0")
    assert (result["status"], result["stdout"]["tail"]) == ("completed", "0\n/dev/null\n")


def test_stdin_is_passed_whole_when_asked_for(host: Host) -> None:
    data = os.urandom(1 << 20)
    process = host.start("run", "--timeout", "20", "--stdin", "--", "sha256sum", **{**PIPES, "stdin": subprocess.PIPE})
    out, _ = _communicate(process, 25, data)
    assert (process.returncode, out.split()[0].decode()) == (0, hashlib.sha256(data).hexdigest())


def test_a_file_as_stdin_is_read_from_where_it_stands(one_host: Host) -> None:
    path = Path(one_host.folder / "lines")
    try:
        path.write_bytes(b"one\ntwo\n")
        with path.open("rb", buffering=0) as lines:
            assert lines.read(4) == b"one\n"
            process = one_host.start("run", "--stdin", "--", "cat", **{**PIPES, "stdin": lines})
            assert _communicate(process, 15) == (b"two\n", b"")
    finally:
        path.unlink(missing_ok=True)


def test_piped_data_that_the_command_never_saw_is_reported(one_host: Host) -> None:
    process = one_host.start("run", "--", "cat", **{**PIPES, "stdin": subprocess.PIPE})
    out, err = _communicate(process, 15, b"data\n")
    assert (process.returncode, out) == (0, b"")
    assert [line for line in err.decode().splitlines() if line.startswith("deadstop:") and "--stdin" in line]


def test_an_empty_pipe_is_nothing_to_report(one_host: Host) -> None:
    process = one_host.start("run", "--", "true", **{**PIPES, "stdin": subprocess.PIPE})
    assert _communicate(process, 15, b"") == (b"", b"")
    assert process.returncode == 0


def test_an_open_stdin_that_nobody_closes_does_not_hold_up_the_end(one_host: Host) -> None:
    read, write = os.pipe()
    try:
        begin = time.monotonic()
        process = one_host.start("run", "--timeout", "10", "--", "true", **{**PIPES, "stdin": read})
        assert _end(process, 8) == 0
        assert time.monotonic() - begin < 5
    finally:
        os.close(read)
        os.close(write)
