# SPDX-License-Identifier: Apache-2.0
"""Cases in which something around the command matters: its input, the supervisor's memory and clock, who started it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from grounds import (
    INPUTS,
    PROCESS,
    SLACK_S,
    SPREAD,
    START_S,
    VALIDATOR,
    Ended,
    check,
    completed,
    judge,
    marked,
    on,
    run,
    timed_out,
    variables,
    words_for,
)

import hosts

MEMORY_GROWTH = 50 << 20


def text(name: str) -> str:
    return (INPUTS / name).read_text()


def finish(process: subprocess.Popen[bytes], bound: float) -> dict[str, Any]:
    """The result of a `deadstop run --json` that was started by hand."""
    try:
        out, err = process.communicate(timeout=bound)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate(timeout=10)
        raise
    lines = out.splitlines()
    assert len(lines) == 1, (process.returncode, out[-2000:], (err or b"")[-4000:])
    result: dict[str, Any] = json.loads(lines[0])
    VALIDATOR.validate(result)
    return result


def wait_until(condition: Any, within: float = 10) -> None:
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


# -- 08: a prompt on an input that is open and silent ----------------------------------------------------------------


def prompted(host: hosts.Host, isolation: str, *options: str, timeout: float) -> Ended:
    silent, writer = os.pipe()
    try:
        return run(host, isolation, ["bash", "-c", text("08-reads-stdin-prompt.sh")], "--stdin", *options,
                   timeout=timeout, stdin=silent)  # fmt: skip
    finally:
        os.close(silent)
        os.close(writer)


@on(SPREAD)
def test_08_a_prompt_on_an_open_input_is_seen_for_what_it_is(host: hosts.Host, isolation: str) -> None:
    def verify(ended: Ended) -> None:
        timed_out(ended)
        assert ended.out == "Continue? [y/N] "
        assert ended.diagnosis["kind"] == "waiting_for_input"
        assert ended.result["hint"]

    judge(lambda: prompted(host, isolation, timeout=1), verify)


@on(SPREAD)
def test_08_waiting_for_input_can_end_it_well_before_the_limit(host: hosts.Host, isolation: str) -> None:
    ended = prompted(host, isolation, "--on-input-wait", "kill", timeout=10)
    check(ended)
    assert (ended.status, ended.result["reason"]) == ("cancelled", "input_wait")
    assert ended.exit_status == 130
    assert ended.elapsed < 5
    assert ended.out == "Continue? [y/N] "


# -- 09: the terminal of whoever started deadstop --------------------------------------------------------------------

TAKE_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


@on(SPREAD)
def test_09_the_terminal_of_the_supervisor_is_out_of_reach(host: hosts.Host, isolation: str) -> None:
    own = marked(host)
    master, slave = os.openpty()
    os.write(master, b"secret\n")
    words = words_for(host, isolation, ["bash", "-c", text("09-dev-tty-prompt.sh")], timeout=2)
    try:
        process = own.popen(
            [own.python, "-c", TAKE_TERMINAL, own.python, "-m", "deadstop", *words], env=variables(own),
            stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        result = finish(process, 10)
        assert (result["status"], result["exit_code"], result["stdout"]["tail"]) == ("completed", 8, "no tty\n")
        os.set_blocking(slave, False)
        assert os.read(slave, 100) == b"secret\n"  # nobody has read it
    finally:
        os.close(slave)
        os.close(master)
    own.no_survivors()


# -- 11, 82: floods --------------------------------------------------------------------------------------------------


def memory_peak(pid: int) -> int | None:
    """VmHWM in bytes; None when the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), None)


