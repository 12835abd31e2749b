# SPDX-License-Identifier: Apache-2.0
"""Batches: their order rules, cancelling in the middle of calls, and terminal errors that lose no results."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from deadstop.compat.praisonai import (
    InterruptController,
    ParallelToolCallExecutor,
    SequentialToolCallExecutor,
    ToolCall,
    ToolExecutionError,
    ToolProgress,
    ToolTimeoutError,
    create_tool_call_executor,
    extract_paths,
    group_by_conflicts,
    has_write_conflicts,
)

LIMITED: list[dict[str, Any]] = [{}, {"timeout_ms": 10_000}]
both = pytest.mark.parametrize("options", LIMITED, ids=["inline", "limited"])


def calls(count: int, name: str = "t", **arguments: Any) -> list[ToolCall]:
    return [ToolCall(f"{name}{number}", {"number": number, **arguments}, str(number)) for number in range(count)]


def sleeps(name: str, arguments: dict[str, Any], tool_call_id: str) -> int:
    time.sleep(arguments.get("seconds", 0))
    return int(arguments["number"])


@both
@pytest.mark.parametrize("parallel", [False, True])
def test_results_come_in_the_order_of_the_calls(parallel: bool, options: dict[str, Any]) -> None:
    def execute(name: str, arguments: dict[str, Any], tool_call_id: str) -> int:
        time.sleep(0.02 * (4 - arguments["number"]))
        return int(arguments["number"])

    executor = create_tool_call_executor(parallel, 4)
    assert executor.execute_batch([], execute, **options) == []
    got = executor.execute_batch(calls(5), execute, **options)
    assert [(each.result, each.tool_call_id) for each in got] == [(number, str(number)) for number in range(5)]


def test_one_call_alone_runs_on_the_callers_thread() -> None:
    def execute(name: str, arguments: dict[str, Any], tool_call_id: str) -> int:
        return threading.get_ident()

    assert ParallelToolCallExecutor().execute_batch(calls(1), execute)[0].result == threading.get_ident()


@both
def test_writes_to_one_path_go_one_after_another(tmp_path: Path, options: dict[str, Any]) -> None:
    def execute(name: str, arguments: dict[str, Any], tool_call_id: str) -> tuple[float, float]:
        began = time.monotonic()
        time.sleep(0.1)
        return began, time.monotonic()

    def overlap(paths: list[str]) -> bool:
        asked = [ToolCall("write_file", {"path": path, "content": "x"}, path) for path in paths]
        (_, first), (second, _) = [each.result for each in executor.execute_batch(asked, execute, **options)]
        return bool(second < first)

    executor = ParallelToolCallExecutor(2)
    executor.execute_batch(calls(2), execute, **options)  # the workers are there
    assert not overlap([f"{tmp_path}/a", f"{tmp_path}/a/b"])
    assert overlap([f"{tmp_path}/a", f"{tmp_path}/b"])


@pytest.mark.alone
def test_each_limit_counts_from_the_calls_own_start() -> None:
    """Ten that hang, five at a time: two rounds of 0.3 s, and every one of them is gone."""
    executor = ParallelToolCallExecutor(5)
    executor.execute_batch(calls(5, seconds=0.05), sleeps, timeout_ms=5000)
    began = time.monotonic()
    got = executor.execute_batch(calls(10, seconds=20), sleeps, timeout_ms=300)
    took = time.monotonic() - began
    assert [each.error_kind for each in got] == ["timeout"] * 10
    errors = [each.error for each in got]
    assert all(isinstance(each, ToolTimeoutError) and not each.background_work_may_continue for each in errors)
    assert all(each.outcome and each.outcome.receipt and each.outcome.receipt.survivors == 0 for each in got)
    assert 0.6 <= took < 1.6


def test_the_others_of_a_batch_are_not_touched_by_a_timeout() -> None:
    asked = [ToolCall("slow", {"seconds": 20, "number": 0}, "a"), *calls(3)]
    got = ParallelToolCallExecutor().execute_batch(asked, sleeps, timeout_ms=1000)
    assert [each.error_kind for each in got if each.error] == ["timeout"]
    assert [each.result for each in got[1:]] == [0, 1, 2]


def test_more_workers_than_there_can_be_are_as_many_as_there_can() -> None:
    got = ParallelToolCallExecutor(10_000).execute_batch(calls(3), sleeps, timeout_ms=5000)
    assert [each.result for each in got] == [0, 1, 2]


@both
def test_progress_can_be_told_apart(options: dict[str, Any]) -> None:
    def execute(name: str, arguments: dict[str, Any], tool_call_id: str, on_progress: Any = None) -> None:
        on_progress(ToolProgress(f"{name} ticks"))

    seen: list[ToolProgress] = []
    got = ParallelToolCallExecutor().execute_batch(calls(4), execute, seen.append, **options)
    assert {each.tool_call_id: each.text for each in seen} == {str(number): f"t{number} ticks" for number in range(4)}
    assert [each.progress[0].tool_call_id for each in got] == ["0", "1", "2", "3"]


# -- cancelling ------------------------------------------------------------------------------------------------------


def set_after(seconds: float, token: Any) -> threading.Timer:
    timer = threading.Timer(seconds, token.set if isinstance(token, threading.Event) else token.request)
    timer.start()
    return timer


@pytest.mark.alone
@pytest.mark.parametrize("executor", [SequentialToolCallExecutor(), ParallelToolCallExecutor(2)])
@pytest.mark.parametrize("kind", [threading.Event, InterruptController])
def test_cancelling_ends_what_runs_and_starts_nothing_more(kind: Any, executor: Any) -> None:
    executor.execute_batch(calls(3, seconds=0.05), sleeps, timeout_ms=5000)
    token = kind()
    began = time.monotonic()
    timer = set_after(0.2, token)
    got = executor.execute_batch(calls(6, seconds=10), sleeps, timeout_ms=20_000, cancel_token=token)
    took = time.monotonic() - began
    timer.join()
    assert [each.error_kind for each in got] == ["cancelled"] * 6
    assert all(each.result == {"error": "cancelled", "tool": each.function_name} for each in got)
    assert str(got[0].error) == "Tool 't0' cancelled while it ran"
    assert str(got[5].error) == "Tool 't5' cancelled before execution"
    assert got[0].outcome and got[0].outcome.receipt and got[0].outcome.receipt.survivors == 0
    assert 0.2 <= took < 1.0


def test_results_that_were_there_before_it_are_kept() -> None:
    token = threading.Event()

    def execute(name: str, arguments: dict[str, Any], tool_call_id: str, on_progress: Any = None) -> str:
        if arguments["number"] == 1:
            on_progress(ToolProgress("hanging"))
            time.sleep(20)
        return "done"

    got = SequentialToolCallExecutor().execute_batch(
        calls(3), execute, lambda _: token.set(), timeout_ms=15_000, cancel_token=token
    )
    assert [each.error_kind if each.error else each.result for each in got] == ["done", "cancelled", "cancelled"]
    assert [each.text for each in got[1].progress] == ["hanging"]


def test_without_a_limit_the_token_is_asked_between_calls() -> None:
    token = threading.Event()

    def execute(name: str, arguments: dict[str, Any], tool_call_id: str) -> str:
        if arguments["number"] == 0:
            token.set()
        return "done"

    got = SequentialToolCallExecutor().execute_batch(calls(3), execute, cancel_token=token)
    assert [each.error_kind if each.error else each.result for each in got] == ["done", "cancelled", "cancelled"]


# -- terminal errors -------------------------------------------------------------------------------------------------


def halts_at_1(name: str, arguments: dict[str, Any], tool_call_id: str) -> str:
    if arguments["number"] == 1:
        raise ToolExecutionError("halt", tool_name=name, is_retryable=False)
    return f"{name} done"


@both
def test_a_terminal_error_in_the_middle_keeps_what_came_before(options: dict[str, Any]) -> None:
    with pytest.raises(ToolExecutionError, match="halt") as raised:
        SequentialToolCallExecutor().execute_batch(calls(3), halts_at_1, **options)
    assert [each.result for each in raised.value.results] == ["t0 done"]


@both
def test_a_terminal_error_beside_others_keeps_them_all(options: dict[str, Any]) -> None:
    with pytest.raises(ToolExecutionError, match="halt") as raised:
        ParallelToolCallExecutor(3).execute_batch(calls(4), halts_at_1, **options)
    assert [each.result for each in raised.value.results] == ["t0 done", "t2 done", "t3 done"]


# -- what cannot be sent ---------------------------------------------------------------------------------------------


def test_a_batch_that_cannot_be_sent_says_so_for_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = threading.Lock()
    ran: list[int] = []

    def execute(name: str, arguments: dict[str, Any], tool_call_id: str) -> int:
        with lock:
            ran.append(arguments["number"])
        return threading.get_ident()

    got = ParallelToolCallExecutor().execute_batch(calls(3), execute, timeout_ms=5000)
    assert [type(each.error).__name__ for each in got] == ["ToolNotSendableError"] * 3
    assert ran == []
    monkeypatch.setenv("DEADSTOP_PRAISONAI_INLINE", "1")
    got = ParallelToolCallExecutor().execute_batch(calls(3), execute, timeout_ms=5000)
    assert [each.error for each in got] == [None] * 3 and sorted(ran) == [0, 1, 2]


# -- paths -----------------------------------------------------------------------------------------------------------


def write(path: Any, name: str = "write_file") -> ToolCall:
    return ToolCall(name, {"path": path, "content": "x"}, str(path))


def test_paths_overlap_when_one_lies_in_the_other(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    cases = {
        ("/t/a", "/t/a"): True, ("/t/a", "/t/a/b"): True, ("/t/a/b/c", "/t/a"): True, ("/t/a", "/t/ab"): False,
        ("/t/a", "/t/b"): False, ("/t/./a", "/t/x/../a"): True, ("x", str(Path.cwd() / "x")): True,
        (f"{tmp_path}/link/f", f"{tmp_path}/real/f"): True, (Path("/t/a"), "/t/a"): True, ("\0", "\0"): False,
    }  # fmt: skip
    assert {pair: has_write_conflicts([write(each) for each in pair]) for pair in cases} == cases


def test_which_tools_are_taken_for_writers() -> None:
    names = {
        "write_file": True, "read_file": False, "cat": False, "RemoveThing": True, "describe_update": False,
        "do_it": True,  # a path and a content
    }  # fmt: skip
    assert {name: bool(extract_paths(write("/t/a", name))) for name in names} == names
    assert extract_paths(ToolCall("do_it", {"path": "/t/a"}, "1")) == []
    assert extract_paths(ToolCall("do_it", None, "1")) == []  # type: ignore[arg-type]


def test_groups_keep_the_order_of_calls_in_conflict() -> None:
    groups = group_by_conflicts([write("/t/a"), write("/t/a/b"), write("/t/c"), write("/t/a/b/d")])
    assert [[each.tool_call_id for each in group] for group in groups] == [["/t/a", "/t/c"], ["/t/a/b"], ["/t/a/b/d"]]
