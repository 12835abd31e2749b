# SPDX-License-Identifier: Apache-2.0
"""Asking an authority's own database: one SELECT, read only, its parameters bound. PostgreSQL is next door."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from .. import clock
from ..ledger.query_check import SQL_WORD, parameters_in
from ..ledger.records import Finding
from ..ledger.states import Verdict
from .filling import NAMES, Unaskable, state_verdict, values_of, wanted

if TYPE_CHECKING:
    from ..ledger.queries import SqlQuery
    from ..operation import Operation

__all__ = ["ask_sql", "database_of", "parameters_of"]

Rows = list[tuple[Any, ...]]

_MAY = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_STEPS = 1000  # of SQLite's machine, between two looks at the clock


def ask_sql(query: SqlQuery, operation: Operation, timeout: float) -> Finding:
    """What the database shows. Raises Unaskable, TimeoutError and OSError where it shows nothing.

    Read only: SQLite's file is opened so, and PostgreSQL is told so. The statement's own limit is `timeout`.
    """
    place = database_of(query.database)
    parameters = parameters_of(query.statement, values_of(operation))
    if place.startswith(("postgresql://", "postgres://")):
        from .ask_postgresql import rows_of

        rows = rows_of(place, _for_postgresql(query.statement), parameters, timeout)
    else:
        rows = _sqlite_rows(place, query.statement, parameters, timeout)
    return _read(query, _shown(place), rows)


def database_of(database: str) -> str:
    """The place itself, where the query names a variable that holds it."""
    if not database.startswith("env:"):
        return database
    name = database.removeprefix("env:")
    found = os.environ.get(name)
    if not found:
        raise Unaskable(f"the query needs the environment variable {name}, which is not set in this process")
    return found


def parameters_of(statement: str, values: Mapping[str, str | None]) -> dict[str, str]:
    """The values of the parameters that the statement has. Raises Unaskable for one that is not there, and for none.

    A statement without any would say the same of every operation. It would also be the only kind that PostgreSQL takes
    several of at once, with an end of the read-only transaction among them.
    """
    names = parameters_in(statement)
    if not names:
        raise Unaskable("the statement names nothing of the operation, such as :key")
    unknown = names - set(NAMES)
    if unknown:
        raise Unaskable(f"the statement's parameter :{min(unknown)} is not one of {', '.join(NAMES)}")
    return {name: wanted(name, values) for name in names}


def _for_postgresql(statement: str) -> str:
    def replaced(found: re.Match[str]) -> str:
        return f"%({found['name']})s" if found["name"] else found[0].replace("%", "%%")

    pieces, end = [], 0
    for found in SQL_WORD.finditer(statement):
        pieces += [statement[end : found.start()].replace("%", "%%"), replaced(found)]
        end = found.end()
    return "".join(pieces) + statement[end:].replace("%", "%%")


def _sqlite_rows(path: str, statement: str, parameters: Mapping[str, str], timeout: float) -> Rows:
    end = clock.monotonic() + timeout
    if "://" in path or not os.path.exists(path):
        raise FileNotFoundError(f"there is no SQLite file {_shown(path)}")
    connection = sqlite3.connect(f"file:{quote(os.path.abspath(path))}?mode=ro", uri=True, timeout=timeout)
    try:
        connection.set_progress_handler(lambda: clock.monotonic() > end, _STEPS)
        connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _MAY else sqlite3.SQLITE_DENY)
        return connection.execute(statement, parameters).fetchmany(2)
    except sqlite3.OperationalError as problem:
        if clock.monotonic() > end:
            raise TimeoutError from None
        raise OSError(str(problem)) from None
    except (sqlite3.Error, sqlite3.Warning) as problem:
        raise Unaskable(f"the database refuses the statement: {problem}") from None
    finally:
        connection.close()


def _shown(place: str) -> str:
    """For people: of a URL no user, password or option."""
    if "://" not in place:
        return place
    parts = urlsplit(place)
    return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"


def _read(query: SqlQuery, place: str, rows: Rows) -> Finding:
    source = f"SELECT on {place}"
    raw = repr(rows).encode()
    if not rows:
        return Finding(Verdict.DEFINITELY_ABSENT, source, detail="the database has no row of it", raw=raw)
    if len(rows) > 1:
        return Finding(Verdict.CONTRADICTION, source, detail="the database has more than one row of it", raw=raw)
    word, *more = rows[0]
    reference = str(more[0])[:500] if more and more[0] not in (None, "") else None
    verdict = state_verdict(word, query.applied, query.failed, query.pending)
    detail = f"the database has {str(word)[:80]!r}"
    if verdict is Verdict.INCONCLUSIVE:
        detail += ", a word that the definition does not have"
    return Finding(verdict, source, reference=reference, detail=detail, raw=raw)
