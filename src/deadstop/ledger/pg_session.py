# SPDX-License-Identifier: Apache-2.0
"""One connection to PostgreSQL, and its transactions, in pipeline mode through psycopg's binding of libpq.

What needs no answer (BEGIN, an INSERT that cannot be in conflict) goes out with the next thing that does, the last of
them with COMMIT: a third of the round trips. Statements are prepared once for each connection. Every wait has a bound
of ours, which the blocking calls of the driver do not have.

Behind a pooler (PgBouncer) the server's session may be another one for each transaction: then nothing is prepared, and
what has to be set is set in every transaction.
"""

from __future__ import annotations

import os
import re
import select
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..errors import MissingExtra, UsageError
from .records import Evidence
from .statements import statements
from .store import Row, Tx

try:
    import psycopg
    from psycopg import pq
except ImportError:
    raise MissingExtra("a PostgreSQL ledger", "postgresql") from None

if TYPE_CHECKING:
    from psycopg.abc import Buffer
    from psycopg.pq.abc import PGresult

__all__ = ["BEGIN_READ", "BEGIN_WRITE", "Lost", "Refused", "Session", "one_line"]

T = TypeVar("T")

ANSWER_S = 15.0  # the server ends a statement by itself before; this is for a server that has stopped
BEGIN_WRITE, BEGIN_READ = "_begin", "_begin_read"
_OWN = {
    BEGIN_WRITE: "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
    BEGIN_READ: "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    "_now": "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, pg_current_xact_id()::text",
    "_now_read": "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, ''",
    "_commit": "COMMIT",
    "_rollback": "ROLLBACK",
}
_ENDED = ("57P01", "57P02", "57P03", "57P05", "25P03", "25P04")  # this session, by the server
_PLACE = re.compile(r"%\((\w+)\)s|%%")
_PLAIN_INSERT = re.compile(r"INSERT INTO \w+ \([^()]*\)\s+VALUES\b", re.IGNORECASE)
_INT8, _TEXT = 20, 25
_NUMBERS = frozenset({16, 20, 21, 23, 1700})
_kept: list[object] = []  # of a parent's: ending them in a forked child would end the parent's


class _Statement:
    """`quiet`: it changes one row or fails, or nobody asks: its answer is not waited for (see sql/postgresql.sql)."""

    __slots__ = ("batch", "name", "names", "quiet", "text")

    def __init__(self, name: str, text: str) -> None:
        places: dict[str, int] = {}

        def place(found: re.Match[str]) -> str:
            word = found[1]
            return "%" if word is None else f"${places.setdefault(word, len(places) + 1)}"

        self.name = name
        self.text = _PLACE.sub(place, text).encode()
        self.names = tuple(places)
        self.batch = text.startswith("-- batch\n")
        self.quiet = text.startswith("-- quiet\n") or (
            bool(_PLAIN_INSERT.match(text)) and not re.search(r"\b(ON CONFLICT|RETURNING)\b", text)
        )


@cache
def _statements() -> dict[str, _Statement]:
    return {name: _Statement(name, text) for name, text in {**statements("postgresql"), **_OWN}.items()}


@cache
def _local(text: str) -> _Statement:
    made = _Statement("_local", "")
    made.text = text.encode()
    return made


class Refused(Exception):
    """The server's answer to a statement is an error."""

    def __init__(self, state: str, text: str) -> None:
        super().__init__(text)
        self.state, self.text = state, text


class Lost(Exception):
    """The connection is of no use any more. `committing`: COMMIT had been sent, of a transaction with that result."""

    committing = False
    result: Any = None


