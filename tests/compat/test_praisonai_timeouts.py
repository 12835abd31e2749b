# SPDX-License-Identifier: Apache-2.0
"""What a call that meets its limit leaves behind (nothing), and what a tool tells while it runs."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import deadstop
from deadstop.compat.praisonai import ToolCall, ToolProgress, ToolResult, ToolTimeoutError, run_single_tool_call
from hosts import within

LIMITED: list[dict[str, Any]] = [{}, {"timeout_ms": 5000}]
both = pytest.mark.parametrize("options", LIMITED, ids=["inline", "limited"])


def run(body: Any, *, name: str = "t", on_progress: Any = None, arguments: Any = None, **options: Any) -> ToolResult:
    return run_single_tool_call(ToolCall(name, arguments or {}, "id-1"), body, on_progress, **options)


def sleeping(name: str, arguments: dict[str, Any], tool_call_id: str) -> None:
    time.sleep(20)


def spinning(name: str, arguments: dict[str, Any], tool_call_id: str) -> None:
    while True:
        pass


def holding_the_interpreter_lock(name: str, arguments: dict[str, Any], tool_call_id: str) -> int:
    return int(3 ** arguments.get("power", 20_000_000) % 7)


async def awaiting(name: str, arguments: dict[str, Any], tool_call_id: str) -> None:
    await asyncio.sleep(20)


async def blocking_a_loop(name: str, arguments: dict[str, Any], tool_call_id: str) -> None:
    time.sleep(20)


HANGS = [sleeping, spinning, holding_the_interpreter_lock, awaiting, blocking_a_loop]


@pytest.mark.alone
@pytest.mark.parametrize("body", HANGS, ids=lambda each: each.__name__)
def test_a_call_ends_at_its_limit(body: Any) -> None:
    run(lambda name, arguments, tool_call_id: 1, timeout_ms=5000)  # a worker is there
    began = time.monotonic()
    got = run(body, name="slow", timeout_ms=100)
    took = time.monotonic() - began
    assert isinstance(got.error, ToolTimeoutError)
    assert (got.error_kind, str(got.error)) == ("timeout", "Tool 'slow' timed out after 100ms")
    assert got.result == {"error": "timeout", "timeout_ms": 100, "tool": "slow"}
    assert (got.error.tool_name, got.error.timeout_seconds) == ("slow", 0.1)
    assert got.outcome is not None and got.outcome.receipt is not None and got.outcome.receipt.survivors == 0
    assert 0.1 <= took < 1.0


def test_nothing_happens_after_a_timeout(tmp_path: Path) -> None:
    """The work of a tool that was ended is gone: `background_work_may_continue` is False, and this is why."""

    def sync(name: str, arguments: dict[str, Any], tool_call_id: str) -> None:
        late = threading.Thread(target=write_later, args=(arguments["folder"], "thread"))
        late.start()
        if os.fork() == 0:
            os.setsid()
            write_later(arguments["folder"], "process")
            os._exit(0)
        write_later(arguments["folder"], "sync")

    def write_later(folder: str, name: str) -> None:
        with open(f"{folder}/{name}.begun", "w"):
            pass
        time.sleep(0.6)
        with open(f"{folder}/{name}.late", "w"):
            pass

    async def async_(name: str, arguments: dict[str, Any], tool_call_id: str) -> None:
        with open(f"{arguments['folder']}/async.begun", "w"):
            pass
        await asyncio.sleep(0.6)
        with open(f"{arguments['folder']}/async.late", "w"):
            pass

    folder = {"folder": str(tmp_path)}
    ended = [run(body, arguments=folder, timeout_ms=300) for body in (sync, async_)]
    errors = [each.error for each in ended]
    assert all(isinstance(each, ToolTimeoutError) and each.background_work_may_continue is False for each in errors)
    begun = sorted(path.stem for path in tmp_path.glob("*.begun"))
    assert begun == ["async", "process", "sync", "thread"]
    over = time.monotonic() + 0.7  # the time at which any of them would have written
    while time.monotonic() < over:
        assert list(tmp_path.glob("*.late")) == []
        time.sleep(0.05)


# -- progress --------------------------------------------------------------------------------------------------------


@both
def test_progress_is_streamed_and_stamped(options: dict[str, Any]) -> None:
    def execute(name: str, arguments: dict[str, Any], tool_call_id: str, on_progress: Any = None) -> str:
        on_progress(ToolProgress("one", id="draft"))
        on_progress(ToolProgress("two", id="draft"))
        other = threading.Thread(target=on_progress, args=(ToolProgress("three", tool_call_id="own"),))
        other.start()
        other.join()
        return "done"

    seen: list[ToolProgress] = []
    got = run(execute, on_progress=seen.append, **options)
    assert got.result == "done" and seen == got.progress
    assert [(each.text, each.tool_call_id, each.function_name) for each in seen] == [
        ("one", "id-1", "t"), ("two", "id-1", "t"), ("three", "own", "t"),
    ]  # fmt: skip


@both
def test_a_callback_that_fails_harms_nobody(options: dict[str, Any]) -> None:
    def execute(name: str, arguments: dict[str, Any], tool_call_id: str, on_progress: Any = None) -> str:
        on_progress(ToolProgress("x"))
        return "ok"

    def broken(update: ToolProgress) -> None:
        raise RuntimeError("channel down")

    got = run(execute, on_progress=broken, **options)
    assert (got.result, [each.text for each in got.progress]) == ("ok", ["x"])


def test_progress_of_a_call_that_was_ended_is_kept_and_none_comes_later() -> None:
    def execute(name: str, arguments: dict[str, Any], tool_call_id: str, on_progress: Any = None) -> None:
        for number in range(1000):
            on_progress(ToolProgress(f"step {number}"))
            time.sleep(0.02)

    seen: list[ToolProgress] = []
    got = run(execute, on_progress=seen.append, timeout_ms=200)
    count = len(seen)
    assert got.error_kind == "timeout" and got.progress == seen and seen[0].text == "step 0" and count > 2
    time.sleep(0.1)
    assert len(seen) == count


def test_an_inline_tool_cannot_tell_after_its_result() -> None:
    goes_on, told = threading.Event(), threading.Event()

    def execute(name: str, arguments: dict[str, Any], tool_call_id: str, on_progress: Any = None) -> str:
        def later() -> None:
            goes_on.wait(10)
            on_progress(ToolProgress("late"))
            told.set()

        threading.Thread(target=later).start()
        return "done"

    seen: list[ToolProgress] = []
    got = run(execute, on_progress=seen.append)
    goes_on.set()
    within(10, told.is_set)
    assert (got.result, got.progress, seen) == ("done", [], [])


# -- within a budget -------------------------------------------------------------------------------------------------


def test_calls_draw_on_the_task_they_are_made_in() -> None:
    with deadstop.Task(steps=2):
        kinds = [type(run(lambda *_: 1, **options).error).__name__ for options in (*LIMITED, *LIMITED)]
    assert kinds == ["NoneType", "NoneType", "ToolRefusedError", "ToolRefusedError"]


def test_the_limit_of_a_surrounding_block_is_named() -> None:
    with deadstop.deadline(0.2):
        got = run(sleeping, timeout_ms=5000)
    assert got.error_kind == "timeout" and "(the limit of its parent)" in str(got.error)
