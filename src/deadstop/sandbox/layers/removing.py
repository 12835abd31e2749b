# SPDX-License-Identifier: Apache-2.0
"""Threads for what a payload can make last: a tree of millions of files is removed beside everything else.

In the loop's own few threads such work would make every request wait that needs one, and the end of the process, too,
which waits for those. For these it does not: what is left then is removed after the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

__all__ = ["unhurried"]


async def unhurried(work: Callable[..., None], *arguments: str) -> None:
    """`work(*arguments)` in a thread that ends with the process. Cancelled, it goes on without being waited for."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def tell(problem: BaseException | None) -> None:
        if done.done():
            return
        if problem is None:
            done.set_result(None)
        else:
            done.set_exception(problem)

    def run() -> None:
        problem: BaseException | None = None
        try:
            work(*arguments)
        except BaseException as raised:
            problem = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever wanted to know
            loop.call_soon_threadsafe(tell, problem)

    threading.Thread(target=run, name="deadstop-removal", daemon=True).start()
    await done
