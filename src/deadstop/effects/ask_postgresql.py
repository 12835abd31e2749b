# SPDX-License-Identifier: Apache-2.0
"""One read-only SELECT on a PostgreSQL database that is an authority. Loaded when the first such query is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from ..errors import MissingExtra
from ..ledger.pg_settings import asked
from .filling import Unaskable

try:
    import psycopg
    from psycopg import sql
except ImportError:
    raise MissingExtra("asking a PostgreSQL database", "postgresql") from None

__all__ = ["rows_of"]


def rows_of(url: str, statement: str, parameters: Mapping[str, str], timeout: float) -> list[tuple[Any, ...]]:
    """At most two rows. Raises TimeoutError, OSError (no answer) and Unaskable (the statement is refused)."""
    milliseconds = max(1, round(timeout * 1000))
    try:
        given = psycopg.conninfo.conninfo_to_dict(url)
        options = f"{given.pop('options', '')} -c statement_timeout={milliseconds} -c default_transaction_read_only=on"
        # libpq counts whole seconds here, and at least two of them: whoever calls bounds the rest.
        given |= {"connect_timeout": max(2, round(timeout)), "tcp_user_timeout": milliseconds, "options": options}
        with psycopg.connect(**{"application_name": "deadstop", **given}) as connection:  # type: ignore[arg-type]
            connection.read_only = True
            # Once more, for this transaction: a pooler may have passed the options over, and others set theirs.
            wanted = asked(options)
            words = sql.SQL(", ").join(sql.SQL("set_config({}, {}, true)").format(*pair) for pair in wanted.items())
            connection.execute(sql.SQL("SELECT {}").format(words), prepare=False)
            return connection.execute(statement.encode(), parameters, prepare=False).fetchmany(2)
    except psycopg.errors.QueryCanceled:
        raise TimeoutError from None
    except psycopg.OperationalError as problem:
        raise OSError(_line(problem, url)) from None
    except psycopg.Error as problem:
        raise Unaskable(f"the database refuses the statement: {_line(problem, url)}") from None


def _line(problem: Exception, url: str) -> str:
    """Its first line. What cannot be read as a URL is said back by the driver: not to the log."""
    text = str(problem).partition("\n")[0].replace(url, "the URL")
    password = urlsplit(url).password
    return text.replace(password, "***") if password else text