class _Tx:
    """One transaction of a session: see `store.Tx`."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def now(self) -> int:
        if not self._session.now:
            self._session.exchange()
        return self._session.now

    def one(self, name: str, /, **values: Any) -> Row | None:
        rows = self.all(name, **values)
        return rows[0] if rows else None

    def all(self, name: str, /, **values: Any) -> list[Row]:
        result = self._session.ask(name, values)
        return self._session.rows(name, result)

    def run(self, name: str, /, **values: Any) -> int:
        if _statements()[name].quiet:
            self._session.queue(name, values)
            return 1
        return self._session.ask(name, values).command_tuples or 0

    def many(self, name: str, rows: Sequence[Mapping[str, Any]], /) -> None:
        statement = _statements()[name]
        if statement.batch:
            self._session.queue(name, {each: [row[each] for row in rows] for each in statement.names})
            return
        for values in rows:
            self._session.queue(name, values)

    def noted(self, entry: Evidence, /) -> None:
        """A trigger has put it among those that the sequencer gives their places."""


class Session:
    """One connection. Not for two threads at once."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.dead = False
        self.now = 0  # of this transaction, and its name in the server
        self.xid = ""
        self.server = ""  # when it was started: another time is another server, as far as `xid` goes
        self.local = ""  # behind a pooler: a statement that each transaction begins with
        self._pg = connection.pgconn
        self._pg.nonblocking = 1
        self._poll = select.poll()
        self._poll.register(self._pg.socket, select.POLLIN)
        self._queue: list[tuple[_Statement, list[Buffer | None], tuple[type, ...]]] = []
        self._prepared: dict[tuple[str, tuple[type, ...]], bytes] = {}
        self._columns: dict[str, tuple[tuple[int, bool], ...]] = {}
        self._open = False  # BEGIN has been sent

    # -- before the pipeline -----------------------------------------------------------------------------------------

    def plain(self, text: str) -> list[Row]:
        """Statements by their text; the rows of the last. Each by itself unless BEGIN was among them."""
        self.dead = True
        try:
            self._pg.send_query(text.encode())
            self._flush()
            refused, rows = None, list[Row]()
            while (result := self._next()) is not None:
                if result.status == pq.ExecStatus.FATAL_ERROR:
                    refused = refused or self._refusal(result)
                rows = _rows(result, _numeric(result))
        except psycopg.Error as problem:
            raise Lost(one_line(problem)) from problem
        self.dead = False
        if refused is not None:
            raise refused
        return rows

    @property
    def pid(self) -> int:
        """As the server named itself at the start. A pooler gives a name of its own."""
        return self._pg.backend_pid

    def pipeline(self) -> Session:
        """From now on, transactions."""
        self._pg.enter_pipeline_mode()
        return self

    # -- a transaction -----------------------------------------------------------------------------------------------

    def transaction(self, begin: str, work: Callable[[Tx], T]) -> T:
        self.now, self.xid = 0, ""
        self.queue(begin, {})
        if self.local:
            self._queue.append((_local(self.local), [], ()))
        self.queue("_now" if begin == BEGIN_WRITE else "_now_read", {})
        unasked = len(self._queue)
        try:
            result = work(cast("Tx", _Tx(self)))
            if self._open or len(self._queue) > unasked:
                self._commit(result)
            return result
        except Lost:
            raise
        except BaseException:
            self._roll_back()
            raise
        finally:
            self._queue.clear()

    def _commit(self, result: Any) -> None:
        try:
            done = self.ask("_commit", {})
        except Lost as lost:
            lost.committing, lost.result = True, result
            raise
        self._open = False
        if done.command_status != b"COMMIT":
            raise Refused("25P02", "a statement of it failed and was passed over")

    def _roll_back(self) -> None:
        self._queue.clear()
        if self._open and not self.dead:
            try:
                self.ask("_rollback", {})
            except (Lost, Refused):
                self.dead = True
        self._open = False

    # -- statements --------------------------------------------------------------------------------------------------

    def queue(self, name: str, values: Mapping[str, Any]) -> None:
        statement = _statements()[name]
        given = [values[each] for each in statement.names]
        self._queue.append((statement, [_encoded(each) for each in given], tuple(map(type, given))))

    def ask(self, name: str, values: Mapping[str, Any]) -> PGresult:
        self.queue(name, values)
        return self.exchange()

    def exchange(self) -> PGresult:
        """Send what is queued; the answer to the last of it. Raises Refused for the first that failed, and Lost."""
        queue, self._queue = self._queue, []
        self.dead = True  # until all answers are in: whatever interrupts this leaves nothing that could be gone on with
        try:
            last, refused = self._receive(self._send(queue))
        except psycopg.Error as problem:
            raise Lost(one_line(problem)) from problem
        self.dead = False
        if refused is not None:
            raise refused
        return last

    def _send(self, queue: list[Any]) -> list[tuple[str, Any]]:
        """What answers will come: ("prepare", key) or ("result", name) each."""
        pg, expected = self._pg, list[tuple[str, Any]]()
        fresh: dict[Any, bytes] = {}
        for statement, values, types in queue:
            if self.local:
                pg.send_query_params(statement.text, values, [_oid(each) for each in types])
                expected.append(("result", statement.name))
                continue
            key = (statement.name, types)
            handle = self._prepared.get(key) or fresh.get(key)
            if handle is None:
                handle = fresh[key] = f"{statement.name}_{len(self._prepared) + len(fresh)}".encode()
                pg.send_prepare(handle, statement.text, [_oid(each) for each in types])
                expected.append(("prepare", (key, handle)))
            pg.send_query_prepared(handle, values)
            expected.append(("result", statement.name))
        pg.pipeline_sync()
        self._open = True
        self._flush()
        return expected

    def _flush(self) -> None:
        while self._pg.flush():  # a large batch: the server may have to be heard before it goes on listening
            self._poll.modify(self._pg.socket, select.POLLIN | select.POLLOUT)
            try:
                self._wait()
                self._pg.consume_input()
            finally:
                self._poll.modify(self._pg.socket, select.POLLIN)

    def _wait(self) -> None:
        if not self._poll.poll(ANSWER_S * 1000):
            raise Lost(f"no answer within {ANSWER_S:g} s")

    def _next(self) -> PGresult | None:
        pg = self._pg
        while pg.is_busy():
            self._wait()
            pg.consume_input()
        return pg.get_result()

    def _receive(self, expected: list[tuple[str, Any]]) -> tuple[PGresult, Refused | None]:
        refused: Refused | None = None
        last: Any = None
        for kind, what in expected:
            result = self._next()
            if result is None or self._next() is not None:
                raise psycopg.OperationalError(self._pg.get_error_message() or "the server sent no answer")
            status = result.status
            if status == pq.ExecStatus.FATAL_ERROR:
                refused = refused or self._refusal(result)
            elif status == pq.ExecStatus.PIPELINE_ABORTED:
                continue
            elif kind == "prepare":
                self._prepared[what[0]] = what[1]
            elif what in ("_now", "_now_read"):
                self.now, self.xid = (_decoded(result.get_value(0, at), at == 0) for at in (0, 1))
            last = result
        result = self._next()
        if result is None or result.status != pq.ExecStatus.PIPELINE_SYNC:
            raise psycopg.OperationalError(self._pg.get_error_message() or "the server ended the connection")
        return last, refused

    def _refusal(self, result: PGresult) -> Refused:
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        text = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode("utf-8", "replace")
        if not state or state in _ENDED or state[:2] == "08":
            raise Lost(text or self._pg.get_error_message())
        return Refused(state, text)

    def rows(self, name: str, result: PGresult) -> list[Row]:
        numeric = self._columns.get(name)
        if numeric is None:
            numeric = self._columns[name] = _numeric(result)
        return _rows(result, numeric)

    def healthy(self) -> bool:
        """Nothing has come while nothing was asked: that would be the server's goodbye."""
        return not self.dead and not self._poll.poll(0)

    def close(self) -> None:
        self.dead = True
        self.connection.close()

    def disown(self, nothing: int) -> None:
        """In a forked child: the session is the parent's. The socket's number may be closed here, the session not."""
        self.dead = True
        _kept.append(self)
        try:
            os.dup2(nothing, self._pg.socket, inheritable=False)
        except (OSError, psycopg.Error):
            pass


