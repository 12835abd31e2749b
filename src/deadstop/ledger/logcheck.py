# SPDX-License-Identifier: Apache-2.0
"""One pass over the log in its order: bodies, hashes, the tree over them, and the checkpoints on the way."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from .checkpoints import Anchors
from .locate import swapped
from .merkle import Frontier, Node
from .reader import PAGE, pages
from .report import CHANGED, Problems

if TYPE_CHECKING:
    from .store import Tx

__all__ = ["LogCheck", "Progress"]

Progress = Callable[[str, int, int], None]  # what, done, of how many


class LogCheck:
    """One pass over the leaves in their order: bodies, hashes, the tree, and the checkpoints on the way."""

    def __init__(self, tx: Tx, anchors: Anchors, problems: Problems, progress: Progress) -> None:
        self.tx, self.problems, self.progress = tx, problems, progress
        self.leaves = 0  # that are there
        self.sound = Frontier()  # the tree where it last was what is known of it
        self.next = 0  # the place that the next leaf should have
        self.tree, self.whole = Frontier(), True  # whole: without a gap so far, so that roots mean something
        self.nodes = list[Node]()
        self.backward = list[int]()  # leaves that are older than the one before
        self.at = 0
        self.signed = dict[int, set[bytes]]()
        self.failed = False
        head = tx.one("log_head")
        try:
            self.head: Frontier | None = Frontier.parse(*head) if head else None
        except (TypeError, ValueError):
            self.head = None
        if self.head is None:
            problems.add("head", "head", "the row of the log's end is missing, or is no end")
        for each in (*anchors.files, *anchors.table):
            if each.size not in anchors.late or (self.head and each.size <= self.head.size):
                self.signed.setdefault(each.size, set()).add(each.root)
        self.sizes = sorted({*self.signed, *([self.head.size] if self.head else [])})

    def run(self) -> None:
        first = self.tx.one("log_first")
        for rows in pages(self.tx, "log_entries", min(0, first[0] if first and first[0] is not None else 0)):
            self._page(rows)
            self.leaves += len(rows)
            self.progress("log", self.leaves, self.head.size if self.head else 0)
        self._check_end()
        self._check_nodes()

    def run_quickly(self) -> bool:
        """Whether nothing is wrong with the order and the tree, each leaf having an entry with its hash. Bodies are not
        looked at, and what is wrong is not said: that is what `run` of another one is for."""
        for rows in pages(self.tx, "log_leaves_of_entries"):
            if rows[0][0] != self.next or rows[-1][0] != self.next + len(rows) - 1:
                return False
            try:
                self._grow([bytes.fromhex(leaf) for _, leaf in rows])
            except (TypeError, ValueError):
                return False
            self.next += len(rows)
            self.leaves += len(rows)
            self.progress("log", self.leaves, self.head.size if self.head else 0)
        row = self.tx.one("log_count_leaves")
        self._check_end()
        self._check_nodes()
        return not self.problems and row is not None and row[0] == self.leaves

    def _page(self, rows: list[Any]) -> None:
        """The common case in few steps for each row; anything else row by row."""
        _, _, _, hashes, stored, bodies, times = zip(*rows, strict=True)
        try:
            leaves = list(map(bytes.fromhex, hashes))
            right = hashes == stored and leaves == [sha256(b"\0" + body.encode()).digest() for body in bodies]
        except (AttributeError, TypeError, ValueError):
            right = False
        if not right:
            leaves = [self._row(*row) for row in rows]
        self._watch(rows, times)
        if rows[0][0] == self.next and rows[-1][0] == self.next + len(rows) - 1:
            self._grow(leaves)
        else:
            self._grow(leaves[: self._gaps(rows)])
            self.whole = False
        self.next = rows[-1][0] + 1

    def _watch(self, rows: list[Any], times: Sequence[Any]) -> None:
        """Remember which leaves are older than the one before: where an order is wrong, that says where."""
        known = [at for at in times if type(at) is int]
        if known == sorted(known) and (not known or known[0] >= self.at):
            self.at = known[-1] if known else self.at
            return
        for row, at in zip(rows, times, strict=True):
            if type(at) is int:
                if at < self.at and len(self.backward) < PAGE:
                    self.backward.append(row[0])
                self.at = at

    def _row(self, seq: int, op_id: str, n: int, leaf: Any, stored: Any, body: Any, _at: Any) -> bytes:
        where = f"leaf {seq} ({op_id}, entry {n})"
        if stored is None:
            self.problems.add("evidence", where, "its entry was deleted, or moved to another operation or number")
        else:
            if (
                not isinstance(body, str)
                or sha256(b"\0" + body.encode("utf-8", "surrogateescape")).hexdigest() != stored
            ):
                self.problems.add("evidence", where, "the body is not what was written: it does not have its hash")
            if stored != leaf:
                self.problems.add("leaf", where, "the leaf and the entry it stands for have different hashes")
        return _hash(leaf)

    def _gaps(self, rows: list[Any]) -> int:
        """How many of them are where they belong."""
        right, expected = 0, self.next
        for number, (seq, op_id, n, *_) in enumerate(rows):
            if seq < 0:
                self.problems.add("leaf", f"leaf {seq} ({op_id}, entry {n})", "there is no such place: it was added")
            elif seq > expected:
                self._missing(expected, seq - 1, "missing from the log")
            elif right == number:
                right += 1
            expected = max(expected, seq + 1)
        return right

    def _missing(self, first: int, last: int, text: str) -> None:
        where = f"leaf {first}" if first == last else f"leaves {first} to {last}"
        self.problems.add("leaf", where, text)

    def _grow(self, leaves: Sequence[bytes]) -> None:
        """Add them to the tree, stopping at every size of which a root is known."""
        if not self.whole:
            return
        done, size = 0, self.tree.size
        for number in range(bisect.bisect_right(self.sizes, size), bisect.bisect_right(self.sizes, size + len(leaves))):
            upto = self.sizes[number] - size
            self.tree.extend(leaves[done:upto], self.nodes)
            done = upto
            self._check_roots()
        self.tree.extend(leaves[done:], self.nodes)

    def _check_roots(self) -> None:
        size, root = self.tree.size, self.tree.root()
        signed = self.signed.get(size, set())
        stated = self.head.root() if self.head and self.head.size == size else root
        if self.failed:
            return
        if signed == {root}:
            self.sound = self.tree.copy()
        if signed - {root}:
            text = f"not the leaves over which the root of {size} was signed: {CHANGED}"
            self._forked(size, signed - {root}, text, "fork")
        elif stated != root:
            text = "the log's end that is stated is not that of these leaves: one or the other was changed"
            self._forked(size, {stated}, text, "head")
        else:
            self.sound = self.tree.copy()

    def _forked(self, size: int, roots: set[bytes], text: str, kind: str) -> None:
        """The leaves below `size` do not lead to the root that was signed (or is stated): from where on?"""
        first, self.failed = self.sound.size, True
        self.problems.add(kind, f"leaves {first} to {size - 1}" if first < size else "head", text)
        if size - first <= PAGE:
            span = [_hash(each) for (each,) in self.tx.all("log_leaves", first=first, end=size)]
            for a, b in swapped(self.sound, span, roots):
                self.problems.add("order", f"leaves {a} and {b}", "these two have changed places")
        for seq in self.backward:
            if first < seq < size:
                self.problems.add("order", f"leaf {seq}", "it is older than the one before it")

    def _check_end(self) -> None:
        if self.head is None:
            return
        if self.next < self.head.size:
            self._missing(
                self.next, self.head.size - 1, "the end of the log was cut off: its own count says that they were there"
            )
        elif self.next > self.head.size:
            self._missing(self.head.size, self.next - 1, "they are beyond the log's end: they were added around it")
        largest = max(self.signed, default=0)
        if largest > max(self.next, self.head.size):
            text = f"the end of the log was cut off: a checkpoint of {largest} leaves was signed"
            self._missing(max(self.next, self.head.size), largest - 1, text)

    def _check_nodes(self) -> None:
        if not self.whole:
            return
        stored = {(level, place): text for level, place, text in self.tx.all("log_every_node")}
        for level, place, node in self.nodes:
            if stored.pop((level, place), None) != node.hex():
                span = f"leaves {place << level} to {(place + 1 << level) - 1}"
                self.problems.add(
                    "node", f"node {level}/{place}, {span}", "the stored root of these leaves is not theirs"
                )
        for level, place in stored:
            self.problems.add("node", f"node {level}/{place}", "there are no such leaves")


def _hash(text: Any) -> bytes:
    """What is no hash any more counts as one that nothing has."""
    try:
        found = bytes.fromhex(text)
    except (TypeError, ValueError):
        return bytes(32)
    return found if len(found) == 32 else bytes(32)
