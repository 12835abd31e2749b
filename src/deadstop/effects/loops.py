# SPDX-License-Identifier: Apache-2.0
"""Names are looked up in a thread that nobody waits for: the system's resolver keeps no deadline of ours, and a loop's
own threads would be waited for at the end of the program.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

__all__ = ["Loop", "look_up"]


async def look_up(host: Any, port: Any, **options: Any) -> Any:
    """As socket.getaddrinfo, on the running loop. Raises OSError, and UnicodeError for what no name can be."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Any] = loop.create_future()

    def tell(setter: Callable[[Any], None], value: Any) -> None:
        if not found.done():
            setter(value)

    def run() -> None:
        setter: Callable[[Any], None] = found.set_result
        value: Any
        try:
            value = socket.getaddrinfo(host, port, **options)
        except Exception as problem:
            setter, value = found.set_exception, problem
        with suppress(RuntimeError):  # the loop has been closed: too late
            loop.call_soon_threadsafe(tell, setter, value)

    threading.Thread(target=run, name="deadstop-resolve", daemon=True).start()
    return await found


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose every wait can be given up, the looking up of names included."""

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        return await look_up(host, port, **options)
