# SPDX-License-Identifier: Apache-2.0
"""The Python functions in inputs/ that are known for a course of events: each is a section of its own."""

from __future__ import annotations

from typing import Any

import function_cases
from function_cases import SLACK_S, at_most, ends_well, measured, measured_once

import hosts
from hosts import Host

HOSTS = hosts.each_kind()

COURSES = ("twenty_threads_same", *(f"case_{number}" for number in (50, 56, 62, 64, 68, 73, 74, 80, 81, 84, 85)))


def facts(host: Host, section: str, *, by_itself: bool = False) -> Any:
    return function_cases.facts(host, section, by_itself=by_itself, together=COURSES)


def test_case_60_from_twenty_threads_in_the_same_moment(host: Host) -> None:
    told = facts(host, "twenty_threads_same")
    assert len(told) == 20
    for status, elapsed, survivors in told:
        assert status == "timeout" and 0.5 <= elapsed < 0.5 + SLACK_S and survivors == 0


@measured_once
def test_case_50_the_loop_closes_at_once(host: Host) -> None:
    told = facts(host, "case_50", by_itself=measured(host))
    assert (
        told["result"]["status"] == "timeout"
        and told["awaited_s"] < 0.5 + SLACK_S
        and told["closed_s"] < at_most(host, 1)
    )


@measured_once
def test_case_56_another_async_call_is_not_held_up(host: Host) -> None:
    value, elapsed, blocked = facts(host, "case_56", by_itself=measured(host))
    assert (value, blocked) == ("napped", "timeout") and elapsed < at_most(host, 0.5)


def test_case_62_one_crash_is_one_crash(host: Host) -> None:
    told = facts(host, "case_62")
    first, *others = told["results"]
    assert (first["status"], first["exit_code"]) == ("crashed", 1)
    assert [(one["status"], one["value"]) for one in others] == [("completed", 1), ("completed", 2)]
    assert told["next"] == "napped"


def test_case_64_a_lock_that_the_caller_holds_is_free_in_a_worker(host: Host) -> None:
    result = facts(host, "case_64")
    assert (result["status"], result["value"]) == ("completed", "got it") and result["elapsed"] < 2


@measured_once
def test_case_68_a_call_behind_two_that_hang(host: Host) -> None:
    told = facts(host, "case_68", by_itself=measured(host))
    first, second, third = told["results"]
    assert (first["status"], second["status"]) == ("timeout", "timeout")
    assert (third["status"], third["value"]) == ("completed", 2)
    assert (
        third["queued_s"] >= 0.3
        and third["duration_s"] < at_most(host, 0.2)
        and told["elapsed"] < at_most(host, 0.8 + 0.5)
    )


def test_case_73_the_wall_clock_moves_no_limit(host: Host) -> None:
    told = facts(host, "case_73")
    assert told["short"] == ["completed"] * 5
    assert told["result"]["status"] == "timeout" and 0.5 <= told["result"]["elapsed"] < 0.5 + SLACK_S


def test_case_74_a_status_that_nobody_collects_is_not_zero(host: Host) -> None:
    told = facts(host, "case_74")
    assert told["value"] == 3
    assert (told["crash"]["status"], told["crash"]["exit_code"]) == ("crashed", 0) and not told["crash"]["ok"]


def test_case_80_nothing_is_tried_again(host: Host) -> None:
    told = facts(host, "case_80")
    assert told["sent"] == 1
    assert told["result"]["status"] == "error" and told["result"]["error"]["type"] == "ConnectionResetError"
    assert told["result"]["retry_allowed"] is False


def test_case_81_no_thread_is_left_in_a_read(host: Host) -> None:
    told = facts(host, "case_81")
    assert told["result"]["status"] == "timeout" and told["threads"] == 0


@measured_once
def test_case_84_nothing_burns_on(host: Host) -> None:
    told = facts(host, "case_84", by_itself=measured(host))
    assert told["result"]["status"] == "timeout" and told["burned_s"] < 0.1


def test_case_85_an_attempt_is_over_before_the_next_begins(host: Host) -> None:
    told = facts(host, "case_85")
    (first, _, ended), (second, begun, _) = told["attempts"]
    for attempt in (first, second):
        assert attempt["status"] == "timeout" and attempt["receipt"]["survivors"] == 0
    assert ended <= begun and told["effects"] is False


def test_at_the_end_there_are_only_idle_workers(host: Host) -> None:
    ends_well(facts(host, "quiet"))
