# SPDX-License-Identifier: Apache-2.0
"""Operations and alerts as JSON shows them: the same from the server, on the command line and to whoever is told.

What a call's result says of its operation is `handle.operation_document`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .. import clock
from ..operation import Operation
from . import alerts
from .handle import effect_of, retry_allowed, settled_by
from .states import TERMINAL, State

if TYPE_CHECKING:
    from .ledger import Ledger
    from .records import Alert, Attempt, Evidence, Record

__all__ = ["DECISIONS", "alert_document", "alert_told", "iso", "operation_seen", "record_document"]

#: What a person can decide, by the words for it.
DECISIONS = {
    "succeeded": State.SUCCEEDED,
    "failed": State.FAILED,
    "abandoned": State.ABANDONED,
    "retry": State.PREPARED,
}


def operation_seen(ledger: Ledger, op_id: str) -> dict[str, Any]:
    """All that is known of one: as it stands, what was tried, what was found, and how it can be settled."""
    record = ledger.get(op_id)
    trail = [_entry(each) for each in ledger.trail(record.op_id)]
    return {
        **record_document(record),
        "attempts_made": [_attempt(each) for each in ledger.attempts(record.op_id)],
        "trail": trail,
        "findings": [each["body"] for each in trail if each["kind"] == "reconcile.finding"],
        "settle": _settle(ledger, record),
    }


def record_document(record: Record) -> dict[str, Any]:
    """One operation as it stands."""
    return {
        "id": record.op_id, "state": record.state.value, "tool": record.tool, "definition": record.definition,
        "scope": record.scope, "key": record.key, "fingerprint": record.fingerprint,
        "correlation_id": record.correlation, "target": record.target, "reference": record.reference,
        "verdict": None if record.verdict is None else record.verdict.value, "effect": effect_of(record),
        "attempts": record.attempts, "queries": record.queries,
        "ver": record.ver, "fence": record.fence, "owner": record.owner, "lease_until": iso(record.lease_ms),
        "request_deadline": iso(record.request_ms),
        "recovery_deadline": None if record.state in TERMINAL else iso(record.recovery_ms),
        "created_at": iso(record.created_ms), "created_ms": record.created_ms, "updated_at": iso(record.updated_ms),
        "evidence": {"n": record.evidence, "leaf": record.head},
    }  # fmt: skip


def _settle(ledger: Ledger, record: Record) -> dict[str, Any]:
    """What a person can do about it now: the decisions open to them, and the query that would show the truth."""
    if record.state in TERMINAL or record.state is State.DISPATCHING:
        return {"decisions": [], "query": None, "retry_allowed": False, "ver": record.ver}
    definition = ledger.definition(record.tool, record.definition)
    return {
        "decisions": ["abandoned"] if record.state is State.PREPARED else list(DECISIONS),
        "query": settled_by(definition, Operation.of(record)),
        "retry_allowed": retry_allowed(record, definition),
        "ver": record.ver,
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "n": attempt.n, "fence": attempt.fence, "owner": attempt.owner, "started_at": iso(attempt.started_ms),
        "ended_at": iso(attempt.ended_ms), "outcome": attempt.outcome, "phase": attempt.phase,
        "phase_certain": attempt.certain, "observation": attempt.observation,
        "receipt": None if attempt.receipt is None else dict(attempt.receipt),
    }  # fmt: skip


def _entry(evidence: Evidence) -> dict[str, Any]:
    body: Mapping[str, Any] = json.loads(evidence.body)
    return {
        "n": evidence.n, "kind": evidence.kind, "at": iso(evidence.at_ms), "seq": evidence.seq, "hash": evidence.hash,
        "body": body,
    }  # fmt: skip


def alert_told(alert: Alert) -> dict[str, Any]:
    """What whoever is told of it needs."""
    return {
        "kind": alert.kind, "op_id": alert.op_id, "meaning": alerts.KINDS.get(alert.kind, ""), "detail": alert.detail,
        "first_at": iso(alert.first_ms), "last_at": iso(alert.last_ms), "count": alert.count,
    }  # fmt: skip


def alert_document(alert: Alert) -> dict[str, Any]:
    """With what became of it."""
    return {
        **alert_told(alert), "delivered_at": iso(alert.delivered_ms), "acknowledged_at": iso(alert.ack_ms),
        "acknowledged_by": alert.ack_by,
    }  # fmt: skip


def iso(ms: int | None) -> str | None:
    """A time of the ledger."""
    return None if ms is None else clock.iso(ms / 1000)
