# SPDX-License-Identifier: Apache-2.0
"""Reading the ledger: operations, their trail, and whether the sum is right."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ..errors import OperationNotFound, UsageError
from .entries import locked, note, read, record_of, write_head
from .records import Attempt, Evidence, Record
from .states import OPEN, TERMINAL, State
from .store import Tx

__all__ = ["attempts", "conservation", "counts", "find", "listed", "matching", "shred", "trail", "value"]

_STATES = ("state_a", "state_b", "state_c", "state_d", "state_e", "state_f", "state_g", "state_h")
_EVER = 1 << 60


def matching(tx: Tx, op_id: str) -> Record:
    """By its id, or by a beginning of it that no other has. Raises OperationNotFound, UsageError."""
    row = tx.one("operation", op_id=op_id)
    if row is not None:
        return record_of(row)
    found = tx.all("op_ids_like", low=op_id, high=f"{op_id}~") if op_id.startswith("op_") else []
    if len(found) > 1:
        raise UsageError(f"{op_id} is the beginning of more than one operation's id")
    if not found:
        raise OperationNotFound(op_id)
    return read(tx, found[0][0])


def find(tx: Tx, scope: str, key: str) -> Record | None:
    row = tx.one("op_id_of_key", scope=scope, key=key)
    return None if row is None else read(tx, row[0])


def listed(
    tx: Tx, states: Iterable[State] | None = None, tool: str | None = None, limit: int = 100, before: int | None = None
) -> list[Record]:
    """The newest first. `before` is a `created_ms`."""
    wanted = [] if states is None else [State(each).value for each in states]
    if states is not None and not wanted:
        return []
    filled = dict.fromkeys(_STATES) | dict(zip(_STATES, wanted, strict=False))
    before = _EVER if before is None else before
    name = "list_open" if wanted and OPEN.issuperset(wanted) else "list_operations"
    return [record_of(row) for row in tx.all(name, tool=tool, limit=limit, before=before, **filled)]


def trail(tx: Tx, op_id: str) -> list[Evidence]:
    return [Evidence(*row) for row in tx.all("trail", op_id=op_id)]


def attempts(tx: Tx, op_id: str) -> list[Attempt]:
    return [_attempt(*row) for row in tx.all("attempts", op_id=op_id)]


def _attempt(*row: Any) -> Attempt:
    values = list(row)
    values[8] = None if row[8] is None else bool(row[8])
    values[10] = None if row[10] is None else json.loads(row[10])
    return Attempt(*values)


def value(tx: Tx, op_id: str) -> tuple[bool, Any]:
    """Whether its result was kept, and the result."""
    row = tx.one("payload", op_id=op_id, name="result")
    return (False, None) if row is None else (True, json.loads(row[1])["value"])


def shred(tx: Tx, op_id: str, names: Iterable[str] | None = None, by: str | None = None) -> list[str]:
    """Delete what was kept sealed of it, all or these; their names. The log goes on to name it by digest."""
    record = locked(tx, op_id)
    there = [row[0] for row in tx.all("payload_names", op_id=op_id)]
    wanted = there if names is None else [name for name in names if name in there]
    for name in wanted:
        tx.run("shred_payload", op_id=op_id, name=name)
    if wanted:
        write_head(tx, note(tx, record, "payload.shredded", {"names": ",".join(wanted), "by": by}))
    return wanted


def counts(tx: Tx) -> dict[str, int]:
    found = dict.fromkeys((state.value for state in State), 0)
    found.update(dict(tx.all("counts")))
    return found


def conservation(tx: Tx) -> dict[str, Any]:
    """Every operation is in one place: ended, or open with a deadline. `lapsed` ones wait for a sweep."""
    found = counts(tx)
    row, lapsed = tx.one("attempts_without_end"), tx.one("lapsed", now=tx.now)
    assert row is not None
    assert lapsed is not None
    without = [each[0] for each in tx.all("without_deadline")]
    open_ones = {state.value: found[state] for state in State if state in OPEN}
    ended = {state.value: found[state] for state in State if state in TERMINAL}
    return {
        "started": sum(found.values()), "ended": sum(ended.values()), "open": sum(open_ones.values()),
        "states": found, "without_deadline": without, "attempts_without_end": row[0], "lapsed": lapsed[0],
        "needs_human": found[State.NEEDS_HUMAN], "holds": not without and not row[0],
    }  # fmt: skip
