# SPDX-License-Identifier: Apache-2.0
"""How a call ended, put the way PraisonAI's callers read it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

from ..envelope import ERROR_CLASSES, error_type_of
from ..results import Status
from ..results import ToolResult as Outcome
from ._praisonai_types import (
    DeferredToolResult,
    ToolCall,
    ToolCancelledError,
    ToolCapacityError,
    ToolExecutionError,
    ToolExitError,
    ToolNotSendableError,
    ToolProgress,
    ToolRemoteError,
    ToolResult,
    ToolTimeoutError,
    text_of,
)

_log = logging.getLogger("deadstop.compat.praisonai")
FIXES = (
    "make it a plain function of its arguments; or put the limit on the tool itself (@deadstop.tool(timeout=...)) and "
    "none on the call; or set DEADSTOP_PRAISONAI_INLINE=1 to run it here, where an overrun is told of but not ended"
)


def is_terminal(problem: BaseException) -> bool:
    """Whether it is a ToolExecutionError: ours, or PraisonAI's own where that is loaded."""
    return isinstance(problem, ToolExecutionError) or any(isinstance(problem, each) for each in _theirs())


def _theirs() -> Iterator[type[Exception]]:
    found = getattr(sys.modules.get("praisonaiagents.errors"), "ToolExecutionError", None)
    if isinstance(found, type) and issubclass(found, Exception):
        yield found


def raised_here(call: ToolCall, problem: BaseException, told: list[ToolProgress]) -> ToolResult:
    """The result of a tool that raised in this process. Raises again what is meant for the process itself."""
    if isinstance(problem, Exception):
        error = problem
    elif isinstance(problem, SystemExit):
        error = _exited(problem)
    elif type(problem).__name__ == "CancelledError":  # of something the tool awaited: nobody cancels a call this way
        error = _remote("CancelledError", text_of(problem))
        error.__cause__ = problem
    else:
        raise problem
    return failed(call, error, text_of(error), told)


def failed(call: ToolCall, error: Exception, text: str, told: list[ToolProgress]) -> ToolResult:
    if not is_terminal(error):
        _log.error("tool %s failed: %s", call.function_name, text)
    return ToolResult(
        call.function_name, call.arguments, f"Error executing tool: {text}", call.tool_call_id, call.is_ollama, error,
        told,
    )  # fmt: skip


def could_not_be_sent(outcome: Outcome) -> bool:
    return outcome.status is Status.REFUSED and outcome.reason == "policy"


def shaped(
    call: ToolCall, outcome: Outcome, seconds: float | None, timeout_ms: float | None, told: list[ToolProgress]
) -> ToolResult:
    """The result of a call that the engine ran."""
    error: Exception
    match outcome.status:
        case Status.COMPLETED:
            result = _completed(call, outcome, told)
        case Status.TIMEOUT:
            result = _timed_out(call, outcome, seconds, timeout_ms, told)
        case Status.CANCELLED:
            result = _ended(call, "cancelled", ToolCancelledError(_why_cancelled(call, outcome)), told)
        case Status.REFUSED if outcome.reason == "capacity":
            error = ToolCapacityError(f"Tool '{call.function_name}' did not run: {outcome.error_message}")
            result = _ended(call, "capacity", error, told)
        case _:
            error = error_of(call.function_name, outcome)
            text = text_of(error) if error is not outcome.exception else outcome.error_message or ""
            result = failed(call, error, text, told)
    result.__dict__["_outcome"] = outcome
    return result


def _completed(call: ToolCall, outcome: Outcome, told: list[ToolProgress]) -> ToolResult:
    value: Any = outcome.value
    deferred = value if isinstance(value, DeferredToolResult) else None
    if outcome.deferred is not None:
        deferred = DeferredToolResult(outcome.deferred, str(value))
    if deferred is not None:
        value = deferred.note
        if outcome.leftover:
            left = ", ".join(outcome.leftover)
            _log.warning("tool %s deferred its value, but what it left (%s) ended with it", call.function_name, left)
    return ToolResult(
        call.function_name, call.arguments, value, call.tool_call_id, call.is_ollama, None, told, deferred
    )


def _ended(
    call: ToolCall, kind: str, error: Exception, told: list[ToolProgress], **more: Any
) -> ToolResult:  # fmt: skip
    _log.error("%s", error)
    payload = {"error": kind, **more, "tool": call.function_name}
    return ToolResult(
        call.function_name, call.arguments, payload, call.tool_call_id, call.is_ollama, error, told, error_kind=kind
    )


def _timed_out(
    call: ToolCall, outcome: Outcome, seconds: float | None, timeout_ms: float | None, told: list[ToolProgress]
) -> ToolResult:
    limit = outcome.limit
    own = limit is None or (limit.which == "call" and limit.source == "given")
    if not own and limit is not None:
        seconds = limit.seconds
        timeout_ms = None if seconds is None else seconds * 1000
    shown = f"{timeout_ms:g}" if isinstance(timeout_ms, float) else timeout_ms
    text = f"Tool '{call.function_name}' timed out after {shown}ms"
    if not own and limit is not None:
        text += f" (the limit of its {limit.which})"
    if outcome.late is not None and outcome.receipt is not None and outcome.receipt.boundary == "inline":
        text += "; it ran inline, and ended by itself"
    error = ToolTimeoutError(text)
    error.tool_name, error.timeout_seconds = call.function_name, seconds
    error.background_work_may_continue = may_continue(outcome)
    return _ended(call, "timeout", error, told, timeout_ms=timeout_ms)


def may_continue(outcome: Outcome) -> bool:
    """Whether it cannot be said that nothing of the call is left."""
    return outcome.receipt is None or outcome.receipt.survivors != 0


def _why_cancelled(call: ToolCall, outcome: Outcome) -> str:
    ran = outcome.receipt is not None or outcome.duration_s > 0
    text = f"Tool '{call.function_name}' cancelled {'while it ran' if ran else 'before execution'}"
    if outcome.reason == "token_error":
        why = next((each for each in outcome.degraded if "cancel token" in each), "the cancel token failed")
        return f"{text}: {why}"
    return text


def error_of(name: str, outcome: Outcome) -> Exception:
    """The exception that stands for an outcome that is no result. A terminal one stays terminal."""
    problem = outcome.exception
    if could_not_be_sent(outcome):
        return ToolNotSendableError(f"Tool '{name}' did not run: {outcome.error_message}. To mend it: {FIXES}")
    if isinstance(problem, SystemExit):
        return _exited(problem)
    if isinstance(problem, Exception):
        return problem
    message = outcome.error["message"] if outcome.error else outcome.status.meaning
    if outcome.status is not Status.ERROR:
        return ERROR_CLASSES[error_type_of(outcome)](message, outcome)
    kind = outcome.error_type or "ToolError"
    if kind in {each.__name__ for each in _terminal_classes()}:
        return ToolExecutionError(message, tool_name=name)
    return _remote(kind, message)


def _terminal_classes() -> Iterator[type[Exception]]:
    waiting: list[type[Exception]] = [ToolExecutionError, *_theirs()]
    while waiting:
        yield (found := waiting.pop())
        waiting += found.__subclasses__()


def _exited(problem: SystemExit) -> ToolExitError:
    error = ToolExitError(problem.code)
    error.__cause__ = problem
    return error


def _remote(kind: str, message: str) -> ToolRemoteError:
    named: type[ToolRemoteError] = type(kind, (ToolRemoteError,), {"__module__": ToolRemoteError.__module__})
    return named(message)