@on(SPREAD)
@pytest.mark.parametrize("name", ["11-yes-flood.sh", "82-reprompt-loop-on-eof.sh"])
def test_11_82_a_flood_does_not_fill_the_supervisor(host: hosts.Host, isolation: str, name: str) -> None:
    own = marked(host)
    words = words_for(host, isolation, ["bash", "-c", text(name)], timeout=1)
    process = own.start(
        *words, env=variables(own), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    began, peaks = time.monotonic(), []
    while process.poll() is None and time.monotonic() < began + 5:
        peaks += [peak] if (peak := memory_peak(process.pid)) else []
        if len(peaks) > 50 and process.stdout and time.monotonic() > began + 1.6:
            break  # its answer may be larger than the pipe: read it
        time.sleep(0.005)
    result = finish(process, 10)
    assert time.monotonic() - began < 1 + 0.5 + SLACK_S + START_S
    assert result["duration_s"] <= 1 + 0.5 + 0.5
    own.no_survivors()
    assert len(peaks) > 10 and peaks[-1] - peaks[0] < MEMORY_GROWTH
    assert result["status"] == "timeout" and result["receipt"]["survivors"] == 0
    stdout = result["stdout"]
    assert stdout["truncated"] and stdout["bytes_total"] == stdout["bytes_dropped"] + len(stdout["tail"])
    assert len(stdout["tail"]) == 65536
    if name.startswith("82"):
        assert "* Project name: " in stdout["tail"]


@on(SPREAD)
def test_82_asking_again_for_ever_is_recognised(host: hosts.Host, isolation: str) -> None:
    def verify(ended: Ended) -> None:
        timed_out(ended)
        assert ended.diagnosis["kind"] in ("waiting_for_input", "retry_loop", "output_flood")
        assert ended.result["hint"]

    judge(lambda: run(host, isolation, ["bash", "-c", text("82-reprompt-loop-on-eof.sh")]), verify)


# -- 26: words and environments larger than the kernel takes ---------------------------------------------------------

IN_PROCESS = "import sys\nfrom deadstop.cli import main\n"


def outcome(host: hosts.Host, script: str, *arguments: str) -> tuple[int, str, str]:
    """`main` called inside a Python program: what no exec could carry still can be asked for."""
    own = marked(host)
    process = own.popen(
        [own.python, "-c", IN_PROCESS + script, *arguments], env=variables(own), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = process.communicate(timeout=20)
    own.no_survivors()
    return process.returncode, out.decode(), err.decode()


@on(SPREAD)
def test_26_a_word_that_is_too_long_is_refused_before_the_start(
    host: hosts.Host, isolation: str, tmp_path: Path
) -> None:
    made = subprocess.run(
        [host.python, "-c", text("26-argument-too-long.py")], capture_output=True, check=True, timeout=10
    ).stdout
    file = host.folder / "long-word"
    file.write_bytes(made)
    script = (
        'word = open(sys.argv[2]).read()\nsys.exit(main(["run", "--isolation", sys.argv[1], "--", "bash", "-c", word]))'
    )
    status, out, err = outcome(host, script, isolation, str(file))
    assert (status, out) == (125, "")
    assert len(err.splitlines()) == 1 and str(len(made)) in err and "Traceback" not in err


# -- 27: a C locale --------------------------------------------------------------------------------------------------


@on(SPREAD)
def test_27_the_locale_of_the_supervisor_does_not_matter(host: hosts.Host, isolation: str) -> None:
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ended = run(host, isolation, ["printf", "%s", "stra\u00dfe-\u03b2"], env=locale)
    check(ended)
    completed(ended)
    assert ended.out == "stra\u00dfe-\u03b2"
    assert ended.result["stdout"]["bytes_total"] == len("stra\u00dfe-\u03b2".encode())


@on(PROCESS)
def test_27_streamed_text_passes_through_a_C_locale(host: hosts.Host, isolation: str) -> None:
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = host.cli("run", "--timeout", "2", "--", "printf", "%s", "stra\u00dfe-\u03b2", env=locale)
    assert (done.returncode, done.stdout) == (0, "stra\u00dfe-\u03b2".encode())


# -- 72: limits inside limits ----------------------------------------------------------------------------------------


@on(PROCESS)
def test_72_an_inner_limit_cannot_outlast_the_outer_one(host: hosts.Host, isolation: str) -> None:
    inner = [host.python, "-m", "deadstop", "run", "--json", "--timeout", "10", "--", "sleep", "20"]
    for _ in range(3):
        ended = run(host, isolation, inner, timeout=1.5)
        check(ended)
        if ended.status == "completed":
            break
        timed_out(ended)  # a busy machine gave the inner one no turn within its margin: then the outer one ends both
    completed(ended, 124)  # the inner one still reported, a moment before the outer deadline
    told = json.loads(ended.out)
    assert told["status"] == "timeout"
    assert (told["limit"]["which"], told["limit"]["source"]) == ("parent", "inherited")
    assert told["receipt"]["survivors"] == 0
    assert ended.result["duration_s"] < 1.5


@on(PROCESS)
def test_72_a_clean_up_with_a_limit_of_its_own_does_not_delay_the_outer_end(host: hosts.Host, isolation: str) -> None:
    inner = f'"{host.python}" -m deadstop run --timeout 3 -- sleep 10'
    clean_up = f"trap '{inner}; echo inner=$?; sleep 10' TERM; sleep 20 & wait"
    ended = run(host, isolation, ["bash", "-c", clean_up], timeout=0.7, grace=1)
    check(ended)
    timed_out(ended)
    assert ended.result["limit"]["source"] == "given"
    assert ended.out == "inner=125\n"  # refused: its parent's deadline was over
    assert "deadline" in ended.err


# -- 73: the supervisor does not run ---------------------------------------------------------------------------------


@on(SPREAD)
@pytest.mark.parametrize(
    "payload", ["sleep 30", "trap '' TERM; echo; while :; do sleep 0.1; done"], ids=["sleep", "stubborn"]
)
@pytest.mark.alone
def test_73_after_a_stop_of_the_supervisor_the_overdue_call_is_killed_at_once(
    host: hosts.Host, isolation: str, payload: str
) -> None:
    own = marked(host)
    words = words_for(host, isolation, ["bash", "-c", f"touch begun-73; {payload}"], timeout=0.6, grace=0.3)
    begun = host.folder / "begun-73"
    begun.unlink(missing_ok=True)
    process = own.start(
        *words, env=variables(own), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        wait_until(begun.exists)
        os.kill(process.pid, signal.SIGSTOP)
        stopped = time.monotonic()
        time.sleep(1.3)  # the time that has to pass: longer than limit and grace
        assert process.poll() is None
        os.kill(process.pid, signal.SIGCONT)
    except BaseException:
        process.kill()
        process.communicate(timeout=10)
        raise
    woken = time.monotonic()
    result = finish(process, 10)
    after = time.monotonic() - woken
    own.no_survivors()
    assert result["status"] == "timeout"
    assert 0.5 <= result["gap_s"] <= woken - stopped
    assert after < 0.25  # both SIGTERM and, 0.3 s later, SIGKILL were due before


# -- 74, 76: who started it ------------------------------------------------------------------------------------------


@on(SPREAD)
def test_74_a_parent_that_ignores_sigchld_does_not_cost_the_exit_code(host: hosts.Host, isolation: str) -> None:
    own = marked(host)
    words = words_for(host, isolation, ["sh", "-c", "exit 3"], timeout=2)
    ignore = (
        "import os, signal, sys\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nos.execvp(sys.argv[1], sys.argv[1:])"
    )
    process = own.popen(
        [own.python, "-c", ignore, own.python, "-m", "deadstop", *words], env=variables(own),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    result = finish(process, 10)
    assert (result["status"], result["exit_code"], process.returncode) == ("completed", 3, 3)
    own.no_survivors()


@on(SPREAD)
@pytest.mark.parametrize(
    "payload", ["trap '' TERM; while :; do sleep 0.1; done", "kill -9 0"], ids=["stubborn", "kill-group"]
)
def test_76_a_kill_never_reaches_the_group_of_the_host(host: hosts.Host, isolation: str, payload: str) -> None:
    own = marked(host)
    words = words_for(host, isolation, ["bash", "-c", payload], timeout=0.5, grace=0.2)
    around = 'sleep 20 & w=$!; "$@" >/dev/null; s=$?; kill -0 $w && echo alive $s; kill $w'
    process = own.popen(
        ["sh", "-c", around, "sh", own.python, "-m", "deadstop", *words], env=variables(own), start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = process.communicate(timeout=15)
    assert out.decode() == ("alive 124\n" if "trap" in payload else "alive 137\n"), err
    own.no_survivors(within=1)  # the witness, killed a moment ago by its own shell


# -- 83: the processors are busy -------------------------------------------------------------------------------------


@on(SPREAD)
@pytest.mark.alone
def test_83_the_limit_is_kept_under_full_load(host: hosts.Host, isolation: str) -> None:
    spin = ["timeout", "-s", "KILL", "6", "sh", "-c", "while :; do :; done"]
    command = ["bash", "-c", text("83-exec-limit-checked-too-late.sh")]

    def beside_spinners() -> Ended:
        spinners = [
            host.popen(spin, stdin=subprocess.DEVNULL, start_new_session=True) for _ in range(os.cpu_count() or 2)
        ]
        try:
            return run(host, isolation, command, timeout=1, grace=0)
        finally:
            for spinner in spinners:
                os.killpg(spinner.pid, signal.SIGKILL)
                spinner.wait(timeout=10)

    def verify(ended: Ended) -> None:
        timed_out(ended)
        assert ended.out == "begin\n"
        assert ended.receipt["deadline_to_dead_ms"] < 500
        assert ended.elapsed < 1 + 0.5 + 0.5  # the end of two interpreters under load included
        assert ended.diagnosis["kind"] == "cpu_spin"
        assert sum(process["cpu_s"] or 0 for process in ended.processes) > 0.1

    judge(beside_spinners, verify)
