# SPDX-License-Identifier: Apache-2.0
"""Python functions that are known to break tool runners, from every kind of caller. They are kept in inputs/.

Common rule for each: one status, back within its limit and a second and a half, nothing of it left in any group or
session (a fifo that it and all its children hold open has nobody at its other end).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "functions"))

import calling

from hosts import Host

INPUTS = Path(__file__).resolve().parent / "inputs"
MARKER = "# ---- naive demonstration"
SLACK_S = 1.5  # grace, and a second
IDS = "48 49 50 51 52 53 54 55 56 57 59 60 61 62 64 66 67 68 72 73 74 76 80 81 84 85".split()
WAYS = ("main_thread", "main_thread_at_once", "twenty_threads", "awaited", "blocking_the_loop")

Told = dict[str, Any]


def facts(host: Host, section: str, *, by_itself: bool = False) -> Any:
    folder = calling.place(host) / "cases"
    if not folder.exists():
        folder.mkdir()
        for path in sorted(INPUTS.glob("*.py")):
            if path.name[:2] in IDS:
                own = folder / f"case_{re.sub(r'[^0-9a-z]', '_', path.stem)}.py"
                own.write_text(path.read_text().partition(MARKER)[0])
                own.chmod(0o644)
        folder.chmod(0o755)
    return calling.facts(host, "known", section, by_itself=by_itself)


def gone(host: Host, result: Told) -> None:
    receipt = result["receipt"]
    assert (receipt["proof"], receipt["survivors"], receipt["unkillable"]) == (host.proof, 0, [])


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
@pytest.mark.parametrize("way", WAYS)
def test_case(host: Host, way: str, case: str) -> None:
    results = found(host, way, case)
    assert len(results) == (3 if way == "twenty_threads" else 1)
    for result in results:
        assert result["leash"] == "let go"
        assert result["elapsed"] <= result["limit_s"] + SLACK_S
        EXPECTED[case](host, result)


def test_shared_memory_of_case_66_is_removed_or_named(host: Host) -> None:
    result = facts(host, "main_thread")["66"]
    name = result["stdout"]["tail"].strip().lstrip("/")
    left = Path("/dev/shm") / name
    there = left.exists()
    left.unlink(missing_ok=True)
    assert not there or str(left) in result["leftover"]


@pytest.mark.alone
def test_all_at_once_take_no_longer_than_the_longest(host: Host) -> None:
    assert facts(host, "main_thread_at_once", by_itself=True)["_s"] < 1.0 + SLACK_S
    assert facts(host, "awaited", by_itself=True)["_s"] < 1.0 + SLACK_S


@pytest.mark.alone
def test_the_loop_is_never_late_while_all_of_them_run(host: Host) -> None:
    """Case 51 and 53: what holds the interpreter's lock holds nobody else's."""
    assert facts(host, "awaited", by_itself=True)["_late_s"] < 0.1


def test_case_60_from_twenty_threads_in_the_same_moment(host: Host) -> None:
    told = facts(host, "twenty_threads_same")
    assert len(told) == 20
    for status, elapsed, survivors in told:
        assert status == "timeout" and 0.5 <= elapsed < 0.5 + SLACK_S and survivors == 0


def test_case_49_the_program_ends_at_once(host: Host) -> None:
    facts(host, "main_thread")
    assert facts(host, "_exit_s") < 1.0


@pytest.mark.alone
def test_case_50_the_loop_closes_at_once(host: Host) -> None:
    told = facts(host, "case_50", by_itself=True)
    assert told["result"]["status"] == "timeout" and told["awaited_s"] < 0.5 + SLACK_S and told["closed_s"] < 1


@pytest.mark.alone
def test_case_56_another_async_call_is_not_held_up(host: Host) -> None:
    value, elapsed, blocked = facts(host, "case_56", by_itself=True)
    assert (value, blocked) == ("napped", "timeout") and elapsed < 0.5


def test_case_62_one_crash_is_one_crash(host: Host) -> None:
    told = facts(host, "case_62")
    first, *others = told["results"]
    assert (first["status"], first["exit_code"]) == ("crashed", 1)
    assert [(one["status"], one["value"]) for one in others] == [("completed", 1), ("completed", 2)]
    assert told["next"] == "napped"


def test_case_64_a_lock_that_the_caller_holds_is_free_in_a_worker(host: Host) -> None:
    result = facts(host, "case_64")
    assert (result["status"], result["value"]) == ("completed", "got it") and result["elapsed"] < 2


@pytest.mark.alone
def test_case_68_a_call_behind_two_that_hang(host: Host) -> None:
    told = facts(host, "case_68", by_itself=True)
    first, second, third = told["results"]
    assert (first["status"], second["status"]) == ("timeout", "timeout")
    assert (third["status"], third["value"]) == ("completed", 2)
    assert third["queued_s"] >= 0.3 and third["duration_s"] < 0.2 and told["elapsed"] < 0.8 + 0.5


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


@pytest.mark.alone
def test_case_84_nothing_burns_on(host: Host) -> None:
    told = facts(host, "case_84", by_itself=True)
    assert told["result"]["status"] == "timeout" and told["burned_s"] < 0.1


def test_case_85_an_attempt_is_over_before_the_next_begins(host: Host) -> None:
    told = facts(host, "case_85")
    (first, _, ended), (second, begun, _) = told["attempts"]
    for attempt in (first, second):
        assert attempt["status"] == "timeout" and attempt["receipt"]["survivors"] == 0
    assert ended <= begun and told["effects"] is False


def test_at_the_end_there_are_only_idle_workers(host: Host) -> None:
    told = facts(host, "quiet")
    assert told["threads"] == [] and told["value"] == 3
    assert told["names"].count("deadstop-worker") == told["workers"]
    assert not [name for name in told["names"] if name == "sleep"]
