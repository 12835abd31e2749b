# SPDX-License-Identifier: Apache-2.0
"""The stream of a sandbox's events: it tells the hooks, keeps the view fresh, and holds an attached sandbox."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..errors import DeadstopError
from .asks import Ask, Events, sandbox_path
from .connection import Broken, Server
from .portal import held

if TYPE_CHECKING:
    from .asynchronous import AsyncSandbox


class Holding:
    """One open stream. While that of an attached sandbox is open it lives; when this process ends, so does it."""

    def __init__(self, sandbox: AsyncSandbox, server: Server, *, attach: bool) -> None:
        self._sandbox, self._server, self._attach = sandbox, server, attach
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._listen(), name="deadstop-events")

    async def opened(self) -> None:
        """Until the server holds the other end. Raises what kept it from that."""
        await asyncio.shield(self._opened)

    async def close(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _listen(self) -> None:
        what = "attach" if self._attach else "events"
        ask = Ask("GET", sandbox_path(self._sandbox.id, what))
        descriptor = -1
        try:
            async with self._server.opened(ask) as response:
                descriptor = _descriptor(response.extensions.get("network_stream"))
                if self._attach and descriptor >= 0:
                    held.add(descriptor)
                if not self._opened.done():
                    self._opened.set_result(None)
                parser = Events()
                async for data in response.aiter_bytes():
                    for name, document in parser.feed(data):
                        self._heard(name, document)
        except (Broken, DeadstopError) as problem:
            if not self._opened.done():
                told = self._server.unreachable(problem) if isinstance(problem, Broken) else problem
                self._opened.set_exception(told)
        finally:
            held.discard(descriptor)

    def _heard(self, name: str, document: Any) -> None:
        if not isinstance(document, dict):
            return
        kind = str(document.get("type") or name)
        if document.get("sandbox_id", self._sandbox.id) == self._sandbox.id:
            self._sandbox._heard(kind, document)


def _descriptor(stream: Any) -> int:
    found = None if stream is None else stream.get_extra_info("socket")
    return -1 if found is None else int(found.fileno())
