# SPDX-License-Identifier: Apache-2.0
"""The result of a flight, made of what came back: an answer, the supervisor's report, or neither."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import clock
from ..deferred import Deferred
from ..packing import VALUE
from ..results import FiredLimit, Late, Output, Receipt, Status, ToolResult
from . import answers

if TYPE_CHECKING:
    from .flight import Flight

_INFINITE = float("inf")
_OWN = frozenset({"tool", "call_id", "started_at", "duration_s", "queued_s", "effect", "value", "degraded"})
_COMPLETED = Status.COMPLETED


def fields_of(flight: Flight, status: Status, now: float) -> dict[str, Any]:
    """What every result of this flight says."""
    call, started = flight.call, flight.started
    fields: dict[str, Any] = {
        "tool": call.tool.name, "status": status, "call_id": call.call_id, "started_at": flight.started_at,
        "duration_s": now - started, "queued_s": started - flight.queued, "effect": call.tool.effect,
        "limits": flight.pool.limits,
    }  # fmt: skip
    if flight.messages:
        fields["progress"] = tuple(flight.messages)
    if flight.pool.remarks:
        fields["degraded"] = flight.pool.remarks
    return fields


def answered(flight: Flight, kind: int, body: Any, now: float) -> ToolResult:
    """It returned, or raised, in time."""
    try:
        if kind == VALUE:
            value = answers.load(flight.worker.level, body)
            fields = fields_of(flight, _COMPLETED, now)
            fields["value"] = value
            if type(value) is Deferred:
                fields["value"], fields["deferred"] = value.note, value.id
        else:
            raised = answers.error_fields(flight.worker.level, body)
            fields = fields_of(flight, Status.ERROR, now)
            fields.update(raised)
    except Exception as problem:
        return unreadable(flight, problem, now)
    return ToolResult.made(fields)


def unreadable(flight: Flight, problem: Exception, now: float) -> ToolResult:
    """It answered, and the answer means nothing here."""
    fields = fields_of(flight, Status.ERROR, now)
    fields["error_type"], fields["exception"] = type(problem).__name__, problem
    fields["error_message"] = f"its result cannot be loaded here: {problem}"
    return ToolResult.made(fields)


def with_output(result: ToolResult, told: list[tuple[bytes, int, int]]) -> ToolResult:
    """What it printed, as the supervisor tells."""
    out, err = (Output(*parts) for parts in told)
    return ToolResult.made({**vars(result), "stdout": out, "stderr": err})


def reported(flight: Flight, report: ToolResult) -> ToolResult:
    """Its worker was killed, or died: the supervisor's report, and what only the caller knows."""
    if report.status is _COMPLETED and flight.answer is not None:
        result = answered(flight, *flight.answer, flight.end)
        kept = {key: getattr(report, key) for key in ("stdout", "stderr", "receipt", "leftover")}
        if flight.threads_left:
            kept["leftover"] = (*kept["leftover"], "threads")
        return ToolResult.made({**vars(result), **kept, "environment": "what it left running was ended"})
    fields = {key: value for key, value in vars(report).items() if key not in _OWN}
    fields.update(fields_of(flight, report.status, clock.monotonic()))
    fields["environment"] = _environment(flight)
    if report.status is Status.TIMEOUT:
        soft = report.limit is not None  # nobody answered: the supervisor knows no other
        fields["limit"] = FiredLimit("soft", flight.call.tool.soft_timeout, "given") if soft else flight.limit
    if flight.answer is not None:
        fields["late"] = _late(flight, *flight.answer)
    return ToolResult.made(fields)


def _environment(flight: Flight) -> str:
    if flight.worker.level == "sandbox":
        return "its sandbox was destroyed with its private files"
    return "its process was destroyed; files it wrote remain"


def _late(flight: Flight, kind: int, body: bytes) -> Late:
    after = max(0.0, round(clock.monotonic() - flight.end, 6)) if flight.end != _INFINITE else 0.0
    try:
        if kind == VALUE:
            value = answers.load(flight.worker.level, body)
            return Late("value", repr(value)[:1000], after, value)
        fields = answers.error_fields(flight.worker.level, body)
        return Late("error", f"{fields['error_type']}: {fields['error_message']}"[:1000], after)
    except Exception as problem:
        return Late("value", f"<cannot be loaded: {problem}>"[:1000], after)


def unreported(flight: Flight, why: str, *, gone: bool) -> ToolResult:
    """Nobody can tell any more. `gone`: the worker's end was seen from here."""
    worker, now = flight.worker, clock.monotonic()
    overdue = now >= flight.end
    fields = fields_of(flight, Status.TIMEOUT if overdue else Status.UNKNOWN, now)
    fields["limit"] = flight.limit if overdue else None
    shown = gone and worker.namespace
    method = ("pidfd",) if worker.namespace else ("lifeline",)
    proof, survivors = ("pid_namespace_reaped", 0) if shown else ("none", None)
    fields["receipt"] = Receipt(worker.level, method, proof, survivors)
    fields["environment"] = "the worker was ended by the caller"
    fields["degraded"] = (*flight.pool.remarks, f"{why}: its output and evidence are lost")
    if flight.answer is not None:
        fields["late"] = _late(flight, *flight.answer)
    return ToolResult.made(fields)


def untold(flight: Flight, why: str) -> ToolResult:
    """It completed in time; what the supervisor knows of it (output, receipt) could not be had."""
    assert flight.answer is not None
    result = answered(flight, *flight.answer, flight.end)
    return ToolResult.made({**vars(result), "degraded": (*result.degraded, f"{why}: its output and receipt are lost")})