def _encoded(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, int):
        return b"%d" % value
    if isinstance(value, list):
        return b"{" + b",".join(_element(_encoded(each)) for each in value) + b"}"
    if not isinstance(value, str) or "\0" in value:
        raise UsageError(f"this cannot be written to PostgreSQL: {value!r:.80}")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"this cannot be written to PostgreSQL: {value!r:.80}") from None


def _element(value: bytes | None) -> bytes:
    if value is None:
        return b"NULL"
    return b'"' + value.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def _oid(kind: type) -> int:
    return _INT8 if issubclass(kind, int) else _TEXT if kind is str else 0


def _numeric(result: PGresult) -> tuple[tuple[int, bool], ...]:
    """Each column, and whether it is a number."""
    return tuple((each, result.ftype(each) in _NUMBERS) for each in range(result.nfields))


def _rows(result: PGresult, columns: tuple[tuple[int, bool], ...]) -> list[Row]:
    get = result.get_value
    return [tuple(_decoded(get(row, at), number) for at, number in columns) for row in range(result.ntuples)]


def _decoded(value: bytes | None, number: bool) -> Any:
    if value is None:
        return None
    if number:
        return int(value) if value not in (b"t", b"f") else int(value == b"t")
    return value.decode()


def one_line(problem: BaseException) -> str:
    return " ".join(str(problem).split()) or type(problem).__name__
