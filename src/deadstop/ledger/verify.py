# SPDX-License-Identifier: Apache-2.0
"""Whether the ledger still is what was written, and where it is not.

What a checkpoint covers that was signed and written outside the database can be neither changed nor dropped nor cut off
without it being found here. Not covered: what came after the last checkpoint, if all of it was rewritten to fit; and a
signer's key in wrong hands.
"""

from __future__ import annotations

import bisect
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ..errors import LedgerUnavailable, UsageError
from .anchor import checkpoints_path, key_path, read_anchors
from .locate import swapped
from .merkle import Frontier, Node
from .reader import PAGE, Reader, opened, pages
from .replay import replay
from .report import CHANGED, Problem, Problems, Report
from .signing import Checkpoint, PublicKey, Trust, origin_of, parse_note, public_keys
from .store import MEMORY

if TYPE_CHECKING:
    from .store import Tx

__all__ = ["Anchors", "Problem", "Report", "anchors_of", "trusted", "verify"]

Progress = Callable[[str, int, int], None]  # what, done, of how many
Keys = str | PublicKey | Iterable[PublicKey] | None


def verify(
    source: Any,
    checkpoints: str | None = None,
    key: Keys = None,
    *,
    full: bool = True,
    progress: Progress | None = None,
) -> Report:
    """Check everything, and say what was found; a broken ledger is a report, not an error.

    `source` is a Ledger, a Store, the path of a file or a postgresql:// URL. `checkpoints` and `key` (a file, or public
    keys) are by default those that this host writes for it. `full=False` leaves out the second pass, in which the log
    is played again and compared with the tables that say how operations stand.

    Raises LedgerUnavailable if it cannot be read, UsageError for a key file that is none.
    """
    with opened(source) as reader:
        path = reader.read(lambda tx: _path(reader, tx, checkpoints))
        before = os.path.getsize(path) if os.path.exists(path) else 0
        told = progress or (lambda *_: None)
        return reader.read(lambda tx: _verify(reader, tx, checkpoints, before, key, full, told))


def _path(reader: Reader, tx: Tx, checkpoints: str | None) -> str:
    row = tx.one("meta", name="ledger_id")
    return checkpoints or checkpoints_path(reader.where, reader.dialect, str(row[0]) if row else "")


def _verify(
    reader: Reader, tx: Tx, checkpoints: str | None, before: int, key: Keys, full: bool, progress: Progress
) -> Report:  # fmt: skip
    problems = Problems()
    row = tx.one("meta", name="ledger_id")
    ledger_id = str(row[0]) if row else ""
    if not ledger_id:
        problems.add("meta", "meta", "the ledger has no id, so no checkpoint can be its own")
    anchors = anchors_of(reader, tx, ledger_id, checkpoints, before, key, problems)
    begun = time.perf_counter()
    log = _Log(tx, anchors, problems, progress)
    log.run()
    read = time.perf_counter()
    operations = replay(tx, problems, progress) if full else _count(tx)
    played = time.perf_counter()
    anchored = max((each.size for each in anchors.files if each.size <= log.sound.size), default=0)
    return Report(
        ledger=ledger_id, leaves=log.leaves, operations=operations, checkpoints=len(anchors.files),
        problems=problems.found(), anchored_size=anchored, unanchored=max(0, log.leaves - anchored),
        waiting=len(tx.all("log_waiting")), full=full, log_s=read - begun, replay_s=played - read if full else 0.0,
    )  # fmt: skip


def _count(tx: Tx) -> int:
    row = tx.one("log_count_operations")
    return int(row[0]) if row else 0


# -- checkpoints -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Anchors:
    """Checkpoints that may be relied on, by size: those of the file, whose signatures are right, and of the table."""

    files: tuple[Checkpoint, ...]
    table: tuple[Checkpoint, ...]
    late: frozenset[int] = frozenset()  # sizes that were written into the file after this reading began


def trusted(path: str, key: Keys) -> list[PublicKey]:
    """The keys that were named, or those of the ledger's own key file or the public one beside it, if there is one."""
    if isinstance(key, str):
        try:
            return public_keys(key)
        except OSError as problem:
            raise UsageError(f"key: {key}: {problem.strerror or problem}") from None
    if key is not None:
        return [key] if isinstance(key, PublicKey) else list(key)
    for each in (f"{path}.pub", path):
        try:
            return public_keys(each)
        except (OSError, UsageError):
            continue
    return []


