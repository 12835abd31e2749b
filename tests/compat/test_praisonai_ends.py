# SPDX-License-Identifier: Apache-2.0
"""How one call ends: what it returns, raises or exits with, at its limit, and what is left of it then."""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest

import deadstop
from deadstop.compat import _praisonai_outcomes as outcomes
from deadstop.compat.praisonai import (
    DeferredToolResult,
    ToolCall,
    ToolCapacityError,
    ToolExecutionError,
    ToolExitError,
    ToolNotSendableError,
    ToolProgress,
    ToolRemoteError,
    ToolResult,
    ToolTimeoutError,
    defer,
    run_single_tool_call,
)
from hosts import within

LIMITED: list[dict[str, Any]] = [{}, {"timeout_ms": 5000}]
both = pytest.mark.parametrize("options", LIMITED, ids=["inline", "limited"])
variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def call(name: str = "t", **arguments: Any) -> ToolCall:
    return ToolCall(name, arguments, "id-1")


def run(body: Any, *, name: str = "t", on_progress: Any = None, arguments: Any = None, **options: Any) -> ToolResult:
    return run_single_tool_call(ToolCall(name, arguments or {}, "id-1"), body, on_progress, **options)


# -- by itself -------------------------------------------------------------------------------------------------------


@both
def test_a_value(options: dict[str, Any]) -> None:
    def execute(name: str, arguments: dict[str, Any], tool_call_id: str) -> list[Any]:
        return [name, arguments, tool_call_id]

    asked = ToolCall("look", {"q": [1, {"a": None}]}, "id-7", is_ollama=True)
    got = run_single_tool_call(asked, execute, **options)
    assert got.result == ["look", {"q": [1, {"a": None}]}, "id-7"]
    assert (got.function_name, got.arguments, got.tool_call_id) == ("look", asked.arguments, "id-7")
    assert (got.is_ollama, got.error, got.error_kind, got.structured_error) == (True, None, "error", None)
    assert (got.progress, got.is_deferred) == ([], False)


@both
def test_an_async_tool_is_awaited_also_inside_a_running_loop(options: dict[str, Any]) -> None:
    async def execute(name: str, arguments: dict[str, Any], tool_call_id: str) -> str:
        await asyncio.sleep(0.001)
        return f"awaited {name}"

    async def inside() -> ToolResult:
        return run(execute, **options)

    assert run(execute, **options).result == asyncio.run(inside()).result == "awaited t"


@both
def test_context_variables_reach_the_tool(options: dict[str, Any]) -> None:
    def execute(name: str, arguments: dict[str, Any], tool_call_id: str) -> str:
        return variable.get()

    before = variable.set("session 9")
    try:
        assert run(execute, **options).result == "session 9"
    finally:
        variable.reset(before)


@both
def test_a_deferred_value(options: dict[str, Any]) -> None:
    def theirs(name: str, arguments: dict[str, Any], tool_call_id: str) -> DeferredToolResult:
        return defer("queued job 42", "job-42")

    def ours(name: str, arguments: dict[str, Any], tool_call_id: str) -> Any:
        return deadstop.defer("queued job 43", "job-43")

    got = run(theirs, **options)
    assert (got.result, got.deferred, got.error) == (
        "queued job 42",
        DeferredToolResult("job-42", "queued job 42"),
        None,
    )
    if options:
        assert run(ours, **options).deferred == DeferredToolResult("job-43", "queued job 43")


@both
def test_the_durable_iteration_reaches_a_function_that_is_marked(options: dict[str, Any]) -> None:
    def execute(name: str, arguments: dict[str, Any], tool_call_id: str, **more: Any) -> Any:
        return more

    asked = ToolCall("t", {}, "id", iteration_index=3)
    assert run_single_tool_call(asked, execute, **options).result == {}
    execute._accepts_durable_iteration = True  # type: ignore[attr-defined]
    assert run_single_tool_call(asked, execute, **options).result == {"_durable_iteration_index": 3}


