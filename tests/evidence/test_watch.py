# SPDX-License-Identifier: Apache-2.0
"""The watcher that runs beside a call and says that it waits for input."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from contextlib import ExitStack, contextmanager

import pytest
from live_case import Case
from zoo_field import ZOO, Servers

from deadstop.boundary.evidence import watch_input

PY = sys.executable


@contextmanager
def watched(case: Case):
    """Run the watcher as the supervisor does, in a child; yields what waits for the next report."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            watch_input(case.view(), lambda report: _tell(writer, report))
        finally:
            os._exit(0)
    os.close(writer)
    pending = b""

    def next_report(within: float) -> dict | None:
        nonlocal pending
        end = time.monotonic() + within
        while b"\n" not in pending:
            ready = select.select([reader, case._read_end], [], [], max(0.0, end - time.monotonic()))[0]
            if not ready:
                return None
            if case._read_end in ready:
                case.pump()
            if reader in ready:
                data = os.read(reader, 4096)
                if not data:
                    return {"over": True}
                pending += data
        line, pending = pending.split(b"\n", 1)
        return json.loads(line)

    try:
        yield next_report
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)


def _tell(writer: int, report: dict) -> None:
    os.write(writer, json.dumps({**report, "at": time.monotonic()}).encode() + b"\n")


WAITS = {
    "bash": (["bash", "-c", "read -p 'Go on? ' x"], "open"),
    "bash on a terminal": (["bash", "-c", "read -p 'Go on? ' x"], "tty"),
    "after work": (["bash", "-c", "sleep 0.5; read x"], "open"),
    "pipeline": (["bash", "-c", "cat | wc -l"], "open"),
    "select again": ([PY, f"{ZOO}/poller.py", "select_again"], "open"),
    "getpass": ([PY, "-c", "import getpass; getpass.getpass()"], "tty"),
    "asyncio": ([PY, f"{ZOO}/asyncio_stdin.py"], "open"),
    "beside a thread that ticks": ([PY, f"{ZOO}/ticks_and_reads.py"], "open"),
    "asyncio thread": ([PY, f"{ZOO}/asyncio_thread_stdin.py"], "open"),
}


@pytest.mark.alone
@pytest.mark.parametrize("name", WAITS)
def test_found_within_half_a_second_of_going_quiet(name: str) -> None:
    argv, stdin = WAITS[name]
    with Case(argv, stdin) as case, watched(case) as next_report:
        report = next_report(6.0)
        assert report is not None, "not recognised"
        assert report["waiting"] is True
        assert report["pid"] > 0
        assert "reads" in report["detail"]
        assert report["at"] - report["since"] < 0.5


ALARMLESS = {
    "computing": (["bash", "-c", "while :; do :; done"], "open"),
    "sleeping loop": (["bash", "-c", "while :; do sleep 0.3; done"], "open"),
    "one sleep": (["sleep", "1000"], "open"),
    "network": ([PY, f"{ZOO}/connect.py", "127.0.0.1", "{silent}"], "open"),
    "stdin thread beside work": ([PY, f"{ZOO}/stdin_thread_work.py"], "open"),
    "stdin thread beside the network": ([PY, f"{ZOO}/stdin_thread_network.py", "{silent}"], "open"),
    "stdin thread beside a sleeping loop": ([PY, f"{ZOO}/stdin_thread_sleeps.py"], "open"),
    "server with stdin open": ([PY, f"{ZOO}/asyncio_server.py"], "open"),
    "background child works": (["bash", "-c", "(while :; do :; done) & wait"], "open"),
}


def test_not_alarmed_by_programs_that_do_not_wait_for_input() -> None:
    servers = Servers()
    with ExitStack() as stack:
        stack.callback(servers.close)
        started = []
        for name, (argv, stdin) in ALARMLESS.items():
            words = [word.replace("{silent}", servers.ports["silent"]) for word in argv]
            case = stack.enter_context(Case(words, stdin))
            started.append((name, stack.enter_context(watched(case))))
        end = time.monotonic() + 2.5
        alarms = [name for name, next_report in started if next_report(max(0.0, end - time.monotonic()))]
        assert alarms == []


def test_goes_on_when_answered_and_waits_again() -> None:
    with (
        Case(["bash", "-c", "read a; echo $a; read b; echo $b"], "open") as case,
        watched(case) as next_report,
    ):
        first = next_report(5.0)
        assert first is not None and first["waiting"] is True
        os.write(case.input, b"one\n")
        gone_on = next_report(2.0)
        assert gone_on is not None and gone_on["waiting"] is False
        second = next_report(2.0)
        assert second is not None and second["waiting"] is True
        assert second["since"] > first["since"]


def test_a_wait_polled_with_a_time_limit_is_reported_once() -> None:
    with Case([PY, f"{ZOO}/poller.py", "select_again"], "open") as case, watched(case) as next_report:
        assert next_report(5.0) is not None
        assert next_report(1.5) is None


def test_ends_when_the_call_is_over() -> None:
    with Case(["bash", "-c", "read a"], "open") as case, watched(case) as next_report:
        assert next_report(5.0) is not None
        os.write(case.input, b"x\n")
        reports = [next_report(3.0), next_report(3.0)]
        assert {"over": True} in reports
