# SPDX-License-Identifier: Apache-2.0
"""The ledger in PostgreSQL, for several hosts.

Transactions run in the thread that asks, each on a connection of a small pool. READ COMMITTED is enough: what must not
happen twice is kept by unique keys, locks on the one row, and updates that name the version they change. Leases are
measured by the database's clock alone.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar, cast

from ..errors import LedgerUnavailable, MissingExtra
from . import crash
from .pg_session import ANSWER_S, BEGIN_READ, BEGIN_WRITE, Lost, Refused, Session, one_line
from .pg_settings import ASK, OWNER, SETTINGS, STARTED, asked, fix, read_url, setting
from .statements import migrations
from .store import Tx, check_migrations

try:
    import psycopg
except ImportError:
    raise MissingExtra("a PostgreSQL ledger", "postgresql") from None

__all__ = ["PostgresStore"]

LOG = logging.getLogger("deadstop.ledger")

T = TypeVar("T")

CONNECTIONS = 8
ROOM_S = 15.0  # for one of the connections to become free
TRIES, AGAIN_S = 6, 10.0  # how often work is run, and until when it is begun anew
PAUSE_S = 0.005
FATE_S = 2.0  # for a server to say what became of a COMMIT that it has not answered

_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"  # whatever the role's default: waits are seen the end of
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('deadstop migration ' || current_schema(), 0))"
_AGAIN = ("40001", "40P01", "22012")  # serialisation failure, deadlock, a change of one row that found another


class PostgresStore:
    """See `Store`. `url` is postgresql://user@host/database; `options=-csearch_path=NAME` in it names a schema.

    Nothing waits longer than its bound: 5 s for a connection, 10 s for a statement, 5 s for a lock, 15 s for a server
    that has stopped answering. Work is run again when the database asks for it, or when the connection was lost before
    COMMIT was sent. When it is lost after that, the server is asked what became of the transaction; if it cannot say,
    LedgerUnavailable is `uncertain`.
    """

    dialect = "postgresql"
    lasting = True

    def __init__(self, url: str, *, connections: int = CONNECTIONS) -> None:
        self._pid = os.getpid()
        self._closed = False
        self._size = connections
        self._room = threading.BoundedSemaphore(connections)
        self._idle: list[Session] = []
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self.where, self._secrets, self._conninfo = read_url(url)
        self._told = False
        self._local = ""  # behind a pooler: what each transaction begins with
        self._migrate()
        _stores.add(self)

    # -- connections -------------------------------------------------------------------------------------------------

    def _connect(self) -> Session:
        """Ours: with its limits set, and durable."""
        try:
            session = Session(psycopg.connect(self._conninfo, autocommit=True))
        except psycopg.Error as problem:
            raise self._unavailable(one_line(problem), problem.sqlstate or "") from problem
        try:
            # What is set outlives a transaction only where the session is ours alone.
            ours = f"pg_backend_pid() <> {session.pid}"
            pid, path, started, schema, *server = session.plain(f"SELECT {ASK}, {setting(SETTINGS, ours)}")[0]
            self._check(*server[:3])
            if pid != session.pid:
                schema = self._behind_a_pooler(session, path)
            if schema is None:
                raise LedgerUnavailable(
                    self.where, "no schema of its search_path exists, or none may be used",
                    "CREATE SCHEMA, or GRANT USAGE on it",
                )  # fmt: skip
            session.server = started
            self._sessions.add(session)
            return session
        except (Lost, Refused) as problem:
            session.close()
            raise self._unavailable(str(problem), getattr(problem, "state", "")) from problem
        except BaseException:
            session.close()
            raise

    def _behind_a_pooler(self, session: Session, path: str) -> str | None:
        """Its sessions have had other users, and may get others after each transaction: what they left set is not to be
        relied on, and nothing is to be left to them. What `options` asks for is set here, too: poolers pass it over."""
        if not self._local:
            wanted = asked(session.connection.info.options)
            self._local = "SELECT " + setting({"search_path": path, **wanted, **SETTINGS}, "true")
        session.local = self._local
        schema: str | None = session.plain(f"{_BEGIN}; {session.local}; SELECT current_schema()")[0][0]
        session.plain("COMMIT")
        return schema

    def _check(self, encoding: str, fsync: str, triggers: str) -> None:
        if encoding != "UTF8":
            raise LedgerUnavailable(
                self.where, f"its encoding is {encoding}", "create the database with ENCODING 'UTF8'"
            )
        if triggers == "replica":
            raise LedgerUnavailable(
                self.where, "its triggers do not fire for this user", "set session_replication_role = origin for it"
            )
        if fsync == "off" and not self._told:
            self._told = True
            text = "the ledger %s: its server runs with fsync off: what it confirms is lost if its machine dies"
            LOG.warning(text, self.where)

    def _take(self) -> Session:
        if not self._room.acquire(timeout=ROOM_S):
            raise LedgerUnavailable(self.where, f"all {self._size} of its connections were in use for {ROOM_S:g} s")
        try:
            while (session := self._idle_one()) is not None:
                if session.healthy():
                    return session
                session.close()
            return self._connect().pipeline()
        except BaseException:
            self._room.release()
            raise

    def _idle_one(self) -> Session | None:
        try:
            return self._idle.pop()  # the one used last
        except IndexError:
            return None

    def _drop_idle(self) -> None:
        while (session := self._idle_one()) is not None:
            session.close()

    def _give_back(self, session: Session) -> None:
        try:
            if session.dead or self._closed:
                session.close()
            else:
                self._idle.append(session)
        finally:
            self._room.release()

    def close(self) -> None:
        """Waits, within a bound, for what is under way."""
        if self._closed:
            return
        self._closed = True
        if os.getpid() != self._pid:
            return
        until = time.monotonic() + ANSWER_S
        taken = sum(self._room.acquire(timeout=max(0.0, until - time.monotonic())) for _ in range(self._size))
        self._drop_idle()
        for _ in range(taken):
            self._room.release()

    def _gone(self) -> LedgerUnavailable:
        if self._closed:
            return LedgerUnavailable(self.where, "it has been closed")
        return LedgerUnavailable(self.where, "it was opened before this process was forked", "open it again here")

    def _unavailable(self, text: str, state: str, *, uncertain: bool = False) -> LedgerUnavailable:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return LedgerUnavailable(self.where, text, fix(state, text), uncertain=uncertain)

    # -- transactions ------------------------------------------------------------------------------------------------

    def write(self, work: Callable[[Tx], T], /) -> Future[T]:
        """Blocks until it is done; the future it gives has its result already."""
        future: Future[T] = Future()
        try:
            future.set_result(self._run(BEGIN_WRITE, work))
        except Exception as problem:
            future.set_exception(problem)
        return future

    def read(self, work: Callable[[Tx], T], /) -> T:
        return self._run(BEGIN_READ, work)

    def scrub(self) -> bool:
        """Not ours to do: old rows go with VACUUM, and the server's log has its own keeping."""
        return False

    def _run(self, begin: str, work: Callable[[Tx], T]) -> T:
        until = time.monotonic() + AGAIN_S
        for tried in range(1, TRIES + 1):
            if self._closed or os.getpid() != self._pid:
                raise self._gone()
            last = tried == TRIES or time.monotonic() > until
            session = self._take()
            try:
                return session.transaction(begin, work)
            except Lost as lost:
                self._drop_idle()  # they are as old
                committing = lost.committing and begin == BEGIN_WRITE
                fate = self._fate(session) if committing else "aborted"
                if fate == "committed":
                    return cast("T", lost.result)
                if fate != "aborted" or last or time.monotonic() > until:
                    raise self._unavailable(str(lost), "", uncertain=fate != "aborted") from lost
            except Refused as refused:
                if refused.state not in _AGAIN or last:
                    raise self._unavailable(refused.text, refused.state) from refused
            finally:
                self._give_back(session)
            time.sleep(random.uniform(0, PAUSE_S * tried))
        raise AssertionError

    def _fate(self, session: Session) -> str:
        """What has become of a transaction whose COMMIT was not answered: "committed", "aborted", or "" if the server
        cannot be asked in time. One that has been started since, or another one, may have given its name anew."""
        until = time.monotonic() + FATE_S
        while True:
            try:
                asking = self._connect()
                try:
                    server, fate = asking.plain(f"SELECT {STARTED}, pg_xact_status('{session.xid}'::xid8)")[0]
                finally:
                    asking.close()
                if server != session.server or fate != "in progress":
                    return str(fate or "") if server == session.server else ""
            except (LedgerUnavailable, Lost, Refused):
                pass  # not yet
            if time.monotonic() > until:
                return ""
            time.sleep(0.05)

    # -- migrations --------------------------------------------------------------------------------------------------

    def _migrate(self) -> None:
        """One process at a time, all or nothing, and nothing at all where it is up to date."""
        session = self._connect()
        try:
            session.plain(f"{_BEGIN}; {session.local}")
            if self._undone(session):
                session.plain(_LOCK)
                self._apply(session)
            session.plain("COMMIT")
        except (Lost, Refused) as problem:
            state = getattr(problem, "state", "")
            raise self._unavailable(str(problem), OWNER if state == "42501" else state) from problem
        finally:
            session.close()

    def _undone(self, session: Session) -> int:
        done: list[Any] = []
        if session.plain("SELECT to_regclass(quote_ident(current_schema()) || '.migration')")[0][0] is not None:
            done = session.plain("SELECT number, digest FROM migration ORDER BY number")
        return len(migrations("postgresql")) - check_migrations(self.where, "postgresql", done)

    def _apply(self, session: Session) -> None:
        columns = "number BIGINT PRIMARY KEY, digest TEXT NOT NULL, at_ms BIGINT NOT NULL"
        session.plain(f"CREATE TABLE IF NOT EXISTS migration ({columns})")
        known = migrations("postgresql")
        for each in known[len(known) - self._undone(session) :]:  # again: another may have been before us
            session.plain(each.text)
            now = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
            session.plain(f"INSERT INTO migration VALUES ({each.number}, '{each.digest}', {now})")
            crash.at("migrate.in_transaction")


_stores: weakref.WeakSet[PostgresStore] = weakref.WeakSet()


def _after_fork() -> None:
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for store in list(_stores):
        for session in list(store._sessions):
            session.disown(nothing)
    os.close(nothing)


os.register_at_fork(after_in_child=_after_fork)
