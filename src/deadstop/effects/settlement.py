# SPDX-License-Identifier: Apache-2.0
"""Settling one operation whose outcome is unknown: take it, ask its authority, apply what was found."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from ..errors import StaleClaim
from ..ledger import crash
from ..ledger.entries import locked, note, write_head
from ..ledger.states import State, Verdict
from ..operation import Operation
from .asking import ask

if TYPE_CHECKING:
    from ..ledger.definition import Definition
    from ..ledger.ledger import Ledger
    from ..ledger.records import Claim, Finding, Record
    from ..ledger.store import Tx

__all__ = ["may_have_arrived_before", "place_of", "reconcile", "settle_one"]

SETTLING = frozenset({Verdict.APPLIED, Verdict.APPLIED_FAILED, Verdict.CONTRADICTION})
PLACE = "place."  # of what is kept sealed: where it was accepted; then the number of the attempt
SPARE_S = 10.0  # of a lease, over the query's own limit: for the end of what hung, and for the ledger
LAST_S = 1.0  # a question that is begun just before the recovery deadline is still worth this much


def reconcile(ledger: Ledger, op_id: str, *, force: bool = False, operator: str | None = None) -> Record:
    """Ask the authority of one operation now, once, and apply what it says. The operation as it is afterwards: its
    `verdict` is what was found last, its trail has the finding.

    `op_id` may be the beginning of an id. Nothing is asked about an operation that is not UNKNOWN, that somebody else
    is asking about, or that has no authority, and was not accepted with a place to look at (202).
    `force` asks before its next time has come, and about what waits for a person; `operator` is who wanted that, and is
    written down.

    Takes at most the definition's reconcile_timeout and a few seconds. Raises OperationNotFound, LedgerUnavailable.
    """
    record = ledger.get(op_id)
    record = ledger.sweep_one(record.op_id) or record
    if record.state not in (State.UNKNOWN, State.NEEDS_HUMAN):
        return record
    definition = ledger.definition(record.tool, record.definition)
    if record.state is State.NEEDS_HUMAN and not force:
        return record
    if definition.query is None and place_of(ledger, record.op_id) is None:
        return record
    if operator is not None:
        ledger.write(partial(_note_who_asked, op_id=record.op_id, operator=operator))
    return settle_one(ledger, record.op_id, definition, force=force) or ledger.get(record.op_id)


def settle_one(ledger: Ledger, op_id: str, definition: Definition, *, force: bool = False) -> Record | None:
    """None if there was nothing to take: settled, too early, being asked about elsewhere, or nobody could be asked."""
    if definition.query is None:
        return _settled_at_its_place(ledger, op_id, definition, force)
    claim = ledger.take(op_id, definition.reconcile_s + SPARE_S, force=force)
    if claim is None:
        return None
    finding = ask(definition.query, Operation.of(claim.record), _limit(claim.record, definition))
    crash.at("reconcile.answered")
    return _settled(ledger, claim, finding)


def _settled(ledger: Ledger, claim: Claim, finding: Finding) -> Record:
    try:
        return ledger.settle(claim, finding)
    except StaleClaim:  # somebody else has settled it meanwhile; what was found here is on record
        return ledger.get(claim.op_id)


def place_of(ledger: Ledger, op_id: str) -> str | None:
    """Where it can be looked at although nothing was declared: its service said so when it accepted the last attempt
    that it did accept. None where it accepted none, and for what was shredded."""
    return ledger.read(partial(_place_of, op_id=op_id))


def _place_of(tx: Tx, op_id: str) -> str | None:
    names = [row[0] for row in tx.all("payload_names", op_id=op_id) if row[0].startswith(PLACE)]
    last = max(names, key=lambda name: int(name.removeprefix(PLACE)), default=None)
    row = None if last is None else tx.one("payload", op_id=op_id, name=last)
    return None if row is None else str(json.loads(row[1])["url"])


def _settled_at_its_place(ledger: Ledger, op_id: str, definition: Definition, force: bool) -> Record | None:
    """None if nothing is known of such a place, and where what is seen there settles nothing: whoever sent it may be
    looking there himself, and is not to find that it waits for a person."""
    from .http_place import seen_there

    record, place = ledger.get(op_id), place_of(ledger, op_id)
    waits = record.state is State.NEEDS_HUMAN and force
    if place is None or not (waits or record.state is State.UNKNOWN):
        return None
    finding = seen_there(record, definition, place)
    if not waits and finding.verdict not in SETTLING:
        if force:
            ledger.write(partial(_note_what_was_seen, op_id=op_id, finding=finding))
        return None
    claim = ledger.take(op_id, SPARE_S, force=True)
    return None if claim is None else _settled(ledger, claim, finding)


def may_have_arrived_before(ledger: Ledger, claim: Claim) -> bool:
    """Whether any attempt before this one is not known to have ended without an effect: what this one sees may then be
    its doing, and "not sent" is said of this one alone."""
    return any(each.n < claim.attempt and each.outcome != State.PREPARED.value for each in ledger.attempts(claim.op_id))


def _limit(record: Record, definition: Definition) -> float:
    left = (record.recovery_ms - record.updated_ms) / 1000  # since it was taken
    # What waits for a person has no deadline any more.
    return definition.reconcile_s if left <= 0 else min(definition.reconcile_s, max(left, LAST_S))


def _note_what_was_seen(tx: Tx, op_id: str, finding: Finding) -> None:
    told = {"verdict": finding.verdict.value, "source": finding.source, "detail": finding.detail}
    write_head(tx, note(tx, locked(tx, op_id), "place.seen", told))


def _note_who_asked(tx: Tx, op_id: str, operator: str) -> None:
    record = locked(tx, op_id)
    write_head(tx, note(tx, record, "authz.decision", {"asked_by": operator, "for": "reconcile"}))
