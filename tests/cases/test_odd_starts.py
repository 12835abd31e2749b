# SPDX-License-Identifier: Apache-2.0
"""Commands that end oddly, cannot start, or are started oddly: what is said of them is true, and nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from grounds import (
    PROCESS,
    SANDBOX,
    SPREAD,
    check,
    completed,
    interpreter,
    left_with,
    marked,
    on,
    run,
    timed_out,
    variables,
    words_for,
)

import hosts

# -- statuses --------------------------------------------------------------------------------------------------------

SOME_GROUNDS = [PROCESS[0], PROCESS[-1], *SANDBOX[-1:]]
DEADLY = (
    "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT XCPU XFSZ VTALRM PROF IO PWR SYS "
    "RTMIN RTMAX"
).split()


# Shells ignore some of these on their own.
DIE = """
import os, resource, signal, sys, time
number = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
if number != signal.SIGKILL:
    signal.signal(number, signal.SIG_DFL)
os.kill(os.getpid(), number)
time.sleep(30)
"""


@on(SOME_GROUNDS[:1])
@pytest.mark.parametrize("code", [1, 122, 123, 124, 125, 126, 127, 128, 130, 137, 255])
def test_an_exit_code_that_looks_like_ours_is_the_commands_own(host: hosts.Host, isolation: str, code: int) -> None:
    ended = run(host, isolation, ["sh", "-c", f"exit {code}"], timeout=2)
    check(ended)
    completed(ended, code)


@on(SOME_GROUNDS[:1])
@pytest.mark.parametrize("name", DEADLY)
def test_every_deadly_signal_is_named(host: hosts.Host, isolation: str, name: str) -> None:
    number = int(signal.Signals[f"SIG{name}"])
    ended = run(host, isolation, [interpreter(host, isolation), "-c", DIE, str(number)], timeout=2)
    check(ended)
    assert (ended.status, ended.result["signal"]) == ("signaled", number), ended.result
    assert ended.exit_status == 128 + number


# -- commands that cannot run ----------------------------------------------------------------------------------------


@pytest.fixture
def odd_files(host: hosts.Host) -> Path:
    """A folder with things that are no programs."""
    folder = host.folder / "odd"
    if not folder.exists():
        folder.mkdir()
        contents = {
            "plain": "echo never",
            "noshebang": "echo plain script $1",
            "badshebang": "#!/no/such/interpreter\n",
        }
        for name, text in {**contents, "empty": "", "binary": "\x7fELF broken"}.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o644 if name == "plain" else 0o755)
        (folder / "folder").mkdir()
        (folder / "dangling").symlink_to("/no/such/target")
        (folder / "loop").symlink_to("loop")
    return folder


@on(SPREAD)
@pytest.mark.parametrize(
    ("name", "statuses"),
    [("/no/such/program", (127,)), ("no-such-program-anywhere", (127,)), ("plain", (126,)), ("folder", (126,)),
     ("dangling", (127,)), ("loop", (126,)), ("badshebang", (126, 127)), ("plain/below", (126, 127))],
)  # fmt: skip
def test_a_command_that_cannot_run(
    host: hosts.Host, isolation: str, odd_files: Path, name: str, statuses: tuple[int, ...]
) -> None:
    word = str(odd_files / name) if (odd_files / name.split("/")[0]).is_symlink() or "-" not in name else name
    word = name if name.startswith("/") else word
    ended = run(host, isolation, [word], timeout=2)
    check(ended)
    assert ended.status == "error", ended.result
    assert ended.exit_status in statuses
    assert ended.result["exit_code"] is None and ended.result["start_errno"]
    assert word in ended.result["error"]["message"]
    assert ended.result["environment"] == "nothing was started"


@on(SPREAD)
def test_a_script_without_a_first_line_is_run_by_a_shell(host: hosts.Host, isolation: str, odd_files: Path) -> None:
    ended = run(host, isolation, [str(odd_files / "noshebang"), "argument"], timeout=2)
    check(ended)
    completed(ended)
    assert ended.out == "plain script argument\n"


@on(SPREAD)
def test_a_folder_without_permission(host: hosts.Host, isolation: str) -> None:
    closed = host.folder / "closed"
    closed.mkdir(exist_ok=True)
    if os.geteuid() == 0:
        os.chown(closed, host.uid, host.uid)
    closed.chmod(0)
    try:
        ended = run(host, isolation, ["echo", "in"], "--cwd", str(closed), timeout=2)
    finally:
        closed.chmod(0o700)
    check(ended)
    if host.uid == 0 and isolation == "process":
        completed(ended)  # root needs no permission
        return
    assert ended.status == "refused" and ended.exit_status == 125
    assert "Permission denied" in ended.result["error"]["message"] and "folder" in ended.result["error"]["message"]


@on(SPREAD)
def test_started_in_a_folder_that_is_gone(host: hosts.Host, isolation: str) -> None:
    own = marked(host)
    words = words_for(host, isolation, ["sh", "-c", "echo still; exit 3"], timeout=2)
    gone = 'd=$(mktemp -d); cd "$d"; rmdir "$d"; exec "$@"'
    process = own.popen(
        ["sh", "-c", gone, "sh", own.python, "-m", "deadstop", *words], env=variables(own),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = process.communicate(timeout=10)
    own.no_survivors()
    assert b"Traceback" not in err
    if isolation == "process":
        assert process.returncode == 3 and json.loads(out)["stdout"]["tail"] == "still\n"
    else:  # there is nothing to show: refused in one line, or run elsewhere
        assert process.returncode == 3 or (process.returncode == 125 and len(err.splitlines()) == 1)


# -- too large to start ----------------------------------------------------------------------------------------------

MAIN = """
import sys
from deadstop.cli import main
options = ["run", "--json", "--isolation", sys.argv[1], "--timeout", "2"]
"""
TOO_LARGE = {
    "argv": 'main([*options, "--", "true", *["x" * 120_000] * 40])',
    "environment": 'main([*options, *["--env=BIG%d=" % n + "x" * 120_000 for n in range(40)], "--", "true"])',
    "one variable": 'main([*options, "--env=BIG=" + "x" * 200_000, "--", "true"])',
}


@on(SPREAD)
@pytest.mark.parametrize("what", TOO_LARGE)
def test_what_is_too_large_for_the_kernel_never_starts(host: hosts.Host, isolation: str, what: str) -> None:
    own = marked(host)
    process = own.popen(
        [own.python, "-c", f"{MAIN}sys.exit({TOO_LARGE[what]})", isolation], env=variables(own),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = process.communicate(timeout=15)
    own.no_survivors()
    assert b"Traceback" not in err
    assert process.returncode == 125
    if not out:  # seen beforehand
        assert len(err.splitlines()) == 1 and b"the kernel allows" in err
        return
    result = json.loads(out)
    assert (result["status"], result["reason"], result["start_errno"]) == ("refused", "policy", 7)
    assert "the kernel allows" in result["error"]["message"] and result["receipt"] is None


@on(SPREAD)
def test_a_large_command_that_fits_is_run(host: hosts.Host, isolation: str) -> None:
    ended = run(host, isolation, ["sh", "-c", "echo $#", "sh", *["y" * 100] * 8000], timeout=3)
    check(ended)
    completed(ended)
    assert ended.out == "8000\n"


# -- around it -------------------------------------------------------------------------------------------------------


@on(SPREAD)
def test_nobody_reads_what_it_prints(host: hosts.Host, isolation: str) -> None:
    """A flood towards a reader that never reads: the limit is kept, and what could not be handed over is given up."""
    own = marked(host)
    words = words_for(host, isolation, ["yes"], timeout=0.7, json=False)
    began = time.monotonic()
    process = own.start(
        *words, env=variables(own), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.wait(timeout=10) == 124
        assert time.monotonic() - began < 0.7 + 0.5 + 2 + 1  # two seconds are allowed for handing over
    finally:
        process.stdout.close()
        process.kill()
        process.wait(timeout=10)
    own.no_survivors()


@on(SPREAD)
def test_the_reader_of_what_it_prints_leaves(host: hosts.Host, isolation: str) -> None:
    own = marked(host)
    words = words_for(host, isolation, ["yes"], timeout=5, json=False)
    began = time.monotonic()
    process = own.start(
        *words, env=variables(own), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    process.communicate(timeout=15)
    assert process.returncode == 128 + signal.SIGPIPE  # `yes` met the closed pipe, as it would have without us
    assert time.monotonic() - began < 4
    own.no_survivors()


@on(SPREAD)
def test_the_supervisor_is_killed(host: hosts.Host, isolation: str) -> None:
    own = marked(host)
    begun = host.folder / "begun-kill"
    begun.unlink(missing_ok=True)
    payload = "trap '' TERM HUP INT; setsid sleep 30 & touch begun-kill; while :; do sleep 0.1; done"
    words = words_for(host, isolation, ["bash", "-c", payload], timeout=20)
    process = own.start(
        *words, env=variables(own), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    end = time.monotonic() + 5
    while not begun.exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    process.kill()
    process.wait(timeout=10)
    own.no_survivors(within=2)


# -- another user's process in it ------------------------------------------------------------------------------------

BECOME_ROOT = """
import os, time
try:
    os.setresuid(0, 0, 0)
