# SPDX-License-Identifier: Apache-2.0
"""A `deadstop run` inside a command of another one ends before it, and still says how."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hosts import Host

# Of one kind with namespaces and one without; tests/cases and tests/library/test_supervisor_life.py have them all.
HOSTS = ("user", "no-userns-no-cgroup")

Result = dict[str, Any]


def _inner(outer: Result) -> Result:
    """The result that the inner run printed, which is all that the outer one saw on stdout."""
    lines = outer["stdout"]["tail"].splitlines()
    assert len(lines) == 1, (outer["status"], lines, outer["stderr"]["tail"])
    result: Result = json.loads(lines[0])
    return result


def _nest(host: Host, *words: str, outer: tuple[str, ...] = ("--timeout", "2")) -> tuple[Result, Result]:
    """The results of the outer and of the inner run."""
    result = host.run(*outer, "--", host.python, "-m", "deadstop", "run", "--json", *words)
    return result, _inner(result)


def test_the_inner_one_ends_before_the_outer_limit_with_its_own_receipt(host: Host) -> None:
    outer, inner = _nest(host, "--timeout", "60", "--", "sleep", "50")
    assert (outer["status"], outer["exit_code"], outer["limit"]) == ("completed", 124, None)
    assert outer["duration_s"] < 2
    assert (inner["status"], inner["limit"]["which"], inner["limit"]["source"]) == ("timeout", "parent", "inherited")
    assert 1 < inner["limit"]["seconds"] < 2
    assert inner["duration_s"] < 2
    assert (inner["receipt"]["survivors"], inner["receipt"]["proof"]) == (0, host.proof)
    assert inner["call_id"] != outer["call_id"]


@pytest.mark.alone
def test_a_long_grace_of_the_inner_one_does_not_outlast_the_outer(host: Host) -> None:
    hostile = "trap '' TERM; sleep 50 & wait; while :; do sleep 1; done"
    outer, inner = _nest(host, "--timeout", "60", "--grace", "30s", "--", "bash", "-c", hostile)
    assert (outer["status"], outer["exit_code"]) == ("completed", 124)
    assert (inner["status"], inner["limit"]["which"]) == ("timeout", "parent")
    assert inner["receipt"]["survivors"] == 0 and inner["receipt"]["escalated"] is True


def test_an_inner_limit_that_is_nearer_is_its_own(host: Host) -> None:
    outer, inner = _nest(host, "--timeout", "0.5", "--", "sleep", "50", outer=("--timeout", "10"))
    assert (outer["status"], outer["exit_code"]) == ("completed", 124)
    assert inner["limit"] == {"which": "call", "seconds": 0.5, "source": "given"}
    assert inner["duration_s"] < 2


def test_a_call_without_a_limit_of_its_own_has_its_parents(one_host: Host) -> None:
    outer, inner = _nest(one_host, "--timeout", "none", "--", "sleep", "50")
    assert (outer["status"], inner["status"], inner["limit"]["which"]) == ("completed", "timeout", "parent")


def test_three_levels_each_report(one_host: Host) -> None:
    inmost = [one_host.python, "-m", "deadstop", "run", "--json", "--timeout", "60", "--", "sleep", "50"]
    outer, second = _nest(one_host, "--timeout", "60", "--", *inmost, outer=("--timeout", "3"))
    third = _inner(second)
    assert [level["status"] for level in (outer, second, third)] == ["completed", "completed", "timeout"]
    assert third["limit"]["which"] == "parent"
    assert third["duration_s"] < second["duration_s"] < outer["duration_s"] < 3


def test_a_command_that_completes_inside_is_untouched(one_host: Host) -> None:
    outer, inner = _nest(one_host, "--", "bash", "-c", "echo out; exit 5", outer=("--timeout", "10"))
    assert (outer["exit_code"], inner["exit_code"], inner["stdout"]["tail"]) == (5, 5, "out\n")


@pytest.mark.parametrize("over", ["0", "0.0", "1.5"])
def test_a_deadline_that_is_over_refuses_and_starts_nothing(one_host: Host, over: str) -> None:
    marker = one_host.folder / "started"
    done = one_host.cli("run", "--json", "--", "touch", str(marker), env={"DEADSTOP_DEADLINE": over})
    result = json.loads(done.stdout)
    assert (done.returncode, result["status"], result["reason"]) == (125, "refused", "deadline_over")
    assert (result["limit"]["which"], result["receipt"]) == ("parent", None)
    assert not marker.exists()


@pytest.mark.parametrize("garbage", ["soon", "", "nan", "inf", "-1", "12s"])
def test_garbage_for_a_deadline_is_a_usage_error(one_host: Host, garbage: str) -> None:
    marker = one_host.folder / "started"
    done = one_host.cli("run", "--", "touch", str(marker), env={"DEADSTOP_DEADLINE": garbage})
    lines = done.stderr.decode().splitlines()
    assert (done.returncode, done.stdout, len(lines)) == (125, b"", 1)
    assert "DEADSTOP_DEADLINE" in lines[0] and repr(garbage) in lines[0]
    assert not marker.exists()
