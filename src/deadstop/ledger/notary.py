# SPDX-License-Identifier: Apache-2.0
"""Signs the log's size and root and writes them into a file outside the database, in the background.

What a checkpoint covers cannot be changed, dropped or cut off without `verify` saying so. What came after the last one
can: the time to it is at most about a second, and never a part of an operation's own time.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from .. import clock
from ..errors import DeadstopError, LedgerBroken, LedgerUnavailable, UsageError
from . import crash
from .alerts import LEDGER, over, raise_alert
from .anchor import AnchorFile, checkpoints_path, key_path
from .merkle import Frontier, Tiles
from .rotation import Change, Ring, Rotation, rotations_of
from .sequence import sequence
from .signing import Checkpoint, SigningKey, Trust, origin_of, parsed

if TYPE_CHECKING:
    from .store import Store, Tx

__all__ = ["Notary"]


class _Ledger(Protocol):
    @property
    def store(self) -> Store: ...

    @property
    def id(self) -> str: ...


EVERY_LEAVES = 256
DELAY_S = 1.0  # from the first change that no checkpoint covers
GAP_S = 0.25  # at least, from one to the next: a flush that the operations share
PLACE_S, IDLE_S = 0.05, 1.0  # how often entries that wait for their places are looked for
LOCK_S, WRITE_S, RETRY_S = 10.0, 30.0, 5.0
CHUNK = 4096


class Notary:
    """Checkpoints of one ledger. Several processes may each have one; a file lock and the sizes keep them in order.

    `notice()` says that this process has added something, from which a daemon thread does the rest; `checkpoint()` does
    it now. In a database with several writers the same thread also gives entries their places; of several processes one
    at a time does (an advisory lock). A ledger that does not outlive the process has no checkpoints.

    Before it signs, the log is shown to begin with what was signed last. If it does not, nothing is signed any more:
    `broken` says so, an alert is raised, and `on_broken` is called once with the error. Other problems (a full disk)
    are in `problem`, and it is tried again.
    """

    def __init__(
        self, ledger: _Ledger, *, key: str | None = None, checkpoints: str | None = None,
        on_broken: Callable[[LedgerBroken], None] | None = None,
    ) -> None:  # fmt: skip
        self.broken: LedgerBroken | None = None
        self.problem = ""
        store = self._store = ledger.store
        self._origin, self._on_broken = origin_of(ledger.id), on_broken
        self.key_path = key or key_path(store.where, store.dialect, ledger.id)
        self.checkpoints_path = checkpoints or checkpoints_path(store.where, store.dialect, ledger.id)
        self._file = AnchorFile(self.checkpoints_path)
        self._key: SigningKey | None = None
        self._known: Frontier | None = None  # the tree as it was last signed
        self._guard, self._wake = threading.Lock(), threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closing, self._pid = False, os.getpid()
        self._noticed, self._due, self._last = 0, 0.0, -GAP_S
        if store.dialect == "postgresql":  # what others left without a place is everybody's
            self._start()

    # -- in the background -------------------------------------------------------------------------------------------

    def notice(self, entries: int = 1) -> None:
        """This process has added entries. Costs nearly nothing; the first time, a thread."""
        before, self._noticed = self._noticed, self._noticed + entries  # a lost count only delays
        if before == 0 or before < EVERY_LEAVES <= self._noticed:
            if self._thread is None:
                self._start()
            self._wake.set()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None and self._store.lasting and not self._closing and os.getpid() == self._pid:
                self._thread = threading.Thread(target=self._run, name="deadstop-notary", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """The last checkpoint, and the end of the thread. Raises nothing: what is in the way is in `problem`."""
        if os.getpid() != self._pid:
            return
        closed, self._closing = self._closing, True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(LOCK_S + WRITE_S)
        if not closed and self.broken is None:
            self._try()

    def _run(self) -> None:
        placing = self._store.dialect == "postgresql"
        while not self._closing:
            left = self._due - clock.monotonic() if self._due else None
            if placing:
                left = min(PLACE_S if self._noticed else IDLE_S, IDLE_S if left is None else left)
            if left is None or left > 0:
                self._wake.wait(left)
            self._wake.clear()
            if self._closing or self.broken is not None:
                return
            if placing:
                self._place_some()
            self._act()

    def _act(self) -> None:
        now = clock.monotonic()
        if self._noticed and not self._due:
            self._due = now + DELAY_S
        if self._noticed >= EVERY_LEAVES:
            self._due = max(now, self._last + GAP_S)
        if self._due and now >= self._due:
            self._noticed, self._due, self._last = 0, 0.0, now
            if not self._try():
                self._due = clock.monotonic() + RETRY_S

    def _try(self) -> bool:
        try:
            self.checkpoint()
        except LedgerBroken:
            return True  # known already: see _break
        except DeadstopError as problem:
            before, self.problem = self.problem, str(problem)
            if not before:
                self._tell(lambda tx: raise_alert(tx, "checkpoints_stopped", LEDGER, self.problem))
            return False
        if self.problem:
            self._tell(lambda tx: over(tx, "checkpoints_stopped", LEDGER))
            self.problem = ""
        return True

    def _tell(self, work: Callable[[Tx], bool]) -> None:
        with contextlib.suppress(DeadstopError):
            self._store.write(work).result(WRITE_S)

    def _place_some(self) -> None:
        try:
            self._noticed += self._place(_elected)
        except LedgerBroken as problem:
            self._break(problem)
        except DeadstopError as problem:
            self.problem = str(problem)

    def _place(self, work: Callable[[Tx], int]) -> int:
        """Give places to entries that have none."""
        placed = 0
        while self._store.read(_waits):
            some = self._store.write(work).result(WRITE_S)
            placed += some
            if not some:
                break
        return placed

    # -- one checkpoint ----------------------------------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint | None:
        """The log as it is now is covered when this returns; the checkpoint that does, None for an empty log.

        Raises LedgerBroken rather than sign what does not begin with what was signed before, LedgerUnavailable.
        """
        if not self._store.lasting:
            return None
        with self._guard:
            if self.broken is not None:
                raise self.broken
            try:
                return self._checkpoint()
            except LedgerBroken as problem:
                self._break(problem)
                raise

    def _checkpoint(self) -> Checkpoint | None:
        self._place(sequence)
        if not os.path.exists(self.checkpoints_path) and not self._store.read(_size):
            return None  # nothing to sign, so no key is made
        if self._key is None:
            self._key = SigningKey.open(self.key_path, self._origin)
        with self._file.held(LOCK_S):
            last = self._file.last()
            made = self._signed(self._signer(last), last)
        if made is not last:
            self._into_table(made)
        return made

    def _signed(self, key: SigningKey, last: Checkpoint | None, also: SigningKey | None = None) -> Checkpoint:
        """The file is held."""
        frontier = self._store.read(lambda tx: self._extended(tx, last))
        self._known = frontier
        if last is not None and frontier.size == last.size:
            return last
        made = key.sign(frontier.size, frontier.root(), also)
        crash.at("checkpoint.signed")
        self._file.append(made)
        crash.at("checkpoint.anchored")
        return made

    def _into_table(self, made: Checkpoint) -> None:
        self._store.write(lambda tx: tx.run("log_add_checkpoint", size=made.size, note=made.note, at_ms=tx.now)).result(
            WRITE_S
        )

    def _signer(self, last: Checkpoint | None) -> SigningKey:
        """The key that goes on from there: the one in the file, which another process may have replaced meanwhile."""
        rotations = self._store.read(rotations_of)
        key = self._key or SigningKey.open(self.key_path, self._origin)
        ring = Ring([key.public], rotations)
        if ring.retired(key.public) is not None or not (last is None or ring.knows(last)):
            key = SigningKey.open(self.key_path, self._origin)
            ring = Ring([key.public], rotations)
        self._key = key
        if (replaced := ring.retired(key.public)) is not None:
            raise LedgerUnavailable(
                self.key_path, f"this signing key was replaced by {replaced.new.id.hex()}",
                "put the new key there, or end what was begun: deadstop audit rotate --reason ...",
            )  # fmt: skip
        if last is not None and not ring.knows(last):
            raise LedgerUnavailable(
                self.checkpoints_path, "its last checkpoint was signed with another key",
                "name that key with DEADSTOP_LEDGER_KEY, or another file with DEADSTOP_CHECKPOINTS; a key that is lost "
                "is replaced by: deadstop audit rotate --lost",
            )  # fmt: skip
        if last is not None and (not ring.accepts(last) or last.origin != self._origin):
            raise self._bad(f"the last checkpoint in {self.checkpoints_path} is not what was signed")
        if self._store.dialect == "postgresql":
            self._check_alone(key, last)
        return key

    def _check_alone(self, key: SigningKey, last: Checkpoint | None) -> None:
        """Each key has one file: with a second one, either would lack what is signed into the other."""
        row = self._store.read(lambda tx: tx.one("log_last_checkpoint"))
        other = parsed(row[1]) if row else None
        if other is not None and other.size > (last.size if last else 0) and Trust([key.public]).accepts(other):
            raise LedgerUnavailable(
                self.checkpoints_path, f"the checkpoint of {other.size} entries, signed with this key, is not in it",
                "hosts that share a key share a file, too (DEADSTOP_CHECKPOINTS): bring it there, or give this host a "
                "key of its own (DEADSTOP_LEDGER_KEY)",
            )  # fmt: skip

    # -- another key ---------------------------------------------------------------------------------------------------

    def rotate(self, by: str, reason: str, *, lost: bool = False) -> tuple[Rotation, str]:
        """A new signing key takes the place of the one there is; with `lost`, of one that is nowhere any more.

        It is in the log who did it and why, and the old key vouches for the new one, which signs from here on. A
        rotation that was broken off is ended by another call. Also gives where the old key is kept ("": nowhere).

        Raises UsageError if there is nothing to replace, LedgerBroken as `checkpoint` does, LedgerUnavailable.
        """
        if not self._store.lasting:
            raise UsageError("this ledger is gone with its process: it has no signing key")
        with self._guard, self._file.held(LOCK_S):
            last, rotations = self._file.last(), self._store.read(rotations_of)
            change = Change.of(self.key_path, self._origin, last, rotations, lost)
            self._place(sequence)
            self._store.read(lambda tx: self._extended(tx, last))  # nothing is handed over of a log that is broken
            if not change.is_recorded:
                self._store.write(lambda tx: change.record(tx, by, reason)).result(WRITE_S)
                self._place(sequence)
            kept = change.install()
            self._key = change.new
            made = self._signed(change.new, last, change.old)
        self._into_table(made)
        (done,) = [each for each in self._store.read(rotations_of) if each.new == change.new.public]
        return done, kept

    def _extended(self, tx: Tx, last: Checkpoint | None) -> Frontier:
        """The tree as it is, shown to begin with what was signed last."""
        row = tx.one("log_head")
        try:
            head = Frontier.parse(*row) if row else Frontier()
            signed = last.size if last else 0
            if head.size < signed:
                raise self._bad(f"it has {head.size} entries, but {signed} were signed: its end was cut off")
            frontier = self._at(tx, head, signed, last)
            self._read_leaves(tx, frontier, head.size)
        except (ValueError, KeyError) as problem:
            raise self._bad(f"its log cannot be read: {problem}") from problem
        if frontier.root() != head.root():
            raise self._bad(f"its leaves {signed} to {head.size - 1} do not lead to the root it states")
        return frontier

    def _at(self, tx: Tx, head: Frontier, size: int, last: Checkpoint | None) -> Frontier:
        """The tree at the size that was signed last, whose root must be the one that was signed."""
        if self._known is not None and self._known.size > size:
            raise self._bad(f"{self.checkpoints_path} has lost the checkpoint of {self._known.size} entries")
        if self._known is not None:
            frontier = self._known.copy()
            self._read_leaves(tx, frontier, size)
        else:
            tiles = Tiles(head.size, lambda *span: stored(tx, *span))
            frontier = head if size == head.size else tiles.frontier(size)
        if last is not None and frontier.root() != last.root:
            raise self._bad(f"its first {size} entries are not those that were signed: the log was forked or rewritten")
        return frontier

    def _read_leaves(self, tx: Tx, frontier: Frontier, size: int) -> None:
        while (first := frontier.size) < size:
            end = min(size, first + CHUNK)
            leaves = stored(tx, 0, first, end)
            if len(leaves) != end - first:
                raise self._bad(f"leaves are missing between {first} and {end - 1}")
            frontier.extend(leaves)

    def _bad(self, text: str) -> LedgerBroken:
        return LedgerBroken(self._store.where, (text,))

    def _break(self, problem: LedgerBroken) -> None:
        if self.broken is None:
            self.broken, self.problem = problem, str(problem)
            if self._on_broken is not None:
                with contextlib.suppress(Exception):
                    self._on_broken(problem)
            self._tell(lambda tx: raise_alert(tx, "ledger_broken", LEDGER, self.problem))


def stored(tx: Tx, level: int, first: int, end: int) -> Sequence[bytes]:
    """Stored hashes of the tree, for `Tiles`. Raises ValueError for what is no hash."""
    if level == 0:
        rows = tx.all("log_leaves", first=first, end=end)
    else:
        rows = tx.all("log_nodes", level=level, first=first, end=end)
    return [bytes.fromhex(each) for (each,) in rows]


def _size(tx: Tx) -> int:
    row = tx.one("log_head")
    return int(row[0]) if row else 0


def _waits(tx: Tx) -> bool:
    row = tx.one("log_waits")
    return bool(row and row[0])


def _elected(tx: Tx) -> int:
    """Unless another process is at it: waiting for it would only keep a connection."""
    row = tx.one("log_elect")
    return sequence(tx, limit=CHUNK) if row and row[0] else 0
