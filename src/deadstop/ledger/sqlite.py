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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from .. import clock
from ..errors import DeadstopError, LedgerUnavailable
from . import crash
from .filelock import FileLock
from .records import Evidence
from .sequence import sequence
from .statements import migrations, statements
from .store import MEMORY, Row, check_migrations

__all__ = ["SqliteStore"]

T = TypeVar("T")

OLDEST = (3, 37, 0)  # STRICT tables
BATCH = 64
LOCK_S = 30.0
LOOK_S = 1.0  # how often one who waits for his turn looks whether anybody is at work at all
FOLD_EVERY = 256  # commits: SQLite's log is then written over from its start. Making a file longer costs a second flush
MOST_LOG_BYTES = 64 << 20  # it is cut to, when a long reader is gone
_FAR = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "fuse.sshfs", "lustre")
_kept: list[object] = []  # of a parent's: closing them in a forked child would touch the parent's file


class _Tx:
    __slots__ = ("_cursor", "_texts", "entries", "now")

    def __init__(self, cursor: sqlite3.Cursor, texts: Mapping[str, str], now: int) -> None:
        self._cursor, self._texts, self.now = cursor, texts, now
        self.entries: list[Evidence] = []

    def one(self, name: str, /, **values: Any) -> Row | None:
        row: Row | None = self._cursor.execute(self._texts[name], values).fetchone()
        return row

    def all(self, name: str, /, **values: Any) -> list[Row]:
        return self._cursor.execute(self._texts[name], values).fetchall()

    def run(self, name: str, /, **values: Any) -> int:
        return self._cursor.execute(self._texts[name], values).rowcount

    def many(self, name: str, rows: Sequence[Mapping[str, Any]], /) -> None:
        self._cursor.executemany(self._texts[name], rows)

    def noted(self, entry: Evidence, /) -> None:
        self.entries.append(entry)


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
        self.where = where if where == MEMORY else os.path.abspath(where)
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
        _check_version(self.where)
        try:
            self._open()
        except sqlite3.Error as problem:
            raise self._unavailable(problem) from problem
        except OSError as problem:
            raise LedgerUnavailable(self.where, f"{problem.strerror or problem}", _fix(problem)) from problem

    # -- opening -----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._lock = None
        if self.lasting:
            _check_place(self.where)
            self._lock = FileLock(f"{self.where}.lock")
        with self._held():
            self._writer = self._connect()
            self._migrate()
            self._reader = self._connect() if self.lasting else self._writer
            self._cursor, self._read_cursor = self._writer.cursor(), self._reader.cursor()
            last = self._cursor.execute(self._texts["last_time"]).fetchone()
            self._file = _identity(self.where) if self.lasting else None
        # Set by the wall clock once; after that no setting of it moves a lease.
        self._zero = max(time.time(), (last[0] if last else 0) / 1000) - clock.boottime()

    def _connect(self) -> sqlite3.Connection:
        if self.lasting and not os.path.exists(self.where):
            os.close(os.open(self.where, os.O_CREAT | os.O_CLOEXEC, 0o600))
        made = sqlite3.connect(self.where, timeout=10, isolation_level=None, check_same_thread=False,
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

    def _migrate(self) -> None:
        run = self._writer.execute
        run("CREATE TABLE IF NOT EXISTS migration (number INTEGER PRIMARY KEY, digest TEXT NOT NULL, at_ms INTEGER)")
        done = run("SELECT number, digest FROM migration ORDER BY number").fetchall()
        for each in migrations("sqlite")[check_migrations(self.where, "sqlite", done) :]:
            at = round(time.time() * 1000)
            row = f"INSERT INTO migration VALUES ({each.number}, '{each.digest}', {at});"
            self._writer.executescript(f"BEGIN IMMEDIATE; {each.text}\n{row}")
            crash.at("migrate.in_transaction")
            run("COMMIT")

    # -- writing -----------------------------------------------------------------------------------------------------

    def write(self, work: Callable[[_Tx], T], /) -> Future[T]:
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
                self._end(self._writer)
                try:
                    self._cursor.execute("BEGIN IMMEDIATE")
                    self._work(jobs, done)
                    crash.at("commit.before")
                    self._cursor.execute("COMMIT")
                finally:
                    committed = bool(done) and not self._writer.in_transaction
                    self._end(self._writer)
                self._unfolded += 1
                if self._unfolded >= FOLD_EVERY:
                    with contextlib.suppress(sqlite3.Error):  # what was committed stays so; it is tried again
                        self._fold()
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

    def _work(self, jobs: list[_Job], done: list[tuple[_Job, Any]]) -> None:
        cursor, now, entries = self._cursor, self._now(), []
        for job in jobs:
            tx = _Tx(cursor, self._texts, now)
            cursor.execute("SAVEPOINT job")
            try:
                result = job.work(tx)
            except Exception as problem:
                if not self._writer.in_transaction:  # the database itself gave up: nothing of this batch is left
                    raise
                cursor.execute("ROLLBACK TO job")
                cursor.execute("RELEASE job")
                job.future.set_exception(self._unavailable(problem) if isinstance(problem, sqlite3.Error) else problem)
                continue
            cursor.execute("RELEASE job")
            entries += tx.entries
            done.append((job, result))
        if entries:
            sequence(_Tx(cursor, self._texts, now), entries)

    @staticmethod
    def _end(connection: sqlite3.Connection) -> None:
        """Of a transaction that failed, or that an interrupt has left open."""
        if connection.in_transaction:
            connection.execute("ROLLBACK")

    def _check_file(self) -> None:
        """What is written into a file without a name is lost, and another program would begin a ledger of its own."""
        if self.lasting and _identity(self.where) != self._file:
            raise LedgerUnavailable(
                self.where, "its file was removed or replaced while it was open", "put it back, or start this again"
            )

    def _now(self) -> int:
        return round((self._zero + clock.boottime()) * 1000)

    # -- reading -----------------------------------------------------------------------------------------------------

    def read(self, work: Callable[[_Tx], T], /) -> T:
        if self._closed or os.getpid() != self._pid:
            raise self._gone()
        if not self.lasting:
            return self.write(work).result()
        with self._reading:
            try:
                self._check_file()
                self._end(self._reader)
                try:
                    self._read_cursor.execute("BEGIN")
                    return work(_Tx(self._read_cursor, self._texts, self._now()))
                finally:
                    self._end(self._reader)
            except sqlite3.Error as problem:
                raise self._unavailable(problem) from problem

    # -- upkeep ------------------------------------------------------------------------------------------------------

    def _fold(self) -> None:
        """Nobody is waited for: what a reader still needs is folded the next time."""
        self._unfolded = 0
        if self.lasting:
            crash.at("wal.checkpoint")
            self._writer.execute("PRAGMA wal_checkpoint(PASSIVE)")

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
            self._reader.close()
            self._writer.close()
        if self._lock is not None:
            self._lock.close()

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


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _check_version(where: str) -> None:
    if sqlite3.sqlite_version_info < OLDEST:
        old = f"SQLite {sqlite3.sqlite_version} is too old"
        raise LedgerUnavailable(where, old, "use a Python with SQLite 3.37 or later")


def _check_place(path: str) -> None:
    """SQLite's log needs shared memory and locks that hold: not on a file system of another machine."""
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    kind = _file_system(folder)
    if kind in _FAR:
        raise LedgerUnavailable(path, f"it is on a network file system ({kind})", "use a local disk, or postgresql://")


def _file_system(folder: str) -> str:
    """The type of the file system that a folder is on; "" if that cannot be told."""
    device = os.stat(folder).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo") as file:
            for line in file:
                words = line.split()
                if words[2] == wanted:
                    return words[words.index("-") + 1]
    except (OSError, ValueError, IndexError):
        pass
    return ""


def _fix(problem: OSError) -> str:
    return "name another place with --ledger or DEADSTOP_LEDGER" if problem.errno in (1, 13, 30) else ""
