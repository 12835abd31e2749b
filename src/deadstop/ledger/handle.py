# SPDX-License-Identifier: Apache-2.0
"""An operation as a result shows it."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

from .. import clock
from ..operation import Operation
from .definition import Definition
from .operations import key_is_kept, may_be_sent
from .queries import FunctionQuery, HttpQuery, Query, SqlQuery, SshQuery
from .records import Outcome, Record
from .states import TERMINAL, State, Verdict

__all__ = ["Operation", "effect_of", "operation_document", "retry_allowed", "settled_by", "url_parts"]


def effect_of(record: Record) -> str:
    """As a result's `effect`."""
    if record.state is State.SUCCEEDED:
        return "applied"
    if record.state is State.FAILED:
        return "not_applied"
    sure = record.state in (State.PREPARED, State.ABANDONED) and record.verdict in (None, Verdict.DEFINITELY_ABSENT)
    return "not_applied" if sure else "unknown"


def retry_allowed(record: Record, definition: Definition) -> bool:
    """Only where the ledger says that it may be sent again, under its own key: never anybody's guess."""
    if record.state is State.UNKNOWN:
        return key_is_kept(record, definition, round(time.time() * 1000))
    return record.state is State.PREPARED and may_be_sent(record, definition)


def url_parts(url: str) -> tuple[str, str, str]:
    """(scheme://host, host, the rest), without whoever logs in there; ("", all of it, all of it) for what is no URL.

    A query's URL may have {names} in it, so that it is no whole one yet.
    """
    scheme, mark, rest = url.partition("://")
    if not mark:
        return "", url, url
    end = min((found for found in map(rest.find, "/?#") if found >= 0), default=len(rest))
    host = rest[:end].rpartition("@")[2]
    return f"{scheme}://{host}", host, rest[end:]


def settled_by(definition: Definition, operation: Operation) -> dict[str, Any] | None:
    """The query that would settle it, as a person or a model could make it; None if nothing can be asked."""
    query: Query | None = definition.query
    filled = {
        name: getattr(operation, name) or "" for name in ("key", "correlation", "reference", "target", "fingerprint")
    }
    filled["op_id"] = operation.id

    def fill(text: str) -> str:
        for name, value in filled.items():
            text = text.replace("{" + name + "}", quote(str(value), safe=""))
        return text

    match query:
        case HttpQuery():
            place, _, rest = url_parts(query.url)
            return {"method": "GET", "url": fill(place + rest)}
        case SqlQuery():
            return {"sql": query.statement, "parameters": {name: value for name, value in filled.items() if value}}
        case SshQuery():
            return {"ssh": query.host, "command": f"{query.helper} status --op {operation.id} --json"}
        case FunctionQuery():
            return {"function": query.name, "command": f"deadstop ops reconcile {operation.id}"}
    return None


def operation_document(record: Record, definition: Definition, outcome: Outcome | None = None) -> dict[str, Any]:
    """A result's `operation`."""
    unsettled = record.state not in TERMINAL
    return {
        "id": record.op_id,
        "key": record.key,
        "correlation_id": record.correlation,
        "state": record.state.value,
        "attempt": record.attempts,
        "phase": None if outcome is None else outcome.phase,
        "phase_certain": None if outcome is None else outcome.certain,
        "transport_observation": None if outcome is None else outcome.observation or None,
        "reconcile": settled_by(definition, Operation.of(record)) if unsettled else None,
        "recovery_deadline": clock.iso(record.recovery_ms / 1000) if unsettled and record.attempts else None,
        "evidence_ref": {"n": record.evidence, "leaf": record.head},
        "target": record.target,
        "reference": record.reference,
    }
