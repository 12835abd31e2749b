# SPDX-License-Identifier: Apache-2.0
"""What can be said of a query before it is ever made: that it is one, and that it is about the operation.

Looked at where an `Effect` is declared, while somebody is there to mend it; not where a definition is read back from
the ledger, which may be another version's. Nothing is asked, and nothing of the user's is imported, here. The checks
raise UsageError.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..errors import UsageError

if TYPE_CHECKING:
    from .queries import HttpQuery, SqlQuery

__all__ = [
    "NAMES",
    "PLACE",
    "SQL_WORD",
    "check_function",
    "check_host",
    "check_http",
    "check_sql",
    "names_in",
    "parameters_in",
    "who_can_ask",
]

#: What a query may name of the operation that it asks about.
NAMES = ("key", "op_id", "correlation", "reference", "target", "fingerprint")
PLACE = re.compile(r"\{(\w*)\}")
# Text in quotes, comments and casts are passed over: a colon in them begins no parameter.
SQL_WORD = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/ | \$(\w*)\$.*?\$\1\$ | ::
        | (?<!\w):(?P<name>[A-Za-z_]\w*)""",
    re.VERBOSE | re.DOTALL,
)
# What ssh_config may hand to a shell (ProxyCommand's %h and %r) has none of its signs in it.
_HOST = re.compile(r"(?!-)(?!.*@-)[\w.:/@%+,=~\[\]\\-]{0,254}[\w\].:]\Z")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z")
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*\Z")
_LISTS = ("applied", "failed", "pending")


def names_in(*texts: str) -> set[str]:
    """The names between braces. A header that is read from the environment has none."""
    return {found[1] for text in texts if not text.startswith("env:") for found in PLACE.finditer(text)}


def parameters_in(statement: str) -> set[str]:
    return {found["name"] for found in SQL_WORD.finditer(statement) if found["name"]}


def check_host(host: str, helper: str, options: Sequence[str]) -> None:
    for what, text in (("host", host), ("helper", helper)):
        if not isinstance(text, str) or not text or text.startswith("-") or any(char.isspace() for char in text):
            raise UsageError(f"{what}: {text!r:.60} is not one word that begins with no '-'")
    if not _HOST.match(host):
        raise UsageError(f"host: {host!r:.60} is no host: user@host, or an alias of ssh_config")
    if isinstance(options, str) or not all(isinstance(word, str) for word in options):
        raise UsageError(f"options: give a list of words for ssh, not {options!r:.60}")


def check_http(query: HttpQuery) -> None:
    if not isinstance(query.url, str):
        raise UsageError(f"url: {query.url!r:.60} is no text")
    shown = query.url if "@" not in query.url.partition("/")[2] else "the URL"  # who logs in there is nobody's to read
    try:
        parts = urlsplit(query.url)
        parts.port  # noqa: B018 - raises for what is none
    except ValueError as problem:
        raise UsageError(f"url: {shown!s:.120} is no URL: {problem}") from None
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
        raise UsageError(f"url: {shown!s:.120} is not http://HOST/... or https://HOST/...")
    if PLACE.search(parts.netloc):
        raise UsageError("url: the host of a query's URL cannot depend on the operation")
    for name, value in query.headers.items():
        if not _HEADER.match(name) or not isinstance(value, str) or not value.isprintable() or value == "env:":
            raise UsageError(f"headers: {name!r:.40} cannot be sent")  # its value may be a secret
    _check_names(names_in(query.url, *query.headers.values()), "{%s}")
    for name in ("state", "reference"):
        path = getattr(query, name)
        if path is not None and (not isinstance(path, str) or not path):
            raise UsageError(f"{name}: {path!r:.60} is not the path of a field")
    statuses: Any = query.absent
    if isinstance(statuses, str) or not all(isinstance(each, int) for each in statuses):
        raise UsageError(f"absent: give a list of statuses, not {statuses!r:.60}")
    _check_words(query)


def check_sql(query: SqlQuery) -> None:
    if not isinstance(query.database, str) or query.database in ("", "env:"):
        raise UsageError("database: give env:NAME, a postgresql:// URL, or the path of an SQLite file")
    scheme, mark, _ = query.database.partition("://")
    if mark and scheme not in ("postgresql", "postgres"):
        raise UsageError(f"database: {scheme!r:.20} is not postgresql, and no file has such a name")
    if not isinstance(query.statement, str):
        raise UsageError(f"statement: {query.statement!r:.60} is no text")
    bare = SQL_WORD.sub(" ", query.statement).strip().rstrip("; \t\r\n")
    first = re.match(r"\w*", bare.lstrip("( \t\r\n"))
    if first is None or first[0].upper() not in ("SELECT", "WITH"):
        raise UsageError(f"statement: {query.statement.strip()!r:.60} is no SELECT")
    if ";" in bare:
        raise UsageError("statement: there are several; give one")
    _check_names(parameters_in(query.statement), ":%s")
    _check_words(query)


def check_function(name: str) -> None:
    if not isinstance(name, str) or not _FUNCTION.match(name):
        raise UsageError(f"name: {name!r:.60} is not MODULE:NAME")


def _check_names(names: Iterable[str], form: str) -> None:
    if unknown := sorted(set(names) - set(NAMES)):
        raise UsageError(f"{form % unknown[0]} is not one of {', '.join(form % name for name in NAMES)}")


def _check_words(query: HttpQuery | SqlQuery) -> None:
    for name in _LISTS:
        words = getattr(query, name)
        if words is None and name == "applied":
            continue  # whatever is there will do
        if words is None or isinstance(words, str) or not all(isinstance(word, str) for word in words):
            raise UsageError(f"{name}: give a list of words, not {words!r:.60}")


def who_can_ask(name: str) -> list[str]:
    """Why a function by this name cannot be asked by everybody, in lines for people."""
    module = name.partition(":")[0]
    if module == "__main__":
        return [
            f"reconcile: {name} is in the program itself: no other process can ask it (deadstop ops, deadstop serve); "
            "a module's could be"
        ]
    top = module.partition(".")[0]
    try:
        found = top in sys.modules or importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        found = False
    return [] if found else [f"reconcile: {name} cannot be asked from here: there is no module {top}"]
