# SPDX-License-Identifier: Apache-2.0
"""The one report of a call worker that was killed, or died."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..results import Receipt, Status, ToolResult

if TYPE_CHECKING:
    from .worker import Worker


def result_of(worker: Worker) -> ToolResult:
    """Only what the supervisor knows: the caller adds whose call it was."""
    room, status = worker.room, worker.status or Status.UNKNOWN
    assert room.gone is not None
    assert room.gone_at is not None
    assert worker.killed_at is not None
    late = None if worker.deadline is None else round((room.gone_at - worker.deadline) * 1000, 2)
    receipt = Receipt(
        boundary=room.boundary.level, method=tuple(room.boundary.methods), proof=room.gone.proof,
        survivors=room.gone.survivors, processes=worker.processes, deadline_to_dead_ms=late,
        kill_ms=round((room.gone_at - worker.killed_at) * 1000, 2), unkillable=room.unkillable,
    )  # fmt: skip
    code, number = _exit(worker.leader_status) if status is Status.CRASHED else (None, None)
    evidence = None if status in (Status.COMPLETED, Status.REFUSED) else worker.sight.evidence()
    outputs = [pump.tail.output() for pump in worker.pumps]
    diagnosis = evidence.diagnosis if evidence else None
    return ToolResult(
        tool="", status=status, reason=worker.reason, limit=worker.limit, limits=dict(room.boundary.applied.reports),
        exit_code=code, signal=number, stdout=outputs[0], stderr=outputs[1], receipt=receipt, evidence=evidence,
        hint=diagnosis.hint if diagnosis else None, degraded=tuple(room.remarks),
        leftover=(*worker.leftover, *worker.sight.left_in_memory()),
        error_message=room.failed[1] if room.failed else None,
    )  # fmt: skip


def _exit(status: int | None) -> tuple[int | None, int | None]:
    if status is None:
        return None, None
    return (None, os.WTERMSIG(status)) if os.WIFSIGNALED(status) else (os.WEXITSTATUS(status), None)