@both
def test_an_error_is_the_tools_own(options: dict[str, Any]) -> None:
    def execute(name: str, arguments: dict[str, Any], tool_call_id: str) -> None:
        raise PermissionError(13, "nope")

    got = run(execute, **options)
    assert isinstance(got.error, PermissionError) and got.error.errno == 13
    assert (got.error_kind, got.result) == ("error", "Error executing tool: [Errno 13] nope")
    assert got.structured_error == {
        "error": True, "kind": "error", "type": "PermissionError", "message": "[Errno 13] nope", "tool": "t",
    }  # fmt: skip


@both
def test_a_timeout_error_of_the_tool_is_no_timeout(options: dict[str, Any]) -> None:
    def execute(name: str, arguments: dict[str, Any], tool_call_id: str) -> None:
        raise TimeoutError("the site was slow")

    got = run(execute, **options)
    assert (got.error_kind, type(got.error), str(got.error)) == ("error", TimeoutError, "the site was slow")


@both
def test_sys_exit_ends_the_tool_and_nobody_else(options: dict[str, Any]) -> None:
    def execute(name: str, arguments: dict[str, Any], tool_call_id: str) -> None:
        sys.exit(3)

    got = run(execute, **options)
    assert isinstance(got.error, ToolExitError) and got.error.code == 3
    assert (got.error_kind, got.result) == ("error", "Error executing tool: the tool called sys.exit(3)")


@both
def test_a_stray_cancellation_is_the_tools_error(options: dict[str, Any]) -> None:
    async def execute(name: str, arguments: dict[str, Any], tool_call_id: str) -> None:
        raise asyncio.CancelledError

    got = run(execute, **options)
    assert isinstance(got.error, ToolRemoteError) and got.structured_error
    assert (got.error_kind, got.structured_error["type"]) == ("error", "CancelledError")


