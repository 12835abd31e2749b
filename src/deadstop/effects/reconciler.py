# SPDX-License-Identifier: Apache-2.0
"""Whoever goes on asking: what is due, a bounded number at a time; no authority holds up the rest."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from .. import clock
from ..errors import DeadstopError, LedgerUnavailable, UsageError
from ..ledger import alerts
from ..ledger.handle import url_parts
from ..ledger.states import Verdict
from .asking import authority_of
from .settlement import place_of, settle_one

if TYPE_CHECKING:
    from ..ledger.definition import Definition
    from ..ledger.ledger import Ledger
    from ..ledger.records import Record
    from ..ledger.store import Tx

__all__ = ["Reconciler"]

BEAT_S = 5.0
LONGEST_PAUSE_S = 30.0
STOP_S = 5.0
LOOK_S = 5.0

Waiting = list[
    tuple[str, int, list[str]]
]  # (tool, version of its definition, op_ids), whatever has waited longest first


class Reconciler:
    """Asks the authorities of all operations that are unknown, every `every` seconds, at most `parallel` at a time.

    Any number of these may run on one ledger, in any number of processes and machines: each operation is asked about by
    one of them at a time, and whoever comes late with an answer changes nothing. When to ask again is the ledger's to
    say. An authority gets at most a quarter of the places, and those that have not answered lately get half of them
    together, so that the others never wait for these.

    `on_problem` is told, in words, when the ledger cannot be used; it is then tried less often, up to every 30 s.
    """

    def __init__(
        self, ledger: Ledger, every: float = 1.0, parallel: int = 8, *, on_problem: Callable[[str], None] | None = None
    ) -> None:  # fmt: skip
        seconds = clock.check_limit("every", every)
        places = clock.check_count("parallel", parallel)
        if seconds is None or places is None:
            raise UsageError("every and parallel have to be given: a reconciler has bounds")
        self.ledger, self.every = ledger, seconds
        self._on_problem = on_problem or _log
        self._places = _Places(places)
        self._changed = threading.Condition()  # over what follows
        self._busy: set[str] = set()
        self._failed: dict[str, float] = {}  # by op_id, until when (CLOCK_MONOTONIC)
        self._done: list[Record] = []
        self._problems: list[Exception] = []
        self._ended = 0
        self._told: str | None = None
        self._unreadable: set[tuple[str, int]] = set()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._next_beat = 0.0

    # -- going on ------------------------------------------------------------------------------------------------------

    def start(self) -> Reconciler:
        """Go on until `stop`, in threads that end with the process."""
        if self._thread is not None:
            raise UsageError("this reconciler has been started already")
        self._thread = threading.Thread(target=self._go_on, name="deadstop-reconciler", daemon=True)
        self._thread.start()
        return self

    def stop(self, timeout: float = STOP_S) -> bool:
        """Begin nothing more, and wait for what is being asked. Whether all of it has ended in `timeout` seconds; what
        has not is asked about again when its lease is over."""
        end = clock.monotonic() + timeout
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout)
        with self._changed:
            while self._busy and (left := end - clock.monotonic()) > 0:
                self._changed.wait(left)
            return not self._busy and (self._thread is None or not self._thread.is_alive())

    def __enter__(self) -> Reconciler:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def run_once(self) -> list[Record]:
        """Do what is due now, each operation once, and wait for it. The operations that time or an answer has changed.

        Bounded by the definitions' reconcile_timeout. Raises LedgerUnavailable.
        """
        if self._thread is not None:
            raise UsageError("this reconciler goes on by itself")
        changed = {record.op_id: record for record in self.ledger.sweep()}
        seen: set[str] = set()
        while not self._stopping.is_set():
            with self._changed:
                ended = self._ended
            began = self._begin_what_is_due(seen)
            seen |= began
            with self._changed:
                if not began and not self._busy:
                    break
                while self._busy and self._ended == ended:
                    self._changed.wait()
        done, problems = self._collect()
        if problems:
            raise problems[0]
        return list((changed | {record.op_id: record for record in done}).values())

    def _collect(self) -> tuple[list[Record], list[Exception]]:
        with self._changed:
            done, problems = self._done, self._problems
            self._done, self._problems = [], []
        return done, problems

    def _go_on(self) -> None:
        pause, next_sweep = self.every, 0.0
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                if clock.monotonic() >= next_sweep:
                    next_sweep = clock.monotonic() + self.every
                    self.ledger.sweep()
                    self._beat()
                self._begin_what_is_due()
                self._hear()
                pause = self.every
            except Exception as problem:
                self._tell(problem)
                pause = min(pause * 2, max(LONGEST_PAUSE_S, self.every))
                self._stopping.wait(pause)
                continue
            self._wake.wait(max(0.0, next_sweep - clock.monotonic()))

    def _beat(self) -> None:
        """A sign of life, by which others notice that nobody asks."""
        now = clock.monotonic()
        if now < self._next_beat:
            return
        every = max(self.every, BEAT_S)
        self._next_beat = now + every - self.every / 2
        work = partial(alerts.beat, name=alerts.RECONCILER, owner=self.ledger.owner, every_ms=round(every * 1000))
        self.ledger.write(work)

    def _hear(self) -> None:
        """What the questions have met with. Where the ledger itself is not to be had, all of them wait."""
        _, problems = self._collect()
        for problem in problems:
            if isinstance(problem, LedgerUnavailable):
                raise problem
            self._tell(problem)
        if not problems:
            self._told = None

    def _tell(self, problem: BaseException) -> None:
        text = f"the reconciler cannot go on: {problem}"
        if not isinstance(problem, DeadstopError):
            text = f"the reconciler has failed: {type(problem).__name__}: {problem}"
        if text == self._told or self._stopping.is_set():
            return
        self._told = text
        try:
            self._on_problem(text)
        except Exception as other:
            _log(f"on_problem has failed: {other}")

    # -- one after another ---------------------------------------------------------------------------------------------

    def _begin_what_is_due(self, seen: Collection[str] = ()) -> set[str]:
        """Begin what there are places for. Those that have been `seen` are left out."""
        began: set[str] = set()
        if not self._places.free():
            return began
        seen = {*seen, *self._failed_lately()}
        for tool, version, op_ids in self.ledger.read(partial(_waiting, limit=self._places.each + len(seen))):
            try:
                definition = self.ledger.definition(tool, version)
            except (LookupError, TypeError, ValueError) as problem:
                # A newer program's, which this one cannot read: that holds up nobody else's operations.
                if (tool, version) not in self._unreadable:
                    self._unreadable.add((tool, version))
                    self._tell(UsageError(f"the definition of {tool} cannot be read: {problem!r}"))
                continue
            for op_id in op_ids:
                if op_id in seen or op_id in self._busy:
                    continue
                authority = self._authority(definition, op_id)
                if authority is None:
                    continue  # its caller may send it again under its key, or its deadline passes
                if self._stopping.is_set() or not self._places.take(authority):
                    break
                self._begin(op_id, definition, authority)
                began.add(op_id)
        return began

    def _authority(self, definition: Definition, op_id: str) -> str | None:
        if definition.query is not None:
            return authority_of(definition.query)
        place = place_of(self.ledger, op_id)
        return None if place is None else url_parts(place)[1].lower()

    def _failed_lately(self) -> Collection[str]:
        """Those whose question has failed here itself, which would otherwise be put again at once, and for ever."""
        with self._changed:
            now = clock.monotonic()
            self._failed = {op_id: again for op_id, again in self._failed.items() if again > now}
            return list(self._failed)

    def _begin(self, op_id: str, definition: Definition, authority: str) -> None:
        with self._changed:
            self._busy.add(op_id)
        work = partial(self._settle, op_id, definition, authority)
        threading.Thread(target=work, name="deadstop-reconcile", daemon=True).start()

    def _settle(self, op_id: str, definition: Definition, authority: str) -> None:
        record = problem = None
        try:
            record = settle_one(self.ledger, op_id, definition)
            if record is None and definition.query is None:
                self._look_later(op_id)
        except Exception as found:
            problem = found
        self._places.give(authority, answered=None if record is None else record.verdict is not Verdict.UNREACHABLE)
        with self._changed:
            self._busy.discard(op_id)
            self._ended += 1
            if problem is not None:
                self._problems.append(problem)
                self._failed[op_id] = clock.monotonic() + self.every
            if record is not None:
                self._done.append(record)
            self._changed.notify_all()
        self._wake.set()

    def _look_later(self, op_id: str) -> None:
        """At a place that says nothing new: the ledger keeps no time for that, since its caller may look there, too."""
        record = self.ledger.get(op_id)
        known_s = (self.ledger.read(lambda tx: tx.now) - record.updated_ms) / 1000
        with self._changed:
            self._failed[op_id] = clock.monotonic() + max(LOOK_S, known_s / 10)


class _Places:
    """Who may be asked now. An authority that did not answer is asked by one at a time until it does."""

    def __init__(self, most: int) -> None:
        self.most, self.each, self.for_silent = most, max(1, most // 4), max(1, most // 2)
        self._taken: Counter[str] = Counter()
        self._silent: set[str] = set()
        self._lock = threading.Lock()

    def free(self) -> bool:
        with self._lock:
            return self._taken.total() < self.most

    def take(self, authority: str) -> bool:
        with self._lock:
            silent = authority in self._silent
            if self._taken.total() >= self.most or self._taken[authority] >= (1 if silent else self.each):
                return False
            if silent and sum(self._taken[each] for each in self._silent) >= self.for_silent:
                return False
            self._taken[authority] += 1
            return True

    def give(self, authority: str, answered: bool | None) -> None:
        with self._lock:
            self._taken[authority] -= 1
            if not self._taken[authority]:
                del self._taken[authority]
            if answered:
                self._silent.discard(authority)
            elif answered is False:
                self._silent.add(authority)


def _waiting(tx: Tx, limit: int) -> Waiting:
    found = []
    for tool, version in tx.all("due_definitions", now=tx.now):
        rows = tx.all("due_of_definition", now=tx.now, tool=tool, definition=version, limit=limit)
        found.append((tool, version, [row[0] for row in rows]))
    return found


def _log(text: str) -> None:
    import logging

    logging.getLogger("deadstop.reconciler").warning(text)
