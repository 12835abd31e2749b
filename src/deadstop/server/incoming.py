# SPDX-License-Identifier: Apache-2.0
"""What a request brings, read within bounds of size and time and checked: query, key, body, upload."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec
from aiohttp import web

from .bodies import ListQuery, Query
from .problems import Problem

if TYPE_CHECKING:
    from .route import Route
    from .settings import Settings

__all__ = ["check_head", "read_body", "read_key", "read_query", "uploaded"]

_KEY_LENGTH = 255
_MOST_FIELDS = 100


def check_head(settings: Settings, request: web.BaseRequest) -> None:
    """Raises Problem 431 for too much of a head, 415 for a compressed body, 400 without a host."""
    if sum(len(name) + len(value) + 4 for name, value in request.raw_headers) > settings.header_bytes:
        raise Problem(431, "too_large", f"headers: more than {settings.header_bytes} bytes")
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise Problem(415, "media_type", "Content-Encoding: send the body as it is")
    hosts = request.headers.getall("Host", [])
    if len(hosts) > 1 or (not hosts and request.version >= (1, 1)):
        raise Problem(400, "malformed", "Host: exactly one is needed")


def read_key(request: web.BaseRequest) -> str | None:
    """The Idempotency-Key, if there is one. Raises Problem."""
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return None
    if not 0 < len(key) <= _KEY_LENGTH or not all("!" <= char <= "~" for char in key):
        raise Problem(422, "usage", f"Idempotency-Key: 1 to {_KEY_LENGTH} printable ASCII characters without spaces")
    return key


def read_query(route: Route, raw: str) -> Query:
    """The query as the route's own kind. `metadata.KEY=VALUE` is one entry of `metadata`.

    Bytes that are no UTF-8 become surrogates, as file names have them. Raises ValidationError and Problem.
    """
    try:
        pairs = parse_qsl(raw, keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="surrogateescape")
    except ValueError:
        raise Problem(422, "usage", f"query: more than {_MOST_FIELDS} parameters") from None
    found: dict[str, Any] = {}
    for name, value in pairs:
        outer, dot, inner = name.partition(".")
        if dot and outer == "metadata" and route.query is ListQuery:
            found.setdefault(outer, {})[inner] = value
        elif name in found or (route.query is ListQuery and name == "metadata"):
            raise Problem(422, "usage", f"query: {name[:60]!r} is given twice, or without a key")
        else:
            found[name] = value
    return msgspec.convert(found, route.query, strict=False)


async def read_body(settings: Settings, route: Route, request: web.BaseRequest) -> Any:
    """The JSON body as the route's own kind; its defaults for an absent one that needs nothing."""
    if route.body is None:
        return None
    raw = b"".join([chunk async for chunk in uploaded(settings, request, settings.json_bytes, settings.body_s)])
    if not raw and not route.body_needed:
        return route.body()
    if not raw:
        raise Problem(400, "malformed", "a JSON body is needed")
    if request.content_type != "application/json":
        raise Problem(415, "media_type", "Content-Type: application/json is needed")
    try:
        return msgspec.json.decode(raw, type=route.body)
    except RecursionError:
        raise Problem(400, "malformed", "JSON is nested too deeply") from None


async def uploaded(settings: Settings, request: web.BaseRequest, most: int, within: float) -> AsyncIterator[bytes]:
    """The raw body in pieces. Raises Problem 413 beyond `most` bytes, 408 where it does not come in time."""
    if (request.content_length or 0) > most:
        raise _too_large(most)
    count = 0
    end = asyncio.get_running_loop().time() + within
    while chunk := await _piece(request, settings.body_s, end):
        count += len(chunk)
        if count > most:
            raise _too_large(most)
        yield chunk


async def _piece(request: web.BaseRequest, silence: float, end: float) -> bytes:
    left = end - asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(min(silence, left)):
            return await request.content.readany()
    except TimeoutError:
        raise Problem(408, "slow", "the body did not come in time", headers={"Connection": "close"}) from None
    except (web.RequestPayloadError, ValueError):
        raise Problem(400, "malformed", "the body is not what its headers say") from None


def _too_large(most: int) -> Problem:
    return Problem(413, "too_large", f"the body: more than {most} bytes")
