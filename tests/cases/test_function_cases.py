# SPDX-License-Identifier: Apache-2.0
"""Python functions that are known to break tool runners, from every kind of caller. They are kept in inputs/."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import function_cases
import pytest
from function_cases import SLACK_S, Told, at_most, ends_well, gone, measured, measured_once

import hosts
from hosts import Host

AT_ONCE = ("main_thread_at_once", "twenty_threads", "awaited")
ONE_BY_ONE = ("main_thread", "blocking_the_loop")


def ways(host: str) -> tuple[str, ...]:
    """From the main thread, from threads, from a loop: everywhere. One after another as well: on one of each kind."""
    return (*AT_ONCE, *ONE_BY_ONE) if host in hosts.each_kind() else AT_ONCE


def facts(host: Host, section: str, *, by_itself: bool = False) -> Any:
    return function_cases.facts(host, section, by_itself=by_itself, together=ways(host.name))


def timed_out(host: Host, result: Told) -> None:
    assert result["status"] == "timeout", (result["status"], result["value"], result["error"])
    assert result["limit"] == {"which": "call", "seconds": result["limit_s"], "source": "given"}
    assert result["elapsed"] >= result["limit_s"] and not result["ok"] and result["value"] is None
    gone(host, result)


def crashed(exit_code: int | None, number: int | None) -> Callable[[Host, Told], None]:
    def verify(host: Host, result: Told) -> None:
        assert (result["status"], result["exit_code"], result["signal"]) == ("crashed", exit_code, number)
        assert result["elapsed"] < 2
        gone(host, result)

    return verify


def prints(text: str, verify: Callable[[Host, Told], None]) -> Callable[[Host, Told], None]:
    def both(host: Host, result: Told) -> None:
        verify(host, result)
        assert text in result["stdout"]["tail"]

    return both


def gives(value: object) -> Callable[[Host, Told], None]:
    def verify(host: Host, result: Told) -> None:
        assert (result["status"], result["value"]) == ("completed", value), result["error"]

    return verify


def leaves_a_process(host: Host, result: Told) -> None:
    """It returns what cannot be sent, and its child in no group of its own: ended, and its caller is not."""
    assert (result["status"], result["error"]["type"]) == ("error", "TypeError")
    assert result["leftover"] == ["sleep"]
    gone(host, result)


EXPECTED: dict[str, Callable[[Host, Told], None]] = {
    **dict.fromkeys("48 49 50 51 52 53 56 57 59 60 66 72 81 84".split(), timed_out),
    "54": crashed(None, 11), "55": prints("half done\n", crashed(0, None)), "61": crashed(None, 9),
    "64": gives("got it"), "67": prints('{"answer": 42}\n', gives(None)), "74": gives(3), "76": leaves_a_process,
}  # fmt: skip


def found(host: Host, way: str, case: str) -> list[Told]:
    told = facts(host, way)
    return [result for name, result in told if name == case] if way == "twenty_threads" else [told[case]]


@pytest.mark.parametrize("case", EXPECTED)
@pytest.mark.parametrize(
    ("host", "way"), [(host, way) for host in hosts.available() for way in ways(host)], indirect=["host"]
)
def test_case(host: Host, way: str, case: str) -> None:
    results = found(host, way, case)
    assert len(results) == (3 if way == "twenty_threads" else 1)
    for result in results:
        assert result["leash"] == "let go"
        assert result["elapsed"] <= result["limit_s"] + SLACK_S
        EXPECTED[case](host, result)


@pytest.mark.parametrize("host", hosts.each_kind(), indirect=True)
def test_shared_memory_of_case_66_is_removed_or_named(host: Host) -> None:
    result = facts(host, "main_thread")["66"]
    name = result["stdout"]["tail"].strip().lstrip("/")
    left = Path("/dev/shm") / name
    there = left.exists()
    left.unlink(missing_ok=True)
    assert not there or str(left) in result["leftover"]


@measured_once
def test_all_at_once_take_no_longer_than_the_longest(host: Host) -> None:
    assert facts(host, "main_thread_at_once", by_itself=measured(host))["_s"] < at_most(host, 0.6 + SLACK_S)
    assert facts(host, "awaited", by_itself=measured(host))["_s"] < at_most(host, 0.6 + SLACK_S)


@measured_once
def test_the_loop_is_never_late_while_all_of_them_run(host: Host) -> None:
    """Case 51 and 53: what holds the interpreter's lock holds nobody else's."""
    assert facts(host, "awaited", by_itself=measured(host))["_late_s"] < at_most(host, 0.1)


def test_case_49_the_program_ends_at_once(host: Host) -> None:
    facts(host, "awaited")
    assert facts(host, "_exit_s") < at_most(host, 1.0)


def test_at_the_end_there_are_only_idle_workers(host: Host) -> None:
    ends_well(facts(host, "quiet"))
