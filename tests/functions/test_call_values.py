# SPDX-License-Identifier: Apache-2.0
"""What a call of a function gives back, and which functions may be called."""

from __future__ import annotations

from typing import Any

from calling import at_most, facts, measured, measured_once

import hosts
from hosts import Host

HOSTS = hosts.each_kind()

CALLABLES = {
    "partial": 6, "bound": 7, "object": ["called", 6], "builtin": 3, "builtin_module": 3_628_800, "class": 8,
    "static": "static", "class_method": "Shelf", "class_builtin": 255, "getter": "b", "method": ["a", "b"],
    "lambda": 2, "class_of_main": 4, "partial_of_lambda": 2, "wrapped": ["wrapped", 3], "keyword_names": [1, 2, 3],
    "bound_of_main": 8, "unhashable": "unhashable", "tool_of_main": 9, "tool_method": 30,
}  # fmt: skip


def raised(result: dict[str, Any], kind: str, *words: str) -> None:
    """An error of this type, with these words in its message, and a time that a clock can show."""
    assert result["status"] == "error", result
    assert result["error"]["type"] == kind
    for word in words:
        assert word in result["error"]["message"]
    assert 0 <= result["duration_s"] < 10


def test_values_of_every_size_arrive_whole(host: Host) -> None:
    assert facts(host, "values", "sizes") == []


def test_large_values_both_ways_at_once(host: Host) -> None:
    assert facts(host, "values", "large_both_ways_at_once") is True


def test_values_of_every_kind_arrive_as_they_were(host: Host) -> None:
    told = facts(host, "values", "kinds")
    assert all(told["all"])
    assert told["of_main"] and told["argument_of_main"] == 5 and told["same"] and told["type"]


def test_a_result_that_cannot_be_pickled_is_an_error_that_says_so(host: Host) -> None:
    told = facts(host, "values", "unpicklable")
    raised(told["result"], "TypeError", "cannot be sent back", "lock")
    raised(told["nested"], "TypeError", "cannot be sent back", "frame")
    assert told["after"] == 2


def test_what_cannot_be_sent_is_refused_before_anything_runs(host: Host) -> None:
    told = facts(host, "values", "unpicklable")
    for name in ("argument", "function"):
        assert (told[name]["status"], told[name]["reason"]) == ("refused", "policy")
        assert "generator" in told[name]["error"]["message"] and "inline" in told[name]["hint"]


def test_an_exception_that_cannot_be_pickled_arrives_as_type_text_and_traceback(host: Host) -> None:
    told = facts(host, "values", "unpicklable")
    raised(told["exception"], "Refuses", "it has a lock")
    raised(told["not_loadable"], "NeedsTwo", "one and other")
    for name, line in {"exception": "raise Refuses", "not_loadable": "raise NeedsTwo"}.items():
        assert told[name]["exception"] is None
        assert line in told[name]["traceback"] and "tools.py" in told[name]["traceback"]


def test_an_exception_class_of_the_main_script_is_caught_by_its_except(host: Host) -> None:
    args, number, status, cause = facts(host, "values", "exceptions")["caught"]
    assert (args, number, status) == (["from the main script", 7], 7, "error")
    assert "raises_of_main" in cause


def test_every_kind_of_exception_becomes_an_error(host: Host) -> None:
    told = facts(host, "values", "exceptions")
    raised(told["own_timeout"], "TimeoutError", "the tool's own")
    raised(told["group"], "ExceptionGroup", "several")
    assert told["subs"] == ["ValueError", "KeyError"]
    raised(told["chained"], "ValueError", "because of it")
    assert "KeyError: 'key'" in told["chained"]["traceback"] and "direct cause" in told["chained"]["traceback"]
    raised(told["stop"], "StopIteration")
    raised(told["generator_exit"], "GeneratorExit")
    raised(told["raises_its_own_class"], "ToolTimeoutError", "not by us")
    raised(told["text_fails"], "TextFails")
    raised(told["recursion"], "RecursionError")
    assert told["after"] == 2


def test_an_exit_of_the_tool_is_its_error_and_does_not_act_on_the_caller(host: Host) -> None:
    told = facts(host, "values", "exceptions")
    raised(told["exit"], "SystemExit", "3")
    raised(told["text"], "SystemExit", "bye")
    raised(told["interrupt"], "KeyboardInterrupt")
    assert told["unwrapped"] == {"exit": "ToolError", "interrupt": "ToolError"}


