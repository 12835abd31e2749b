# SPDX-License-Identifier: Apache-2.0
"""`100 Continue` while a command runs, so that a client with a read timeout shorter than the command's waits on.

Any number of them may precede the final answer (RFC 9110, 15.2), and each restarts the read timer of the common
clients. Python's http.client is to refuse more than 100 (CPython gh-150743), which is where the bound comes from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from aiohttp import web

__all__ = ["with_interim"]

T = TypeVar("T")

MOST = 95
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


async def with_interim(request: web.Request, work: Awaitable[T], every: float) -> T:
    """What `work` gives. Meanwhile an interim response goes out `every` seconds, at most MOST of them.

    Nothing goes to HTTP/1.0 clients, which know no interim responses. None can follow the final answer: the timer is
    cancelled in the loop turn in which `work` ends, and that answer is written later.
    """
    if request.version < (1, 1):
        return await work
    beat = _Beat(request, every)
    try:
        return await work
    finally:
        beat.stop()


class _Beat:
    def __init__(self, request: web.Request, every: float) -> None:
        self._request, self._every = request, every
        self._left = MOST
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(every, self._send)

    def _send(self) -> None:
        transport = self._request.transport
        if transport is None or transport.is_closing() or self._left == 0:
            return
        # What the client has not read yet is sign of life enough.
        if transport.get_write_buffer_size() == 0:
            transport.write(_CONTINUE)
            self._left -= 1
        self._timer = self._loop.call_later(self._every, self._send)

    def stop(self) -> None:
        self._timer.cancel()
