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
