# SPDX-License-Identifier: Apache-2.0
"""Blocking reads and writes in worker threads, a piece at a time, so that memory holds one piece and no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .front import Front

__all__ = ["FromThread", "into_thread", "opened"]

BATCH = 1 << 18  # bytes that are gathered before a thread is troubled with them


class FromThread:
    """The pieces of a blocking iterator. `aclose` closes that, after the piece that is being read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._reading: asyncio.Future[bytes | None] | None = None
        self._started = False

    def __aiter__(self) -> FromThread:
        return self

    async def __anext__(self) -> bytes:
        self._started = True
        self._reading = asyncio.ensure_future(asyncio.to_thread(next, self._pieces, None))
        piece = await asyncio.shield(self._reading)
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        if self._reading is not None and not self._reading.done():
            await asyncio.wait([self._reading])
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        if not self._started:
            next(self._pieces, None)  # a generator that never began has no end that would let go of its descriptor
        close = getattr(self._pieces, "close", None)
        if close is not None:
            close()


async def opened(front: Front, open_it: Callable[[], Iterator[bytes]]) -> FromThread:
    """What `open_it` gives, from a thread. If the client goes meanwhile it is closed again."""
    task = asyncio.ensure_future(asyncio.to_thread(open_it))
    try:
        return FromThread(await asyncio.shield(task))
    except asyncio.CancelledError:
        front.finish(asyncio.ensure_future(_closed(task)))
        raise


async def _closed(task: asyncio.Future[Iterator[bytes]]) -> None:
    await FromThread(await task).aclose()


async def into_thread(
    chunks: AsyncIterator[bytes], write: Callable[[bytes], Any], finish: Callable[[], Any], abort: Callable[[], Any]
) -> int:
    """Write all `chunks`, then `finish`; `abort` if anything goes wrong. How many bytes there were."""
    size, waiting = 0, bytearray()
    try:
        async for chunk in chunks:
            size += len(chunk)
            waiting += chunk
            if len(waiting) >= BATCH:
                await asyncio.to_thread(write, bytes(waiting))
                waiting.clear()
        await asyncio.to_thread(write, bytes(waiting))
        await asyncio.to_thread(finish)
    except BaseException:
        await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(abort)))
        raise
    return size
