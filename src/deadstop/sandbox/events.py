# SPDX-License-Identifier: Apache-2.0
"""What happens to sandboxes, for whoever listens. A listener that is slow loses the oldest, and is told how many."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any

Event = dict[str, Any]
WAITING = 1000  # events for one listener


class Events:
    def __init__(self) -> None:
        self._listeners: set[Listener] = set()

    def tell(self, kind: str, sandbox_id: str, **facts: Any) -> None:
        event = {"type": kind, "sandbox_id": sandbox_id, "at": time.time(), **facts}
        for listener in list(self._listeners):
            listener.put(event)

    def listen(self, sandbox_id: str | None = None) -> Listener:
        """From now on, for ever, or until the end of the one sandbox asked for. `aclose` it, or let it end."""
        listener = Listener(self, sandbox_id)
        self._listeners.add(listener)
        return listener

    def forget(self, listener: Listener) -> None:
        self._listeners.discard(listener)


class Listener:
    """An asynchronous iterator of events."""

    def __init__(self, events: Events, sandbox_id: str | None) -> None:
        self._owner, self.sandbox_id = events, sandbox_id
        self._events: deque[Event] = deque()
        self._lost, self._over = 0, False
        self._there = asyncio.Event()

    def put(self, event: Event) -> None:
        if self.sandbox_id not in (None, event["sandbox_id"]):
            return
        if len(self._events) >= WAITING:
            self._events.popleft()
            self._lost += 1
        self._events.append(event)
        self._there.set()

    def __aiter__(self) -> Listener:
        return self

    async def __anext__(self) -> Event:
        if self._over:
            raise StopAsyncIteration
        while not self._events:
            self._there.clear()
            await self._there.wait()
        event = self._events.popleft()
        if self._lost:
            event, self._lost = {**event, "lost_before": self._lost}, 0
        if self.sandbox_id is not None and event["type"] == "ended":
            await self.aclose()
        return event

    async def aclose(self) -> None:
        self._over = True
        self._owner.forget(self)
