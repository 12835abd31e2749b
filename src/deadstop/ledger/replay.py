# SPDX-License-Identifier: Apache-2.0
"""Play the log again: every operation's entries must lead to how the tables say that it stands."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ..errors import DeadstopError
from .alerts import LEDGER
from .canonical import digest
from .logcheck import Progress
from .ordinary import is_ordinary, receipt_text
from .report import Problems
from .rotation import ROTATED
from .states import LEASED, TERMINAL, TRANSITIONS, State

if TYPE_CHECKING:
    from .store import Tx

__all__ = ["Replayed", "replay"]

Row = tuple[Any, ...]
_PAGE = 512
_LAST = "\U0010ffff"
_LEASED, _TERMINAL = frozenset(map(str, LEASED)), frozenset(map(str, TERMINAL))
_NAMED = ("scope", "key", "binding", "fingerprint", "tool", "definition", "correlation", "target")  # in the intent
_COLUMNS = ("op", "n", "kind", "at", "prev")
_COUNTED = ("state", "ver", "fence", "attempts", "verdict")


def replay(tx: Tx, problems: Problems, progress: Progress) -> Replayed:
    """Compare every operation with its entries, and every entry's body with its hash."""
    waiting = {(op_id, n) for op_id, n in tx.all("log_waiting")}
    declared: dict[tuple[str, int], str] = {}
    for tool, version, stated, body in tx.all("log_definitions"):
        declared[tool, version] = stated
        if not isinstance(body, str) or digest(body.encode("utf-8", "surrogateescape")) != stated:
            problems.add("definition", f"definition {version} of {tool}", "it is not what its digest says")
    row = tx.one("log_count_operations")
    total, done, after = int(row[0]) if row else 0, Replayed(), ""
    while True:
        operations = tx.all("log_operations", after=after, limit=_PAGE)
        until = operations[-1][0] if len(operations) == _PAGE else _LAST
        _page(tx, (after, until), operations, waiting, declared, problems, done)
        done.operations += len(operations)
        progress("operations", done.operations, total)
        if until == _LAST:
            return done
        after = until


@dataclass(slots=True)
class Replayed:
    operations: int = 0  # that were compared
    placed: int = 0  # their entries that have a leaf
    hashed: bool = True  # every entry's body has the hash that is written beside it


def _page(
    tx: Tx, pages: tuple[str, str], operations: list[Row], waiting: set[tuple[str, int]],
    declared: dict[tuple[str, int], str], problems: Problems, done: Replayed,
) -> None:  # fmt: skip
    span = dict(zip(("after", "until"), pages, strict=True))
    trail = tx.all("log_trails", **span)
    hashed = _hashed(trail)
    done.hashed = done.hashed and hashed
    done.placed += len(trail) - [row[7] for row in trail].count(None)
    trails = {op_id: list(own) for op_id, own in groupby(trail, itemgetter(0))}
    attempts, ends, payloads = [
        _by_operation(tx.all(name, **span)) for name in ("log_attempts", "log_ends", "log_payloads")
    ]
    nothing: list[Row] = []
    for operation in operations:
        op_id = operation[0]
        own, begun, ended = trails.pop(op_id, nothing), attempts.pop(op_id, nothing), ends.pop(op_id, nothing)
        kept = payloads.pop(op_id, nothing)
        if hashed and is_ordinary(operation, own, begun, ended, kept, declared):
            continue
        one = _Operation(op_id, problems)
        one.play(own, waiting)
        one.compare(operation, declared)
        one.compare_attempts(begun, ended)
        one.compare_payloads(kept)
    for op_id, own in trails.items():
        if op_id == LEDGER and all(kind == ROTATED for _, _, kind, *_ in own):
            _Operation(op_id, problems).play(own, waiting)
            continue
        problems.add("operation", f"operation {op_id}", f"it was deleted: the log has {len(own)} entries of it")
    for what, rest in (("attempts", attempts), ("ends of attempts", ends), ("values", payloads)):
        for op_id in rest:
            if op_id not in trails:
                problems.add("operation", f"operation {op_id}", f"there are {what} of it, and nothing else")