def anchors_of(
    reader: Reader, tx: Tx, ledger_id: str, checkpoints: str | None, before: int, key: Keys, problems: Problems
) -> Anchors:
    """`before`: how long the file was before the state of the database was taken that `tx` reads."""
    keys = trusted(key_path(reader.where, reader.dialect, ledger_id), key)
    path = checkpoints or checkpoints_path(reader.where, reader.dialect, ledger_id)
    table = _of_table(tx, problems)
    if reader.where == MEMORY and checkpoints is None:
        return Anchors((), table)
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        if checkpoints is not None:
            raise UsageError(f"checkpoints: {path}: there is no such file") from None
        if table or keys:
            problems.add("checkpoint", path, "the file of checkpoints is gone")
        return Anchors((), table)
    except OSError as problem:
        raise LedgerUnavailable(path, f"checkpoints: {problem.strerror or problem}") from problem
    origin = origin_of(ledger_id)
    late = frozenset(each.checkpoint.size for each in read_anchors(_decoded(data[before:])) if each.checkpoint)
    found = Anchors(check_notes(_decoded(data), path, origin, keys, problems), table, late)
    _compare(found, Trust(keys), path, origin, reader.dialect == "postgresql", problems)
    return found


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def check_notes(
    text: str, path: str, origin: str, keys: Sequence[PublicKey], problems: Problems
) -> tuple[Checkpoint, ...]:  # fmt: skip
    """Those of a file of checkpoints that were signed with one of the keys and contradict none before."""
    trust, sound, last = Trust(keys), list[Checkpoint](), -1
    anchored = read_anchors(text)
    if anchored and not keys:
        problems.add("key", path, "no public key is known, so no checkpoint could be checked: name one")
        return ()
    for each in anchored:
        where, found = f"{path}, line {each.line}", each.checkpoint
        if found is None:
            if not each.torn:
                problems.add("checkpoint", where, "this is not a signed checkpoint any more")
        elif found.origin != origin:
            problems.add("checkpoint", where, f"this checkpoint is that of {found.origin}, not of {origin}")
        elif not trust.knows(found):
            problems.add("checkpoint", where, "this checkpoint was signed with a key that is not trusted here")
        elif not trust.accepts(found):
            problems.add(
                "checkpoint", where, f"the signature is wrong: it was changed, or never signed ({found.size} leaves)"
            )
        elif found.size < last:
            problems.add("checkpoint", where, f"it is of {found.size} leaves, after one of {last}: lines were moved")
            sound.append(found)
        else:
            last = found.size
            sound.append(found)
    return tuple(sorted(sound, key=lambda each: each.size))


def _of_table(tx: Tx, problems: Problems) -> tuple[Checkpoint, ...]:
    found = []
    for size, note in tx.all("log_checkpoints"):
        try:
            checkpoint = parse_note(note)
        except (TypeError, ValueError):
            problems.add("checkpoint", f"table checkpoint, size {size}", "this is not a signed checkpoint any more")
            continue
        if checkpoint.size != size:
            problems.add(
                "checkpoint", f"table checkpoint, size {size}", f"the note in it is of {checkpoint.size} leaves"
            )
        found.append(checkpoint)
    return tuple(sorted(found, key=lambda each: each.size))


def _compare(anchors: Anchors, trust: Trust, path: str, origin: str, shared: bool, problems: Problems) -> None:
    """What is signed here is written into the file before the table: the table has nothing that the file has not.

    `shared`: other hosts sign in the same table, with keys of their own, and keep their own files.
    """
    known = {each.size for each in anchors.files}
    for each in anchors.table:
        where, names = f"table checkpoint, size {each.size}", {each.origin, *(name for name, _, _ in each.signatures)}
        if names != {origin}:
            problems.add("checkpoint", where, f"this checkpoint is that of {' and '.join(sorted(names - {origin}))}")
        elif trust.knows(each) and not trust.accepts(each):
            problems.add("checkpoint", where, "the signature is wrong: it was changed, or never signed")
        elif trust.knows(each) and each.size not in known:
            other = ", or another host signs with the same key into another file" if shared else ""
            problems.add("checkpoint", where, f"{path} does not have this checkpoint: it was removed there{other}")
        elif not trust.knows(each) and not shared and trust.keys:
            problems.add("checkpoint", where, "this checkpoint was signed with a key that is not trusted here")


# -- the log ---------------------------------------------------------------------------------------------------------


class _Log:
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
