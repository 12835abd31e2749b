# SPDX-License-Identifier: Apache-2.0
"""One request and its answer within one deadline, and how far it came if there is none.

The deadline holds for everything: looking up the name, connecting, writing, a body that comes drop by drop. Nothing is
sent twice here, no redirect is followed, and no connection is used again: one that its server is just closing would
make a write unknown that need not be.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import weakref
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from .. import clock
from ..errors import MissingExtra
from ..ledger import crash
from ..ledger.records import Claim
from .http_phase import Failure, Watch
from .loops import look_up

try:
    import httpx2
except ImportError:
    raise MissingExtra("effects over HTTP", "ledger") from None

__all__ = [
    "MOST_BYTES", "Answer", "Failed", "Wire", "certificates", "exchange", "library_of", "own_transport",
    "plain_transport",
]  # fmt: skip

MOST_BYTES = 16 << 20
PART = 64 << 10
ENDING_S = 0.25  # for a connection to be closed after its deadline, before it is left alone
_NO_LIMITS = dict.fromkeys(("connect", "read", "write", "pool"))


@dataclass(frozen=True, slots=True)
class Wire:
    """What is sent. Header names are in lower case."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. Header names are in lower case; of several with one name the last one counts."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class Failed(Exception):
    """No whole answer came. `failure` says how far it was."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.observation)
        self.failure = failure


async def exchange(
    wire: Wire, end: float, *, transport: Any = None, until: float | None = None, claim: Claim | None = None,
    most: int = MOST_BYTES,
) -> Answer:  # fmt: skip
    """The answer, by `end` on CLOCK_MONOTONIC. Raises Failed; when cancelled, CancelledError with `.failure`.

    Nothing begins to be written after `until`, or once `claim` is over, nor after `end`, which holds also for a
    transport that takes its time to be cancelled.
    """
    watch = Watch(len(wire.body), until=end if until is None else min(until, end), claim=claim)
    work = asyncio.ensure_future(_exchanged(wire, watch, transport, most))
    try:
        await asyncio.wait({work}, timeout=max(0.0, end - clock.monotonic()))
        if not work.done():
            raise Failed(watch.late())  # as it was when the time was over, whatever the ending brings
        return work.result()
    except asyncio.CancelledError as problem:
        problem.failure = watch.failed(problem)  # type: ignore[attr-defined]
        raise
    finally:
        await _ended(work)


async def _ended(work: asyncio.Future[Answer]) -> None:
    if not work.done():
        work.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait({work}, timeout=ENDING_S)
    if work.done() and not work.cancelled():
        work.exception()  # seen


async def _exchanged(wire: Wire, watch: Watch, transport: Any, most: int) -> Answer:
    try:
        if transport is None:
            await _resolvable(wire.url)
            transport = own_transport()
        library = library_of(transport)
        watch.handed = not isinstance(transport, library.AsyncHTTPTransport)
        response = await transport.handle_async_request(_request(library, wire, watch))
        watch.answered(response)
        crash.at("http.half_read")
        body = await _body(response, watch, most)
        crash.at("http.replied")
    except Failed:
        raise
    except Exception as problem:
        raise Failed(watch.failed(problem)) from problem
    headers = {name.lower(): value for name, value in response.headers.multi_items()}
    try:
        return Answer(response.status_code, headers, _unpacked(headers, body, most))
    except ValueError as problem:
        raise Failed(watch.undecodable(str(problem))) from problem


def _request(library: Any, wire: Wire, watch: Watch) -> Any:
    headers = {**wire.headers, "content-length": str(len(wire.body))}
    if not wire.body and wire.method in ("GET", "HEAD", "OPTIONS", "DELETE"):
        del headers["content-length"]
    extensions = {"timeout": dict(_NO_LIMITS), "trace": watch.trace}
    content = _parts(wire.body, watch) if wire.body else None
    return library.Request(wire.method, wire.url, headers=headers, content=content, extensions=extensions)


async def _parts(body: bytes, watch: Watch) -> AsyncIterator[bytes]:
    """In at least two parts, so that a failure can say how much had left."""
    size = max(1, min(PART, len(body) // 2))
    for start in range(0, len(body), size):
        if watch.written:
            crash.at("http.half_written")
        part = body[start : start + size]
        yield part
        watch.written += len(part)


async def _body(response: Any, watch: Watch, most: int) -> bytes:
    body = bytearray()
    try:
        async for piece in response.stream:
            body += piece
            watch.read = len(body)
            if len(body) > most:
                raise Failed(watch.undecodable(f"the reply is longer than {most} bytes"))
    finally:
        with suppress(Exception):
            await response.stream.aclose()
    return bytes(body)


def _unpacked(headers: Mapping[str, str], body: bytes, most: int) -> bytes:
    """The body as it was meant, though it was asked for as it is. Raises ValueError."""
    packed = headers.get("content-encoding", "identity").strip().lower()
    if packed in ("identity", "") or not body:
        return body
    if packed not in ("gzip", "x-gzip", "deflate"):
        raise ValueError(f"the reply is packed as {packed[:20]!r}, which was not asked for")
    try:
        plain = zlib.decompressobj(47).decompress(body, most + 1)
    except zlib.error as problem:
        raise ValueError(f"the reply cannot be unpacked: {problem}") from problem
    if len(plain) > most:
        raise ValueError(f"the reply is longer than {most} bytes")
    return plain


# -- transports --------------------------------------------------------------------------------------------------

_transports: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = weakref.WeakKeyDictionary()


def own_transport() -> Any:
    """The running loop's. It keeps no connection, so there is nothing to close."""
    loop = asyncio.get_running_loop()
    if loop not in _transports:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        _transports[loop] = httpx2.AsyncHTTPTransport(verify=certificates(), limits=limits, retries=0)
    return _transports[loop]


def plain_transport(request: Any, name: str) -> Any:
    """A new transport of the library that the request is of, by its name."""
    return getattr(library_of(request), name)(verify=certificates())


@cache
def certificates() -> Any:
    """The system's, and those of SSL_CERT_FILE; read once in a process."""
    return httpx2.create_ssl_context()  # tens of milliseconds


def library_of(thing: Any) -> Any:
    """httpx or httpx2, whichever made it: a transport takes only requests of its own library."""
    for each in type(thing).__mro__:
        root = each.__module__.partition(".")[0]
        if root in ("httpx", "httpx2"):
            return sys.modules[root]
    return httpx2


async def _resolvable(url: str) -> None:
    """Raises an error for a name that is not found, in time whatever the system's resolver does."""
    place = httpx2.URL(url)
    if _is_name(place.host):
        await look_up(place.host, place.port or place.scheme, type=socket.SOCK_STREAM)


def _is_name(host: str) -> bool:
    if host == "localhost":
        return False
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):
            socket.inet_pton(family, host)
            return False
    return True
