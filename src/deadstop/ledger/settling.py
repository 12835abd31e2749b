# SPDX-License-Identifier: Apache-2.0
"""What becomes of an operation whose answer was lost: leases that ran out, findings, deadlines, and what people decide.

A lease that runs out never sends anything again: it makes the operation UNKNOWN.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..errors import IllegalTransition, StaleClaim, UsageError
from . import alerts, crash, owners
from .canonical import digest
from .definition import Definition
from .definitions import definition_of
from .entries import as_text, change, clean, locked, note, write_head
from .late import contradicted
from .operations import (
    announce,
    ask_a_person_if_nobody_else_can,
    doubtful,
    end_attempt,
    may_send_again,
    need_a_person,
    pause_ms,
    seal_result,
    waiting_again,
)
from .records import Finding, Outcome, Record
from .states import LEASED, TERMINAL, State, Verdict
from .store import Tx

__all__ = ["due", "resolve", "settle", "sweep", "sweep_one", "take"]

BACK_OFF_MS, LONGEST_MS = 500, 30_000
DYING_MS = 250  # a process that is gone may have had a worker, which takes a moment to end and may send meanwhile
DECISIONS = frozenset({State.SUCCEEDED, State.FAILED, State.ABANDONED, State.PREPARED})


# -- what time does ------------------------------------------------------------------------------------------------


def sweep(tx: Tx, limit: int = 100) -> list[Record]:
    """Do what deadlines ask for; the operations that were changed."""
    overdue = [row[0] for row in tx.all("overdue", now=tx.now, limit=limit)]
    leased = tx.all("leased")
    dead = {owner for owner in {owner for _, owner in leased} if owners.is_gone(owner)}
    gone = [op_id for op_id, owner in leased if owner in dead][:limit]  # others wait for this transaction
    swept = [_sweep_what_can_be(tx, op_id) for op_id in dict.fromkeys((*overdue, *gone))]
    return [record for record in swept if record is not None]


def _sweep_what_can_be(tx: Tx, op_id: str) -> Record | None:
    """One whose definition a newer program wrote, in words that this one cannot read, must not keep up all others."""
    try:
        return sweep_one(tx, op_id)
    except (KeyError, TypeError, ValueError):
        return None


def sweep_one(tx: Tx, op_id: str) -> Record | None:
    """The operation, if time has changed it."""
    record = locked(tx, op_id)
    if record.state in LEASED:
        assert record.owner is not None
        assert record.lease_ms is not None
        if record.lease_ms <= tx.now:
            return _lease_over(tx, record, "its lease ran out", tx.now)
        if owners.is_gone(record.owner, record.updated_ms):
            return _lease_over(tx, record, "the process that held it is gone", tx.now + DYING_MS)
        return None
    if record.state is State.PREPARED and record.request_ms <= tx.now:
        return announce(tx, change(tx, record, State.ABANDONED, "deadline.passed", {"why": "it was not sent in time"}))
    if record.state is State.UNKNOWN and record.recovery_ms <= tx.now:
        return need_a_person(
            tx, record, "recovery_deadline_passed", "no outcome was found within its recovery deadline"
        )
    return None


def _lease_over(tx: Tx, record: Record, why: str, sent_ms: int) -> Record:
    """`sent_ms`: until when it may have been sent."""
    told: dict[str, Any] = {"why": why, "owner": record.owner}
    if record.state is State.RECONCILING:
        return change(tx, record, State.UNKNOWN, "lease.expired", told, next_ms=tx.now)
    definition = definition_of(tx, record.tool, record.definition)
    end_attempt(tx, record, State.UNKNOWN, Outcome(State.UNKNOWN, certain=False, observation=why))
    told["attempt"] = record.attempts
    record = change(tx, record, State.UNKNOWN, "lease.expired", told, next_ms=tx.now, queries=0, last_sent_ms=sent_ms,
                    recovery_ms=tx.now + round(definition.recovery_s * 1000))  # fmt: skip
    return ask_a_person_if_nobody_else_can(tx, record, definition)


# -- asking --------------------------------------------------------------------------------------------------------


def due(tx: Tx, limit: int = 32) -> list[str]:
    """Operations that are unknown and may be asked about now, the one that has waited longest first."""
    return [row[0] for row in tx.all("due", now=tx.now, limit=limit)]


def take(tx: Tx, op_id: str, owner: str, lease_ms: int, *, force: bool = False) -> Record | None:
    """The right to settle it: RECONCILING under a new fence. None if it is not unknown, or not yet to be asked again.

    `force` asks at once, also about what waits for a person.
    """
    record = locked(tx, op_id)
    if record.state is State.NEEDS_HUMAN:
        if not force:
            return None
    elif record.state is not State.UNKNOWN or (record.next_ms > tx.now and not force):
        return None
    until = tx.now + lease_ms
    return change(tx, record, State.RECONCILING, "reconcile.started", {"owner": owner}, owner=owner, lease_ms=until,
                  next_ms=until, queries=record.queries + 1)  # fmt: skip


def settle(tx: Tx, op_id: str, fence: int, finding: Finding) -> tuple[Record, bool]:
    """Apply what was found; whether the one who asked was still the one to do so. Too late, it is only written down."""
    record, finding = locked(tx, op_id), _writable(finding)
    told = _told(finding)
    if record.state is not State.RECONCILING or record.fence != fence:
        record = note(tx, record, "fence.refused", {**told, "fence_of_query": fence})
        if finding.verdict is Verdict.APPLIED:
            contradicted(tx, record, "it was applied", later=record.state is State.DISPATCHING)
        return write_head(tx, record), False
    definition = definition_of(tx, record.tool, record.definition)
    verdict, why, wait_ms = _weighed(tx, record, definition, finding)
    record = note(
        tx, record, "reconcile.finding", {**told, "fence_of_query": fence, "counts_as": verdict.value, "why": why}
    )
    record = replace(record, verdict=verdict)
    crash.at("settle.in_transaction")
    changes: dict[str, Any] = {
        "verdict": verdict, "reference": record.reference if finding.reference is None else clean(finding.reference),
    }  # fmt: skip
    return _applied(tx, record, definition, finding, (verdict, why, wait_ms), changes), True


def _writable(finding: Finding) -> Finding:
    """Users' functions make them of anything."""
    raw = finding.raw
    return replace(
        finding, verdict=Verdict(finding.verdict), source=as_text(finding.source) or "",
        reference=as_text(finding.reference), detail=as_text(finding.detail) or "",
        raw=raw if raw is None or isinstance(raw, bytes) else str(raw).encode("utf-8", "replace"),
    )  # fmt: skip


