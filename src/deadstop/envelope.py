# SPDX-License-Identifier: Apache-2.0
"""The error envelope of a result: which error it stands for, and its one-line message."""

from __future__ import annotations

from . import errors
from .clock import format_duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .results import ToolResult

__all__ = ["ERROR_CLASSES", "error_envelope", "error_type_of"]

ERROR_CLASSES: dict[str, type[errors.ToolError]] = {
    kind.__name__: kind
    for kind in (
        errors.ToolError,
        errors.ToolTimeoutError,
        errors.ToolCancelledError,
        errors.ToolCrashedError,
        errors.ToolRefusedError,
        errors.ToolResourceError,
        errors.ToolSignaledError,
        errors.ToolStartError,
        errors.ToolExitError,
        errors.OutcomeUnknown,
    )
}

_TYPE_OF_STATUS = {
    "completed": "ToolExitError",
    "error": "ToolError",
    "timeout": "ToolTimeoutError",
    "cancelled": "ToolCancelledError",
    "signaled": "ToolSignaledError",
    "crashed": "ToolCrashedError",
    "resource_limit": "ToolResourceError",
    "refused": "ToolRefusedError",
    "unknown": "OutcomeUnknown",
}
# What is not settled must not reach a retry library as something it knows how to repeat.
_MAY_BE_IN_DOUBT = frozenset({"error", "timeout", "cancelled", "signaled", "crashed", "resource_limit"})

_TIMEOUTS = {
    "call": "timed out after {}",
    "idle": "timed out: no output for {}",
    "soft": "timed out after {} (soft limit)",
    "batch": "timed out: the {} of its batch were over",
    "task": "timed out: the {} of its task were over",
    "parent": "timed out after {}: the deadline of the call it belongs to",
    "ttl": "timed out: its lifetime of {} was over",
}
_CANCELLATIONS = {
    "caller": "cancelled by the caller",
    "race_lost": "cancelled: another call of the race won",
    "input_wait": "cancelled: it waited for input that nobody will give",
    "owner_gone": "cancelled: the process that started it is gone",
    "shutdown": "cancelled: the supervisor shut down",
    "sandbox_ended": "cancelled: its sandbox was ended",
    "token_error": "cancelled: its cancel token failed",
}
_REFUSALS = {
    "deadline_over": "not started: the deadline was already over",
    "budget": "not started: the task's budget is used up",
    "replay": "not started: this operation was already made",
    "key_conflict": "not started: the idempotency key belongs to a different request",
    "guard": "not started: the guard refused it",
    "capacity": "not started: no capacity",
    "policy": "not started: the policy does not allow it",
}


def error_type_of(result: ToolResult) -> str:
    """The name of the error class that `unwrap()` raises for what is not ok."""
    status = result.status.value
    if result.effect == "unknown" and status in _MAY_BE_IN_DOUBT:
        return "OutcomeUnknown"
    if status == "error" and result.start_errno is not None:
        return "ToolStartError"
    return _TYPE_OF_STATUS[status]


def error_envelope(result: ToolResult) -> dict[str, Any] | None:
    """The five keys error, kind, type, message, tool; None for a completed call."""
    status = result.status.value
    if status == "completed":
        return None
    return {
        "error": True,
        "kind": "capacity" if status == "refused" and result.reason == "capacity" else status,
        "type": result.error_type or error_type_of(result),
        "message": _message(result) if result.error_message is None else result.error_message,
        "tool": result.tool,
    }


def _message(result: ToolResult) -> str:
    match result.status.value:
        case "timeout":
            return _timeout_message(result)
        case "cancelled":
            return _CANCELLATIONS.get(result.reason or "", "cancelled")
        case "refused":
            return _REFUSALS.get(result.reason or "", "not started: refused")
        case "signaled":
            return f"ended by {_signal_name(result.signal)}, which deadstop did not send"
        case "crashed":
            return "its process died without giving a result"
        case "resource_limit":
            return _resource_message(result)
        case "unknown":
            return "how it ended is not known"
        case _:
            return _start_message(result.start_errno)


def _timeout_message(result: ToolResult) -> str:
    limit = result.limit
    if limit is None or limit.seconds is None:
        return f"timed out after {format_duration(result.duration_s)}"
    return _TIMEOUTS.get(limit.which, _TIMEOUTS["call"]).format(format_duration(limit.seconds))


def _resource_message(result: ToolResult) -> str:
    which = result.limit.which if result.limit else "resource"
    report = result.limits.get(which)
    if report is None or report.value is None:
        return f"ended by its {which} limit"
    unit = "" if which == "pids" else " bytes"
    return f"ended by its {which} limit of {report.value}{unit}"


def _start_message(start_errno: int | None) -> str:
    if start_errno is None:
        return "it raised an error"
    from os import strerror

    return f"could not be started: {strerror(start_errno)}"


def _signal_name(number: int | None) -> str:
    if number is None:
        return "a signal"
    from signal import Signals

    try:
        return f"signal {number} ({Signals(number).name})"
    except ValueError:
        return f"signal {number}"