def test_whatever_can_be_called_can_be_a_call(host: Host) -> None:
    told = facts(host, "values", "callables")
    assert {name: told[name] for name in CALLABLES} == CALLABLES


def test_a_decorated_tool_of_a_module_runs_once_and_not_itself_again(host: Host) -> None:
    assert facts(host, "values", "decorated_tool_of_a_module")["value"] == 42


def test_a_cached_function_of_the_main_script_is_called_or_says_why_not(host: Host) -> None:
    told = facts(host, "values", "callables")["cached"]
    if told != 4:
        raised(told, "RuntimeError", "could not be loaded", "_cached")


def test_a_closure_sees_what_the_caller_has_now(host: Host) -> None:
    told = facts(host, "values", "closures")
    assert told["list"] == [1, 11, 5]
    assert told["global"] == [1, 2]
    assert told["recoded"] == "new code"
    assert told["replaced"] == "AttributeError"


def test_a_call_changes_a_copy(host: Host) -> None:
    told = facts(host, "values", "closures")
    counted, callers = told["nonlocal"]
    assert callers == 0 and counted == [1, 1, 1]
    assert told["defaults"] == [[1], [2], ["caller's", 3]]


def test_recursion(host: Host) -> None:
    told = facts(host, "values", "closures")
    assert told["recursion"] == [3_628_800, 3_628_800] and told["module_recursion"] == 3_628_800
    assert told["mutual"] is False


def test_functions_of_the_same_name_are_not_mixed_up(host: Host) -> None:
    told = facts(host, "values", "same_names")
    assert told == {"two": ["one", "other", "one"], "many": True, "by_hand": "of a module made by hand"}


def test_a_module_that_is_only_a_file(host: Host) -> None:
    told = facts(host, "values", "module_not_on_the_path")
    assert told["value"] == 7
    same_class, error = told["own"]
    assert same_class and error["message"] == "of a module apart"
    assert told["unknown"]["value"] == 7


def test_the_import_path_follows_the_caller(host: Host) -> None:
    told = facts(host, "values", "path_follows")
    assert told == {"before": "ModuleNotFoundError", "by_import": "added later", "function": "added later"}


def test_a_module_imported_for_a_call_sees_what_the_caller_has_set(host: Host) -> None:
    got, expected = facts(host, "values", "import_sees_the_environment")
    assert got == expected


def test_an_import_that_fails_in_the_worker(host: Host) -> None:
    told = facts(host, "values", "imports_that_raise")
    raised(told["raised"], "RuntimeError", "could not be loaded", "not in a worker")
    exited = told["exited"]
    assert (exited["status"], exited["exit_code"]) == ("crashed", 5)
    assert 0 <= exited["duration_s"] < 10
    assert told["after"] == 2


@measured_once
def test_an_import_that_hangs_ends_with_the_outer_deadline(host: Host) -> None:
    told = facts(host, "values", "import_that_hangs", by_itself=measured(host))
    assert told["result"]["status"] == "timeout" and 0.7 <= told["elapsed"] < at_most(host, 1.2)
    assert told["after"] == 2


def test_an_import_that_hangs_names_the_limit_that_ended_it(host: Host) -> None:
    result = facts(host, "values", "import_that_hangs")["result"]
    assert (result["limit"]["which"], result["limit"]["seconds"]) == ("parent", 0.7)


def test_a_module_that_starts_threads_at_import_stays_out_of_the_nursery(host: Host) -> None:
    told = facts(host, "values", "import_that_starts_a_thread")
    for result in (told["first"], *told["later"]):
        assert (result["status"], result["value"]) == ("completed", True)
    assert told["many"] == [3] * 6
    assert told["others"] == [1, 2, 3, 4, 5]
    assert sum(name.startswith("deadstop-nurs") for name in told["names"]) == 1


def test_a_nursery_that_an_import_gave_threads_begins_anew(host: Host) -> None:
    told = facts(host, "values", "nursery_meets_thread_module")
    assert told == {"first": 5, "values": [5] * 4, "again": [1] * 6, "alive": 2}


def test_a_file_that_a_module_opened_at_import_is_still_that_file(host: Host) -> None:
    told = facts(host, "values", "file_opened_at_import")
    assert told["first"] == told["later"] == ["completed"] * 2
    assert told["lines"] == ["first 0", "first 1", "later 0", "later 1"]


def test_threads_of_an_import_are_not_left_behind_by_other_calls(host: Host) -> None:
    told = facts(host, "values", "threads_are_their_own_calls")
    assert told == {"first": 5, "others": [[]] * 4}
