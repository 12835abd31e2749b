# SPDX-License-Identifier: Apache-2.0
"""What needs a person, written down once for each cause; and the beats by which a silent worker is noticed.

An alert is told once. Its repeats only count; it is silent for good when it was acknowledged, until its cause has ended
(`over`) and begins anew. Telling it is tried a bounded number of times, further and further apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .entries import clean, locked, note, write_head
from .records import Alert
from .states import OPEN

if TYPE_CHECKING:
    from .store import Tx

__all__ = [
    "KINDS", "LEDGER", "RECONCILER", "Beat", "Pending", "acknowledge", "answered", "beat", "beats", "counts",
    "delivered", "get", "list_alerts", "open_operations", "over", "overdue", "past", "pending", "raise_alert",
    "take", "unended",
]  # fmt: skip

LEDGER = "ledger"  # the op_id of what is no operation's alert
RECONCILER = "reconciler"  # its name among the beats, whichever process it runs in
KINDS = {  # what each says; others may be raised, too
    "recovery_deadline_passed": "nobody could say within its recovery deadline whether it happened: a person decides",
    "no_authority": "nobody can say whether it happened, and it can be looked up nowhere: a person decides",
    "key_conflict": "one key was used for two different requests; the second was refused",
    "marker_contradiction": "what was found at the authority cannot all be true",
    "late_contradiction": "an answer that came too late says otherwise than what the operation was settled as",
    "started_without_end": "an attempt began, its lease is over, and nothing has said how it ended",
    "reconciler_silent": "nobody is asking the authorities about unknown operations",
    "outbox_dead": "an event was given up before its receiver took it",
    "ledger_broken": "the ledger is not what was written",
    "checkpoints_stopped": "the log is no longer signed: what is changed in it from now on may not be found",
}
MOST_TRIES = 20
FIRST_PAUSE_MS, LAST_PAUSE_MS = 5_000, 3_600_000  # doubling: 20 tries take some 12 hours
BEATS_MISSED = 3


class Pending(NamedTuple):
    """An alert that was taken to be told; `tries` counts this time, too."""

    alert: Alert
    tries: int


class Beat(NamedTuple):
    """A sign of life: whose, by which process, when last, and how often it should come."""

    name: str
    owner: str
    at_ms: int
    every_ms: int

    def late(self, now: int) -> bool:
        return now > self.at_ms + BEATS_MISSED * self.every_ms


def raise_alert(tx: Tx, kind: str, op_id: str, detail: str) -> bool:
    """Write it down, to be told once this transaction is durable. True if it is new, False if it only counts as one
    more of the same cause. `op_id` is LEDGER for what is no operation's."""
    row = tx.one("alert_raise", kind=kind, op_id=op_id, detail=clean(detail), now=tx.now)
    return row is not None and row[0] == 1


def over(tx: Tx, kind: str, op_id: str) -> bool:
    """Its cause has ended: if it comes again that is a new one, and told."""
    return bool(tx.run("alert_over", kind=kind, op_id=op_id, now=tx.now))


def answered(tx: Tx, op_id: str, by: str) -> int:
    """A person has decided about the operation: what waited for that is acknowledged and over. How many there were.

    If the operation is sent again and lost again, that is a new cause.
    """
    return tx.run("alerts_answer", op_id=op_id, by=clean(by), now=tx.now)


def past(tx: Tx, limit: int = 100) -> list[tuple[str, str]]:
    """(kind, op_id) of those that the state of their operation has overtaken."""
    return [(kind, op_id) for kind, op_id in tx.all("alerts_past", now=tx.now, limit=limit)]


def pending(tx: Tx, limit: int = 100) -> list[Alert]:
    """What is to be told now."""
    return [Alert(*row[:-1]) for row in tx.all("alerts_pending", now=tx.now, most=MOST_TRIES, limit=limit)]


def take(tx: Tx, limit: int = 20) -> list[Pending]:
    """The same, for whoever tells it: nobody else is given it for a while, and it comes again later unless `delivered`
    is said. After MOST_TRIES it is only listed."""
    found = []
    for *facts, tries in tx.all("alerts_pending", now=tx.now, most=MOST_TRIES, limit=limit):
        alert = Alert(*facts)
        next_ms = tx.now + min(LAST_PAUSE_MS, FIRST_PAUSE_MS << tries)
        if tx.run("alert_take", kind=alert.kind, op_id=alert.op_id, tries=tries, next_ms=next_ms):
            found.append(Pending(alert, tries + 1))
    return found


def delivered(tx: Tx, kind: str, op_id: str) -> bool:
    """Somebody was told."""
    return bool(tx.run("alert_delivered", kind=kind, op_id=op_id, now=tx.now))


def acknowledge(tx: Tx, kind: str, op_id: str, by: str) -> bool:
    """A person has seen it, which is written down with its operation. False if there is no such alert, or it was
    acknowledged before."""
    if not tx.run("alert_acknowledge", kind=kind, op_id=op_id, by=clean(by), now=tx.now):
        return False
    if tx.one("operation", op_id=op_id) is not None:
        write_head(tx, note(tx, locked(tx, op_id), "alert.acked", {"alert": kind, "by": by}))
    return True


def get(tx: Tx, kind: str, op_id: str) -> Alert | None:
    row = tx.one("alert", kind=kind, op_id=op_id)
    return None if row is None else Alert(*row)


def list_alerts(tx: Tx, *, every: bool = False, limit: int = 100) -> list[Alert]:
    """Those that nobody has acknowledged and whose cause has not ended, or `every` one; the newest first."""
    return [Alert(*row) for row in tx.all("alerts_all" if every else "alerts_open", limit=limit)]


def counts(tx: Tx) -> dict[str, int]:
    """How many of each kind wait for a person."""
    return {kind: int(n) for kind, n in tx.all("alert_counts")}


def open_operations(tx: Tx) -> dict[str, int]:
    """How many are in each state that is not an end: as fast with a million ended ones."""
    return {**dict.fromkeys(sorted(OPEN), 0), **{state: int(n) for state, n in tx.all("operations_open")}}


def beat(tx: Tx, name: str, owner: str, every_ms: int) -> None:
    """`name` lives, in this process, and will say so again in `every_ms`."""
    tx.run("beat_write", name=name, owner=owner, every_ms=every_ms, now=tx.now)


def beats(tx: Tx) -> list[Beat]:
    return [Beat(*row) for row in tx.all("beats")]


def unended(tx: Tx, grace_ms: int, limit: int = 100) -> list[tuple[str, str]]:
    """(op_id, detail) of attempts whose lease has been over for `grace_ms`, and nobody has said so."""
    rows = tx.all("started_unended", before=tx.now - grace_ms, limit=limit)
    return [
        (op_id, f"its lease ended {_ago(tx.now, lease_ms)}; it was held by {owner}") for op_id, owner, lease_ms in rows
    ]


def overdue(tx: Tx, grace_ms: int, limit: int = 100) -> list[tuple[str, str]]:
    """(op_id, detail) of unknown operations that have been past their recovery deadline for `grace_ms`, and nobody has
    said so."""
    rows = tx.all("unknown_overdue", before=tx.now - grace_ms, limit=limit)
    return [(op_id, f"its recovery deadline passed {_ago(tx.now, at)}, and nobody took it up") for op_id, at in rows]


def _ago(now: int, at_ms: int) -> str:
    return f"{max(0, now - at_ms) / 1000:.0f} s ago"
