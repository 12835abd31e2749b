# SPDX-License-Identifier: Apache-2.0
"""The ledger in an SQLite file, or in memory.

One transaction at a time, of whatever process: writers hold a lock file around each, also while the log of SQLite (WAL)
is folded back. That is the gate for the race that SQLite up to 3.51.2 has between a writer and a checkpointer of
another connection (sqlite.org/wal.html, "the WAL-reset bug"): with it no two of them ever act at once. It also is the
fair queue that a busy timeout is not.

Group commit: who finds nobody at work does the work, for itself and for all who have come meanwhile, with one flush.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from .. import clock
from ..errors import DeadstopError, LedgerUnavailable
from . import crash, sqlite_fork
from .filelock import FileLock
from .sequence import sequence
from .sqlite_file import check_place, check_version, fix_of, identity
from .sqlite_tx import SqliteTx
from .statements import migrations, statements
from .store import MEMORY, check_migrations

__all__ = ["SqliteStore"]

T = TypeVar("T")

BATCH = 64
LOCK_S = 30.0
BUSY_MS = 10_000
LOOK_S = 1.0  # how often one who waits for his turn looks whether anybody is at work at all
FOLD_EVERY = 256  # commits: SQLite's log is then written over from its start. Making a file longer costs a second flush
FORK_S = 5.0  # for what is under way to end
SCRUB_MS = 2000  # for readers of other processes to end what they read
MOST_LOG_BYTES = 64 << 20  # it is cut to, when a long reader is gone
_kept: list[object] = []  # of a parent's: closing them in a forked child would touch the parent's file


class _Job:
    __slots__ = ("future", "turn", "work")

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self.work = work
        self.future: Future[Any] = Future()
        self.turn = threading.Lock()  # released when it is done, or when its owner is to do the work
        self.turn.acquire()

    def wake(self) -> None:
        try:
            self.turn.release()
        except RuntimeError:
            pass  # awake already


class SqliteStore:
    """See `Store`. `where` is a path or ":memory:", which is as true to its triggers, and gone with the process."""

    dialect = "sqlite"

    def __init__(self, where: str) -> None:
        self.where = where if where == MEMORY else os.path.realpath(where)  # its log and its lock are beside the file
        self.lasting = where != MEMORY
        self._texts = statements("sqlite")
        self._pid = os.getpid()
        self._jobs: deque[_Job] = deque()
        self._state = threading.Lock()  # over _jobs and _busy
        self._busy = False
        self._leading = threading.Lock()  # held while somebody commits
        self._closed = False
        self._unfolded = 0  # commits of this process
        self._reading = threading.Lock()
        self._writing = threading.Lock()  # over the connection; only contended by what is not a transaction
        check_version(self.where)
        try:
            self._open()
        except sqlite3.Error as problem:
            raise self._unavailable(problem) from problem
        except OSError as problem:
            raise LedgerUnavailable(self.where, f"{problem.strerror or problem}", fix_of(problem)) from problem

    # -- opening -----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._lock = None
        if self.lasting:
            check_place(self.where)
            self._lock = FileLock(f"{self.where}.lock")
        with self._held():
            self._writer: sqlite3.Connection | None = None
            self._reader: sqlite3.Connection | None = None
            self._migrate(self._write_on())
            self._read_on()
            last = self._cursor.execute(self._texts["last_time"]).fetchone()
            self._file = identity(self.where) if self.lasting else None
        sqlite_fork.add(self)
        # Set by the wall clock once; after that no setting of it moves a lease.
        self._zero = max(time.time(), (last[0] if last else 0) / 1000) - clock.boottime()

    def _connect(self) -> sqlite3.Connection:
        if self.lasting and not os.path.exists(self.where):
            os.close(os.open(self.where, os.O_CREAT | os.O_CLOEXEC, 0o600))
        made = sqlite3.connect(self.where, timeout=BUSY_MS / 1000, isolation_level=None, check_same_thread=False,
                               cached_statements=256)  # fmt: skip
        for pragma in ("foreign_keys=ON", "trusted_schema=OFF", "secure_delete=ON", "synchronous=FULL", "fullfsync=ON",
                       "wal_autocheckpoint=0", "cache_size=-8000", "temp_store=MEMORY",
                       f"journal_size_limit={MOST_LOG_BYTES}"):  # fmt: skip
            made.execute(f"PRAGMA {pragma}")
        if self.lasting:
            mode = made.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            if mode != "wal":
                raise LedgerUnavailable(self.where, f"its journal mode cannot be WAL (it is {mode})")
        return made

    def _write_on(self) -> sqlite3.Connection:
        """Under `_writing`, or before anybody knows of this store."""
        if self._writer is None:
            self._writer = self._connect()
            self._cursor = self._writer.cursor()
        return self._writer

    def _read_on(self) -> sqlite3.Connection:
        """Under `_reading`."""
        if self._reader is None:
            self._reader = self._connect() if self.lasting else self._write_on()
            self._read_cursor = self._reader.cursor()
        return self._reader

    def _migrate(self, writer: sqlite3.Connection) -> None:
        run = writer.execute
        run("CREATE TABLE IF NOT EXISTS migration (number INTEGER PRIMARY KEY, digest TEXT NOT NULL, at_ms INTEGER)")
        done = run("SELECT number, digest FROM migration ORDER BY number").fetchall()
        for each in migrations("sqlite")[check_migrations(self.where, "sqlite", done) :]:
            at = round(time.time() * 1000)
            row = f"INSERT INTO migration VALUES ({each.number}, '{each.digest}', {at});"
            writer.executescript(f"BEGIN IMMEDIATE; {each.text}\n{row}")
            crash.at("migrate.in_transaction")
            run("COMMIT")

    # -- writing -----------------------------------------------------------------------------------------------------

    def write(self, work: Callable[[SqliteTx], T], /) -> Future[T]:
        """Blocks until it is done; the future it gives has its result already."""
        job = _Job(work)
        if self._closed or os.getpid() != self._pid:
            job.future.set_exception(self._gone())
            return job.future
        with self._state:
            self._jobs.append(job)
            leads = not self._busy
            self._busy = True
        try:
            while not job.future.done():
                if leads or job.turn.acquire(timeout=LOOK_S) or not self._leading.locked():
                    leads = False
                    self._lead(job)
        except BaseException:  # this thread is interrupted, not the others
            self._leave(job)
            raise
        return job.future

    def _lead(self, job: _Job) -> None:
        """Do what has come so far, then let the next one do what came meanwhile.

        Any number may think that they lead: who was interrupted before he could pass it on must not keep up all others.
        """
        with self._leading:
            if job.future.done():
                return
            with self._state:
                jobs = [self._jobs.popleft() for _ in range(min(BATCH, len(self._jobs)))]
                lost = job not in jobs and job not in self._jobs
            if lost:
                self._break_off([job])  # whoever took it was interrupted twice
            try:
                self._commit(jobs)
            finally:
                with self._state:
                    jobs = [each for each in jobs if each not in self._jobs]
                    self._hand_over()
                self._break_off(jobs)
                for each in jobs:
                    each.wake()

    def _hand_over(self) -> None:
        """To whoever has waited longest. Under `_state`."""
        self._busy = bool(self._jobs)
        if self._jobs:
            self._jobs[0].wake()

    def _leave(self, job: _Job) -> None:
        with self._state:
            if job in self._jobs:
                self._jobs.remove(job)
            if not self._leading.locked():
                self._hand_over()

    def _break_off(self, jobs: list[_Job]) -> None:
        for job in jobs:
            if not job.future.done():
                problem = LedgerUnavailable(self.where, "the transaction was broken off", uncertain=True)
                job.future.set_exception(problem)

    def _commit(self, jobs: list[_Job]) -> None:
        done: list[tuple[_Job, Any]] = []
        committed = False
        try:
            with self._held(), self._writing:
                self._check_file()
                writer = self._write_on()
                self._end(writer)
                try:
                    self._cursor.execute("BEGIN IMMEDIATE")
                    self._work(writer, jobs, done)
                    crash.at("commit.before")
                    self._cursor.execute("COMMIT")
                finally:
                    committed = bool(done) and not writer.in_transaction
                    self._end(writer)
                self._unfolded += 1
                if self._unfolded >= FOLD_EVERY:
                    with contextlib.suppress(sqlite3.Error):  # what was committed stays so; it is tried again
                        self._fold(writer)
        except Exception as problem:
            told = problem if isinstance(problem, DeadstopError) else self._unavailable(problem)
            for job in jobs:
                if not job.future.done():
                    job.future.set_exception(told)
            return
        except BaseException:  # this thread is interrupted, not the others: theirs is done again, or has been done
            if committed:
                self._give(done)
            else:
                with self._state:
                    self._jobs.extendleft(job for job in reversed(jobs) if not job.future.done())
            raise
        self._give(done)

    @staticmethod
    def _give(done: list[tuple[_Job, Any]]) -> None:
        for job, result in done:
            if not job.future.done():
                job.future.set_result(result)

    def _work(self, writer: sqlite3.Connection, jobs: list[_Job], done: list[tuple[_Job, Any]]) -> None:
        cursor, now, entries = self._cursor, self._now(), []
        for job in jobs:
            tx = SqliteTx(cursor, self._texts, now)
            cursor.execute("SAVEPOINT job")
            try:
                result = job.work(tx)
            except Exception as problem:
                if not writer.in_transaction:  # the database itself gave up: nothing of this batch is left
                    raise
                cursor.execute("ROLLBACK TO job")
                cursor.execute("RELEASE job")
                job.future.set_exception(self._unavailable(problem) if isinstance(problem, sqlite3.Error) else problem)
                continue
            cursor.execute("RELEASE job")
            entries += tx.entries
            done.append((job, result))
        if entries:
            sequence(SqliteTx(cursor, self._texts, now), entries)

    @staticmethod
    def _end(connection: sqlite3.Connection) -> None:
        """Of a transaction that failed, or that an interrupt has left open."""
        if connection.in_transaction:
            connection.execute("ROLLBACK")

    def _check_file(self) -> None:
        """What is written into a file without a name is lost, and another program would begin a ledger of its own."""
        if self.lasting and identity(self.where) != self._file:
            raise LedgerUnavailable(
                self.where, "its file was removed or replaced while it was open", "put it back, or start this again"
            )

    def _now(self) -> int:
        return round((self._zero + clock.boottime()) * 1000)

    # -- reading -----------------------------------------------------------------------------------------------------

    def read(self, work: Callable[[SqliteTx], T], /) -> T:
        if self._closed or os.getpid() != self._pid:
            raise self._gone()
        if not self.lasting:
            return self.write(work).result()
        with self._reading:
            try:
                self._check_file()
                reader = self._read_on()
                self._end(reader)
                try:
                    self._read_cursor.execute("BEGIN")
                    return work(SqliteTx(self._read_cursor, self._texts, self._now()))
                finally:
                    self._end(reader)
            except sqlite3.Error as problem:
                raise self._unavailable(problem) from problem

    # -- upkeep ------------------------------------------------------------------------------------------------------

    def _fold(self, writer: sqlite3.Connection) -> None:
        """Nobody is waited for: what a reader still needs is folded the next time."""
        self._unfolded = 0
        if self.lasting:
            crash.at("wal.checkpoint")
            writer.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def scrub(self) -> bool:
        """Fold the log back and cut it off, while nobody writes."""
        if not self.lasting:
            return True
        if self._closed or os.getpid() != self._pid:
            raise self._gone()
        with self._held(), self._writing, self._reading:
            self._check_file()
            try:
                writer = self._write_on()
                writer.execute(f"PRAGMA busy_timeout={SCRUB_MS}")
                kept = writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
                writer.execute(f"PRAGMA busy_timeout={BUSY_MS}")
            except sqlite3.Error as problem:
                raise self._unavailable(problem) from problem
        return not kept

    def _held(self) -> Any:
        return self._lock.held(LOCK_S) if self._lock is not None else contextlib.nullcontext()

    def close(self) -> None:
        """The last one to close folds the log back, which is why it, too, is done under the lock."""
        if os.getpid() != self._pid:  # its locks are as the parent's threads had them
            self._closed = True
            _kept.append((self._writer, self._reader))
            return
        with self._state:
            if self._closed:
                return
            self._closed = True
        with self._held(), self._writing, self._reading:
            self._disconnect()
        if self._lock is not None:
            self._lock.close()

    def _disconnect(self) -> None:
        for connection in (self._reader, self._writer):
            if connection is not None:
                connection.close()
        self._reader = self._writer = None

    def leave(self) -> bool:
        """Before a fork: close the connections, and keep everybody out until `come_back`. SQLite remembers the locks of
        its process, and a child would go by what it remembers of its parent's: take for locked what is not, and for
        its own what others may take. False if it could not be done in time."""
        if self._closed or not self.lasting or os.getpid() != self._pid or self._lock is None:
            return False
        try:
            with self._lock.held(FORK_S):
                if not self._writing.acquire(timeout=FORK_S):
                    return False
                if self._reading.acquire(timeout=FORK_S):
                    self._disconnect()
                    return True
                self._writing.release()
        except (LedgerUnavailable, sqlite3.Error):
            pass
        return False

    def come_back(self) -> None:
        """After it, in the parent. Whoever is next connects again."""
        self._reading.release()
        self._writing.release()

    def _gone(self) -> LedgerUnavailable:
        if self._closed:
            return LedgerUnavailable(self.where, "it has been closed")
        _kept.append((self._writer, self._reader))
        return LedgerUnavailable(self.where, "it was opened before this process was forked", "open it again here")

    def _unavailable(self, problem: BaseException) -> LedgerUnavailable:
        text = str(problem)
        fixes = {"locked": "end the program that keeps it locked", "full": "make room on its disk",
                 "readonly": "make the file and its folder writable", "not a database": "name another file",
                 "malformed": "restore it from a copy; deadstop audit verify says what is wrong"}  # fmt: skip
        fix = next((fix for word, fix in fixes.items() if word in text), "")
        surely_not = isinstance(problem, sqlite3.Error) and "disk I/O error" not in text
        return LedgerUnavailable(self.where, text or type(problem).__name__, fix, uncertain=not surely_not)
