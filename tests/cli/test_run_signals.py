# SPDX-License-Identifier: Apache-2.0
"""A signal to `deadstop run` ends what it runs, and so does its own death."""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from hosts import Host, within

# Of one kind with namespaces and one without; tests/cases and tests/library/test_supervisor_life.py have them all.
HOSTS = ("user", "no-userns-no-cgroup")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PIPES: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
ROUNDS = 10
CROWD = 200

OBEDIENT = 'echo ready > "$1"; sleep 60 & wait'
# The shell and its child ignore TERM; so does what has left for a session of its own.
HOSTILE = "trap '' TERM INT HUP; setsid sleep 60 & sleep 60 & echo ready > \"$1\"; while :; do sleep 1; done"

# Half of them double-forked into sessions of their own; none of them listens; each one says that it is there.
CROWD_SOURCE = """
import os, signal, sys
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
    signal.signal(number, signal.SIG_IGN)
read, write = os.pipe()
for index in range(int(sys.argv[1])):
    if os.fork() == 0:
        if index % 2:
            os.setsid()
            if os.fork():
                os._exit(0)
        os.write(write, b"1")
        while True:
            signal.pause()
for index in range(int(sys.argv[1])):
    assert os.read(read, 1)
with open(sys.argv[2], "w") as file:
    file.write("ready")
while True:
    signal.pause()
"""


