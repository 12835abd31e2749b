# SPDX-License-Identifier: Apache-2.0
"""Tools, modules and moments that mean harm: no limit is missed, no result mixed up, and nothing stays or is lost."""

from __future__ import annotations

from typing import Any

import pytest
from calling import facts, run

import hosts
from hosts import Host

# Of one kind with namespaces and one without; tests/cases and tests/library/test_supervisor_life.py have them all.
HOSTS = ("user", "no-userns-no-cgroup")

Told = dict[str, Any]
NAMES = list(hosts.available())
two_hosts = pytest.mark.parametrize("host", hosts.each_kind(), indirect=True)
a_host = pytest.mark.parametrize("host", [NAMES[0]], indirect=True)
a_sandbox_host = pytest.mark.parametrize("namespace_host", ["user"], indirect=True)


_told: dict[tuple[str, str], Told] = {}


def apart(host: Host, section: str) -> Any:
    """A section that would disturb the others: in a program of its own."""
    key = (host.mark, section)
    if key not in _told:
        _told[key] = run(host, "attacks", section)
    found = _told[key][section]
    assert not (isinstance(found, dict) and "problem" in found), found["problem"]
    return found


def gave(told: Told, value: object) -> None:
    assert (told.get("status"), told.get("value")) == ("completed", value), told


def timed_out(told: Told, limit: float, slack: float = 1.5) -> None:
    assert told.get("status") == "timeout" and not told["ok"], told
    assert limit - 0.005 <= told["elapsed"] < limit + slack, told["elapsed"]


# -- who keeps the limit is stopped ------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [NAMES[0], "no-userns", "no-userns-no-cgroup"], indirect=True)
def test_a_tool_that_stops_its_parent_ends_at_its_limit(host: Host) -> None:
    """On hosts without namespaces that is its reaper. The section waits until it and all workers are gone."""
    told = apart(host, "stopped_parent")
    timed_out(told, 0.5)
    gave(told["sibling"], "sibling")
    assert told["sibling"]["elapsed"] < 1.8 + 1.5
    assert told["next"] == 2


@pytest.mark.alone
@two_hosts
def test_a_stopped_supervisor_holds_no_wait_beyond_the_limit(host: Host) -> None:
    told = apart(host, "stopped_supervisor")
    gave(told.pop("next"), 2)
    assert len(told) == 6
    for how, one in told.items():
        assert "raised" not in one, (how, one)
        assert one["status"] in (("timeout", "cancelled") if how.endswith("token") else ("timeout",)), (how, one)
        assert one["elapsed"] < 0.5 + 1.5, (how, one["elapsed"])


@two_hosts
def test_a_call_that_completed_is_completed_though_the_supervisor_lags(host: Host) -> None:
    told = apart(host, "lagging_supervisor")
    gave(told, "printed")
    assert told["ok"] and told["late"] is None and told["limit"] is None and told["elapsed"] < 5


# -- whose deadline, whose result --------------------------------------------------------------------------------------


@two_hosts
def test_a_late_answer_ends_no_deadline_but_its_own(host: Host) -> None:
    told = apart(host, "late_answer")
    assert told["a"]["status"] in ("completed", "timeout")
    assert len(told["b"]) == 3
    for one in told["b"]:
        timed_out(one, 1.0)


@two_hosts
def test_a_kept_worker_gives_each_of_two_threads_its_own_result(host: Host) -> None:
    assert facts(host, "attacks", "kept_by_two_threads") == []


@two_hosts
def test_a_kept_worker_that_is_closed_in_the_middle_of_a_call(host: Host) -> None:
    told = facts(host, "attacks", "kept_closed_in_the_middle")
    assert told["elapsed"] < 2 and not told.get("ok"), told
    assert "raised" not in told or told["raised"].startswith("UsageError"), told
    assert told["after"]["raised"].startswith("UsageError") and told["next"] == 2


