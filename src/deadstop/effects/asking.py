# SPDX-License-Identifier: Apache-2.0
"""Asking once: a declared query, carried out about one operation. Whatever happens, there is a finding, and in time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import MissingExtra
from ..ledger.handle import url_parts
from ..ledger.queries import FunctionQuery, HttpQuery, Query, SqlQuery, SshQuery
from ..ledger.records import Finding
from ..ledger.states import Verdict
from .filling import Unaskable

if TYPE_CHECKING:
    from ..operation import Operation

__all__ = ["ask", "authority_of", "source_of"]

SPARE_S = 0.5  # for what keeps the limit itself to say so, before its thread is left alone
MOST_LEFT = 4  # threads of one authority that were left alone and still hang
SOONEST_S, LATEST_S = 0.5, 86_400.0  # for a Retry-After: who says "at once" for ever is not asked for ever
_MOST_TEXT = 500

_left: Counter[str] = Counter()
_lock = threading.Lock()


def ask(query: Query, operation: Operation, timeout: float) -> Finding:
    """What the authority says of the operation, within `timeout` seconds and a little. Never raises an Exception.

    No answer (in time) is `unreachable`; an answer that settles nothing, or a question that cannot be put, is
    `inconclusive`. `definitely_absent` is what the authority showed: whether it counts is for the definition to say.
    """
    source = source_of(query)
    if not timeout > 0:
        return Finding(Verdict.UNREACHABLE, source, detail="there is no time left to ask")
    try:
        found = _asked(query, operation, timeout)
    except Unaskable as problem:
        found = Finding(Verdict.INCONCLUSIVE, detail=str(problem))
    except TimeoutError as problem:
        found = Finding(Verdict.UNREACHABLE, detail=str(problem) or f"no answer within {timeout:g} s")
    except (OSError, MissingExtra) as problem:
        found = Finding(Verdict.UNREACHABLE, detail=str(problem) or type(problem).__name__)
    except Exception as problem:
        found = Finding(Verdict.INCONCLUSIVE, detail=f"{type(problem).__name__}: {problem}")
    return _plain(found, source)


def source_of(query: Query) -> str:
    """What is asked, for people; without user names and passwords, and before anything is filled in."""
    match query:
        case HttpQuery():
            place, _, rest = url_parts(query.url)
            return f"GET {place}{rest}"
        case SqlQuery():
            return f"SELECT on {authority_of(query)}"
        case SshQuery():
            return f"ssh {query.host} {query.helper} status"
        case FunctionQuery():
            return f"function {query.name}"


def authority_of(query: Query) -> str:
    """Whoever is asked: when one of these does not answer, the others are not to wait for it."""
    match query:
        case HttpQuery():
            return url_parts(query.url)[1].lower()
        case SqlQuery():
            place, _, rest = url_parts(query.database)
            return place + rest.partition("?")[0] if place else query.database
        case SshQuery():
            return f"ssh {query.host.rpartition('@')[2]}"
        case FunctionQuery():
            return query.name


def _plain(found: Finding, source: str) -> Finding:
    """As the ledger can write it down, also where a function of a user's has made it."""
    again = found.retry_after_s
    if not isinstance(again, int | float) or not again >= 0:  # NaN is not
        again = None
    reference = found.reference
    return replace(
        found, verdict=Verdict(found.verdict), source=_text(found.source) or source, detail=_text(found.detail),
        reference=None if reference is None or reference == "" else _text(reference),
        raw=found.raw if isinstance(found.raw, bytes) else None,
        retry_after_s=None if again is None else min(max(float(again), SOONEST_S), LATEST_S),
    )  # fmt: skip


def _text(value: object) -> str:
    return "" if value is None else str(value)[:_MOST_TEXT]


def _asked(query: Query, operation: Operation, timeout: float) -> Finding:
    # Each loads what it needs when it is first used.
    match query:
        case HttpQuery():
            from .ask_http import ask_http

            return _left_alone_after(timeout, authority_of(query), lambda: ask_http(query, operation, timeout))
        case SqlQuery():
            from .ask_sql import ask_sql

            return _left_alone_after(timeout, authority_of(query), lambda: ask_sql(query, operation, timeout))
        case SshQuery():
            from .ssh_status import status

            return status(query, operation, timeout)
        case FunctionQuery():
            from .ask_function import ask_function

            return ask_function(query, operation, timeout)


def _left_alone_after(timeout: float, authority: str, work: Callable[[], Finding]) -> Finding:
    """In a thread of its own: a library keeps its limit where it can, a disk that hangs keeps none."""
    if _left[authority] >= MOST_LEFT:
        raise TimeoutError(f"{MOST_LEFT} earlier questions to {authority} still hang")
    future: Future[Finding] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as problem:
            future.set_exception(problem)

    threading.Thread(target=run, name="deadstop-ask", daemon=True).start()
    try:
        return future.result(timeout + SPARE_S)
    finally:
        if not future.done():
            _count(authority, 1)
            future.add_done_callback(lambda _: _count(authority, -1))


def _count(authority: str, change: int) -> None:
    with _lock:
        _left[authority] += change