def _hashed(trail: list[Row]) -> bool:
    try:
        return [sha256(b"\0" + row[4].encode()).hexdigest() for row in trail] == [row[6] for row in trail]
    except (AttributeError, UnicodeError):
        return False


def _by_operation(rows: list[Row]) -> dict[str, list[Row]]:
    found = {row[0]: [row] for row in rows}  # one each, as most have
    return found if len(found) == len(rows) else {op_id: list(own) for op_id, own in groupby(rows, itemgetter(0))}


class _Operation:
    """One operation as its part of the log says it stands."""

    def __init__(self, op_id: str, problems: Problems) -> None:
        self.op_id, self._problems = op_id, problems
        self.state, self.ver, self.fence, self.attempts = "", 0, 0, 0
        self.verdict: str | None = None
        self.head, self.count = "", 0
        self.intent: dict[str, Any] = {}
        self.started = dict[int, dict[str, Any]]()
        self.ended = dict[int, dict[str, Any]]()
        self.references, self.shredded = {None}, set[str]()
        self.sealed = dict[str, set[str]]()

    def _bad(self, kind: str, where: str, text: str) -> None:
        self._problems.add(kind, f"operation {self.op_id}{where}", text)

    # -- the log -----------------------------------------------------------------------------------------------------

    def play(self, trail: list[Row], waiting: set[tuple[str, int]]) -> None:
        place = -1
        for _, n, kind, at, text, prev, leaf, seq in trail:
            where = f", entry {n}"
            if n != self.count + 1:
                gap = f"entry {self.count + 1}" if n == self.count + 2 else f"entries {self.count + 1} to {n - 1}"
                self._bad("chain", where, f"{gap} before it: missing" if n > self.count else "there is no such number")
            if seq is None:
                if (self.op_id, n) not in waiting:
                    self._bad(
                        "leaf", where, "it has no place in the log: it was added around it, or its leaf was deleted"
                    )
            elif seq <= place:
                self._bad("order", f"{where}, leaf {seq}", f"it is in the log before what it follows (leaf {place})")
            else:
                place = seq
            body = self._body(where, text, (self.op_id, n, kind, at, prev))
            if prev != self.head:
                self._bad("chain", where, "it does not follow the entry before it")
            self.count, self.head = n, leaf
            if body:
                self._step(where, kind, body)
                if '"sealed.' in text:
                    self._seals(body)

    def _body(self, where: str, text: Any, columns: Row) -> dict[str, Any]:
        try:
            body = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            self._bad("evidence", where, "its body is no JSON object")
            return {}
        said = tuple(map(body.get, _COLUMNS))
        if said != columns:
            for name, there, own in zip(_COLUMNS, columns, said, strict=True):
                if there != own:
                    self._bad("column", f"{where}, column {name}", f"it says {there!r:.80}; the body says {own!r:.80}")
        return body

    def _step(self, where: str, kind: str, body: dict[str, Any]) -> None:
        to = body.get("to")
        if kind == "intent":
            self.intent = body
        elif kind == "payload.shredded":
            self.shredded.update(str(body.get("names")).split(","))
        if "counts_as" in body:
            self.verdict = body["counts_as"]
        if isinstance(body.get("reference"), str):
            self.references.add(body["reference"])
        if to is None:
            return
        if kind == "attempt.started":
            self.started[body.get("attempt", 0)] = body
        elif body.get("from") == State.DISPATCHING and "attempt" in body:
            self.ended[body["attempt"]] = body
        self._change(where, to, body)

    def _seals(self, body: dict[str, Any]) -> None:
        for name, value in body.items():
            if name.startswith("sealed.") and value is not None:
                self.sealed.setdefault(name[7:], set()).add(value)

    def _change(self, where: str, to: str, body: dict[str, Any]) -> None:
        ver, fence, attempts = body.get("ver"), body.get("fence"), body.get("attempts", self.attempts)
        legal = (body.get("from"), to) in TRANSITIONS if self.ver else to == State.PREPARED
        if body.get("from") != self.state:
            self._bad(
                "replay", where, f"it begins from {body.get('from')}, but the operation was {self.state or 'not there'}"
            )
        elif not legal:
            self._bad("replay", where, f"{to} does not follow {self.state or 'nothing'}")
        if ver != self.ver + 1 or not isinstance(fence, int) or not isinstance(attempts, int):
            self._bad("replay", where, f"its version is {ver}, after {self.ver}")
            return
        if fence < self.fence or (to in _LEASED and fence != self.fence + 1):
            self._bad("replay", where, f"its fence is {fence}, after {self.fence}")
        self.state, self.ver, self.fence, self.attempts = to, ver, fence, attempts

    # -- the tables --------------------------------------------------------------------------------------------------

    def compare(self, row: Row, declared: dict[tuple[str, int], str]) -> None:
        _, *named, state, ver, fence, attempts, verdict, reference, count, head = row
        if not self.count:
            self._bad("operation", "", "the log knows nothing of it")
            return
        for name, there in zip(_NAMED, named, strict=True):
            self._same(name, there, self.intent.get(name))
        for name, there in zip(_COUNTED, (state, ver, fence, attempts, verdict), strict=True):
            self._same(name, there, getattr(self, name))
        made_under = declared.get((self.intent.get("tool", ""), self.intent.get("definition", 0)))
        if made_under != self.intent.get("declared"):
            self._bad("definition", "", "its definition is not the one that it was made under")
        if reference not in self.references:
            self._bad("operation", ", column reference", f"it says {reference!r:.80}, which the log never says")
        self._same("evidence", count, self.count)
        self._same("head", head, self.head)

    def _same(self, name: str, there: Any, said: Any) -> None:
        if there != said:
            self._bad("operation", f", column {name}", f"it says {there!r:.80}; the log says {said!r:.80}")

    def compare_attempts(self, attempts: list[Row], ends: list[Row]) -> None:
        for _, n, *there in attempts:
            body = self.started.pop(n, None)
            said = body and [body.get("fence"), body.get("owner"), body.get("at")]
            if said != there:
                self._bad("attempt", f", attempt {n}", "the log says otherwise" if said else "the log never began it")
        for n in self.started:
            self._bad("attempt", f", attempt {n}", "it was deleted: the log says that it began")
        for _, n, *end in ends:
            body = self.ended.pop(n, None)
            if body is None or not _is_end(end, body):
                self._bad(
                    "attempt", f", end of attempt {n}", "the log says otherwise" if body else "the log never ended it"
                )
        for n in self.ended:
            self._bad("attempt", f", end of attempt {n}", "it was deleted: the log says that it ended")

    def compare_payloads(self, payloads: list[Row]) -> None:
        there = set()
        for _, name, salt, value in payloads:
            there.add(name)
            if digest(f"{salt}\0{value}".encode("utf-8", "surrogateescape")) not in self.sealed.get(name, ()):
                self._bad("payload", f", value {name!r}", "it is not the value that the log has the digest of")
        for name in self.sealed.keys() - there - self.shredded:
            self._bad("payload", f", value {name!r}", "it was deleted, and the log does not say that it was shredded")


def _is_end(end: list[Any], body: dict[str, Any]) -> bool:
    ended_ms, outcome, phase, certain, observation, receipt = end
    said = body.get("observation", body.get("why"))
    facts = ended_ms == body.get("at") and outcome == body.get("to") and phase == body.get("phase")
    return (
        facts
        and bool(certain) == bool(body.get("certain"))
        and observation == (said or "")
        and _is_receipt(receipt, body)
    )


def _is_receipt(receipt: str | None, body: dict[str, Any]) -> bool:
    if receipt is None:
        return body.get("receipt") is None
    try:
        return receipt_text(receipt) == body.get("receipt")
    except (DeadstopError, TypeError, ValueError):
        return False