@two_hosts
def test_a_kept_worker_in_a_forked_child_begins_anew(host: Host) -> None:
    told = facts(host, "attacks", "kept_in_a_forked_child")
    value, raised = eval(told["child"])
    assert raised is None and value is not None
    if host.deny:  # in namespaces every worker has the same pid
        assert value != told["first"]
    assert (told["again"], told["generation"]) == (told["first"], 1)


# -- async -------------------------------------------------------------------------------------------------------------


@two_hosts
def test_the_first_async_call_of_a_function_keeps_deadlines_and_variables(host: Host) -> None:
    told = facts(host, "attacks", "first_async_call")
    timed_out(told["block"], 0.3)
    timed_out(told["task"], 0.3)
    assert told["variable"] == "the caller's" and told["touched"] is False


@two_hosts
def test_a_call_cancelled_while_its_module_loads_never_runs(host: Host) -> None:
    """The section waits until no worker is missing."""
    told = facts(host, "attacks", "cancelled_while_it_loads")
    assert told == {"got": ["cancelled"] * 4, "ran": [False] * 4, "next": 2}


# -- modules -----------------------------------------------------------------------------------------------------------


@two_hosts
def test_a_batch_goes_on_while_another_calls_module_loads(host: Host) -> None:
    quick, slow = facts(host, "attacks", "batch_beside_a_slow_module")
    gave(slow, "slow")
    gave(quick, "quick")
    assert quick["late"] is None and quick["duration_s"] < 0.6


@pytest.mark.parametrize(
    ("host", "how"), [(NAMES[0], "hangs"), *((name, "exits") for name in hosts.each_kind())], indirect=["host"]
)
def test_a_module_that_spoils_its_second_import_costs_a_few_seconds_once(host: Host, how: str) -> None:
    told = apart(host, f"{how}_at_second_import")
    gave(told["first"], 1)
    for one in told["others"]:
        assert one.get("status") == "timeout", one
    elapsed = sorted(one["elapsed"] for one in [*told["others"], told["next"]])
    assert elapsed[-1] < 12 and elapsed[-2] < 1.7, elapsed
    gave(told["next"], 2)


@two_hosts
def test_a_module_that_was_reloaded_runs_as_it_is_now(host: Host) -> None:
    told = facts(host, "attacks", "reloaded")
    assert told == {"old": ["old"] * 2, "new": ["new, and longer than before"] * 4}


@two_hosts
def test_a_token_ends_a_call_whose_module_loads(host: Host) -> None:
    told = facts(host, "attacks", "cancelled_while_its_module_loads")
    assert told.get("status") == "cancelled" and 0.29 < told["elapsed"] < 0.3 + 1.5, told


@two_hosts
def test_a_module_that_forks_at_import_is_not_warmed_and_its_child_is_ended(host: Host) -> None:
    told = facts(host, "attacks", "forks_at_import")
    for one in told["results"]:
        gave(one, 1)
    for one in told["others"]:
        timed_out(one, 0.1)
    assert not [name for name in told["importers"] if name.startswith("deadstop-nurs")]
    assert told["leash"] == "let go"


@two_hosts
def test_a_child_that_a_module_forks_in_the_nursery_is_ended(host: Host) -> None:
    told = facts(host, "attacks", "forks_in_the_nursery")
    for one in (*told["results"], told["again"]):
        gave(one, 1)
    for one in told["others"]:
        timed_out(one, 0.1)
    assert told["leash"] != "held"


# -- what goes along ---------------------------------------------------------------------------------------------------


@a_host
def test_an_argument_whose_state_raises_is_refused(host: Host) -> None:
    told = facts(host, "attacks", "pickling")
    assert told["state"].get("status") == "refused", told["state"]
    assert "has no state" in told["state"]["error"]["message"]
    assert told["next"] == 2


@a_host
@pytest.mark.parametrize("how", ["sys_exit", "exit"])
def test_an_exception_that_exits_when_it_is_loaded_is_an_error(host: Host, how: str) -> None:
    """The caller lives, or there would be nothing to look at."""
    told = facts(host, "attacks", "pickling")[how]
    assert told.get("status") == "error", told


