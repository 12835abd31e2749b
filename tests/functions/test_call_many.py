# SPDX-License-Identifier: Apache-2.0
"""Cancelling calls by tokens of every make, batches, and races."""

from __future__ import annotations

import itertools
from typing import Any

from calling import facts

import hosts
from hosts import Host

HOSTS = hosts.each_kind()

SAYS_YES = ("event", "ours", "attribute", "cancelled_call", "is_cancelled", "second_says_yes", "none_first")
SAYS_NO = ("unset_event", "false", "asyncio_event", "empty_answer")
FAILS = ("raises", "needs_argument", "coroutine")


def killed(host: Host, result: dict[str, Any], reason: str = "caller") -> None:
    """Cancelled while it ran, and shown to be gone."""
    assert (result["status"], result["reason"]) == ("cancelled", reason), result
    assert (result["receipt"]["proof"], result["receipt"]["survivors"]) == (host.proof, 0)


def never_began(result: dict[str, Any], status: str, reason: str) -> None:
    assert (result["status"], result["reason"], result["receipt"]) == (status, reason, None)
    assert result["environment"] == "nothing was started" and result["duration_s"] == 0


def overlap(one: list[float], other: list[float]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_a_token_that_says_yes_keeps_a_call_from_starting(host: Host) -> None:
    told = facts(host, "many", "tokens")
    for shape in SAYS_YES:
        never_began(told["results"][shape], "cancelled", "caller")
        assert told["ran"][shape] is False and told["results"][shape]["degraded"] == []


def test_a_token_that_says_no_lets_it_run(host: Host) -> None:
    told = facts(host, "many", "tokens")
    assert {shape: (told["results"][shape]["status"], told["ran"][shape]) for shape in SAYS_NO} == dict.fromkeys(
        SAYS_NO, ("completed", True)
    )


def test_a_token_that_fails_counts_as_set_and_that_is_said(host: Host) -> None:
    told = facts(host, "many", "tokens")
    for shape in FAILS:
        result = told["results"][shape]
        never_began(result, "cancelled", "token_error")
        assert any("cancel token failed" in line for line in result["degraded"])
        assert told["ran"][shape] is False


def test_a_token_whose_property_raises_counts_as_set(host: Host) -> None:
    result = facts(host, "many", "token_without_an_answer")
    never_began(result, "cancelled", "token_error")
    assert any("no answer" in line for line in result["degraded"])


def test_what_is_no_token_is_an_error_before_anything_runs(host: Host) -> None:
    told = facts(host, "many", "tokens")
    for kind, words in [*told["wrong"].values(), told["wrong_batch"], told["wrong_inline"]]:
        assert kind == "UsageError" and "is_set" in words
    assert told["wrong_ran"] is False


def test_a_running_call_is_cancelled(host: Host) -> None:
    told = facts(host, "many", "cancelled_in_the_middle")
    for name, reason in {"ours": "caller", "event": "caller", "breaks": "token_error"}.items():
        killed(host, told[name], reason)
        assert told[name]["leash"] == "let go" and told[name]["elapsed"] < 2
    assert any("broken" in line for line in told["breaks"]["degraded"])
    assert told["after"] == [2, "cancelled"]


def test_cancelling_the_task_that_awaits_kills_the_call_first(host: Host) -> None:
    told = facts(host, "many", "cancelled_async")
    for name, begun in {"task": 0, "timeout": 0.4}.items():
        elapsed, leash = told[name]
        assert leash == "let go" and elapsed < begun + 1
    killed(host, told["token"])
    killed(host, told["foreign"])
    assert told["batch"] == "let go"


# -- batches -----------------------------------------------------------------------------------------------------------


def test_results_come_in_the_order_of_the_calls(host: Host) -> None:
    told = facts(host, "many", "order")
    assert told["parallel"] == list(range(6))
    assert told["told"] == [[number, number] for number in range(6)] and told["told_first"] != 0
    assert told["sequential"] == [1, 2, 3, 4, 5] and told["generator"] == list(range(1, 31))
    assert told["empty"] == [] and told["same_call_twice"] == [0, 0, 0]


def test_every_result_of_a_batch_has_an_id_of_its_own(host: Host) -> None:
    assert facts(host, "many", "order")["ids"] == 6


def test_what_a_batch_may_not_be_is_an_error_before_anything_runs(host: Host) -> None:
    told = facts(host, "many", "what_is_refused")
    kinds = {name: kind for name, (kind, *_) in told["refused"].items() if name != "64"}
    limits = dict.fromkeys(("0", "true", "half", "timeout", "nan", "deadline", "inf"), "InvalidLimit")
    assert kinds == {**limits, "65": "UsageError", "none": "UsageError", "not_a_call": "UsageError"}
    assert told["ran"] is False


def test_time_in_the_queue_is_apart_from_time_running(host: Host) -> None:
    told = facts(host, "many", "queue_apart_from_run")
    assert all(0.1 <= ran < 0.1 + 0.5 for ran in told["ran"])
    first, second, third, fourth = told["queued"]
    assert max(first, second) < 0.09 <= min(third, fourth)
    assert told["slow"] == ["completed"] * 3


def test_the_deadline_of_a_batch(host: Host) -> None:
    told = facts(host, "many", "deadline_of_a_batch")
    first, second, *rest = told["results"]
    assert (first["status"], first["value"]) == ("completed", 0)
    assert second["status"] == "timeout" and second["limit"]["which"] == "batch"
    for result in rest:
        never_began(result, "refused", "deadline_over")
    assert 0.8 <= told["elapsed"] < 2
    assert told["wide"] == ["timeout"] * 6 and 0.6 <= told["wide_s"] < 3


def test_cancelling_a_batch_keeps_what_is_there(host: Host) -> None:
    told = facts(host, "many", "cancel_of_a_batch")
    results = told["results"]
    assert [result["value"] for result in results[:2]] == [2, 3]
    killed(host, results[2])
    for result in results[3:]:
        never_began(result, "cancelled", "caller")
    assert told["leash"] == "let go" and told["elapsed"] < 2


def test_a_call_of_a_batch_has_its_own_token(host: Host) -> None:
    own = facts(host, "many", "cancel_of_a_batch")["own"]
    killed(host, own[0])
    assert own[1]["value"] == "kept"


def test_foreign_and_broken_tokens_of_a_batch(host: Host) -> None:
    told = facts(host, "many", "cancel_of_a_batch")
    for result in told["foreign"]:
        killed(host, result)
    assert told["foreign_s"] < 1.2
    for result in told["never"]:
        never_began(result, "cancelled", "caller")
    for result in told["broken"]:
        never_began(result, "cancelled", "token_error")


def test_a_broken_token_of_a_batch_is_said(host: Host) -> None:
    for result in facts(host, "many", "cancel_of_a_batch")["broken"]:
        assert any("cancel token failed" in line for line in result["degraded"])


def test_calls_that_write_the_same_run_one_after_another_in_their_order(host: Host) -> None:
    told = facts(host, "many", "writes")
    *same, free = told["same"]
    assert not any(overlap(one, other) for one, other in itertools.combinations(same, 2))
    assert told["order"] == ["0", "1", "2", "3"]
    assert overlap(same[0], free)
    first, second, third, fourth = told["named"]
    assert overlap(first, second) and not overlap(first, third) and not overlap(second, fourth)
    assert not any(overlap(one, other) for one, other in itertools.combinations(told["mixed"], 2))


def test_a_declaration_of_writes_that_raises_is_raised_before_anything_runs(host: Host) -> None:
    words, ran = facts(host, "many", "writes")["wrong"]
    assert "zero" in words and ran is False


def test_inline_calls_run_at_once_with_others(host: Host) -> None:
    told = facts(host, "many", "inline_in_a_batch")
    assert told["values"] == [0, 1, 2, 3] and told["elapsed"] < 0.5
    assert told["mixed"] == ["in", "out", "in", 2]
    assert told["raised"] == ["error", "completed"]
    assert told["receipt"]["boundary"] == "inline" and told["receipt"]["proof"] == "none"


def test_each_call_of_a_batch_ends_in_its_own_way(host: Host) -> None:
    assert facts(host, "many", "mixed_ends") == [
        ["completed", 2], ["error", None], ["crashed", None], ["crashed", None], ["timeout", None],
        ["error", None], ["refused", None], ["completed", 2], ["crashed", None], ["completed", 3],
    ]  # fmt: skip


def test_a_callback_that_raises_ends_the_batch_and_all_its_calls(host: Host) -> None:
    told = facts(host, "many", "on_result_raises")
    assert told["raised"] == ["'from on_result 1'"]
    assert told["gone_s"] < 1 and told["after"] == 2


def test_more_calls_than_workers(host: Host) -> None:
    assert facts(host, "many", "wide")["right"] is True


# -- races -------------------------------------------------------------------------------------------------------------


def test_the_first_acceptable_result_wins_and_the_losers_are_killed(host: Host) -> None:
    told = facts(host, "many", "races")
    assert told["winner"]["value"] == "fast" and told["elapsed"] < 1.5
    loser, winner, other = told["results"]
    assert winner["value"] == "fast"
    killed(host, loser, "race_lost")
    killed(host, other, "race_lost")
    assert told["leash"] == "let go"
    assert told["async"] == "fast"


def test_what_a_race_accepts(host: Host) -> None:
    told = facts(host, "many", "races")
    assert told["picky"] == [2, ["completed", "completed", "cancelled"]]
    assert told["none"] == [None, [1, 2]]
    assert told["failing"] == ["second", "error"]
    assert told["accept_raises"] == ["integer division or modulo by zero"]


def test_a_race_that_nobody_wins(host: Host) -> None:
    told = facts(host, "many", "races")
    winner, statuses, elapsed = told["hung"]
    assert (winner, statuses) == (None, ["timeout", "timeout"]) and elapsed < 1.3
    assert told["cancelled"] == [None, [["cancelled", "caller"]] * 2]


def test_only_killable_tools_without_effects_race(host: Host) -> None:
    told = facts(host, "many", "races")
    for name, words in {"undeclared": "effect='none'", "inline": "cannot be killed", "not_a_call": "Call("}.items():
        kind, message = told["refused"][name]
        assert kind == "UsageError" and words in message
    assert told["ran"] is False
    assert facts(host, "many", "order")["empty_race"][0] == "UsageError"


def test_no_thread_of_ours_is_left(host: Host) -> None:
    assert facts(host, "many", "quiet") == {"threads": [], "others": 1}
