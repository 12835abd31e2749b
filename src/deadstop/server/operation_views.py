# SPDX-License-Identifier: Apache-2.0
"""Operations, alerts and sums as the API shows them. Work on an open ledger, in its threads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import clock
from ..errors import OperationNotFound
from ..ledger import alerts, outbox
from ..ledger.handle import Operation, effect_of, retry_allowed, settled_by
from ..ledger.states import OPEN, TERMINAL, State

if TYPE_CHECKING:
    from ..ledger.ledger import Ledger
    from ..ledger.records import Alert, Attempt, Evidence, Record

__all__ = [
    "acknowledge",
    "alert_document",
    "alerts_of",
    "audit",
    "operation",
    "operations",
    "reconcile",
    "record_document",
]

DECISIONS = {
    "succeeded": State.SUCCEEDED,
    "failed": State.FAILED,
    "abandoned": State.ABANDONED,
    "retry": State.PREPARED,
}


def operations(ledger: Ledger, state: str | None, tool: str | None, limit: int, before: int | None) -> dict[str, Any]:
    states = None if state is None else OPEN if state == "open" else [State(state)]
    found = ledger.list(states, tool, limit, before)
    more = found[-1].created_ms if len(found) == limit else None
    return {"items": [record_document(each) for each in found], "next_before": more}


def operation(ledger: Ledger, op_id: str) -> dict[str, Any]:
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


def reconcile(ledger: Ledger, op_id: str, operator: str) -> dict[str, Any]:
    from ..effects.settlement import reconcile as ask

    return record_document(ask(ledger, op_id, force=True, operator=operator))


def resolve(ledger: Ledger, op_id: str, decision: str, **more: Any) -> dict[str, Any]:
    record = ledger.get(op_id)
    return record_document(ledger.resolve(record.op_id, DECISIONS[decision], **more))


def record_document(record: Record) -> dict[str, Any]:
    return {
        "id": record.op_id, "state": record.state.value, "tool": record.tool, "definition": record.definition,
        "scope": record.scope, "key": record.key, "fingerprint": record.fingerprint,
        "correlation_id": record.correlation, "target": record.target, "reference": record.reference,
        "verdict": None if record.verdict is None else record.verdict.value, "effect": effect_of(record),
        "attempts": record.attempts, "queries": record.queries,
        "ver": record.ver, "fence": record.fence, "owner": record.owner, "lease_until": _iso(record.lease_ms),
        "request_deadline": _iso(record.request_ms),
        "recovery_deadline": None if record.state in TERMINAL else _iso(record.recovery_ms),
        "created_at": _iso(record.created_ms), "created_ms": record.created_ms, "updated_at": _iso(record.updated_ms),
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
        "n": attempt.n, "fence": attempt.fence, "owner": attempt.owner, "started_at": _iso(attempt.started_ms),
        "ended_at": _iso(attempt.ended_ms), "outcome": attempt.outcome, "phase": attempt.phase,
        "phase_certain": attempt.certain, "observation": attempt.observation,
        "receipt": None if attempt.receipt is None else dict(attempt.receipt),
    }  # fmt: skip


def _entry(evidence: Evidence) -> dict[str, Any]:
    body: Mapping[str, Any] = json.loads(evidence.body)
    return {
        "n": evidence.n, "kind": evidence.kind, "at": _iso(evidence.at_ms), "seq": evidence.seq, "hash": evidence.hash,
        "body": body,
    }  # fmt: skip


def alerts_of(ledger: Ledger, every: bool, limit: int) -> dict[str, Any]:
    found: Sequence[Alert] = ledger.read(partial(alerts.list_alerts, every=every, limit=limit))
    return {"items": [alert_document(each) for each in found]}


def acknowledge(ledger: Ledger, kind: str, op_id: str, by: str) -> dict[str, Any]:
    """The alert, acknowledged now or before. Raises OperationNotFound for one that there is not."""
    ledger.write(partial(alerts.acknowledge, kind=kind, op_id=op_id, by=by))
    found = ledger.read(partial(alerts.get, kind=kind, op_id=op_id))
    if found is None:
        raise OperationNotFound(f"no alert {kind} of {op_id}")
    return alert_document(found)


def alert_document(alert: Alert) -> dict[str, Any]:
    return {
        "kind": alert.kind, "op_id": alert.op_id, "meaning": alerts.KINDS.get(alert.kind, ""), "detail": alert.detail,
        "first_at": _iso(alert.first_ms), "last_at": _iso(alert.last_ms), "count": alert.count,
        "delivered_at": _iso(alert.delivered_ms), "acknowledged_at": _iso(alert.ack_ms),
        "acknowledged_by": alert.ack_by,
    }  # fmt: skip


def audit(ledger: Ledger) -> dict[str, Any]:
    """The conservation sum, and what waits beside it."""
    beats = ledger.read(alerts.beats)
    return {
        **ledger.conservation(),
        "ledger": ledger.id,
        "where": ledger.where,
        "outbox": ledger.read(outbox.counts),
        "alerts": ledger.read(alerts.counts),
        "beats": [{"name": each.name, "owner": each.owner, "at": _iso(each.at_ms)} for each in beats],
    }


def _iso(ms: int | None) -> str | None:
    return None if ms is None else clock.iso(ms / 1000)
