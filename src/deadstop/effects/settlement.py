# SPDX-License-Identifier: Apache-2.0
"""Settling one operation whose outcome is unknown: take it, ask its authority, apply what was found."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..errors import StaleClaim
from ..ledger import crash
from ..ledger.entries import locked, note, write_head
from ..ledger.states import State
from ..operation import Operation
from .asking import ask

if TYPE_CHECKING:
    from ..ledger.definition import Definition
    from ..ledger.ledger import Ledger
    from ..ledger.records import Claim, Record
    from ..ledger.store import Tx

__all__ = ["may_have_arrived_before", "reconcile", "settle_one"]

SPARE_S = 10.0  # of a lease, over the query's own limit: for the end of what hung, and for the ledger
LAST_S = 1.0  # a question that is begun just before the recovery deadline is still worth this much


def reconcile(ledger: Ledger, op_id: str, *, force: bool = False, operator: str | None = None) -> Record:
    """Ask the authority of one operation now, once, and apply what it says. The operation as it is afterwards: its
    `verdict` is what was found last, its trail has the finding.

    `op_id` may be the beginning of an id. Nothing is asked about an operation that is not UNKNOWN, that somebody else
    is asking about, or that has no authority. `force` asks before its next time has come, and about what waits for a
    person; `operator` is who wanted that, and is written down.

    Takes at most the definition's reconcile_timeout and a few seconds. Raises OperationNotFound, LedgerUnavailable.
    """
    record = ledger.get(op_id)
    record = ledger.sweep_one(record.op_id) or record
    if record.state not in (State.UNKNOWN, State.NEEDS_HUMAN):
        return record
    definition = ledger.definition(record.tool, record.definition)
    if definition.query is None or (record.state is State.NEEDS_HUMAN and not force):
        return record
    if operator is not None:
        ledger.write(partial(_note_who_asked, op_id=record.op_id, operator=operator))
    return settle_one(ledger, record.op_id, definition, force=force) or ledger.get(record.op_id)


def settle_one(ledger: Ledger, op_id: str, definition: Definition, *, force: bool = False) -> Record | None:
    """None if there was nothing to take: settled, too early, being asked about elsewhere, or nobody could be asked."""
    if definition.query is None:
        return None
    claim = ledger.take(op_id, definition.reconcile_s + SPARE_S, force=force)
    if claim is None:
        return None
    finding = ask(definition.query, Operation.of(claim.record), _limit(claim.record, definition))
    crash.at("reconcile.answered")
    try:
        return ledger.settle(claim, finding)
    except StaleClaim:  # somebody else has settled it meanwhile; what was found here is on record
        return ledger.get(op_id)


def may_have_arrived_before(ledger: Ledger, claim: Claim) -> bool:
    """Whether any attempt before this one is not known to have ended without an effect: what this one sees may then be
    its doing, and "not sent" is said of this one alone."""
    return any(each.n < claim.attempt and each.outcome != State.PREPARED.value for each in ledger.attempts(claim.op_id))


def _limit(record: Record, definition: Definition) -> float:
    left = (record.recovery_ms - record.updated_ms) / 1000  # since it was taken
    # What waits for a person has no deadline any more.
    return definition.reconcile_s if left <= 0 else min(definition.reconcile_s, max(left, LAST_S))


def _note_who_asked(tx: Tx, op_id: str, operator: str) -> None:
    record = locked(tx, op_id)
    write_head(tx, note(tx, record, "authz.decision", {"asked_by": operator, "for": "reconcile"}))
