# SPDX-License-Identifier: Apache-2.0
"""Events that outlive their sender: written in the transaction of what they tell, delivered later, at least once.

An event is a CloudEvents 1.0 envelope. Its `source` and `id` stay the same however often it is sent, so that a receiver
can tell a repetition. Of one group only the first that is open is sent: the next one follows when it was taken, or has
died. `take` gives a lease and a fence: what was taken by somebody who went away is taken again. What was sent is kept
for a while, so that its `dedup` is known, and then pruned.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
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
    "KEEP_S", "SETTLED", "Due", "End", "check_keep", "check_message", "check_url", "counts", "dead", "failed",
    "give_back", "prunable", "prune", "publish", "receivers", "retry", "sent", "settled_message", "shown", "spread",
    "take", "turn", "unspread",
]  # fmt: skip

SETTLED = "deadstop.operation.settled"
MOST_TRIES = 40
FIRST_PAUSE_MS, LAST_PAUSE_MS = 1_000, 30 * 60_000  # doubling: 40 tries take some 15 hours
LONGEST_WISH_MS = 60 * 60_000  # of a receiver that says Retry-After
MOST_AGE_MS, OLD_TRIES = 24 * 3_600_000, 5
NEVER_MS = 1 << 60  # when the ones behind the first of a group are due
KEEP_S, SHORTEST_KEEP_S = 30 * 24 * 3600.0, 3600.0  # what was sent: as long its `dedup` is known
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
    ordering: str

    @property
    def event_id(self) -> str:
        """The event's own id: the same for every receiver and every try."""
        return self.id.partition(".")[0]


class End(NamedTuple):
    """How the sending of one ended. Without a problem its receiver has it; see `failed` for the rest. `returned`: its
    sender was stopped, and the next one shall not wait for the end of the lease."""

    due: Due
    problem: str | None = None
    retry_after: float | None = None
    final: bool = False
    returned: bool = False


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


def check_keep(seconds: float | None) -> int | None:
    """How long what was sent is kept, in milliseconds; None is for ever. Raises UsageError for less than an hour: a
    repetition could not be told."""
    found = clock.check_limit("keep", seconds)
    if found is None:
        return None
    if found < SHORTEST_KEEP_S:
        raise UsageError(f"events: {found:g} s is too short to keep what was sent; give an hour at least")
    return round(found * 1000)


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
    when a transaction that had to wait for the lock began. Positions begin with the time, so that they go on growing
    where all that came before was pruned.
    """
    tx.one("outbox_lock", ordering=ordering)
    row = tx.one("outbox_last", ordering=ordering)
    last, last_ms = (0, 0) if row is None else (int(row[0]), int(row[1]))
    position = max(last + 1, tx.now)
    if url is None:
        return position, max(tx.now, last_ms)
    waits = tx.one("outbox_unended", ordering=ordering) is not None
    return position, NEVER_MS if waits else tx.now


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
    copies = [(_ordering(row[1], url), url, row) for row in rows for url in urls]
    for own, url, (event_id, _, op_id, event) in sorted(copies, key=lambda each: each[0]):  # see `turn`
        _copy(tx, event_id, own, op_id, event, url)
    for row in rows:
        tx.run("outbox_spread", id=row[0], now=tx.now)
    return len(rows)


def _copy(tx: Tx, event_id: str, own: str, op_id: str | None, event: str, url: str) -> None:
    name, dedup = f"{event_id}.{digest(url.encode())[:12]}", f"{event_id} {url}"
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


def turn(tx: Tx, url: str, ends: Sequence[End], limit: int, lease_ms: int) -> list[Due]:
    """Write down how sendings ended, and `take` up to `limit` more: what follows in their groups may be among them.

    Groups are locked in the order of their names, by all who lock many: so no two wait for each other.
    """
    for end in sorted(ends, key=lambda each: each.due.ordering):
        name, fence = end.due.id, end.due.fence
        if end.returned:
            give_back(tx, name, fence)
        elif end.problem is None:
            sent(tx, name, fence)
        else:
            failed(tx, name, fence, end.problem, end.retry_after, final=end.final)
    return take(tx, url, limit, lease_ms) if limit > 0 else []


def take(tx: Tx, url: str, limit: int, lease_ms: int, now: int | None = None) -> list[Due]:
    """What is to be sent to `url` now, of each group at most one. Nobody else is given it until the lease is over.

    What was taken again and again without any word of its end has died.
    """
    now = tx.now if now is None else now
    found = []
    for name, fence, to, event, tries, op_id, ordering in tx.all("outbox_due", url=url, now=now, limit=limit):
        if tries >= MOST_TRIES:
            _die(tx, name, fence, op_id, to, "whoever was to send it went away each time")
        elif tx.run("outbox_take", id=name, fence=fence, lease_ms=now + lease_ms):
            found.append(Due(name, fence + 1, to, event, tries + 1, op_id, ordering))
    return found


def sent(tx: Tx, name: str, fence: int) -> bool:
    """The receiver has it. False if somebody else has taken it since: then it may come there twice."""
    row = tx.one("outbox_sent", id=name, fence=fence, now=tx.now)
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


def give_back(tx: Tx, name: str, fence: int) -> bool:
    """Whoever took it cannot send it: it is due again at once, and this try does not count. It may have come there."""
    return bool(tx.run("outbox_give_back", id=name, fence=fence, now=tx.now))


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


def prunable(tx: Tx, keep_ms: int) -> bool:
    """Whether there is anything that was sent longer ago than that."""
    return tx.one("outbox_prunable", before=tx.now - keep_ms) is not None


def prune(tx: Tx, keep_ms: int, limit: int = 200) -> int:
    """Forget what was sent longer ago than that; how many rows. What waits or died stays.

    Its `dedup` is then known no more: an event published under it again is sent again, under the id that it had.
    """
    return tx.run("outbox_prune", before=tx.now - keep_ms, limit=limit)


def counts(tx: Tx) -> dict[str, int]:
    """How many are `waiting`, `sending` and `dead`."""
    return {"waiting": 0, "sending": 0, "dead": 0, **{state: int(n) for state, n in tx.all("outbox_counts")}}
