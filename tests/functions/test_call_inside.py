# SPDX-License-Identifier: Apache-2.0
"""What a tool sees of its caller, what it may do itself, and what it says while it runs."""

from __future__ import annotations

import itertools

from calling import at_most, facts, measured, measured_once

import hosts
from hosts import Host

HOSTS = hosts.each_kind()


def test_context_variables_travel_into_the_tool_and_not_back(host: Host) -> None:
    told = facts(host, "inside", "context")
    assert told["module"] == ["nobody's", "the caller's", "another's", "the tool's", "the caller's"]
    assert told["main"] == "main's"
    assert told["threads"] == [True] * 8
    assert told["nested"] == ["inner", "inner"]


def test_environment_folder_and_path_follow_the_caller(host: Host) -> None:
    told = facts(host, "inside", "surroundings")
    assert told["before"] == [None, True]
    assert told["during"] == ["yes", True, True] and told["several"] is True
    assert told["after"] == [None, True, True]


def test_a_call_begins_with_what_the_caller_has_whatever_the_one_before_changed(host: Host) -> None:
    assert facts(host, "inside", "surroundings")["untouched"] == [None, True, True]


def test_the_time_left_is_known_inside(host: Host) -> None:
    told = facts(host, "inside", "deadline")
    assert 1.5 < told["left"] <= 2 and 1.5 < told["inline"] <= 2
    assert 0.3 < told["block"] <= 0.8
    assert told["unlimited"] is None and told["outside"] is None


def test_an_inner_call_ends_before_its_outer_one(host: Host) -> None:
    told = facts(host, "inside", "nested_calls")
    for name in ("clamped", "run_clamped"):
        outer = told[name]
        assert outer["status"] == "completed" and outer["elapsed"] < 1.5 + 1
        assert outer["duration_s"] <= 1.5
        inner = outer["value"]
        assert inner["status"] == "timeout" and inner["limit"]["which"] == "parent"
        assert inner["receipt"]["survivors"] == 0


def test_an_inner_call_has_its_own_limit_and_result(host: Host) -> None:
    told = facts(host, "inside", "nested_calls")
    assert told["short"]["value"]["value"] == "slept"
    assert told["run_short"]["value"]["status"] == "completed"
    limited = told["inner_limit"]["value"]
    assert limited["status"] == "timeout" and limited["limit"]["seconds"] == 0.2 and limited["duration_s"] < 1


def test_the_time_left_shrinks_on_the_way_down(host: Host) -> None:
    deep = facts(host, "inside", "nested_calls")["deep"]
    assert deep["status"] == "completed", deep["error"]
    left = deep["value"]
    assert len(left) == 4 and left == sorted(left, reverse=True)
    assert all(one - other >= 0.1 for one, other in itertools.pairwise(left))


def test_what_an_inner_call_needs_is_not_what_the_tool_left_behind(host: Host) -> None:
    told = facts(host, "inside", "nested_calls")
    assert {name: told[name]["leftover"] for name in ("short", "run_short", "deep")} == {
        "short": [], "run_short": [], "deep": [],
    }  # fmt: skip


def test_an_outer_call_that_is_killed_takes_its_inner_one_along(host: Host) -> None:
    told = facts(host, "inside", "nested_killed")
    assert (told["result"]["status"], told["result"]["reason"]) == ("cancelled", "caller")
    assert told["at_once"] == "let go"
    assert told["result"]["receipt"]["survivors"] == 0


def test_async_tools_run_in_a_worker_from_code_that_is_not_async(host: Host) -> None:
    told = facts(host, "inside", "async_tools")
    assert told["value"] == 6 and told["next"] == 2
    assert told["thread"]["value"] is True and told["after_thread"] is True
    assert told["thread"]["leftover"] == [] and told["thread"]["receipt"] is None
    assert told["raises"]["error"]["type"] == "ValueError"
    assert told["cancels_itself"]["status"] == "error" and told["cancels_itself"]["error"]["type"] == "CancelledError"


def test_a_decorated_async_tool(host: Host) -> None:
    assert facts(host, "inside", "async_decorated") == [5, 6, 7]


def test_a_decorated_async_tool_of_a_module(host: Host) -> None:
    assert facts(host, "inside", "async_decorated_importable") == 8


