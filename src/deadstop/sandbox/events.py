# SPDX-License-Identifier: Apache-2.0
"""What happens to sandboxes, for whoever listens. A listener that is slow loses the oldest, and is told how many."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

Event = dict[str, Any]
WAITING = 1000  # events for one listener


class Events:
    def __init__(self) -> None:
        self._listeners: set[_Listener] = set()

    def tell(self, kind: str, sandbox_id: str, **facts: Any) -> None:
        event = {"type": kind, "sandbox_id": sandbox_id, "at": time.time(), **facts}
        for listener in list(self._listeners):
            listener.put(event)

    def listen(self, sandbox_id: str | None = None) -> AsyncIterator[Event]:
        """From now on, for ever, or until the end of the one sandbox asked for. Iterate it, or it stays."""
        listener = _Listener(sandbox_id)
        self._listeners.add(listener)
        return self._iterate(listener)

    async def _iterate(self, listener: _Listener) -> AsyncIterator[Event]:
        try:
            while True:
                event = await listener.next()
                yield event
                if listener.sandbox_id is not None and event["type"] == "ended":
                    return
        finally:
            self._listeners.discard(listener)


class _Listener:
    def __init__(self, sandbox_id: str | None) -> None:
        self.sandbox_id = sandbox_id
        self._events: deque[Event] = deque()
        self._lost = 0
        self._there = asyncio.Event()

    def put(self, event: Event) -> None:
        if self.sandbox_id not in (None, event["sandbox_id"]):
            return
        if len(self._events) >= WAITING:
            self._events.popleft()
            self._lost += 1
        self._events.append(event)
        self._there.set()

    async def next(self) -> Event:
        while not self._events:
            self._there.clear()
            await self._there.wait()
        event = self._events.popleft()
        if self._lost:
            event, self._lost = {**event, "lost_before": self._lost}, 0
        return event
