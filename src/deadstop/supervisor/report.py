# SPDX-License-Identifier: Apache-2.0
"""What is known of a call while it runs, and the result that is made of it at the end."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .. import clock
from ..boundary.cgroup import read
from ..model import Command
from ..results import (
    Diagnosis,
    Evidence,
    FileTail,
    FiredLimit,
    Output,
    ProcessSeen,
    Receipt,
    Status,
    ToolResult,
)
from .collector import Report

if TYPE_CHECKING:
    from .call import Call

RATE_WINDOW_S = 0.5


@dataclass
class Record:
    """Facts, each written where it becomes known; `build` only arranges them."""

    command: Command
    started: float
    started_at: str
    gap_before: float
    spawned: float | None = None
    status: Status | None = None
    reason: str | None = None
    limit: FiredLimit | None = None
    deadline: float | None = None
    decided: float | None = None
    killed_at: float | None = None
    methods: list[str] = field(default_factory=list)
    escalated: bool = False
    processes: int = 0
    leftover: tuple[str, ...] = ()
    leader_status: int | None = None
    leader_ended: float | None = None
    start_failed: tuple[int, str] | None = None
    setup_failed: tuple[int, str] | None = None
    input_wait: Report | None = None
    evidence_at: float | None = None
    evidence_s: float = 0.0
    seen: Report = field(default_factory=dict)
    files: list[Report] = field(default_factory=list)
    _flow: list[tuple[float, int]] = field(default_factory=list)

    def flow(self, now: float, size: int) -> None:
        """Remember output sizes of the last moments, coarsely."""
        if self._flow and now - self._flow[-1][0] < RATE_WINDOW_S / 10:
            self._flow[-1] = (self._flow[-1][0], self._flow[-1][1] + size)
        else:
            self._flow = [*self._flow[-15:], (now, size)]

    def rate(self, now: float) -> float:
        """Bytes of output per second, lately."""
        return sum(size for when, size in self._flow if now - when <= RATE_WINDOW_S) / RATE_WINDOW_S

    def evidence_started(self) -> None:
        self.evidence_at = clock.monotonic()
        self.seen = {}

    def add_evidence(self, report: Report) -> None:
        self.seen.update(report)
        self.processes = max(self.processes, report.get("count", 0))
        self.evidence_ended()

    def evidence_ended(self) -> None:
        if self.evidence_at is not None:
            self.evidence_s = clock.monotonic() - self.evidence_at

    def leave_behind(self, pids: list[int]) -> None:
        """What a completed command left running: killed with its boundary, or living on in one that is kept."""
        self.processes = len(pids)
        self.leftover = leftover_names(pids)


def leftover_names(pids: list[int]) -> tuple[str, ...]:
    return tuple(read(f"/proc/{pid}/comm").strip() or f"pid {pid}" for pid in pids[:20])


def build(call: Call) -> ToolResult:
    """The one result of a call that has ended."""
    record, command, room = call.record, call.command, call.room
    boundary = room.boundary
    status = record.status or Status.UNKNOWN
    gone_at = call.ending.gone_at if call.ending.gone_at is not None else room.gone_at
    ended = record.leader_ended if status in (Status.COMPLETED, Status.SIGNALED) else gone_at
    outputs = {pump.name: pump.tail.output() for pump in call.pumps}
    evidence = _evidence(call)
    exit_code, number = _exit(record)
    gap = call.loop.gap_s - record.gap_before
    return ToolResult(
        tool=command.tool,
        status=status,
        call_id=command.call_id,
        task_id=command.task_id,
        reason=record.reason,
        limit=record.limit,
        limits=dict(boundary.applied.reports),
        exit_code=exit_code,
        signal=number,
        started_at=record.started_at,
        duration_s=round((ended or clock.monotonic()) - record.started, 6),
        stdout=outputs.get("stdout", Output()),
        stderr=outputs.get("stderr", Output()),
        effect=_effect(call),
        receipt=_receipt(call),
        evidence=evidence,
        environment=_environment(call),
        hint=_hint(record, evidence),
        degraded=(*command.notes, *room.remarks),
        gap_s=round(gap, 3) if gap else None,
        leftover=record.leftover,
        start_errno=record.start_failed[0] if record.start_failed else None,
        error_type="BoundaryUnavailable" if record.setup_failed else None,
        error_message=_problem(record),
    )


def _exit(record: Record) -> tuple[int | None, int | None]:
    if record.status not in (Status.COMPLETED, Status.SIGNALED) or record.leader_status is None:
        return None, None
    if os.WIFSIGNALED(record.leader_status):
        return None, os.WTERMSIG(record.leader_status)
    return os.WEXITSTATUS(record.leader_status), None


def _problem(record: Record) -> str | None:
    """A text for what the status alone does not say."""
    if record.setup_failed:
        return f"the sandbox could not be set up: {record.setup_failed[1]}"
    if record.start_failed:
        number, step = record.start_failed
        if number == errno.E2BIG:
            return _too_large(record.command)
        what = record.command.argv[0] if step == "exec" else step
        if step == "cwd":
            what = f"working folder {record.command.cwd or ''}".strip()
        return f"{what}: {os.strerror(number)}"
    return None


def _too_large(command: Command) -> str:
    size = sum(len(os.fsencode(word)) + 1 for word in command.argv)
    size += sum(len(os.fsencode(name)) + len(os.fsencode(value)) + 2 for name, value in command.env.items())
    allowed = os.sysconf("SC_ARG_MAX")
    return (
        f"the command and its environment have {size} bytes; the kernel allows {allowed}: pass it in a file or on stdin"
    )


def _receipt(call: Call) -> Receipt | None:
    """Null where nothing had to be killed."""
    record, room, ending = call.record, call.room, call.ending
    by_itself = record.status in (Status.COMPLETED, Status.SIGNALED) and (call.part or not record.leftover)
    if by_itself or record.status in (Status.ERROR, Status.REFUSED):
        return None
    if ending.gone is None and room.gone is not None:
        ending = room  # it went with the whole
    if ending.gone is None or ending.gone_at is None:
        return None
    kill_at = ending.kill_at if ending.kill_at is not None else ending.gone_at
    late = None if record.deadline is None else (ending.gone_at - record.deadline) * 1000
    return Receipt(
        boundary=room.boundary.level,
        method=(*record.methods, *ending.methods),
        proof=ending.gone.proof,
        survivors=ending.gone.survivors,
        processes=record.processes,
        kill_ms=round((ending.gone_at - kill_at) * 1000, 2),
        deadline_to_dead_ms=None if late is None else round(late, 2),
        escalated=record.escalated,
        unkillable=ending.unkillable,
    )


def _evidence(call: Call) -> Evidence | None:
    record = call.record
    files = tuple(FileTail(**file) for file in record.files)
    if record.status in (Status.COMPLETED, Status.SIGNALED, Status.ERROR):
        diagnosis = _answered_by_end_of_input(call)
        return Evidence(diagnosis=diagnosis, files=files) if diagnosis or files else None
    seen = record.seen
    return Evidence(
        diagnosis=_diagnosis(record),
        processes=tuple(ProcessSeen(**process) for process in seen.get("processes", ())),
        stacks=seen.get("stacks"),
        took_ms=round(record.evidence_s * 1000, 1),
        complete=bool(seen.get("complete")),
        files=files,
    )


def _diagnosis(record: Record) -> Diagnosis | None:
    read_now = record.seen.get("diagnosis")
    waited = record.input_wait
    since = round((record.decided or clock.monotonic()) - waited["since"], 3) if waited else None
    if read_now is None:
        if waited is None:
            return None
        from ..boundary.evidence.hints import HINTS

        detail, pid = waited.get("detail", ""), waited.get("pid")
        return Diagnosis("waiting_for_input", detail, pid, 0.9, HINTS["waiting_for_input"], since)
    return diagnosis_of(record.seen, since)


def diagnosis_of(seen: Report, waited_s: float | None = None) -> Diagnosis | None:
    """What the reader of evidence found out; `waited_s` is how long it has been waiting for input."""
    found = seen.get("diagnosis")
    if found is None:
        return None
    return Diagnosis(
        kind=found["kind"],
        detail=found["detail"],
        pid=found.get("pid"),
        confidence=found.get("confidence"),
        hint=found.get("hint"),
        since_s=waited_s if found["kind"] == "waiting_for_input" else None,
        chain=tuple(found.get("chain", ())),
    )


def _answered_by_end_of_input(call: Call) -> Diagnosis | None:
    """Many programs take a closed stdin for a yes, or for success: say that the question was never answered."""
    unfinished = [last for pump in call.pumps if (last := pump.tail.last(400)) and not last.endswith(b"\n")]
    if call.command.stdin != "null" or call.record.status is not Status.COMPLETED or not unfinished:
        return None
    from ..boundary.evidence import ended_on_prompt

    for last in unfinished:
        question = ended_on_prompt(last)
        if question:
            from ..boundary.evidence.hints import HINTS

            detail = f"its last output is a question, {question!r}; stdin was closed, so it read end-of-input"
            return Diagnosis("waiting_for_input", detail, None, 0.6, HINTS["waiting_for_input"])
    return None


def _hint(record: Record, evidence: Evidence | None) -> str | None:
    if evidence and evidence.diagnosis:
        return evidence.diagnosis.hint
    if record.status is Status.RESOURCE_LIMIT and record.limit:
        from ..boundary.evidence.hints import HINTS

        return {"memory": HINTS["memory_pressure"], "output": HINTS["output_flood"]}.get(record.limit.which)
    return None


def _effect(call: Call) -> str:
    boundary = call.room.boundary
    confined = boundary.level == "sandbox"
    open_to_world = getattr(boundary, "net", True) or any(bind.writable for bind in getattr(boundary, "binds", ()))
    return "none" if confined and not open_to_world else "undeclared"


def _environment(call: Call) -> str:
    """What became of where it ran."""
    record, boundary = call.record, call.room.boundary
    if record.status in (Status.ERROR, Status.REFUSED):
        return "nothing was started"
    if not call.room.ended and call.part:
        return _in_sandbox_that_lives(call)
    if not call.room.ended:
        return "the boundary lives on"
    if call.room.gone and call.room.gone.proof == "none":
        return "the kill could not be shown to be complete: see unkillable"
    if boundary.level == "sandbox":
        kept = [bind.target for bind in getattr(boundary, "binds", ()) if bind.writable]
        text = "the sandbox was destroyed with its private files"
        return f"{text}; what was changed in {', '.join(kept)} remains" if kept else text
    if record.status in (Status.COMPLETED, Status.SIGNALED):
        return "nothing is left running; files it wrote remain"
    return "the process tree was destroyed; files it wrote remain"


def _in_sandbox_that_lives(call: Call) -> str:
    gone = call.part.gone if call.part else None
    if gone and gone.proof == "none":
        return "the kill could not be shown to be complete: see unkillable"
    if gone:
        return "the command's own processes were killed; the sandbox lives on, with the files it wrote"
    left = ", ".join(call.record.leftover)
    return f"the sandbox lives on, and in it {left}" if left else "the sandbox lives on"