def test_tasks_that_an_async_tool_leaves_are_cancelled(host: Host) -> None:
    told = facts(host, "inside", "async_tools")
    assert told["leaves"]["value"] == "left one"
    assert told["left_ran"] is False


@measured_once
def test_an_async_tool_that_blocks_stalls_nobody(host: Host) -> None:
    beside = facts(host, "inside", "async_tools", by_itself=measured(host))["beside"]
    assert beside["quick"] == "napped" and beside["quick_s"] < at_most(host, 0.5)
    assert beside["blocked"]["status"] == "timeout" and beside["blocked"]["duration_s"] < at_most(host, 1.1)


@measured_once
def test_the_callers_loop_stays_free(host: Host) -> None:
    told = facts(host, "inside", "loop_stays_free", by_itself=measured(host))
    assert told["statuses"] == ["timeout", "timeout", "crashed", "completed", "completed"]
    assert told["values"] == list(range(1, 31))
    if measured(host):
        assert told["worst_s"] < 0.1 and told["median_s"] < 0.01


def test_everything_works_from_inside_a_running_loop(host: Host) -> None:
    told = facts(host, "inside", "from_a_running_loop")
    assert told["timeout"]["status"] == "timeout" and told["timeout"]["elapsed"] < 1.2
    names = ("value", "async_tool", "inline", "inline_async")
    assert {name: told[name] for name in names} == dict.fromkeys(names, 2)
    assert told["batch"] == [2, 3]


def test_messages_arrive_in_order_and_replace_by_id(host: Host) -> None:
    told = facts(host, "inside", "messages")
    assert told["heard"] == ["step 0", "note 0", "step 1", "note 1", "step 2", "note 2"]
    kept = told["kept"]["progress"]
    assert [message["text"] for message in kept] == ["note 0", "note 1", "step 2", "note 2"]
    assert kept[1]["data"] == {"number": 1} and told["before"] == 0
    assert told["async"] == [["step 0", "note 0", "step 1", "note 1"], 3]


def test_inline_messages_replace_by_id_too(host: Host) -> None:
    heard, kept = facts(host, "inside", "messages")["inline"]
    assert heard == ["step 0", "note 0", "step 1", "note 1", "step 2", "note 2"]
    assert kept == ["note 0", "note 1", "step 2", "note 2"]


def test_no_message_comes_after_the_result(host: Host) -> None:
    told = facts(host, "inside", "messages")
    assert told["over"] == "timeout" and told["after_result"] == 0
    assert told["late_heard"] == told["late_kept"] > 10
    assert [message["text"] for message in told["hung"]["progress"]] == ["note 0", "step 1", "note 1"]


def test_many_messages_are_kept_from_their_end(host: Host) -> None:
    value, count, last = facts(host, "inside", "messages")["many"]
    assert (value, count, last) == ("reported", 1000, "note 1499")


def test_a_callback_that_raises_is_the_callers_own_error_and_the_call_is_given_up(host: Host) -> None:
    told = facts(host, "inside", "messages")
    assert told["raising"] == ["KeyError('step 0')"] and told["after_raising"] == 2


def test_a_deferred_result(host: Host) -> None:
    told = facts(host, "inside", "deferred")
    result = told["result"]
    assert (result["status"], result["value"], result["deferred"]) == ("completed", "comes later", "the-handle")
    assert told["pending"] is True and told["still"] is False
    assert told["resolved"] == [True, False]
    assert told["called"] == [{"the": "value"}] and told["waited"] == {"the": "value"}


def test_a_kept_worker_keeps_until_it_is_killed(host: Host) -> None:
    told = facts(host, "inside", "kept_worker")
    assert told["pids"] == 1 and told["counted"] == [1, 2, 3] and told["generation"] == 1
    assert told["held"] == "held" and told["gone"] == "let go"
    assert told["ended"]["status"] == "timeout" and told["ended"]["receipt"]["survivors"] == 0
    assert told["new"] == [1, 2]
    assert "closed" in told["closed"]


def test_the_callers_signal_handling_changes_nothing(host: Host) -> None:
    told = facts(host, "inside", "signals_of_the_caller")
    value, elapsed = told["slept"]
    assert value == "slept" and elapsed >= 0.2
    assert told["hung"]["status"] == "timeout" and told["hung"]["elapsed"] < 1.3
    assert (told["crashed"]["status"], told["crashed"]["exit_code"]) == ("crashed", 3)
    assert told["heard"] > 10
