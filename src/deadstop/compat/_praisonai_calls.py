# SPDX-License-Identifier: Apache-2.0
"""One tool call as PraisonAI's executor runs it: here if it has no limit, in a worker that can be killed if it has."""

from __future__ import annotations

import inspect
import logging
import os
import types
import weakref
from collections.abc import Callable
from contextvars import Token as Before
from functools import lru_cache
from typing import Any

from .. import deadlines, messages
from ..executor.function import run
from ..executor.inline import complete
from ..executor.tool import Call, Tool
from ..results import Progress
from ..results import ToolResult as Outcome
from ._praisonai_limits import cancelled, seconds_of
from ._praisonai_outcomes import could_not_be_sent, is_terminal, raised_here, shaped
from ._praisonai_types import (
    DeferredToolResult,
    OnProgress,
    ToolCall,
    ToolCancelledError,
    ToolProgress,
    ToolResult,
)

INLINE_VARIABLE = "DEADSTOP_PRAISONAI_INLINE"
_log = logging.getLogger("deadstop.compat.praisonai")
_nested = deadlines.nested
_Coroutine, _Function, _Method = types.CoroutineType, types.FunctionType, types.MethodType


def run_single_tool_call(
    tool_call: ToolCall,
    execute_tool_fn: Callable[..., Any],
    on_progress: OnProgress | None = None,
    timeout_ms: float | None = None,
    cancel_token: Any = None,
) -> ToolResult:
    """Run `execute_tool_fn(name, arguments, tool_call_id)` and say how it ended.

    With `timeout_ms` (finite, above zero) it runs in a process of its own, which is killed at the limit or when the
    token is set: nothing of it goes on after this has returned. What it changes in this process's memory is not seen
    here. Without (None, zero or less) it runs here, as long as it likes, and the token is asked once, before.
    `on_progress`: see `ToolProgress`; the function gets one only if it has a parameter of that name.

    Raises InvalidLimit or UsageError, before anything runs, for a limit or a token that cannot be one, and what the
    function raises if that is a ToolExecutionError. All else is in the result.
    """
    seconds = None if timeout_ms is None else seconds_of("timeout_ms", timeout_ms, 0.001)
    result = run_checked(tool_call, execute_tool_fn, on_progress, seconds, timeout_ms, cancel_token)
    if result.error is not None and is_terminal(result.error):
        raise carrying(result.error, [])
    return result


def run_checked(
    tool_call: ToolCall, execute: Callable[..., Any], on_progress: OnProgress | None, seconds: float | None,
    timeout_ms: float | None, cancel_token: Any,
) -> ToolResult:  # fmt: skip
    """As above with the limit read already; a terminal error is in the result."""
    if cancel_token is not None and (why := cancelled(cancel_token)) is not None:
        return cancelled_before(tool_call, why)
    if seconds is not None or _nested():
        return Killable(tool_call, execute, on_progress, seconds, timeout_ms).run(cancel_token)
    if cancel_token is None:
        return run_here(tool_call, execute, on_progress)
    before: Before[Any] = messages.cancelled.set(lambda: cancelled(cancel_token) is not None)  # for deadstop.check()
    try:
        return run_here(tool_call, execute, on_progress)
    finally:
        messages.cancelled.reset(before)


def run_here(call: ToolCall, execute: Callable[..., Any], on_progress: OnProgress | None) -> ToolResult:
    relay = None
    try:
        if call.iteration_index is None and not takes_progress(execute):
            value = execute(call.function_name, call.arguments, call.tool_call_id)
        else:
            more = keywords(call, execute)
            if takes_progress(execute):
                more["on_progress"] = relay = Relay(call, on_progress)
            value = execute(call.function_name, call.arguments, call.tool_call_id, **more)
        if type(value) is _Coroutine:
            value = complete(value)
    except BaseException as problem:
        return raised_here(call, problem, relay.close() if relay is not None else [])
    told = relay.close() if relay is not None else []
    if isinstance(value, DeferredToolResult):
        return ToolResult(
            call.function_name, call.arguments, value.note, call.tool_call_id, call.is_ollama, None, told, value
        )
    return ToolResult(call.function_name, call.arguments, value, call.tool_call_id, call.is_ollama, None, told)


def keywords(call: ToolCall, execute: Callable[..., Any]) -> dict[str, Any]:
    if call.iteration_index is not None and getattr(execute, "_accepts_durable_iteration", False):
        return {"_durable_iteration_index": call.iteration_index}
    return {}


class Relay:
    """What a tool is given as `on_progress`. After `close` nothing gets through: the result has been given."""

    __slots__ = ("_call", "_closed", "_told", "_towards")

    def __init__(self, call: ToolCall, towards: OnProgress | None) -> None:
        self._call, self._towards = call, towards
        self._told: list[ToolProgress] = []
        self._closed = False

    def __call__(self, update: ToolProgress) -> None:
        if self._closed:
            return
        if update.tool_call_id is None:
            update.tool_call_id = self._call.tool_call_id
        if update.function_name is None:
            update.function_name = self._call.function_name
        self._told.append(update)
        if self._towards is not None:
            try:
                self._towards(update)
            except Exception:
                _log.warning("the on_progress callback failed", exc_info=True)

    def from_worker(self, message: Progress) -> None:
        if isinstance(message.data, ToolProgress):
            self(message.data)

    def close(self) -> list[ToolProgress]:
        self._closed = True
        return list(self._told)


