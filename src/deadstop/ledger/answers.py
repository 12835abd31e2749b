# SPDX-License-Identifier: Apache-2.0
"""Results of calls with effects: what the ledger knows decides them, not what the caller saw."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from .. import clock
from ..results import Status, ToolResult
from .definition import Definition
from .handle import effect_of, operation_document, retry_allowed, settled_by
from .operations import asked_to_wait_ms
from .records import Outcome, Record
from .states import State

__all__ = ["key_conflict", "not_sent_now", "not_written_down", "settle_hint", "with_operation"]


def with_operation(result: ToolResult, record: Record, definition: Definition, outcome: Outcome | None) -> ToolResult:
    """The result of the attempt that `outcome` describes, after the ledger has taken it."""
    effect, again = effect_of(record), retry_allowed(record, definition)
    hint = result.hint
    if effect == "unknown":
        hint = settle_hint(record, definition)
    elif again:
        hint = "it did not happen; it may be sent again, by the same call, under the same key"
    told: dict[str, Any] = {}
    if result.status is Status.COMPLETED and effect == "unknown":  # taken by the authority, and not done
        told = {
            "status": Status.UNKNOWN,
            "error_message": "it was accepted, and its end is not known yet",
            "value": None,
        }
    return replace(
        result, effect=effect, retry_allowed=again, hint=hint,
        operation=operation_document(record, definition, outcome), **told,
    )  # fmt: skip


def not_sent_now(
    tool: str, call_id: str, record: Record, definition: Definition, *, value: tuple[bool, Any] = (False, None)
) -> ToolResult:
    """The result of a call that found its operation made, held by somebody else, or in doubt: it has sent nothing."""
    fields: dict[str, Any] = {
        "tool": tool, "call_id": call_id, "started_at": clock.now_iso(), "effect": effect_of(record),
        "environment": "nothing was started", "operation": operation_document(record, definition),
    }  # fmt: skip
    if record.state is State.SUCCEEDED:
        kept, found = value
        hint = f"already done as operation {record.op_id}: nothing was sent again"
        hint += "" if kept else "; its result was not kept"
        return ToolResult(**fields, status=Status.COMPLETED, value=found, hint=hint)
    if record.state in (State.FAILED, State.ABANDONED):
        words = "failed" if record.state is State.FAILED else "was given up"
        message = f"operation {record.op_id} {words} before, and its key is used up"
        return ToolResult(**fields, status=Status.REFUSED, reason="replay", error_message=message)
    if wait_ms := asked_to_wait_ms(record, round(time.time() * 1000)):
        message = f"operation {record.op_id}: its authority has asked for a pause, which is not over: nothing was sent"
        hint = f"the same call may be made again in {wait_ms / 1000:.0f} s"
        return ToolResult(**fields, status=Status.REFUSED, reason="capacity", error_message=message, hint=hint,
                          retry_allowed=retry_allowed(record, definition))  # fmt: skip
    words = {State.DISPATCHING: "is being sent by another run", State.PREPARED: "is waiting to be sent",
             State.RECONCILING: "is being looked up", State.UNKNOWN: "has an unknown outcome",
             State.NEEDS_HUMAN: "waits for a person's decision"}[record.state]  # fmt: skip
    message = f"operation {record.op_id} {words}: nothing was sent"
    return ToolResult(**fields, status=Status.UNKNOWN, error_message=message, hint=settle_hint(record, definition))


def key_conflict(tool: str, call_id: str, record: Record, definition: Definition) -> ToolResult:
    """Refused: the key belongs to another request. What is known of that one is not told as if it were this one's."""
    message = f"the idempotency key belongs to operation {record.op_id}, which is a different request: nothing was sent"
    return ToolResult(
        tool=tool, call_id=call_id, status=Status.REFUSED, reason="key_conflict", error_message=message,
        started_at=clock.now_iso(), effect="not_applied", environment="nothing was started",
        operation=operation_document(record, definition),
    )  # fmt: skip


def not_written_down(result: ToolResult, record: Record, definition: Definition, problem: Exception) -> ToolResult:
    """It may have ended well, but that could not be made durable, or somebody else had settled it: not known, then."""
    message = f"how it ended could not be written down: {problem}"
    return replace(
        result, status=Status.UNKNOWN, reason=None, value=None, effect="unknown", retry_allowed=False,
        error_type=None, error_message=message, exception=None, hint=settle_hint(record, definition),
        operation=operation_document(record, definition),
    )  # fmt: skip


def settle_hint(record: Record, definition: Definition) -> str:
    """What would settle it, in words."""
    from ..operation import Operation

    if retry_allowed(record, definition):
        return "the same call may be made again: its provider does nothing twice under its key"
    if record.state is State.NEEDS_HUMAN:
        return f"do not send it again; a person decides: deadstop ops show {record.op_id}"
    if settled_by(definition, Operation.of(record)) is None:
        return f"do not send it again; nobody can be asked: deadstop ops show {record.op_id}"
    return f"do not send it again; ask first: deadstop ops reconcile {record.op_id}"
