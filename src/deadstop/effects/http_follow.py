# SPDX-License-Identifier: Apache-2.0
"""An operation that was accepted (202) is followed to its end. Its reference is in the ledger before the first look.

What is seen on the way settles it as any other finding does: under a lease, and not if somebody else has done so.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

from .. import clock
from ..errors import LedgerError
from ..ledger.definition import Definition
from ..ledger.ledger import Ledger
from ..ledger.queries import HttpQuery
from ..ledger.records import Finding, Record
from ..ledger.states import TERMINAL, Verdict
from .filling import as_seconds, reach, state_verdict
from .http_exchange import Answer, Failed, Wire, exchange
from .http_intent import without_query
from .http_verdict import Judged, document_of, phrase
from .settlement import SETTLING

__all__ = ["Followed", "follow", "look", "next_pause", "place_from"]

FIRST_S, LONGEST_S = 0.1, 5.0
LEASE_S = 10.0
_DEFAULT = HttpQuery(url="")


@dataclass(frozen=True, slots=True)
class Followed:
    """The operation as it is at last, and what was seen of it last."""

    record: Record
    words: str
    value: Any = None


async def follow(
    ledger: Ledger, record: Record, definition: Definition, judged: Judged, wire: Wire, end: float, transport: Any
) -> Followed:
    """Ends by `end` (a point on CLOCK_MONOTONIC), and at once when nothing says where to look."""
    place, words = place_from(wire.url, judged.place), judged.words
    if place is None:
        return Followed(record, f"{words}; it names no place of its own to ask at")
    pause, wait = FIRST_S, judged.retry_after_s
    while (left := end - clock.monotonic()) > 0:
        await asyncio.sleep(min(next_pause(pause, wait), left))
        pause = min(2 * pause, LONGEST_S)
        finding = await look(wire, place, definition, end, transport)
        wait, words = finding.retry_after_s, f"{finding.source} {finding.detail}"
        record = await asyncio.to_thread(_settled if finding.verdict in SETTLING else _seen, ledger, record, finding)
        if record.state in TERMINAL:
            return Followed(record, words, finding.value if finding.has_value else await _kept(ledger, record))
    return Followed(record, words)


async def _kept(ledger: Ledger, record: Record) -> Any:
    """What somebody else has found."""
    _, value = await asyncio.to_thread(ledger.value, record.op_id)
    return value


def place_from(url: str, place: str | None) -> str | None:
    """Where to look; None for a place on another host, which is not to get this one's headers."""
    if place is None:
        return None
    try:
        absolute = urljoin(url, place)
        own, there = urlsplit(url), urlsplit(absolute)
    except ValueError:  # the service's words, which need not be a URL
        return None
    return absolute if (own.scheme, own.netloc) == (there.scheme, there.netloc) else None


def next_pause(pause: float, wish: float | None = None) -> float:
    """With jitter, so that many who wait for one service do not come at once; longer if the service wishes so, and
    never shorter: who says "at once" for ever is not asked without a pause for ever."""
    return max(wish or 0.0, pause * random.uniform(0.5, 1.0))


async def look(wire: Wire, place: str, definition: Definition, end: float, transport: Any) -> Finding:
    """What is seen there now. Never raises Failed."""
    headers = {
        name: value
        for name, value in wire.headers.items()
        if name not in ("idempotency-key", "content-type", "if-match")
    }
    source = f"GET {without_query(place)}"
    try:
        limit = min(end, clock.monotonic() + definition.reconcile_s)
        answer = await exchange(Wire("GET", place, headers), limit, transport=transport)
    except Failed as problem:
        return Finding(Verdict.UNREACHABLE, source, detail=problem.failure.observation)
    return _read(answer, definition, source)


def _read(answer: Answer, definition: Definition, source: str) -> Finding:
    words = definition.query if isinstance(definition.query, HttpQuery) else _DEFAULT
    wait, says = as_seconds(answer.headers.get("retry-after")), f"answered {phrase(answer.status)}"
    document, problem = document_of(answer)
    verdict = Verdict.INCONCLUSIVE
    if answer.status in (429, 502, 503, 504):
        verdict = Verdict.UNREACHABLE
    elif answer.status == 202:
        verdict = Verdict.IN_PROGRESS
    elif answer.status == 200 and problem is None:
        word = _word(document, words.state)
        if isinstance(word, str):
            verdict, says = (
                state_verdict(word, words.applied, words.failed, words.pending),
                f"{says}, state {word[:60]!r}",
            )
    value = {"value": document, "has_value": True} if verdict is Verdict.APPLIED else {}
    return Finding(verdict, source, detail=says, raw=answer.body, retry_after_s=wait, **value)


def _word(document: Any, path: str | None) -> Any:
    for name in ("state", "status") if path is None else (path,):
        try:
            return reach(document, name)
        except LookupError:
            continue
    return None


def _settled(ledger: Ledger, record: Record, finding: Finding) -> Record:
    try:
        claim = ledger.take(record.op_id, LEASE_S, force=True)
        return ledger.get(record.op_id) if claim is None else ledger.settle(claim, finding)
    except LedgerError:  # somebody else is settling it, or it cannot be written down now: look again
        return record


def _seen(ledger: Ledger, record: Record, finding: Finding) -> Record:
    try:
        return ledger.get(record.op_id)
    except LedgerError:
        return record
