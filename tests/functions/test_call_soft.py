# SPDX-License-Identifier: Apache-2.0
"""The soft limit: the call stands still, somebody is asked, and the hard limit does not move."""

from __future__ import annotations

from typing import Any

from calling import at_most, facts, measured, measured_once

from hosts import Host

# Of one kind with namespaces and one without; tests/cases and tests/library/test_supervisor_life.py have them all.
HOSTS = ("user", "no-userns-no-cgroup")


def ended_by_soft(host: Host, result: dict[str, Any], seconds: float = 0.15) -> None:
    assert result["status"] == "timeout", result
    assert (result["limit"]["which"], result["limit"]["seconds"]) == ("soft", seconds)
    assert result["receipt"]["survivors"] == 0 and result["receipt"]["proof"] == host.proof


def slowly_answered(host: Host, section: str) -> Any:
    """Both at once, and nothing beside them where they are measured."""
    return facts(host, "soft", section, together=("unanswered", "hard_limit_does_not_move") if measured(host) else ())


def stood_still(told: dict[str, Any]) -> None:
    """Between the question and its answer nothing ran."""
    assert told["questions"]
    for question in told["questions"]:
        assert question["ticks"] == question["ticks_later"] > 0
        assert not [tick for tick in told["ticks"] if question["begun"] < tick < question["until"]]


def test_what_is_asked_says_what_it_was_doing(host: Host) -> None:
    told = facts(host, "soft", "extend")
    (question,) = told["questions"]
    assert question["tool"] == "ticks" and question["answer_s"] == 2.0
    assert 0.15 <= question["elapsed_s"] < 1.5
    assert abs(question["left_s"] + question["elapsed_s"] - 5) < 0.1
    assert "in ticks" in question["stacks"]
    assert question["kind"] in ("sleeping", "cpu_spin", None)  # it does both; None: no time to find out
    assert question["tail"].split()[-1].isdigit()
    for words in ("paused", "does not move", "in ticks", "extend"):
        assert words in question["model"]


def test_extend(host: Host) -> None:
    told = facts(host, "soft", "extend")
    stood_still(told)
    assert (told["result"]["status"], told["result"]["value"]) == ("completed", 60)
    assert told["result"]["stdout"]["tail"].split() == [str(number) for number in range(60)]


def test_a_number_asks_again(host: Host) -> None:
    told = facts(host, "soft", "number")
    stood_still(told)
    assert len(told["questions"]) == 3
    assert (told["result"]["status"], told["result"]["value"]) == ("completed", 60)


def test_kill(host: Host) -> None:
    told = facts(host, "soft", "kill")
    stood_still(told)
    ended_by_soft(host, told["result"])
    assert told["leash"] == "let go" and told["result"]["elapsed"] < 2
    assert told["result"]["stdout"]["tail"]


def test_a_kill_by_answer_is_not_measured_by_the_hard_deadline(host: Host) -> None:
    """It came long before that: there is no time from the deadline to the death."""
    late = facts(host, "soft", "kill")["result"]["receipt"]["deadline_to_dead_ms"]
    assert late is None or late >= 0


def test_what_a_killed_call_was_doing_is_still_in_its_result(host: Host) -> None:
    evidence = facts(host, "soft", "kill")["result"]["evidence"]
    assert evidence is not None and evidence["stacks"] is not None and "in ticks" in evidence["stacks"]


def test_detach_gives_a_handle_now_and_the_result_later(host: Host) -> None:
    told = facts(host, "soft", "detach")
    result = told["result"]
    assert (result["status"], result["limit"]["which"]) == ("timeout", "soft") and result["deferred"] == told["handle"]
    assert result["receipt"] is None
    assert (told["later"]["status"], told["later"]["value"]) == ("completed", 40)


def test_the_hard_limit_ends_what_was_detached(host: Host) -> None:
    told = facts(host, "soft", "detach_then_hard_limit")
    later = told["later"]
    assert (later["status"], later["limit"]["which"], later["limit"]["seconds"]) == ("timeout", "call", 0.8)
    assert told["leash"] == "let go" and later["receipt"]["survivors"] == 0


def test_any_other_answer_is_a_kill(host: Host) -> None:
    for result in facts(host, "soft", "other_answers").values():
        ended_by_soft(host, result)


def test_a_callback_that_raises_is_a_kill(host: Host) -> None:
    result = facts(host, "soft", "raises")
    ended_by_soft(host, result)
    assert result["elapsed"] < 2


@measured_once
def test_no_answer_in_time_is_a_kill(host: Host) -> None:
    result = slowly_answered(host, "unanswered")
    ended_by_soft(host, result)
    assert 0.4 < result["elapsed"] < at_most(host, 1.2) and result["leash"] == "let go"


@measured_once
def test_the_hard_limit_does_not_move_while_it_is_asked(host: Host) -> None:
    result = slowly_answered(host, "hard_limit_does_not_move")
    assert result["status"] == "timeout" and result["receipt"]["survivors"] == 0
    assert 0.6 <= result["elapsed"] < at_most(host, 1.1) and result["leash"] == "let go"
    assert result["duration_s"] < at_most(host, 1.1)


def test_the_limit_that_is_named_is_the_one_that_ended_it(host: Host) -> None:
    limit = facts(host, "soft", "hard_limit_does_not_move")["limit"]
    assert (limit["which"], limit["seconds"]) == ("call", 0.6)


def test_our_own_stop_is_not_blamed(host: Host) -> None:
    hint = facts(host, "soft", "hard_limit_does_not_move")["hint"]
    assert hint is None or "suspended by job control" not in hint


def test_a_call_that_ends_before_it_is_never_asked_about(host: Host) -> None:
    assert facts(host, "soft", "before_it") == [2, []]


def test_async_calls_and_batches_have_it_too(host: Host) -> None:
    told = facts(host, "soft", "other_faces")
    for each in told.values():
        stood_still(each)
    assert told["async"]["result"]["value"] == 60
    ended_by_soft(host, told["batch"]["result"])
    ended_by_soft(host, told["async_kill"]["result"])


def test_what_it_started_stands_still_too(host: Host) -> None:
    told = facts(host, "soft", "with_children")
    (sizes,) = told["sizes"]
    assert sizes[0] == sizes[1] > 0
    assert told["result"]["value"] == 0 and told["after"] == 60


def test_a_cancel_while_it_stands_still(host: Host) -> None:
    result = facts(host, "soft", "cancelled_while_frozen")
    assert (result["status"], result["reason"]) == ("cancelled", "caller")
    assert result["leash"] == "let go" and result["elapsed"] < 2


def test_nothing_is_left_stopped(host: Host) -> None:
    assert facts(host, "soft", "quiet") == {"threads": [], "stopped": [], "next": 2}
