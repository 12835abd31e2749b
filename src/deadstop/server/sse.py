# SPDX-License-Identifier: Apache-2.0
"""Streams: server-sent events, and downloads. Both end cleanly, or the connection is cut so that nobody is misled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, TypeVar

from aiohttp import web

from .front import Front
from .replies import EVENTS, Download, Event, Events

__all__ = ["send_download", "send_events"]

T = TypeVar("T")

PING = b": ping\n\n"
WRITE_S = 60.0  # a client that takes nothing for so long has gone
_SSE = {"Content-Type": EVENTS, "X-Accel-Buffering": "no"}


async def send_events(front: Front, request: web.Request, events: Events) -> web.StreamResponse:
    """Send the stream to its end, in chunks, with a comment whenever nothing else came for a while."""
    response = web.StreamResponse(headers={**_SSE, **events.headers})
    response.enable_chunked_encoding()
    items = _Items(events.source, front.stopping if events.ends_on_stop else None)
    try:
        await items.begin()  # before the client knows of the stream, so that it misses nothing from then on
        await response.prepare(request)
        await _write(request, response, PING)  # the head goes out now, whenever the first event comes
        while (event := await items.next(front.settings.ping_s)) is not _End.end:
            await _write(request, response, PING if event is _End.silence else encoded(event))
        await response.write_eof()
    finally:
        await items.close()
    return response


def encoded(event: object) -> bytes:
    """One event as bytes. ASCII only: clients decode this media type as Latin-1, and cut at U+2028."""
    assert isinstance(event, Event)
    head = f"event: {event.name}\n" if event.name else ""
    return f"{head}data: {json.dumps(event.data, allow_nan=False)}\n\n".encode("ascii")


async def send_download(request: web.Request, download: Download) -> web.StreamResponse:
    """Send exactly the announced bytes, or cut the connection."""
    response = web.StreamResponse(headers={"Content-Type": download.media})
    if download.length is None:
        response.enable_chunked_encoding()
    else:
        response.content_length = download.length
    left = download.length
    try:
        await response.prepare(request)
        if request.method != "HEAD":
            async for chunk in download.source:
                part = chunk if left is None else chunk[:left]
                await _write(request, response, part)
                left = None if left is None else left - len(part)
            if left:
                _cut(request)
                raise ConnectionResetError("the file became shorter while it was sent")
        await response.write_eof()
    except Exception:
        _cut(request)  # its end must not look like a whole file
        raise
    finally:
        await _close(download.source)
    return response


async def _write(request: web.Request, response: web.StreamResponse, data: bytes) -> None:
    try:
        async with asyncio.timeout(WRITE_S):
            await response.write(data)
    except TimeoutError:
        _cut(request)
        raise ConnectionResetError("the client takes nothing") from None


def _cut(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


async def _close(source: AsyncIterator[T]) -> None:
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()


class _End:
    """What `next` gives in place of an event."""

    end = object()
    silence = object()


class _Items:
    """The events of a source one by one, with a bound on the silence between them."""

    def __init__(self, source: AsyncIterator[Event], stopping: asyncio.Event | None) -> None:
        self._source = source
        self._next: asyncio.Future[Event] | None = None
        self._stop = None if stopping is None else asyncio.ensure_future(stopping.wait())

    async def begin(self) -> None:
        """Let the source run to its first wait."""
        self._next = asyncio.ensure_future(_step(self._source))
        await asyncio.sleep(0)

    async def next(self, silence: float) -> object:
        if self._next is None:
            self._next = asyncio.ensure_future(_step(self._source))
        waited: set[asyncio.Future[Any]] = {self._next} if self._stop is None else {self._next, self._stop}
        await asyncio.wait(waited, timeout=silence, return_when=asyncio.FIRST_COMPLETED)
        if self._next.done():
            given, self._next = self._next, None
            try:
                return given.result()
            except StopAsyncIteration:
                return _End.end
        return _End.end if self._stop is not None and self._stop.done() else _End.silence

    async def close(self) -> None:
        """Close the source, which may have something to end."""
        for task in (self._next, self._stop):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait([task])
            if task is not None and not task.cancelled():
                task.exception()  # looked at: nobody is there to take it
        await _close(self._source)


async def _step(source: AsyncIterator[Event]) -> Event:
    return await anext(source)
