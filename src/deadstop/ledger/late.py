# SPDX-License-Identifier: Apache-2.0
"""Answers that come when somebody else has settled the operation, or is about to. They decide nothing, and count."""

from __future__ import annotations

from dataclasses import replace

from . import alerts
from .entries import clean, note, write_head
from .records import Outcome, Record
from .states import State
from .store import Tx

__all__ = ["contradicted", "late"]


def late(tx: Tx, record: Record, fence: int, outcome: Outcome) -> Record:
    """It decides nothing. What it names may be asked for, at once; what it contradicts is told to a person."""
    row = tx.one("attempt_of_fence", op_id=record.op_id, fence=fence)
    attempt = record.attempts if row is None else row[0]
    told = {"fence_of_attempt": fence, "outcome": outcome.to.value, "observation": outcome.observation,
            "reference": outcome.reference}  # fmt: skip
    record = note(tx, record, "attempt.late", told)
    if outcome.to is State.SUCCEEDED:
        contradicted(tx, record, f"attempt {attempt} succeeded", later=record.attempts > attempt)
    if record.state is State.UNKNOWN:
        reference = record.reference if outcome.reference is None else clean(outcome.reference)
        record = replace(record, reference=reference, next_ms=tx.now)
        tx.run("look_now", op_id=record.op_id, reference=reference, next_ms=tx.now, evidence=record.evidence,
               head=record.head)  # fmt: skip
        return record
    return write_head(tx, record)


def contradicted(tx: Tx, record: Record, what: str, *, later: bool = False) -> None:
    """Tell a person where a late answer that it happened does not go with what was made of the operation. `later`: it
    has been sent again since, so that it may have happened twice."""
    if later:
        why = f"a late answer says that {what}; it has been sent again since: it may have happened twice"
    elif record.state in (State.FAILED, State.ABANDONED, State.PREPARED):
        why = f"a late answer says that {what}; the operation is {record.state}"
    else:
        return
    alerts.raise_alert(tx, "late_contradiction", record.op_id, f"{record.tool}: {why}")