def test_what_is_meant_for_the_process_still_reaches_it() -> None:
    def execute(name: str, arguments: dict[str, Any], tool_call_id: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(execute)
    got = run(execute, timeout_ms=5000)  # there it was the worker's
    assert isinstance(got.error, ToolRemoteError) and type(got.error).__name__ == "KeyboardInterrupt"


def test_an_exception_that_cannot_leave_its_process_keeps_its_name_and_text() -> None:
    def execute(name: str, arguments: dict[str, Any], tool_call_id: str) -> None:
        class Holding(Exception):
            lock = threading.Lock()

        problem = Holding("kept")
        problem.lock = threading.Lock()
        raise problem

    got = run(execute, timeout_ms=5000)
    assert isinstance(got.error, ToolRemoteError) and got.structured_error
    assert (got.structured_error["type"], got.structured_error["message"]) == ("Holding", "kept")
    assert got.result == "Error executing tool: kept"
    assert got.outcome is not None and "in execute" in str(got.outcome.traceback)


@both
def test_a_terminal_error_is_raised(options: dict[str, Any]) -> None:
    def execute(name: str, arguments: dict[str, Any], tool_call_id: str) -> None:
        raise ToolExecutionError("halt", tool_name=name, is_retryable=False)

    with pytest.raises(ToolExecutionError, match="halt") as raised:
        run(execute, **options)
    assert (raised.value.tool_name, raised.value.is_retryable, raised.value.results) == ("t", False, [])


class Unsendable(ToolExecutionError):
    def __init__(self, lock: Any) -> None:
        super().__init__("halt with a lock")
        self.lock = lock


def test_a_terminal_error_stays_one_when_it_cannot_be_sent() -> None:
    def execute(name: str, arguments: dict[str, Any], tool_call_id: str) -> None:
        raise Unsendable(threading.Lock())

    with pytest.raises(ToolExecutionError, match="halt with a lock"):
        run(execute, timeout_ms=5000)


def test_praisonais_own_terminal_error_is_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = types.ModuleType("praisonaiagents.errors")
    theirs.ToolExecutionError = type("ToolExecutionError", (Exception,), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "praisonaiagents.errors", theirs)

    def execute(name: str, arguments: dict[str, Any], tool_call_id: str) -> None:
        raise theirs.ToolExecutionError("halt")

    with pytest.raises(theirs.ToolExecutionError, match="halt"):
        run(execute)


def test_a_hard_exit_is_an_error_with_a_name() -> None:
    def execute(name: str, arguments: dict[str, Any], tool_call_id: str) -> None:
        os._exit(0)

    got = run(execute, timeout_ms=5000)
    assert got.error_kind == "error" and isinstance(got.error, deadstop.ToolCrashedError)


def test_no_worker_to_be_had_is_capacity() -> None:
    refused = deadstop.ToolResult(
        tool="t", status=deadstop.Status.REFUSED, reason="capacity", error_message="no worker was free within 300 s"
    )
    got = outcomes.shaped(call(), refused, 1.0, 1000, [])
    assert isinstance(got.error, ToolCapacityError) and got.error_kind == "capacity"
    assert got.result == {"error": "capacity", "tool": "t"}


# -- what goes into another process ----------------------------------------------------------------------------------


def test_what_a_closure_changes_under_a_limit_is_not_seen_here_but_its_value_is() -> None:
    seen: list[str] = []

    def execute(name: str, arguments: dict[str, Any], tool_call_id: str) -> list[str]:
        seen.append(name)
        return seen

    assert run(execute, timeout_ms=5000).result == ["t"]
    assert seen == []
    assert run(execute).result is seen and seen == ["t"]


def test_what_cannot_be_sent_is_not_run_and_the_error_names_the_fixes() -> None:
    lock = threading.Lock()

    def execute(name: str, arguments: dict[str, Any], tool_call_id: str) -> int:
        with lock:
            return os.getpid()

    got = run(execute, timeout_ms=5000)
    assert isinstance(got.error, ToolNotSendableError) and got.error_kind == "error"
    for fix in (
        "cannot pickle '_thread.lock'",
        "plain function",
        "@deadstop.tool(timeout=",
        "DEADSTOP_PRAISONAI_INLINE=1",
    ):
        assert fix in str(got.error)
    assert run(execute).result == os.getpid()
    got = run(lambda name, arguments, tool_call_id: 1, arguments={"lock": lock}, timeout_ms=5000)
    assert isinstance(got.error, ToolNotSendableError)


def test_the_opt_in_runs_it_here_and_tells_of_an_overrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEADSTOP_PRAISONAI_INLINE", "1")
    lock = threading.Lock()

    def execute(name: str, arguments: dict[str, Any], tool_call_id: str, on_progress: Any = None) -> int:
        with lock:
            on_progress(ToolProgress("begun"))
            time.sleep(arguments["seconds"])
            return os.getpid()

    quick = run(execute, arguments={"seconds": 0}, timeout_ms=5000)
    assert (quick.result, [each.text for each in quick.progress]) == (os.getpid(), ["begun"])
    slow = run(execute, arguments={"seconds": 0.1}, timeout_ms=20)
    assert isinstance(slow.error, ToolTimeoutError) and slow.error_kind == "timeout"
    assert slow.error.background_work_may_continue and "it ran inline" in str(slow.error)
    assert slow.result == {"error": "timeout", "timeout_ms": 20, "tool": "t"}
    assert slow.outcome is not None and slow.outcome.late is not None and slow.outcome.late.value == os.getpid()


# -- at the limit ----------------------------------------------------------------------------------------------------


def sleeping(name: str, arguments: dict[str, Any], tool_call_id: str) -> None:
    time.sleep(20)


def spinning(name: str, arguments: dict[str, Any], tool_call_id: str) -> None:
    while True:
        pass


def holding_the_interpreter_lock(name: str, arguments: dict[str, Any], tool_call_id: str) -> int:
    return len(str(bytes(3 << 20)) * 0) + (3**5_000_000 % 7)


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