except OSError:
    print("refused", flush=True)
else:
    print("root", flush=True)
time.sleep(12)
"""


def setuid_copy(program: str, host: hosts.Host, bits: int) -> Path:
    copy = host.folder.parent / f"{Path(program).name}-{bits:o}"
    if not copy.exists():
        copy.write_bytes(Path(program).resolve().read_bytes())
        os.chown(copy, 0, 0)
        copy.chmod(0o755 | bits)
    return copy


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="making a setuid program needs root")
@on(PROCESS)
@pytest.mark.parametrize("bits", [0o4000, 0o2000], ids=["setuid", "setgid"])
def test_a_setuid_sleeper_is_killed(host: hosts.Host, isolation: str, bits: int) -> None:
    ended = run(host, isolation, [str(setuid_copy("/usr/bin/sleep", host, bits)), "12"], timeout=0.5)
    check(ended)
    timed_out(ended)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="making a setuid program needs root")
@on([ground for ground in PROCESS if ground[0] != "root"])
def test_a_process_that_became_root_is_killed_or_reported(host: hosts.Host, isolation: str) -> None:
    """Where namespaces hold it, it cannot become root. Where nothing does, it cannot be killed: then that is said."""
    program = setuid_copy("/usr/bin/python3", host, 0o4000)
    ended = run(host, isolation, [str(program), "-IS", "-u", "-c", BECOME_ROOT], timeout=0.5, grace=0.2)
    try:
        if host.namespaces:
            assert ended.out == "refused\n"
            check(ended)
            timed_out(ended)
            return
        assert ended.out == "root\n"
        assert ended.status == "timeout"
        assert ended.elapsed < 0.7 + 2 + 2 + 5 + 1  # the reaper's time, the supervisor's own sweep, the proof's
        assert ended.receipt["proof"] == "none"
        assert ended.receipt["survivors"] != 0
        assert "could not be shown" in ended.result["environment"]
    finally:
        for pid, _ in left_with(ended.host.mark):
            os.kill(pid, signal.SIGKILL)
