# SPDX-License-Identifier: Apache-2.0
"""A thousand calls of every kind from twenty threads, and calls within a hair of their limit.

In full on one host, with nothing beside it; on the others fewer, beside other tests.
"""

from __future__ import annotations

from calling import at_most, facts, measured, measured_once

import hosts
from hosts import Host

HOSTS = hosts.each_kind()

LIMIT_S = 0.1
IDLE = 8  # workers that a pool keeps
MADE = 8  # those that were asked for when twenty waited, and that nobody has taken since


@measured_once
def test_many_calls_from_many_threads_each_get_their_own_result(host: Host) -> None:
    told = facts(host, "stress", "mixed")
    assert told["count"] == 0, told["wrong"]
    assert told["still"] == 0 and told["after"] == list(range(1, 11))
    assert told["elapsed"] < at_most(host, 30)


@measured_once
def test_after_them_nothing_of_ours_is_left_but_idle_workers(host: Host) -> None:
    told = facts(host, "stress", "mixed")
    assert told["threads"] == []
    assert told["names"].count("deadstop-worker") == told["workers"] <= IDLE + MADE


@measured_once
def test_a_call_within_a_hair_of_its_limit_is_either_in_time_or_killed(host: Host) -> None:
    """By the one line that decides: completed means read before the deadline, by the clock of the result."""
    told = facts(host, "stress", "hair")
    assert len(told) == (200 if measured(host) else 40)
    for one in told:
        if one["status"] == "completed":
            assert one["value"] == "in time" and one["ok"]
            assert one["duration_s"] <= LIMIT_S + 0.0005
        else:
            assert one["status"] == "timeout", one
            assert one["value"] is None and not one["ok"]
            assert one["receipt"] == [host.proof, 0]
            assert one["late"] in (None, "in time")
        assert one["elapsed"] < at_most(host, LIMIT_S + 1)


@measured_once
def test_both_ends_are_seen(host: Host) -> None:
    """Otherwise the hair test shows nothing."""
    told = facts(host, "stress", "hair")
    if measured(host):
        assert {one["status"] for one in told} == {"completed", "timeout"}
    assert all(one["status"] == "timeout" for one in told if one["offset"] > 0)


@measured_once
def test_a_new_closure_that_many_threads_call_at_once(host: Host) -> None:
    assert facts(host, "stress", "new_closures") == []


@measured_once
def test_every_crash_has_its_exit_code(host: Host) -> None:
    assert facts(host, "stress", "crashes") == []


@measured_once
def test_many_timeouts_leave_no_thread_and_no_process(host: Host) -> None:
    told = facts(host, "stress", "many_timeouts")
    assert told["statuses"] == ["timeout"] and told["survivors"] == 0 and told["threads"] == 0
    assert told["elapsed"] < at_most(host, 10)


@measured_once
def test_the_program_ends_at_once_after_all_that(host: Host) -> None:
    facts(host, "stress", "mixed")
    assert facts(host, "stress", "_exit_s") < at_most(host, 1.0)
