# SPDX-License-Identifier: Apache-2.0
"""Calls whose caller or supervisor is frozen, killed or forked."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from calling import BESIDE_S, at_most, measured_once, start

import hosts
from hosts import Host

# Of one kind with namespaces and one without; tests/cases and tests/library/test_supervisor_life.py have them all.
HOSTS = ("user", "no-userns-no-cgroup")

ANSWER_S = 1.5  # beyond its limit, for a call whose supervisor says nothing, even when asked


class Caller:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process, self.pid = process, process.pid
        self._read = b""

    def told(self, within: float = 15) -> Any:
        assert self.process.stdout is not None
        end = time.monotonic() + within
        while b"\n" not in self._read:
            assert select.select([self.process.stdout], [], [], max(0, end - time.monotonic()))[0], "it told nothing"
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            assert more, "it ended without a word"
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return json.loads(line)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)


@contextmanager
def caller(host: Host, what: str) -> Iterator[Caller]:
    process = start(host, "lost", what)
    try:
        yield Caller(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        if process.stdout:
            process.stdout.close()


_answers: dict[tuple[str, str], Any] = {}


def ask(host: Host, what: str) -> Any:
    """What it told. It is run once for all tests that look at it."""
    if (host.mark, what) not in _answers:
        with caller(host, what) as one:
            _answers[host.mark, what] = one.told()
    return _answers[host.mark, what]


def shown(host: Host) -> tuple[str, int | None]:
    """What a caller can see of a worker's end without its supervisor."""
    return ("pid_namespace_reaped", 0) if host.namespaces else ("none", None)


def holders(leash: str, without: int) -> int:
    """How many processes hold it."""
    held = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fds = os.listdir(f"/proc/{name}/fd")
            held += int(name) != without and any(os.readlink(f"/proc/{name}/fd/{fd}") == leash for fd in fds)
        except OSError:
            continue
    return held


@measured_once
def test_a_frozen_caller_moves_no_deadline(host: Host) -> None:
    with caller(host, "frozen_caller") as one:
        leash = one.told()["leash"]
        hosts.within(5, lambda: holders(leash, one.pid) > 0)
        begun = time.monotonic()
        one.signal(signal.SIGSTOP)
        try:
            hosts.within(5, lambda: holders(leash, one.pid) == 0)
            gone = time.monotonic() - begun
        finally:
            one.signal(signal.SIGCONT)
        told = one.told()
    assert gone < at_most(host, 0.6 + 0.5)
    result = told["result"]
    assert (result["status"], result["limit"]["which"]) == ("timeout", "call")
    assert result["receipt"]["survivors"] == 0 and result["receipt"]["proof"] == host.proof
    assert result["receipt"]["deadline_to_dead_ms"] < 1000 * at_most(host, 0.3)
    assert told["leash"] == "let go" and told["next"] == 2


@pytest.mark.alone
@pytest.mark.parametrize("host", hosts.each_kind(), indirect=True)
def test_an_answer_that_is_read_after_the_deadline_is_evidence_and_no_result(host: Host) -> None:
    """It came in time, but its caller stood still: whoever decides has to have read it before the deadline."""
    with caller(host, "late_answer") as one:
        one.told()
        time.sleep(0.1)  # nobody tells when the call has begun; both ends of this lie well inside its quarter second
        one.signal(signal.SIGSTOP)
        time.sleep(0.5)
        one.signal(signal.SIGCONT)
        told = one.told()
    result = told["result"]
    assert result["status"] == "timeout" and result["value"] is None and not result["ok"]
    assert result["late"]["kind"] == "value" and result["late_value"] == "value"
    assert result["receipt"]["survivors"] == 0
    assert told["next"] == 2


def test_a_killed_caller_takes_everything_along(host: Host) -> None:
    with caller(host, "killed_caller") as one:
        told = one.told()
        assert told["names"].count("deadstop-worker") >= 5
        one.signal(signal.SIGKILL)
        one.process.wait(5)
        host.no_survivors(within=2)


def test_a_supervisor_that_is_killed_leaves_an_unknown_outcome_with_proof(host: Host) -> None:
    told = ask(host, "supervisor_killed")
    result = told["result"]
    assert result["status"] == "unknown" and not result["ok"]
    assert (result["receipt"]["proof"], result["receipt"]["survivors"]) == shown(host)
    assert result["elapsed"] < 3 and result["error"]["type"] == "OutcomeUnknown"
    if host.namespaces:
        assert told["leash"] == "let go"
    assert any("supervisor" in line for line in result["degraded"])
    assert told["next"] == 2 and told["next_s"] < 5
    assert told["again"]["status"] == "timeout" and told["again"]["receipt"]["survivors"] == 0
    assert told["again_s"] < 3


def test_calls_after_the_supervisor_was_killed_between_them(host: Host) -> None:
    told = ask(host, "supervisor_killed_between")
    assert [(one["status"], one["value"]) for one in told["values"]] == [
        ("completed", 1), ("completed", 2), ("completed", 3),
    ]  # fmt: skip


def ended_without_its_supervisor(host: Host, what: str, within: float) -> None:
    told = ask(host, what)
    result = told["result"]
    assert (result["status"], result["limit"]["which"]) == ("timeout", "call")
    assert told["elapsed"] < within
    assert (result["receipt"]["proof"], result["receipt"]["survivors"]) == shown(host)
    assert any("supervisor" in line for line in result["degraded"])
    assert told["next"] == 2


@measured_once
def test_a_call_ends_though_its_supervisor_stands_still(host: Host) -> None:
    ended_without_its_supervisor(host, "supervisor_stopped", at_most(host, 0.5 + ANSWER_S + 0.5))


def test_an_async_call_ends_though_its_supervisor_stands_still(host: Host) -> None:
    ended_without_its_supervisor(host, "supervisor_stopped_async", 0.5 + ANSWER_S + 0.5 + BESIDE_S)


def test_the_call_after_a_supervisor_that_stood_still_has_another(host: Host) -> None:
    told = ask(host, "supervisor_stopped")
    assert told["next"] == 2 and told["next_s"] < 5 and told["gone"] is True


def test_a_fork_of_the_caller_has_workers_of_its_own(host: Host) -> None:
    with caller(host, "forked") as one:
        child, parent = one.told(), one.told()
    assert child == {"child": [6, "timeout", 2, 3]}
    assert (parent["parent"]["status"], parent["parent"]["value"]) == ("completed", "the parent's")
    assert parent["hung"]["status"] == "timeout" and parent["hung"]["receipt"]["survivors"] == 0
    assert parent["hung"]["receipt"]["proof"] == host.proof
    assert parent["status"] == 0 and parent["next"] == 2


@measured_once
def test_the_end_of_a_program_waits_for_no_call(host: Host) -> None:
    with caller(host, "ends_at_once") as one:
        one.told()
        begun = time.monotonic()
        assert one.process.wait(10) == 0
        assert time.monotonic() - begun < at_most(host, 1.0)
        host.no_survivors(within=at_most(host, 0.5))
