# SPDX-License-Identifier: Apache-2.0
"""Writing one entry of the log, and one change of an operation together with the entry that says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import OperationNotFound, StaleClaim
from .canonical import canonical, leaf_hash
from .records import Evidence, Record
from .states import LEASED, State, Verdict, check_transition
from .store import Tx

__all__ = [
    "add",
    "as_text",
    "change",
    "clean",
    "entry_of",
    "locked",
    "locked_to_end",
    "note",
    "read",
    "record_of",
    "write_head",
]

_MOST_TEXT = 2000
_NOTE = 40  # of these, for how much was left out


def record_of(row: tuple[Any, ...]) -> Record:
    verdict = row[18]
    values = (*row[:8], State(row[8]), *row[9:18], None if verdict is None else Verdict(verdict), *row[19:])
    return Record(*values)


def read(tx: Tx, op_id: str) -> Record:
    row = tx.one("operation", op_id=op_id)
    if row is None:
        raise OperationNotFound(op_id)
    return record_of(row)


def locked(tx: Tx, op_id: str) -> Record:
    """The operation, which nobody else changes until this transaction is over."""
    row = tx.one("lock_operation", op_id=op_id)
    if row is None:
        raise OperationNotFound(op_id)
    return record_of(row)


def locked_to_end(tx: Tx, op_id: str) -> tuple[Record, bool]:
    """As `locked`, and whether somebody subscribes to ends: one question to the database instead of two."""
    row = tx.one("lock_to_end", op_id=op_id)
    if row is None:
        raise OperationNotFound(op_id)
    return record_of(row[:-1]), row[-1] is not None


def clean(text: str | None) -> str | None:
    """Text that can be written: without lone surrogates and NULs, and not endless."""
    if text is None:
        return None
    if len(text) > _MOST_TEXT:  # the same once more changes nothing: a column and the log say the same
        text = f"{text[: _MOST_TEXT - _NOTE]}[{len(text) - _MOST_TEXT + _NOTE} more]"
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def as_text(value: Any) -> str | None:
    """`value` as text that can be written; None stays."""
    if value is None:
        return None
    try:
        return clean(str(value))
    except Exception as problem:  # of a __str__ of anybody's
        return f"<{type(value).__name__}, whose text cannot be had: {type(problem).__name__}>"


def entry_of(tx: Tx, record: Record, kind: str, more: Mapping[str, Any] | None = None) -> Evidence:
    """The next entry of the operation's part of the log, not written yet."""
    n = record.evidence + 1
    document = {"op": record.op_id, "n": n, "kind": kind, "at": tx.now, "prev": record.head}
    if more:
        document |= {key: clean(value) if isinstance(value, str) else value for key, value in more.items()}
    body = canonical(document)
    return Evidence(record.op_id, n, kind, tx.now, body.decode(), record.head, leaf_hash(body))


def add(tx: Tx, entry: Evidence) -> None:
    tx.run("add_evidence", op_id=entry.op_id, n=entry.n, kind=entry.kind, at_ms=entry.at_ms, body=entry.body,
           prev=entry.prev, hash=entry.hash)  # fmt: skip
    tx.noted(entry)


def note(tx: Tx, record: Record, kind: str, more: Mapping[str, Any] | None = None) -> Record:
    """Add one entry to the operation's part of the log. The record given back carries the new head: write it."""
    entry = entry_of(tx, record, kind, more)
    add(tx, entry)
    return replace(record, evidence=entry.n, head=entry.hash)


def write_head(tx: Tx, record: Record) -> Record:
    """Entries that change nothing but the log."""
    if not tx.run("set_head", op_id=record.op_id, evidence=record.evidence, head=record.head):
        raise StaleClaim(record.op_id, record.state.value)
    return record


def change(
    tx: Tx, record: Record, to: State, kind: str, more: Mapping[str, Any] | None = None, **changes: Any
) -> Record:
    """One step of its life and the entry that says so. `changes` are columns. Raises IllegalTransition, StaleClaim."""
    check_transition(record.state, to)
    fence = record.fence + 1 if to in LEASED else changes.pop("fence", record.fence)
    if to not in LEASED:
        changes |= {"owner": None, "lease_ms": None}
    values = {"ver": record.ver + 1, "fence": fence, "attempts": changes.get("attempts", record.attempts)}
    told = {"from": record.state.value, "to": to.value, **values, **(more or {})}
    if changes.get("verdict", record.verdict) != record.verdict:
        told["counts_as"] = str(changes["verdict"])
    entry = entry_of(tx, record, kind, told)
    add(tx, entry)
    changes |= {**values, "state": to, "updated_ms": tx.now, "evidence": entry.n, "head": entry.hash}
    new = replace(record, **changes)
    done = tx.run(
        "change_operation", op_id=new.op_id, old_ver=record.ver, old_fence=record.fence, state=to.value, ver=new.ver,
        fence=new.fence, owner=new.owner, lease_ms=new.lease_ms, attempts=new.attempts, request_ms=new.request_ms,
        recovery_ms=new.recovery_ms, next_ms=new.next_ms, queries=new.queries, verdict=new.verdict,
        reference=new.reference, first_sent_ms=new.first_sent_ms, last_sent_ms=new.last_sent_ms,
        updated_ms=new.updated_ms, evidence=new.evidence, head=new.head,
    )  # fmt: skip
    if not done:
        raise StaleClaim(record.op_id, record.state.value)
    return new
