# SPDX-License-Identifier: Apache-2.0
"""Declared queries: where the authority can be asked about an operation, as data that any process can carry out.

In their texts `{key}`, `{op_id}`, `{correlation}`, `{reference}`, `{target}` and `{fingerprint}` stand for what the
operation has. They are filled in as data (percent-encoded in a URL, a parameter in SQL, a word in a command),
never as code. A name that there is not, or one that the operation has nothing for (no `{reference}` yet), makes the
finding inconclusive: nothing is asked. What carries them out is in `effects/`.

A finding that settles nothing is asked for again after 0.5 s, doubling to 30 s, or when the authority says Retry-After,
which is taken as at least 0.5 s and at most a day; by itself never after the recovery deadline. Absence is what was
shown; whether it counts is the definition's to say (`consistent`, `settle`), else it is inconclusive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import UsageError
from .query_check import check_function, check_host, check_http, check_sql, names_in, parameters_in, who_can_ask

__all__ = [
    "FunctionQuery",
    "HttpQuery",
    "Query",
    "SqlQuery",
    "SshQuery",
    "open_questions",
    "query_from_dict",
    "query_of",
    "query_to_dict",
]


@dataclass(frozen=True, kw_only=True)
class HttpQuery:
    """GET `url`. 2xx means it is there: `state` is the path of a field (`"state"`, `"data.status"`) whose value decides
    (`applied`, `failed` and `pending` list values, letter case aside; any other is inconclusive), None if being there
    is enough: then 202 is in_progress, and any other 2xx applied.

    A list of one is what it holds, an empty list is absent, several contradict; a number in a path reaches into a list.
    Statuses in `absent` mean that it is not there. 502, 503, 504 and no answer are unreachable, other statuses are
    inconclusive, also a redirect to another host, and a body of more than 1 MiB where a field of it decides.

    `headers` values may be `env:NAME`: read where the query is made, and never written down. `reference` is the path
    of the authority's own name for it; `url` names its host as it stands, without `{...}`. A query that names nothing
    of the operation, neither in its URL nor in a header, would be answered alike for every one: it is inconclusive.
    """

    url: str
    state: str | None = None
    applied: Sequence[str] = ("succeeded", "success", "completed", "done", "applied")
    failed: Sequence[str] = ("failed", "error", "rejected", "cancelled", "canceled")
    pending: Sequence[str] = ("pending", "accepted", "queued", "running", "in_progress", "processing")
    absent: Sequence[int] = (404,)
    reference: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SqlQuery:
    """SELECT on the authority's own database. No row means absent; the first column of the row decides as for HttpQuery
    (`applied=None`: a row is enough, unless its word is one of `failed` or `pending`); a second column, if there is
    one, is the reference. Two rows contradict.

    `database` is `env:NAME`, a postgresql:// URL without a password, or the path of an SQLite file. Read only. No
    answer in time, a file that is not there and a database that cannot be reached are unreachable; a statement that it
    refuses, or that names nothing of the operation, is inconclusive.
    """

    database: str
    statement: str  # with :key, :op_id, :reference, ... as parameters
    applied: Sequence[str] | None = None
    failed: Sequence[str] = ("failed", "error", "rejected")
    pending: Sequence[str] = ("pending", "accepted", "running")


@dataclass(frozen=True, kw_only=True)
class SshQuery:
    """Ask deadstop's remote helper on `host` for the operation's markers. Absence counts where the helper says that
    its folder is the installed one, on a disk that outlives a restart.

    A command that runs is in_progress; one that ended with 0 is applied, one that could not be started is failed; any
    other end is inconclusive, unless it was declared to have done nothing then (`SshEffects(nonzero="failed")`). Asking
    leaves the fence there as a seal: an attempt that was on its way can no longer start.
    """

    host: str  # user@host or an alias of ssh_config
    helper: str = "deadstop-remote"
    options: Sequence[str] = ()  # for ssh, such as ("-p", "2222")


@dataclass(frozen=True, kw_only=True)
class FunctionQuery:
    """A Python function `f(op: Operation) -> Finding`, by its name, run in a killable worker.

    A Verdict, or its word, will do as well. One that is killed at its limit, cannot be imported where it is asked, or
    raises OSError (ConnectionError, TimeoutError) is unreachable; any other exception or value is inconclusive.
    """

    name: str  # "package.module:function"


Query = HttpQuery | SqlQuery | SshQuery | FunctionQuery
_KINDS: dict[str, type[Any]] = {"http": HttpQuery, "sql": SqlQuery, "ssh": SshQuery, "function": FunctionQuery}


def query_of(given: Query | Callable[..., Any]) -> Query:
    """`given`, or the query that calls it. Raises UsageError for one that could never be asked, and for a function that
    no name stands for."""
    if isinstance(given, Query):
        _check(given)
        return given
    function = getattr(given, "function", given)  # of a Tool
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if not callable(function) or not module or "<" in name:
        raise UsageError(f"reconcile: {given!r:.60} is not a query and not an importable function")
    return FunctionQuery(name=f"{module}:{name}")


def _check(query: Query) -> None:
    try:
        match query:
            case HttpQuery():
                check_http(query)
            case SqlQuery():
                check_sql(query)
            case SshQuery():
                check_host(query.host, query.helper, query.options)
            case FunctionQuery():
                check_function(query.name)
    except UsageError as problem:
        raise UsageError(f"reconcile: {type(query).__name__}: {problem}") from None


def open_questions(query: Query) -> list[str]:
    """Why its answers will settle nothing, or not everybody can ask: one line each."""
    of_none = "reconcile: the query names nothing of the operation, such as {}: it is not asked, and a person decides"
    match query:
        case HttpQuery() if not names_in(query.url, *query.headers.values()):
            return [of_none.format("{key}")]
        case SqlQuery() if not parameters_in(query.statement):
            return [of_none.format(":key")]
        case FunctionQuery():
            return who_can_ask(query.name)
    return []


def query_to_dict(query: Query) -> dict[str, Any]:
    kind = next(name for name, each in _KINDS.items() if type(query) is each)
    return {"kind": kind, **{key: _plain(value) for key, value in asdict(query).items()}}


def query_from_dict(document: Mapping[str, Any]) -> Query:
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in document.items()}
    query: Query = _KINDS[str(values.pop("kind"))](**values)
    return query


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
