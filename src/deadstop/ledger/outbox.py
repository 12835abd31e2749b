# SPDX-License-Identifier: Apache-2.0
"""Events that outlive their sender: written in the transaction of what they tell, delivered later, at least once.

An event is a CloudEvents 1.0 envelope. Its `source` and `id` stay the same however often it is sent, so that a receiver
can tell a repetition. Of one group only the first that is open is sent: the next one follows when it was taken, or has
died. `take` gives a lease and a fence: what was taken by somebody who went away is taken again.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .. import clock
from ..errors import LedgerUnavailable, UsageError
from .alerts import LEDGER, over, raise_alert
from .canonical import canonical, digest
from .entries import clean
from .records import Message, Record
from .states import TERMINAL, State

if TYPE_CHECKING:
    from .store import Tx

__all__ = [
    "SETTLED", "Due", "check_message", "check_url", "counts", "dead", "failed", "publish", "receivers", "retry", "sent",
    "settled_message", "shown", "spread", "take", "unspread",
]  # fmt: skip

SETTLED = "deadstop.operation.settled"
MOST_TRIES = 40
FIRST_PAUSE_MS, LAST_PAUSE_MS = 1_000, 30 * 60_000  # doubling: 40 tries take some 15 hours
LONGEST_WISH_MS = 60 * 60_000  # of a receiver that says Retry-After
MOST_AGE_MS, OLD_TRIES = 24 * 3_600_000, 5
NEVER_MS = 1 << 60  # when the ones behind the first of a group are due
_KEPT_PROBLEM = 500
_RACES = 20


@dataclass(frozen=True, slots=True)
class Due:
    """A message that was taken: `fence` is the right to say how its sending ended."""

    id: str
    fence: int
    url: str
    event: str
    tries: int
    op_id: str | None

    @property
    def event_id(self) -> str:
        """The event's own id: the same for every receiver and every try."""
        return self.id.partition(".")[0]


def settled_message(record: Record, to: State) -> Message:
    """What is told when an operation is settled. `record` may be from before or after it. Raises ValueError."""
    if to not in TERMINAL:
        raise ValueError(f"{to} settles nothing")
    data = {
        "operation": record.op_id, "tool": record.tool, "scope": record.scope, "key": record.key,
        "correlation_id": record.correlation, "target": record.target, "state": to.value, "attempts": record.attempts,
        "reference": record.reference, "fingerprint": record.fingerprint,
    }  # fmt: skip
    return Message(SETTLED, f"settled/{record.op_id}", data, group=record.op_id, op_id=record.op_id)


def check_message(message: Message) -> bytes:
    """Its data as it will be sent. Raises UsageError for what could never be: to be asked before anything is done."""
    for name in ("kind", "dedup"):
        value = getattr(message, name)
        if not isinstance(value, str) or not value or "\0" in value or len(value) > 512:
            raise UsageError(f"message: {name} is {value!r:.60}; it must be text of 1 to 512 characters")
    if not isinstance(message.group, str) or "\0" in message.group or len(message.group) > 512:
        raise UsageError(f"message: group is {message.group!r:.60}; it must be text of at most 512 characters")
    if message.url is not None:
        check_url(message.url)
    if not isinstance(message.data, Mapping):
        raise UsageError(f"message: data is {type(message.data).__name__}; it must be a JSON object")
    return canonical(dict(message.data))


def check_url(url: str) -> str:
    """Raises UsageError for what no webhook can be at."""
    try:
        parts = urlsplit(url)
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except (ValueError, AttributeError, TypeError):
        right = False
    if not right or any(char <= " " or char == "\x7f" for char in url):
        raise UsageError(f"{str(url)[:80]!r} is not an http:// or https:// URL")
    return url