class Killable:
    """One call that a worker runs: alone, or as part of a batch."""

    def __init__(
        self, tool_call: ToolCall, execute: Callable[..., Any], on_progress: OnProgress | None,
        seconds: float | None, timeout_ms: float | None,
    ) -> None:  # fmt: skip
        self.tool_call, self.execute = tool_call, execute
        self.seconds, self.timeout_ms = seconds, timeout_ms
        self.progress = takes_progress(execute)
        self.relay = Relay(tool_call, on_progress)

    def call(self, *, inline: bool = False) -> Call:
        tool = tool_for(self.execute, self.progress, self.seconds, inline or self.seconds is None)
        call, more = self.tool_call, keywords(self.tool_call, self.execute)
        made = Call(tool, call.function_name, call.arguments, call.tool_call_id, **more)
        if self.progress:
            made.on_progress = self.relay.from_worker
        return made

    def run(self, cancel_token: Any) -> ToolResult:
        outcome = run(with_token(self.call(), cancel_token))
        if could_not_be_sent(outcome) and inline_is_allowed():
            outcome = run(with_token(self.call(inline=True), cancel_token))
        return self.result(outcome)

    def result(self, outcome: Outcome) -> ToolResult:
        return shaped(self.tool_call, outcome, self.seconds, self.timeout_ms, self.relay.close())


def with_token(call: Call, cancel_token: Any) -> Call:
    call.cancel = cancel_token
    return call


def inline_is_allowed() -> bool:
    return os.environ.get(INLINE_VARIABLE, "").lower() in ("1", "true", "yes", "on")


def tool_for(execute: Callable[..., Any], progress: bool, seconds: float | None, inline: bool) -> Tool[..., Any]:
    """One Tool per function and limit, so that a function which stays the same is sent to each worker once."""
    if type(execute) is _Function:
        return _remembered(execute, progress, seconds, inline)
    return _made(execute, progress, seconds, inline)


@lru_cache(maxsize=128)
def _remembered(execute: Callable[..., Any], progress: bool, seconds: float | None, inline: bool) -> Tool[..., Any]:
    base = _base(execute, progress, inline)
    assert inline or base.sent  # made once, and shared by what `limited` makes
    return base.limited(seconds)


@lru_cache(maxsize=64)
def _base(execute: Callable[..., Any], progress: bool, inline: bool) -> Tool[..., Any]:
    return _made(execute, progress, None, inline)


def _made(execute: Callable[..., Any], progress: bool, seconds: float | None, inline: bool) -> Tool[..., Any]:
    isolation = "inline" if inline else "process"
    return Tool(telling(execute) if progress else execute, {"timeout": seconds, "isolation": isolation})


def telling(execute: Callable[..., Any]) -> Callable[..., Any]:
    """The function with an `on_progress` that reaches the caller from a worker, also from threads that it starts."""

    def body(name: str, arguments: dict[str, Any], tool_call_id: str, **more: Any) -> Any:
        tell = messages.sink.get()

        def on_progress(update: ToolProgress) -> None:
            message = Progress(str(update.text), update.id, update.replace, update)
            if tell is not None:
                tell(message)

        return execute(name, arguments, tool_call_id, on_progress=on_progress, **more)

    return body


_signatures: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def takes_progress(execute: Any) -> bool:
    """Whether it has a parameter named `on_progress`."""
    kind = type(execute)
    function = execute.__func__ if kind is _Method else execute
    if type(function) is _Function and not function.__dict__:  # nothing like __wrapped__ or __signature__
        code = function.__code__
        count = code.co_argcount + code.co_kwonlyargcount
        return "on_progress" in code.co_varnames[:count]
    try:
        known = _signatures.get(execute)
        if known is None:
            known = _signatures[execute] = _signature_has_it(execute)
        return known
    except TypeError:  # it cannot be hashed, or not weakly referred to
        return _signature_has_it(execute)


def _signature_has_it(execute: Any) -> bool:
    try:
        return "on_progress" in inspect.signature(execute).parameters
    except (TypeError, ValueError):
        return False


def cancelled_before(call: ToolCall, why: str) -> ToolResult:
    text = f"Tool '{call.function_name}' cancelled before execution"
    if why:
        _log.warning("%s: %s", text, why)
    return ToolResult(
        call.function_name, call.arguments, {"error": "cancelled", "tool": call.function_name}, call.tool_call_id,
        call.is_ollama, ToolCancelledError(f"{text}: {why}" if why else text), error_kind="cancelled",
    )  # fmt: skip


def carrying(problem: Exception, results: list[ToolResult]) -> Exception:
    """A terminal error with the results of the calls beside it."""
    try:
        problem.results = results  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        _log.error("%r cannot carry the results of %d other calls", problem, len(results))
    return problem
