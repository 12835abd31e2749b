# SPDX-License-Identifier: Apache-2.0
"""What the routes about operations answer with. Work on an open ledger, in its threads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import OperationNotFound
from ..ledger import alerts, outbox
from ..ledger.documents import DECISIONS, alert_document, iso, operation_seen, record_document
from ..ledger.states import OPEN, State

if TYPE_CHECKING:
    from ..ledger.ledger import Ledger
    from ..ledger.records import Alert, Record

__all__ = ["acknowledge", "alerts_of", "audit", "operation_seen", "operations", "reconcile", "resolve"]


def operations(ledger: Ledger, state: str | None, tool: str | None, limit: int, before: int | None) -> dict[str, Any]:
    states = None if state is None else OPEN if state == "open" else [State(state)]
    found, more = _page(ledger, states, tool, limit, before)
    return {"items": [record_document(each) for each in found], "next_before": more}


def _page(
    ledger: Ledger, states: Iterable[State] | None, tool: str | None, limit: int, before: int | None
) -> tuple[list[Record], int | None]:
    """`limit` of them, and where to go on. Those of one millisecond stay together, so that none falls between two
    pages: then it is a few more."""
    size = limit
    while True:
        found = ledger.list(states, tool, size + 1, before)
        if len(found) <= size:
            return found, None
        whole = [each for each in found if each.created_ms > found[-1].created_ms]
        if len(whole) >= limit:
            return whole, whole[-1].created_ms
        size *= 2


def reconcile(ledger: Ledger, op_id: str, operator: str) -> dict[str, Any]:
    from ..effects.settlement import reconcile as ask

    return record_document(ask(ledger, op_id, force=True, operator=operator))


def resolve(ledger: Ledger, op_id: str, decision: str, **more: Any) -> dict[str, Any]:
    record = ledger.get(op_id)
    return record_document(ledger.resolve(record.op_id, DECISIONS[decision], **more))


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


def audit(ledger: Ledger) -> dict[str, Any]:
    """The conservation sum, and what waits beside it."""
    beats = ledger.read(alerts.beats)
    return {
        **ledger.conservation(),
        "ledger": ledger.id,
        "where": ledger.where,
        "outbox": ledger.read(outbox.counts),
        "alerts": ledger.read(alerts.counts),
        "beats": [{"name": each.name, "owner": each.owner, "at": iso(each.at_ms)} for each in beats],
    }
