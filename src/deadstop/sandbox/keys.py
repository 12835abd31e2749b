# SPDX-License-Identifier: Apache-2.0
"""Idempotency keys: the same key with the same request is the same act, also while the first is still under way.

Kept in memory for KEEP_S; a create's key is in its record, too, and outlives the server.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ..errors import KeyConflict

T = TypeVar("T")
KEEP_S = 3600.0
MOST = 10_000


def fingerprint(request: object) -> str:
    return hashlib.sha256(json.dumps(request, sort_keys=True, default=repr).encode()).hexdigest()


class Keys:
    """Of one scope (a server's creates, a sandbox's execs). `most` are remembered: what they gave is held as long."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._known: OrderedDict[str, tuple[str, float, asyncio.Future[Any]]] = OrderedDict()

    def knows(self, key: str) -> bool:
        """Whether an act of this key is under way, or was done here."""
        return key in self._known

    async def once(self, key: str | None, request: object, act: Callable[[], Awaitable[T]]) -> T:
        """What `act` gave the first time. Who asks again while it is under way waits for it; a failure is forgotten.

        A caller that is cancelled does not cancel an act that others may be waiting for, or ask after later.
        """
        if key is None:
            return await act()
        self._drop_old()
        mark = fingerprint(request)
        found = self._known.get(key)
        if found is not None:
            if found[0] != mark:
                raise KeyConflict(key)
            again: T = await asyncio.shield(found[2])
            return again
        task = asyncio.ensure_future(act())
        self._known[key] = (mark, time.monotonic(), task)
        task.add_done_callback(lambda done: self._forget_failed(key, done))
        return await asyncio.shield(task)

    def _forget_failed(self, key: str, task: asyncio.Future[Any]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._known.pop(key, None)

    def _drop_old(self) -> None:
        edge = time.monotonic() - KEEP_S
        while self._known:
            _, (_, since, task) = next(iter(self._known.items()))
            if (since > edge and len(self._known) < self._most) or not task.done():
                return
            self._known.popitem(last=False)