def _told(finding: Finding) -> dict[str, Any]:
    return {
        "verdict": finding.verdict.value, "source": finding.source, "reference": finding.reference,
        "detail": finding.detail, "raw_digest": None if finding.raw is None else digest(finding.raw),
    }  # fmt: skip


def _weighed(tx: Tx, record: Record, definition: Definition, finding: Finding) -> tuple[Verdict, str, int | None]:
    """What a finding counts as, why, and how long to wait before asking again. Absence is only a fact where the
    definition says what makes it one."""
    asked_ms = pause_ms(finding.retry_after_s, -1)
    wait_ms = None if asked_ms < 0 else asked_ms
    if finding.verdict is not Verdict.DEFINITELY_ABSENT:
        return finding.verdict, "", wait_ms
    if definition.settle_s is None and not definition.consistent:
        return (
            Verdict.INCONCLUSIVE,
            "not found, which proves nothing: the authority is not declared consistent",
            wait_ms,
        )
    settle_ms = 0 if definition.consistent else round((definition.settle_s or 0) * 1000)
    counts_ms = (record.created_ms if record.last_sent_ms is None else record.last_sent_ms) + settle_ms
    if counts_ms > record.updated_ms:  # when the query began: what it shows is not newer than that
        return Verdict.INCONCLUSIVE, "not found, but too soon after it may have been sent", max(0, counts_ms - tx.now)
    return finding.verdict, "" if definition.consistent else "its settle time is over", wait_ms


