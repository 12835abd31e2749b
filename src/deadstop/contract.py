# SPDX-License-Identifier: Apache-2.0
"""The JSON form of a result (`deadstop.result/1`), written and read. Keys never change meaning or order."""

from __future__ import annotations

from math import isfinite

from .envelope import error_envelope
from .errors import UsageError
from .results import (
    SCHEMA,
    Diagnosis,
    Evidence,
    FileTail,
    FiredLimit,
    Late,
    LimitReport,
    Output,
    ProcessSeen,
    Progress,
    Receipt,
    Status,
    ToolResult,
    Unkillable,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeVar

    T = TypeVar("T")

__all__ = ["json_value", "result_from_dict", "result_to_dict"]

_INT_BITS = 10_000  # Python refuses to print an int of more than 4300 digits
_PARTS = 1_000_000
_DEPTH = 50  # deeper values become their repr, and so does a value that contains itself

_PLAIN_KEYS = (
    "call_id",
    "tool",
    "task_id",
    "reason",
    "exit_code",
    "signal",
    "value",
    "started_at",
    "duration_s",
    "queued_s",
    "effect",
    "retry_allowed",
    "environment",
    "hint",
    "operation",
    "gap_s",
    "start_errno",
    "deferred",
    "traceback",
)


def result_to_dict(result: ToolResult) -> dict[str, Any]:
    """The contract's keys in the contract's order; keys that came later stand at the end."""
    return {
        "schema": SCHEMA,
        "call_id": result.call_id,
        "tool": result.tool,
        "task_id": result.task_id,
        "status": result.status.value,
        "reason": result.reason,
        "limit": _maybe(_fired, result.limit),
        "limits": {name: _maybe(_limit, report) for name, report in result.limits.items()},
        "exit_code": result.exit_code,
        "signal": result.signal,
        "value": json_value(result.value),
        "started_at": result.started_at,
        "duration_s": result.duration_s,
        "queued_s": result.queued_s,
        "stdout": _output(result.stdout),
        "stderr": _output(result.stderr),
        "effect": result.effect,
        "retry_allowed": result.retry_allowed,
        "receipt": _maybe(receipt_to_dict, result.receipt),
        "evidence": _maybe(_evidence, result.evidence),
        "environment": result.environment,
        "hint": result.hint,
        "degraded": list(result.degraded),
        "error": error_envelope(result),
        "operation": None if result.operation is None else json_value(dict(result.operation)),
        "gap_s": result.gap_s,
        "leftover": list(result.leftover),
        "start_errno": result.start_errno,
        "late": _maybe(_late, result.late),
        "progress": [_progress(message) for message in result.progress],
        "deferred": result.deferred,
        "traceback": result.traceback,
    }


def _maybe(write: Callable[[T], dict[str, Any]], record: T | None) -> dict[str, Any] | None:
    return None if record is None else write(record)


def _fired(limit: FiredLimit) -> dict[str, Any]:
    return {"which": limit.which, "seconds": limit.seconds, "source": limit.source}


def _limit(report: LimitReport) -> dict[str, Any]:
    return {"value": report.value, "enforced_by": report.enforced_by, "source": report.source}


def _output(output: Output) -> dict[str, Any]:
    document = {
        "tail": output.tail,
        "bytes_total": output.bytes_total,
        "bytes_dropped": output.bytes_dropped,
        "truncated": output.truncated,
    }
    try:
        output.raw.decode("utf-8")
    except UnicodeDecodeError:
        from base64 import b64encode

        document["tail_base64"] = b64encode(output.raw).decode("ascii")
    return document


def _unkillable(process: Unkillable) -> dict[str, Any]:
    return {"pid": process.pid, "cmd": process.cmd, "waiting_in": process.waiting_in}


def receipt_to_dict(receipt: Receipt) -> dict[str, Any]:
    return {
        "boundary": receipt.boundary,
        "method": list(receipt.method),
        "proof": receipt.proof,
        "survivors": receipt.survivors,
        "processes": receipt.processes,
        "kill_ms": receipt.kill_ms,
        "deadline_to_dead_ms": receipt.deadline_to_dead_ms,
        "escalated": receipt.escalated,
        "unkillable": [_unkillable(process) for process in receipt.unkillable],
    }


def _process(process: ProcessSeen) -> dict[str, Any]:
    return {
        "pid": process.pid,
        "cmd": process.cmd,
        "state": process.state,
        "waiting_in": process.waiting_in,
        "cpu_s": process.cpu_s,
        "host_pid": process.host_pid,
    }


def _diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "kind": diagnosis.kind,
        "detail": diagnosis.detail,
        "pid": diagnosis.pid,
        "confidence": diagnosis.confidence,
        "hint": diagnosis.hint,
        "since_s": diagnosis.since_s,
        "chain": list(diagnosis.chain),
    }


def _late(late: Late) -> dict[str, Any]:
    return {"kind": late.kind, "text": late.text, "after_s": late.after_s}


def _progress(message: Progress) -> dict[str, Any]:
    return {
        "text": message.text,
        "id": message.id,
        "replace": message.replace,
        "data": json_value(message.data),
    }


