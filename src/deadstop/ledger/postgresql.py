# SPDX-License-Identifier: Apache-2.0
"""The ledger in PostgreSQL, for several hosts.

Transactions run in the thread that asks, each on a connection of a small pool. READ COMMITTED is enough: what must not
happen twice is kept by unique keys, locks on the one row, and updates that name the version they change. Leases are
measured by the database's clock alone.
"""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar, cast

from ..errors import LedgerUnavailable, MissingExtra, UsageError
from . import crash
from .pg_session import ANSWER_S, BEGIN_READ, BEGIN_WRITE, Lost, Refused, Session, one_line
from .statements import migrations
from .store import Tx, check_migrations

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
except ImportError:
    raise MissingExtra("PostgreSQL ledgers", "postgresql") from None

__all__ = ["PostgresStore"]

T = TypeVar("T")

CONNECTIONS = 8
CONNECT_S = 5
ROOM_S = 15.0  # for one of the connections to become free
TRIES, AGAIN_S = 6, 10.0  # how often work is run, and until when it is begun anew
PAUSE_S = 0.005
FATE_S = 2.0  # for a server to say what became of a COMMIT that it has not answered

# Keepalives and a limit on unacknowledged data: what a dead host costs, on top of the bounds above.
_NETWORK: dict[str, Any] = {
    "connect_timeout": CONNECT_S, "keepalives": 1, "keepalives_idle": 5, "keepalives_interval": 2,
    "keepalives_count": 3, "tcp_user_timeout": 12_000, "target_session_attrs": "read-write",
    "application_name": "deadstop", "client_encoding": "utf8",
}  # fmt: skip
# A lock is never kept by a process that has been stopped in the middle. Plans are made once, and never for the size
# that a table had at the time: every statement has its index.
_SETTINGS = {
    "statement_timeout": "10s", "lock_timeout": "5s", "idle_in_transaction_session_timeout": "30s",
    "plan_cache_mode": "force_generic_plan", "enable_seqscan": "off", "jit": "off",
}  # fmt: skip
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('deadstop migration ' || current_schema(), 0))"
# A recovery after the death of one backend is no new start, but names transactions anew: it resets these statistics.
_STARTED = "concat(pg_postmaster_start_time(), ' ', (SELECT stats_reset FROM pg_stat_bgwriter))"
_SETUP = (
    f"SELECT current_setting('synchronous_commit'), current_setting('server_encoding'), current_schema(), {_STARTED}, "
    + ", ".join(f"set_config('{name}', '{value}', false)" for name, value in _SETTINGS.items())
)
_AGAIN = ("40001", "40P01", "22012")  # serialisation failure, deadlock, a change of one row that found another
_FIXES = {
    "42501": "grant the rights that 0001_ledger.sql names", "53100": "make room on its disk",
    "53300": "allow more connections", "55P03": "see who holds the lock (pg_locks)",
    "57014": "see what keeps the server busy", "25006": "name the server that can be written to",
}  # fmt: skip
_WORDS = {  # of a connection that was not made, which has no code
    "authentication failed": "check the user and the password", 'database "': "create the database",
    'role "': "create the role", "too many": "allow more connections", "refused": "start the server, or name another",
    "No such file": "start the server, or name another", "timeout": "see whether the server can be reached",
}  # fmt: skip


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
        self.where, self._secrets, self._conninfo = _read(url)
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
            row = session.plain(_SETUP)[0]
            self._check(row[0], row[1], row[2])
            session.server = row[3]
            self._sessions.add(session)
            return session
        except (Lost, Refused) as problem:
            session.close()
            raise self._unavailable(str(problem), "") from problem
        except BaseException:
            session.close()
            raise

    def _check(self, durable: str, encoding: str, schema: str | None) -> None:
        if durable == "off":
            raise LedgerUnavailable(
                self.where, "synchronous_commit is off: what it confirms can be lost",
                "set it on for this user: ALTER ROLE ... SET synchronous_commit = on",
            )  # fmt: skip
        if encoding != "UTF8":
            raise LedgerUnavailable(
                self.where, f"its encoding is {encoding}", "create the database with ENCODING 'UTF8'"
            )
        if schema is None:
            raise LedgerUnavailable(self.where, "no schema of its search_path exists", "create it: CREATE SCHEMA ...")

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
        fix = _FIXES.get(state) or _FIXES.get(state[:2]) or next((_WORDS[word] for word in _WORDS if word in text), "")
        return LedgerUnavailable(self.where, text, fix, uncertain=uncertain)

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
                    server, fate = asking.plain(f"SELECT {_STARTED}, pg_xact_status('{session.xid}'::xid8)")[0]
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
            if self._undone(session):
                session.plain(f"BEGIN; {_LOCK}")
                self._apply(session)
                session.plain("COMMIT")
        except (Lost, Refused) as problem:
            raise self._unavailable(str(problem), getattr(problem, "state", "")) from problem
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


def _read(url: str) -> tuple[str, tuple[str, ...], str]:
    """What people are shown of it, what they are not, and what libpq is given. An error does not show it either."""
    try:
        given = {name: str(value) for name, value in conninfo_to_dict(url).items()}
    except psycopg.Error:
        raise UsageError(
            "ledger: libpq cannot read this postgresql:// URL (not shown: it may hold a password)"
        ) from None
    host, port = given.get("host", ""), given.get("port", "")
    on_socket = host.startswith("/")
    place = f"{given['user']}@" if "user" in given else ""
    if not on_socket:
        place += host + (f":{port}" if port else "")
    more = {"host": host, "port": port} if on_socket else {}
    more["options"] = given.get("options", "")
    words = "&".join(f"{name}={value}" for name, value in more.items() if value)
    shown = f"postgresql://{place}/{given.get('dbname', '')}" + (f"?{words}" if words else "")
    secrets = tuple(given[name] for name in ("password", "sslpassword") if given.get(name))
    return shown, secrets, make_conninfo("", **{**_NETWORK, **given, "client_encoding": "utf8"})