def publish(tx: Tx, message: Message) -> str:
    """Write it down, to be sent once this transaction is durable; the event's id. Of one `dedup` there is one event.

    Raises UsageError as `check_message` does.
    """
    data = json.loads(check_message(message))
    event_id = f"evt_{digest(message.dedup.encode())[:32]}"
    ordering = _ordering(message.group or event_id, message.url)
    for _ in range(_RACES):
        if found := tx.one("outbox_of_dedup", dedup=message.dedup):
            return str(found[0]).partition(".")[0]
        position, next_ms = _place(tx, ordering, message.url)
        event = _envelope(tx, message, event_id, position, data)
        values = {"id": event_id, "dedup": message.dedup, "ordering": ordering, "position": position}
        more = {"op_id": message.op_id, "url": message.url, "event": event, "next_ms": next_ms}
        if tx.run("outbox_add", **values, **more, now=tx.now):
            return event_id
    raise LedgerUnavailable("outbox", "others took every place in the group", "try again")


def _ordering(group: str, url: str | None) -> str:
    return group if url is None else f"{group} {url}"  # a receiver that is down holds up nobody else's events


def _place(tx: Tx, ordering: str, url: str | None) -> tuple[int, int]:
    """A position behind all others of the group, and when it is due: never, while another is before it.

    Whoever ends one makes the next one due (`_release`), so the two may not overlook each other: hence the lock. What
    goes to every receiver is never due: its time only says in which order it is given to them, whatever time it was
    when a transaction that had to wait for the lock began.
    """
    tx.one("outbox_lock", ordering=ordering)
    row = tx.one("outbox_position", ordering=ordering)
    assert row is not None
    if url is None:
        return int(row[0]), max(tx.now, int(row[1]))
    waits = tx.one("outbox_unended", ordering=ordering) is not None
    return int(row[0]), NEVER_MS if waits else tx.now


def _release(tx: Tx, ordering: str) -> None:
    tx.one("outbox_lock", ordering=ordering)
    if found := tx.one("outbox_unended", ordering=ordering):
        tx.run("outbox_release", id=found[0], now=tx.now, never=NEVER_MS)


def _envelope(tx: Tx, message: Message, event_id: str, position: int, data: Any) -> str:
    ledger = tx.one("meta", name="ledger_id")
    event: dict[str, Any] = {
        "specversion": "1.0", "id": event_id, "source": f"deadstop/{ledger[0] if ledger else LEDGER}",
        "type": message.kind, "time": clock.iso(tx.now / 1000), "datacontenttype": "application/json",
    }  # fmt: skip
    if message.op_id:
        event["subject"] = message.op_id
    if message.group:
        event |= {"partitionkey": message.group, "sequence": f"{position:020d}"}
    return json.dumps({**event, "data": data}, ensure_ascii=False, separators=(",", ":"))


def unspread(tx: Tx, limit: int = 1) -> bool:
    """Whether there are messages for every receiver that were not yet given to each of them."""
    return bool(tx.all("outbox_unspread", limit=limit))


def spread(tx: Tx, urls: Sequence[str], limit: int = 200) -> int:
    """Give messages that name no receiver to each of `urls`: from here on each has its own tries and its own order.

    How many messages there were. Without any URL they wait.
    """
    if not urls:
        return 0
    rows = tx.all("outbox_unspread", limit=limit)
    for event_id, ordering, op_id, event in rows:
        for url in urls:
            _copy(tx, event_id, ordering, op_id, event, url)
        tx.run("outbox_spread", id=event_id)
    return len(rows)


def _copy(tx: Tx, event_id: str, ordering: str, op_id: str | None, event: str, url: str) -> None:
    name, dedup, own = f"{event_id}.{digest(url.encode())[:12]}", f"{event_id} {url}", _ordering(ordering, url)
    for _ in range(_RACES):
        if tx.one("outbox_of_dedup", dedup=dedup):
            return
        position, next_ms = _place(tx, own, url)
        values = {"id": name, "dedup": dedup, "ordering": own, "position": position}
        if tx.run("outbox_add", **values, op_id=op_id, url=url, event=event, next_ms=next_ms, now=tx.now):
            return
    raise LedgerUnavailable("outbox", "others took every place in the group", "try again")


def receivers(tx: Tx, limit: int = 1000) -> list[str]:
    """URLs for which something may be due."""
    return [url for (url,) in tx.all("outbox_receivers", now=tx.now, limit=limit)]