def _file(file: FileTail) -> dict[str, Any]:
    return {
        "path": file.path,
        "tail": file.tail,
        "bytes_total": file.bytes_total,
        "truncated": file.truncated,
        "error": file.error,
    }


def _evidence(evidence: Evidence) -> dict[str, Any]:
    return {
        "diagnosis": _maybe(_diagnosis, evidence.diagnosis),
        "processes": [_process(process) for process in evidence.processes],
        "stacks": evidence.stacks,
        "took_ms": evidence.took_ms,
        "complete": evidence.complete,
        "files": [_file(file) for file in evidence.files],
    }


def json_value(value: Any, depth: int = 0, left: list[int] | None = None) -> Any:
    """`value` as JSON can hold it; what it cannot (other types, NaN, infinity) as its repr.

    Containers beyond a million parts in all are only named: a few bytes of pickle can stand for 2**40 of them.
    """
    left = [_PARTS] if left is None else left
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int) and value.bit_length() <= _INT_BITS:
        return int(value)
    if isinstance(value, float) and isfinite(value):
        return float(value)
    if isinstance(value, str):  # lone surrogates have no UTF-8
        return str.__str__(value).encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        left[0] -= len(value)
        if depth >= _DEPTH or left[0] < 0:
            return f"<{type(value).__name__} of {len(value)}>"
    if isinstance(value, (list, tuple)):
        return [json_value(item, depth + 1, left) for item in value]
    if isinstance(value, dict):
        return {_json_key(key): json_value(item, depth + 1, left) for key, item in value.items()}
    return _safe_repr(value)


def _json_key(key: object) -> str:
    return str(json_value(key)) if isinstance(key, str) else _safe_repr(key)


def _safe_repr(value: object) -> str:
    try:
        return str(json_value(repr(value)))
    except Exception:  # a value's own repr may raise anything
        return f"<{type(value).__name__}>"


def result_from_dict(document: Mapping[str, Any]) -> ToolResult:
    """The result that `result_to_dict` would write so. Keys it does not know are ignored.

    Raises UsageError for another schema, a missing record or a broken one. It does not check every type: the
    published schema does.
    """
    if document.get("schema") != SCHEMA:
        raise UsageError(f"schema={document.get('schema')!r} is not allowed: give a {SCHEMA} document")
    try:
        return _read(document)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise UsageError(f"not a {SCHEMA} document: {type(problem).__name__}: {problem}") from problem


def _read(document: Mapping[str, Any]) -> ToolResult:
    fields = {key: document[key] for key in _PLAIN_KEYS if key in document}
    result = ToolResult(
        **fields,
        status=Status(document["status"]),
        limit=_read_record(FiredLimit, document.get("limit")),
        limits={name: _read_record(LimitReport, r) for name, r in document.get("limits", {}).items()},
        stdout=_read_output(document["stdout"]),
        stderr=_read_output(document["stderr"]),
        receipt=receipt_from_dict(document.get("receipt")),
        evidence=_read_evidence(document.get("evidence")),
        degraded=tuple(document.get("degraded", ())),
        leftover=tuple(document.get("leftover", ())),
        late=_read_record(Late, document.get("late")),
        progress=_read_all(Progress, document.get("progress", [])),
    )
    return _with_own_error(result, document.get("error"))


def _with_own_error(result: ToolResult, error: Mapping[str, Any] | None) -> ToolResult:
    """Keeps of the envelope only what does not follow from the status."""
    implied = error_envelope(result)
    if error is None or implied is None:
        return result
    from dataclasses import replace

    own = {key: error[key] if error[key] != implied[key] else None for key in ("type", "message")}
    return replace(result, error_type=own["type"], error_message=own["message"])


def _read_record(kind: Callable[..., T], document: Mapping[str, Any] | None) -> T | None:
    if document is None:
        return None
    known = kind.__dataclass_fields__  # type: ignore[attr-defined]
    return kind(**{key: value for key, value in document.items() if key in known})


def _read_all(kind: Callable[..., T], documents: list[Mapping[str, Any]]) -> tuple[T, ...]:
    return tuple(record for record in (_read_record(kind, each) for each in documents) if record is not None)


def _read_output(document: Mapping[str, Any]) -> Output:
    encoded = document.get("tail_base64")
    if encoded is None:
        raw = document["tail"].encode("utf-8")
    else:
        from base64 import b64decode

        raw = b64decode(encoded, validate=True)
    return Output(raw, document["bytes_total"], document["bytes_dropped"])


def receipt_from_dict(document: Mapping[str, Any] | None) -> Receipt | None:
    if document is None:
        return None
    return _read_record(
        Receipt,
        {
            **document,
            "method": tuple(document["method"]),
            "unkillable": _read_all(Unkillable, document["unkillable"]),
        },
    )


def _read_evidence(document: Mapping[str, Any] | None) -> Evidence | None:
    if document is None:
        return None
    found = document.get("diagnosis")
    if found is not None:
        found = _read_record(Diagnosis, {**found, "chain": tuple(found.get("chain", ()))})
    return _read_record(
        Evidence,
        {
            **document,
            "diagnosis": found,
            "processes": _read_all(ProcessSeen, document["processes"]),
            "files": _read_all(FileTail, document.get("files", [])),
        },
    )