def _applied(
    tx: Tx, record: Record, definition: Definition, finding: Finding, weighed: tuple[Verdict, str, int | None],
    changes: dict[str, Any],
) -> Record:  # fmt: skip
    verdict, why, wait_ms = weighed
    told = {"verdict": verdict.value, "source": finding.source, "reference": finding.reference}
    if verdict is Verdict.APPLIED:
        if finding.has_value:
            told["sealed.result"] = seal_result(tx, record, finding.value)
        return settled(tx, record, State.SUCCEEDED, told, **changes)
    if verdict is Verdict.APPLIED_FAILED:
        return settled(tx, record, State.FAILED, told, **changes)
    if verdict is Verdict.CONTRADICTION:
        record = note(tx, record, "marker.contradiction", {"detail": finding.detail})
        return need_a_person(tx, record, "marker_contradiction", f"what was found contradicts itself: {finding.detail}")
    again = may_send_again(record, definition) and record.recovery_ms > tx.now
    if verdict is Verdict.DEFINITELY_ABSENT:
        if again:
            told["why"] = "the authority has no trace of it: it may be sent again under its key"
            return change(tx, record, State.PREPARED, "attempt.allowed", told, **changes,
                          **waiting_again(tx, record, definition))  # fmt: skip
        return settled(tx, record, State.FAILED, {**told, "why": "it was not applied"}, **changes)
    if record.recovery_ms <= tx.now:
        why = "no outcome was found within its recovery deadline"
        return need_a_person(tx, record, "recovery_deadline_passed", why, told)
    if wait_ms is None:
        wait_ms = min(BACK_OFF_MS << min(record.queries - 1, 10), LONGEST_MS)
    record = change(tx, record, State.UNKNOWN, "reconcile.ended", {**told, "why": why}, **changes,
                    next_ms=min(tx.now + wait_ms, record.recovery_ms))  # fmt: skip
    return ask_a_person_if_nobody_else_can(tx, record, definition)


def settled(tx: Tx, record: Record, to: State, told: dict[str, Any], **changes: Any) -> Record:
    return announce(tx, change(tx, record, to, "settled", told, **changes))


# -- people --------------------------------------------------------------------------------------------------------


def resolve(
    tx: Tx, op_id: str, decision: State, operator: str, reason: str, *, ver: int | None = None,
    authorised_by: str | None = None,
) -> Record:  # fmt: skip
    """A person's decision. Whoever held the operation no longer does.

    Raises UsageError without a name or a reason, IllegalTransition for an operation that is being sent or has ended,
    StaleClaim if it has changed since `ver`.
    """
    if not operator.strip() or not reason.strip():
        raise UsageError("a decision names who made it, and its reason: what was seen, and where")
    record = locked(tx, op_id)
    if ver is not None and record.ver != ver:
        raise StaleClaim(op_id, record.state.value)
    if decision not in DECISIONS or record.state in TERMINAL or record.state is State.DISPATCHING:
        raise IllegalTransition(record.state.value, decision.value)
    if record.state is State.PREPARED:
        if decision is not State.ABANDONED:
            raise IllegalTransition(record.state.value, decision.value)
    elif record.state is not State.NEEDS_HUMAN:
        record = change(
            tx, record, State.NEEDS_HUMAN, "human.requested", {"why": "a person decides before its deadline"}
        )
    if authorised_by is not None:
        record = note(tx, record, "authz.decision", {"authorised_by": authorised_by, "asked_by": operator})
    told = {"operator": operator, "reason": reason, "decision": decision.value}
    changes: dict[str, Any] = {"fence": record.fence + 1}
    if decision is State.PREPARED:
        changes |= waiting_again(tx, record, definition_of(tx, record.tool, record.definition))
    if decision in (State.PREPARED, State.ABANDONED) and record.state is State.NEEDS_HUMAN:
        changes["verdict"] = doubtful(record)  # to send it again, or to give it up, does not show it absent
    crash.at("resolve.before_commit")
    record = change(tx, record, decision, "human.decision", told, **changes)
    alerts.answered(tx, op_id, operator)
    if decision in TERMINAL:
        announce(tx, record)
    return record
