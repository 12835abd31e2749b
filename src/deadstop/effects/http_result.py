# SPDX-License-Identifier: Apache-2.0
"""The results of writes over HTTP: what was seen on the wire, under what the ledger says of the operation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from .. import clock
from ..clock import format_duration
from ..errors import NotSent, Rejected
from ..executor.tool import new_call_id
from ..ledger.answers import with_operation
from ..ledger.definition import Definition
from ..ledger.records import Record
from ..ledger.states import State
from ..results import FiredLimit, Status, ToolResult
from .http_follow import Followed
from .http_verdict import Judged

__all__ = ["Asked", "followed_result", "over_before", "recorded", "seen_result"]


@dataclass(frozen=True, slots=True)
class Asked:
    """One call of the client: what all its results say."""

    tool: str
    limit: FiredLimit | None
    call_id: str = field(default_factory=new_call_id)
    started_at: str = field(default_factory=clock.now_iso)
    started: float = field(default_factory=clock.monotonic)

    def result(self, status: Status, **more: Any) -> ToolResult:
        return ToolResult(
            tool=self.tool, status=status, call_id=self.call_id, started_at=self.started_at,
            duration_s=clock.monotonic() - self.started, **more,
        )  # fmt: skip

    def timed(self, result: ToolResult) -> ToolResult:
        """A result that the ledger made, as one of this call."""
        return replace(result, started_at=self.started_at, duration_s=clock.monotonic() - self.started)


def seen_result(asked: Asked, judged: Judged) -> ToolResult:
    """What the wire alone says. It does not count before the ledger has taken it."""
    outcome, words = judged.outcome, judged.words
    if outcome.to is State.SUCCEEDED:
        return asked.result(Status.COMPLETED, value=outcome.value)
    if judged.late:
        return asked.result(Status.TIMEOUT, limit=asked.limit, error_message=words)
    if outcome.to is State.UNKNOWN:
        return asked.result(Status.UNKNOWN, error_message=words)
    kind = NotSent if judged.status is None else Rejected
    problem = kind(words, phase=outcome.phase, observation=outcome.observation, retry_after=outcome.retry_after_s)
    hint = "read the resource again and decide again: it has changed" if judged.status == 412 else None
    return asked.result(Status.ERROR, error_type=kind.__name__, error_message=words, exception=problem, hint=hint)


def followed_result(asked: Asked, followed: Followed) -> ToolResult:
    """What was seen at the place where its answer had sent us."""
    state, words = followed.record.state, followed.words
    if state is State.SUCCEEDED:
        return asked.result(Status.COMPLETED, value=followed.value)
    if state in (State.FAILED, State.ABANDONED):
        words = f"it was accepted and has failed: {words}"
        return asked.result(Status.ERROR, error_type="Rejected", error_message=words, exception=Rejected(words))
    return asked.result(Status.UNKNOWN, error_message=f"it was accepted, and its end is not known yet: {words}")


def recorded(result: ToolResult, record: Record, definition: Definition, judged: Judged) -> ToolResult:
    """The result as the ledger has taken it, with what HTTP adds: the answer's status and ETag, how long to wait."""
    result = with_operation(result, record, definition, judged.outcome)
    operation, headers = dict(result.operation or {}), judged.headers or {}
    if judged.status is not None:
        operation["http"] = {
            "status": judged.status, "etag": headers.get("etag"), "location": headers.get("location"),
            "status_url": judged.place,
        }  # fmt: skip
    hint, wait = result.hint, judged.retry_after_s
    if wait is not None and result.status is not Status.COMPLETED:
        operation["retry_after"] = wait
        waiting = f"the authority asks to wait {format_duration(wait)}"
        hint = f"{hint}; {waiting}" if hint else waiting
    return replace(result, operation=operation, hint=hint)


def over_before(asked: Asked) -> ToolResult:
    return asked.result(
        Status.REFUSED,
        reason="deadline_over",
        effect="not_applied",
        environment="nothing was started",
        limit=asked.limit,
    )
