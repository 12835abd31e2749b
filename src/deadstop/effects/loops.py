# SPDX-License-Identifier: Apache-2.0
"""An event loop whose every wait can be given up, the looking up of names included."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Loop"]


class Loop(asyncio.SelectorEventLoop):
    """Names are looked up in a thread that nobody waits for: the system's resolver keeps no deadline of ours."""

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        found: asyncio.Future[Any] = self.create_future()

        def tell(setter: Callable[[Any], None], value: Any) -> None:
            if not found.done():
                setter(value)

        def look_up() -> None:
            try:
                addresses = socket.getaddrinfo(host, port, **options)
            except (OSError, UnicodeError) as problem:
                self._tell(tell, found.set_exception, problem)
            else:
                self._tell(tell, found.set_result, addresses)

        threading.Thread(target=look_up, name="deadstop-resolve", daemon=True).start()
        return await found

    def _tell(self, tell: Callable[..., None], *outcome: Any) -> None:
        try:
            self.call_soon_threadsafe(tell, *outcome)
        except RuntimeError:
            pass  # the loop has been closed: too late