def _written(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _finish(process: subprocess.Popen[bytes], within: float) -> dict[str, Any]:
    """Its result, which must be the one line on stdout, and exit status 130 for a cancelled call."""
    try:
        out, err = process.communicate(timeout=within)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate(timeout=10)
        raise
    assert (process.returncode, len(out.splitlines())) == (130, 1), (out[-500:], err.decode()[-2000:])
    result: dict[str, Any] = json.loads(out)
    return result


@pytest.mark.parametrize("payload", [OBEDIENT, HOSTILE], ids=["obedient", "hostile"])
def test_each_signal_cancels_and_leaves_nothing(host: Host, payload: str) -> None:
    """Three runs at once, one signal each."""
    marks = [host.folder / f"ready-{number.name}" for number in SIGNALS]
    words = ["run", "--json", "--timeout", "30", "--", "bash", "-c", payload, "bash"]
    processes = [host.start(*words, str(mark), **PIPES) for mark in marks]
    try:
        for mark in marks:
            within(15, lambda mark=mark: _written(mark))  # type: ignore[misc]
        for process, number in zip(processes, SIGNALS, strict=True):
            process.send_signal(number)
        sent = time.monotonic()
        for process in processes:
            result = _finish(process, 10)
            assert (result["status"], result["reason"], result["limit"]) == ("cancelled", "caller", None)
            assert (result["receipt"]["survivors"], result["receipt"]["proof"]) == (0, host.proof)
            assert "SIGTERM" in result["receipt"]["method"]
            assert result["receipt"]["escalated"] is (payload == HOSTILE)
        assert time.monotonic() - sent < 3
        host.no_survivors()
    finally:
        for process, mark in zip(processes, marks, strict=True):
            process.kill()
            process.communicate(timeout=10)
            mark.unlink(missing_ok=True)


def test_without_json_the_verdict_says_that_it_was_cancelled(one_host: Host) -> None:
    mark = one_host.folder / "ready"
    process = one_host.start("run", "--", "bash", "-c", OBEDIENT, "bash", str(mark), **PIPES)
    try:
        within(15, lambda: _written(mark))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
        assert (process.returncode, out) == (130, b"")
        assert b"cancelled by the caller" in err and b"none left" in err and b"Traceback" not in err
    finally:
        process.kill()
        process.communicate(timeout=10)
        mark.unlink(missing_ok=True)


def test_a_second_interrupt_during_the_grace_ends_at_once(host: Host) -> None:
    mark, heard = host.folder / "ready", host.folder / "heard"
    payload = 'trap "echo TERM > $2" TERM; echo ready > "$1"; while :; do sleep 0.05; done'
    words = ["run", "--json", "--timeout", "30", "--grace", "5s", "--", "bash", "-c", payload, "bash"]
    process = host.start(*words, str(mark), str(heard), **PIPES)
    try:
        within(15, lambda: _written(mark))
        process.send_signal(signal.SIGINT)
        first = time.monotonic()
        within(10, lambda: _written(heard))  # SIGTERM is out: this is the grace
        process.send_signal(signal.SIGINT)
        second = time.monotonic()
        result = _finish(process, 10)
        assert time.monotonic() - second < 1
        assert time.monotonic() - first < 4
        assert (result["status"], result["receipt"]["survivors"]) == ("cancelled", 0)
        assert result["receipt"]["escalated"] is True
    finally:
        process.kill()
        process.communicate(timeout=10)
        mark.unlink(missing_ok=True)
        heard.unlink(missing_ok=True)


def test_two_signals_that_arrive_together_are_a_second_interrupt(one_host: Host) -> None:
    """A supervisor that was stopped for a while reads both in one go."""
    mark = one_host.folder / "ready"
    words = ["run", "--json", "--timeout", "30", "--grace", "5s", "--", "bash", "-c", HOSTILE, "bash", str(mark)]
    process = one_host.start(*words, **PIPES)
    try:
        within(15, lambda: _written(mark))
        for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
            process.send_signal(number)
        begin = time.monotonic()
        assert _finish(process, 10)["status"] == "cancelled"
        assert time.monotonic() - begin < 2
    finally:
        process.kill()
        process.communicate(timeout=10)
        mark.unlink(missing_ok=True)


def _catches(process: subprocess.Popen[bytes], number: signal.Signals) -> bool:
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def test_a_signal_before_the_boundary_is_ready_is_not_lost(host: Host) -> None:
    """Sent as soon as it is caught, while the boundary is still being made, or the command just begins."""
    for number in (signal.SIGTERM, signal.SIGHUP) * 3:
        process = host.start("run", "--json", "--timeout", "5", "--grace", "0", "--", "sleep", "60", **PIPES)
        within(10, lambda process=process, number=number: _catches(process, number))  # type: ignore[misc]
        process.send_signal(number)
        begin = time.monotonic()
        result = _finish(process, 10)
        assert time.monotonic() - begin < 2
        assert result["status"] == "cancelled"
        host.no_survivors()


def test_a_hangup_that_nohup_ignores_is_ignored(one_host: Host) -> None:
    mark = one_host.folder / "ready"
    payload = 'echo ready > "$1"; read line; echo "$line"'
    cli = [one_host.python, "-m", "deadstop", "run", "--timeout", "20", "--stdin", "--", "bash", "-c", payload, "bash"]
    words = ["bash", "-c", 'trap "" HUP; exec "$@"', "bash", *cli, str(mark)]
    process = one_host.popen(words, **{**PIPES, "stdin": subprocess.PIPE})
    try:
        within(15, lambda: _written(mark))
        process.send_signal(signal.SIGHUP)
        out, _ = process.communicate(b"still here\n", timeout=10)
        assert (process.returncode, out) == (0, b"still here\n")
    finally:
        process.kill()
        process.communicate(timeout=10)
        mark.unlink(missing_ok=True)


def _kill_over_a_crowd(host: Host, mark: Path) -> float:
    """Seconds from SIGKILL of the command line's process until the real /proc shows none of its crowd."""
    crowd = ["--", host.python, "-c", CROWD_SOURCE, str(CROWD), str(mark)]
    process = host.start("run", "--timeout", "60", *crowd, **PIPES)
    try:
        within(20, lambda: _written(mark))
        assert len(host.survivors()) > CROWD
        process.kill()
        return within(5, lambda: not host.survivors())
    finally:
        process.kill()
        process.communicate(timeout=10)
        mark.unlink(missing_ok=True)


@pytest.mark.slow
def test_sigkill_of_the_supervisor_takes_a_hostile_crowd_along(host: Host) -> None:
    times = [_kill_over_a_crowd(host, host.folder / "ready") for _ in range(ROUNDS)]
    middle, worst = statistics.median(times) * 1000, max(times) * 1000
    print(f"{host.name}: {CROWD} gone after p50 {middle:.0f} ms, worst {worst:.0f} ms")
    assert max(times) < 0.5
