# SPDX-License-Identifier: Apache-2.0
"""Asking an authority over HTTP: one GET, all of it within one deadline. The one file of asking that knows httpx2."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import MissingExtra
from ..ledger.query_check import names_in
from ..ledger.records import Finding
from ..ledger.states import Verdict
from .filling import Nothing, Several, Unaskable, as_seconds, only, reach, state_verdict, text_of, url_of, values_of
from .http_exchange import certificates
from .loops import Loop

try:
    import httpx2
except ImportError:
    raise MissingExtra("asking over HTTP", "ledger") from None

if TYPE_CHECKING:
    from ..ledger.queries import HttpQuery
    from ..operation import Operation

__all__ = ["ask_http"]

BODY_BYTES = 1 << 20
REDIRECTS = 5
_REDIRECT = frozenset({301, 302, 303, 307, 308})
_GATEWAY = frozenset({502, 503, 504})  # whoever says this has itself not reached the authority
_HIDDEN = "***"


class _Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes | None  # None: longer than anybody reads, or packed though that was not asked for


def ask_http(query: HttpQuery, operation: Operation, timeout: float) -> Finding:
    """What the authority's answer says. Raises Unaskable, TimeoutError, OSError where there is none.

    The deadline holds for everything: looking up the name, connecting, a head or a body that comes drop by drop. A
    redirect is followed only to the place that was to be asked, so that nobody else gets the query's headers.
    """
    if not names_in(query.url, *query.headers.values()):
        # It would say the same of every operation: of one that never arrived, too.
        raise Unaskable("neither the query's URL nor a header names anything of the operation, such as {key}")
    values = values_of(operation)
    url = httpx2.URL(url_of(query.url, values))
    secrets = [password for password in (url.password,) if password]
    headers = {name: _header(value, values, secrets) for name, value in query.headers.items()}
    source = f"GET {url.copy_with(userinfo=b'')}"
    try:
        with asyncio.Runner(loop_factory=Loop) as runner:
            answer = runner.run(_get(url, headers, timeout))
    except httpx2.LocalProtocolError:
        raise Unaskable("the query cannot be sent: a header of it is not allowed in HTTP") from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as problem:
        # Its text is that of the socket, or the server's: nothing of ours but what is taken out again.
        detail = f"{type(problem).__name__}: {problem}" if str(problem) else type(problem).__name__
        return _without(secrets, Finding(Verdict.UNREACHABLE, source, detail=detail))
    return _without(secrets, replace(_read(query, answer), source=source))


def _header(value: str, values: Mapping[str, str | None], secrets: list[str]) -> str:
    if not value.startswith("env:"):
        return text_of(value, values)
    name = value.removeprefix("env:")
    found = os.environ.get(name)
    if not found:
        raise Unaskable(f"the query needs the environment variable {name}, which is not set in this process")
    if not found.isascii() or not found.isprintable():
        raise Unaskable(f"what the environment variable {name} holds cannot be sent as a header")
    secrets.append(found)
    return found


# -- getting it --------------------------------------------------------------------------------------------------


async def _get(url: httpx2.URL, headers: Mapping[str, str], timeout: float) -> _Answer:
    asked = {"Accept": "application/json", "User-Agent": "deadstop", **headers, "Accept-Encoding": "identity"}
    origin, verify = _place(url), certificates() if url.scheme == "https" else False
    # What a proxy of the environment's says is not the authority's word, and the writes do not go through one either.
    async with asyncio.timeout(timeout), httpx2.AsyncClient(verify=verify, timeout=None, trust_env=False) as client:
        for _ in range(REDIRECTS + 1):
            async with client.stream("GET", url, headers=asked) as response:
                if response.status_code not in _REDIRECT or "location" not in response.headers:
                    return _Answer(response.status_code, response.headers, await _body(response))
            url = url.join(response.headers["location"])
            if _place(url) != origin:
                raise Unaskable(f"{origin[1]} passes the question on to {url.host}, which was not to be asked")
    raise Unaskable(f"{origin[1]} redirects more than {REDIRECTS} times")


async def _body(response: httpx2.Response) -> bytes | None:
    if response.headers.get("content-encoding", "identity") != "identity":
        return None
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > BODY_BYTES:
            return None
    return bytes(body)


def _place(url: httpx2.URL) -> tuple[str, str, int]:
    return url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80)


# -- reading it --------------------------------------------------------------------------------------------------


def _read(query: HttpQuery, answer: _Answer) -> Finding:
    status, body = answer.status, answer.body
    raw, says = body or b"", f"the authority answers {status}"
    again = as_seconds(answer.headers.get("retry-after"))
    if status in query.absent:
        return Finding(Verdict.DEFINITELY_ABSENT, detail=f"{says}: it has no trace of it", raw=raw)
    if not 200 <= status < 300:
        verdict = Verdict.UNREACHABLE if status in _GATEWAY else Verdict.INCONCLUSIVE
        return Finding(verdict, detail=says, raw=raw, retry_after_s=again)
    document = _document(body)
    try:
        reference = None if query.reference is None else _reference(document, query.reference)
        word = only(document) if query.state is None else reach(document, query.state)
    except Several:
        return Finding(Verdict.CONTRADICTION, detail=f"{says}, and shows more than one of it", raw=raw)
    except Nothing:
        return Finding(Verdict.DEFINITELY_ABSENT, detail=f"{says} with an empty list", raw=raw)
    except LookupError:
        what = "more than is read, or packed" if body is None else f"no field {query.state!r}"
        return Finding(Verdict.INCONCLUSIVE, reference=reference, detail=f"{says} with {what}", raw=raw)
    if query.state is None:
        # 202: it has taken what is asked about, and is not done with it.
        verdict = Verdict.IN_PROGRESS if status == 202 else Verdict.APPLIED
        return Finding(verdict, reference=reference, detail=says, raw=raw, retry_after_s=again)
    verdict = state_verdict(word, query.applied, query.failed, query.pending)
    detail = f"{says}, {query.state} {str(word)[:80]!r}"
    if verdict is Verdict.INCONCLUSIVE:
        detail += ", a word that the definition does not have"
    return Finding(verdict, reference=reference, detail=detail, raw=raw, retry_after_s=again)


def _document(body: bytes | None) -> Any:
    try:
        return json.loads(body or b"null")
    except (ValueError, RecursionError):
        return None


def _reference(document: Any, path: str) -> str | None:
    """Where it is not there it is not known: that settles nothing either way."""
    try:
        found = reach(document, path)
    except (Nothing, Several):
        raise
    except LookupError:
        return None
    return str(found)[:500] if isinstance(found, str | int) and not isinstance(found, bool) and found != "" else None


def _without(secrets: list[str], finding: Finding) -> Finding:
    """What went along as a header is in no record, also where the server has said it back."""
    texts = {"source": finding.source, "detail": finding.detail, "reference": finding.reference}
    for secret in secrets:
        texts = {name: text and text.replace(secret, _HIDDEN) for name, text in texts.items()}
    return replace(finding, **texts)  # type: ignore[arg-type]
