# SPDX-License-Identifier: Apache-2.0
"""Blocking work of ours, awaited from an event loop: in a thread of its own, and ended if nobody awaits it any more."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..cancel import CancelToken
from .tokens import Token


async def in_thread(run: Callable[[Any], Any], given: Any) -> Any:
    import asyncio

    token = CancelToken()
    context = contextvars.copy_context()
    both = token if given is None else _Either(token, Token(given))
    loop = asyncio.get_running_loop()
    running: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, problem: BaseException | None) -> None:
        if not running.done():
            running.set_result(value) if problem is None else running.set_exception(problem)

    def body() -> None:
        outcome: tuple[Any, BaseException | None]
        try:
            outcome = context.run(run, both), None
        except BaseException as problem:
            outcome = None, problem
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, *outcome)

    # A thread of its own: the loop's own executor has few, and a deadline must not wait for one.
    threading.Thread(target=body, name="deadstop-batch-async", daemon=True).start()
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        token.set()
        await asyncio.wait([running])
        raise


class _Either:
    """Set if one of two is."""

    def __init__(self, own: CancelToken, given: Token) -> None:
        self._own, self._given = own, given

    def is_set(self) -> bool:
        return self._own.is_set() or self._given.is_set()
