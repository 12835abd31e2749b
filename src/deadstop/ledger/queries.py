# SPDX-License-Identifier: Apache-2.0
"""Declared queries: where the authority can be asked about an operation, as data that any process can carry out.

In their texts `{key}`, `{op_id}`, `{correlation}`, `{reference}`, `{target}` and `{fingerprint}` stand for what the
operation has. They are filled in as data (percent-encoded in a URL, a parameter in SQL, a word in a command),
never as code. What carries them out is in `effects/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import UsageError

__all__ = [
    "FunctionQuery",
    "HttpQuery",
    "Query",
    "SqlQuery",
    "SshQuery",
    "query_from_dict",
    "query_of",
    "query_to_dict",
]


@dataclass(frozen=True, kw_only=True)
class HttpQuery:
    """GET `url`. 2xx means it is there: `state` is the path of a field (`"state"`, `"data.status"`) whose value decides
    (`applied`, `failed` and `pending` list values; any other is inconclusive), None if being there is enough.

    Statuses in `absent` mean that it is not there. `headers` values may be `env:NAME`: read where the query is made.
    `reference` is the path of the authority's own name for it.
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
    (`applied=None`: a row is enough); a second column, if there is one, is the reference. Two rows contradict.

    `database` is `env:NAME`, a postgresql:// URL without a password, or the path of an SQLite file. Read only.
    """

    database: str
    statement: str  # with :key, :op_id, :reference, ... as parameters
    applied: Sequence[str] | None = None
    failed: Sequence[str] = ("failed", "error", "rejected")
    pending: Sequence[str] = ("pending", "accepted", "running")


@dataclass(frozen=True, kw_only=True)
class SshQuery:
    """Ask deadstop's remote helper on `host` for the operation's markers. Absence counts where the helper says that
    its folder is the installed one, on a disk that outlives a restart."""

    host: str  # user@host or an alias of ssh_config
    helper: str = "deadstop-remote"
    options: Sequence[str] = ()  # for ssh, such as ("-p", "2222")


@dataclass(frozen=True, kw_only=True)
class FunctionQuery:
    """A Python function `f(op: Operation) -> Finding`, by its name, run in a killable worker."""

    name: str  # "package.module:function"


Query = HttpQuery | SqlQuery | SshQuery | FunctionQuery
_KINDS: dict[str, type[Any]] = {"http": HttpQuery, "sql": SqlQuery, "ssh": SshQuery, "function": FunctionQuery}


def query_of(given: Query | Callable[..., Any]) -> Query:
    """`given`, or the query that calls it. Raises UsageError for a function that another process could not import."""
    if isinstance(given, Query):
        return given
    function = getattr(given, "function", given)  # of a Tool
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if not callable(function) or not module or "<" in name:
        raise UsageError(f"reconcile: {given!r:.60} is not a query and not an importable function")
    return FunctionQuery(name=f"{module}:{name}")


def query_to_dict(query: Query) -> dict[str, Any]:
    kind = next(name for name, each in _KINDS.items() if type(query) is each)
    return {"kind": kind, **{key: _plain(value) for key, value in asdict(query).items()}}


def query_from_dict(document: Mapping[str, Any]) -> Query:
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in document.items()}
    query: Query = _KINDS[str(values.pop("kind"))](**values)
    return query


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
