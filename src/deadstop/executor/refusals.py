# SPDX-License-Identifier: Apache-2.0
"""The results of calls that never ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import clock
from ..results import FiredLimit, Status, ToolResult

if TYPE_CHECKING:
    from .tokens import Token
    from .tool import Call


NOTHING_STARTED = "nothing was started"


def never_ran(asked: Call, status: Status, reason: str | None, message: str | None, **more: Any) -> ToolResult:
    """The result of a call that was never started."""
    return ToolResult(
        tool=asked.tool.name, status=status, reason=reason, call_id=asked.call_id, effect=asked.tool.effect,
        started_at=clock.now_iso(), environment=NOTHING_STARTED, error_message=message, **more,
    )  # fmt: skip


def over_before_start(asked: Call, limit: FiredLimit | None) -> ToolResult:
    """Its deadline was over before it could start."""
    return never_ran(asked, Status.REFUSED, "deadline_over", None, limit=limit)


def lease_is_over(asked: Call) -> ToolResult | None:
    """A refusal if this process was stopped so long that its operation may be another's by now: asked last of all."""
    if asked.lease is None or not asked.lease.is_over():
        return None
    return never_ran(asked, Status.REFUSED, "deadline_over", "its lease was over before it could start")


def cancelled_before(asked: Call, token: Token) -> ToolResult:
    degraded = (token.error,) if token.error else ()
    message = f"cancelled before it started: {token.error}" if token.error else "cancelled before it started"
    return never_ran(asked, Status.CANCELLED, token.reason, message, degraded=degraded)


def no_capacity(asked: Call, seconds: float) -> ToolResult:
    """It waited in line until some limit was over."""
    end, limit = asked.resolve()
    if end <= clock.monotonic():
        return over_before_start(asked, limit)
    return never_ran(asked, Status.REFUSED, "capacity", f"no worker was free within {seconds:.0f} s")


def cannot_be_sent(asked: Call, problem: BaseException) -> ToolResult:
    hint = "pass plain data, or declare the tool with isolation='inline', which can only report an overrun"
    return never_ran(asked, Status.REFUSED, "policy", f"it cannot be run in another process: {problem}", hint=hint)