@a_host
def test_a_global_with_the_name_of_an_attribute_stays_here(host: Host) -> None:
    told = facts(host, "attacks", "pickling")
    gave(told["attribute"], 4)
    assert told["tattled"] == 0


@two_hosts
def test_a_variable_of_a_module_that_only_the_caller_has_is_left_out(host: Host) -> None:
    told = facts(host, "attacks", "variable_of_a_module_that_only_the_caller_has")
    gave(told["process"], 2)
    gave(told["closure"], "ran")


@a_sandbox_host
def test_a_variable_of_a_module_that_a_sandbox_has_not_is_left_out(namespace_host: Host) -> None:
    told = apart(namespace_host, "variable_outside_a_sandbox")
    gave(told["without"], "ran")
    gave(told["with"], "ran")


@two_hosts
def test_signals_alarms_and_the_umask_of_a_call_are_not_the_next_ones(host: Host) -> None:
    told = facts(host, "attacks", "left_in_the_process")
    assert told["left"].get("status") == "completed", told["left"]
    for one in told["next"]:
        gave(one, told["clean"])


# -- few of something, and signals -------------------------------------------------------------------------------------


@a_host
def test_a_very_long_import_path(host: Host) -> None:
    first, second, hung, third = apart(host, "long_import_path")
    gave(first, 2)
    gave(second, 3)
    timed_out(hung, 0.2)
    gave(third, 4)


@two_hosts
def test_few_descriptors_are_a_refusal_and_no_end_of_the_supervisor(host: Host) -> None:
    told = apart(host, "few_descriptors")
    gave(told["first"], "first")
    for one in told["many"]:
        if "raised" in one:
            assert one["raised"].startswith("BoundaryUnavailable"), one
        else:
            assert set(one["value"]) <= {"completed", "refused"}, one
        assert one["elapsed"] < 10
    assert told["after"].get("value") == "after", told["after"]
    assert told["same"]


@a_host
def test_interrupts_at_random_moments_lose_nothing(host: Host) -> None:
    told = apart(host, "interrupts")
    assert told["count"] == 0, told["wrong"]
    (workers, rest), (workers_after, rest_after) = told["before"], told["after"]
    assert workers_after <= max(workers, 9) and rest_after <= rest, told


@a_host
def test_a_signal_handler_that_makes_a_call_during_the_first_one(host: Host) -> None:
    told = apart(host, "handler_makes_a_call")
    gave(told["first"], 2)
    (heard,) = told["heard"]
    assert "raised" in heard or heard["value"] == 3, heard
    assert heard["elapsed"] < 5 and told["next"] == 4


# -- hostile answers of a sandbox --------------------------------------------------------------------------------------


@a_sandbox_host
@pytest.mark.parametrize("what", ["colliding", "document", "messages", "pipe"])
def test_a_hostile_answer_takes_bounded_time_and_raises_nothing(namespace_host: Host, what: str) -> None:
    told = apart(namespace_host, "hostile_answers")[what]
    assert "raised" not in told, told
    assert told["elapsed"] < 1 + 5, (told["status"], told["elapsed"])
    assert told["status"] == "completed" if what == "document" and told["ok"] else told["status"] != "completed"


@a_sandbox_host
def test_after_hostile_answers_a_sandbox_is_as_new(namespace_host: Host) -> None:
    gave(apart(namespace_host, "hostile_answers")["next"], "fine")


@a_sandbox_host
def test_a_worker_in_a_sandbox_serves_one_call(namespace_host: Host) -> None:
    """What one call does to its worker reaches no other, unless the worker is kept."""
    told = apart(namespace_host, "one_call_in_a_sandbox")
    assert told["marked"] == [False] * 3 and told["kept"] == [False, True, True]
    assert told["honest"] == ["honest"] * 4