def take(tx: Tx, url: str, limit: int, lease_ms: int, now: int | None = None) -> list[Due]:
    """What is to be sent to `url` now, of each group at most one. Nobody else is given it until the lease is over.

    What was taken again and again without any word of its end has died.
    """
    now = tx.now if now is None else now
    found = []
    for name, fence, to, event, tries, op_id in tx.all("outbox_due", url=url, now=now, limit=limit):
        if tries >= MOST_TRIES:
            _die(tx, name, fence, op_id, to, "whoever was to send it went away each time")
        elif tx.run("outbox_take", id=name, fence=fence, lease_ms=now + lease_ms):
            found.append(Due(name, fence + 1, to, event, tries + 1, op_id))
    return found


def sent(tx: Tx, name: str, fence: int) -> bool:
    """The receiver has it. False if somebody else has taken it since: then it may come there twice."""
    row = tx.one("outbox_sent", id=name, fence=fence)
    if row is not None:
        _release(tx, row[0])
    return row is not None


def failed(
    tx: Tx, name: str, fence: int, problem: str, retry_after: float | None = None, *, final: bool = False
) -> str | None:
    """It was not taken: to be tried again later, or dead with an alert after too many tries, too long, or `final`.

    `retry_after` is the receiver's own wish in seconds, kept up to an hour. The state it is in now; None if somebody
    else has taken it since.
    """
    row = tx.one("outbox_taken", id=name, fence=fence)
    if row is None:
        return None
    tries, created_ms, op_id, url = row
    if final or tries >= MOST_TRIES or (tries >= OLD_TRIES and tx.now - created_ms > MOST_AGE_MS):
        return _die(tx, name, fence, op_id, url, problem)
    next_ms = tx.now + pause_ms(tries, retry_after)
    changed = tx.run("outbox_again", id=name, fence=fence, next_ms=next_ms, problem=clean(problem[:_KEPT_PROBLEM]))
    return "waiting" if changed else None


def pause_ms(tries: int, retry_after: float | None = None) -> int:
    """Doubling, with a quarter of chance in it, and never shorter than the receiver wishes (within an hour)."""
    pause = min(LAST_PAUSE_MS, FIRST_PAUSE_MS << min(max(tries - 1, 0), 20))
    wish = min(LONGEST_WISH_MS, max(0, round((retry_after or 0) * 1000)))
    return max(wish, round(pause * random.uniform(0.75, 1)))


def _die(tx: Tx, name: str, fence: int, op_id: str | None, url: str, problem: str) -> str | None:
    row = tx.one("outbox_dies", id=name, fence=fence, problem=clean(problem[:_KEPT_PROBLEM]))
    if row is None:
        return None
    _release(tx, row[0])
    raise_alert(tx, "outbox_dead", op_id or name, f"event {name} was not delivered to {shown(url)}: {problem}")
    return "dead"


def shown(url: str) -> str:
    """Without the words that open a door: a webhook's path and query often are its password."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}"


def retry(tx: Tx, name: str) -> bool:
    """Try a dead one again, from the beginning. False if it is not dead. What followed it in its group may have gone
    before it: `sequence` in the event says where it belongs."""
    row = tx.one("outbox_op", id=name)
    if row is None or not tx.run("outbox_revive", id=name, now=tx.now):
        return False
    over(tx, "outbox_dead", row[0] or name)
    return True


def dead(tx: Tx, limit: int = 100) -> list[dict[str, Any]]:
    """Those that were given up, the oldest first: id, op_id, url, tries, problem, created_ms."""
    names = ("id", "op_id", "url", "tries", "problem", "created_ms")
    return [dict(zip(names, row, strict=True)) for row in tx.all("outbox_dead", limit=limit)]


def counts(tx: Tx) -> dict[str, int]:
    """How many are `waiting`, `sending` and `dead`."""
    return {"waiting": 0, "sending": 0, "dead": 0, **{state: int(n) for state, n in tx.all("outbox_counts")}}
