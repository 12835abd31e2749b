# SPDX-License-Identifier: Apache-2.0
"""Values that come later: a tool returns a handle now, and somebody resolves it when the value is there.

A tool returns `defer("started; will resolve later")`; its result then has `deferred` set to the handle's id. Whoever
learns the value calls `resolve(id, value)`; whoever wants it calls `wait(id)` or `on_resolved(id, callback)`. In
whatever order: a value that comes before anybody asks is kept. Handles belong to one process.
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field

from . import clock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

KEPT = 10_000  # values that nobody has asked for; the oldest are forgotten first


@dataclass(frozen=True, slots=True)
class Deferred:
    """What a tool returns instead of a value that it does not have yet."""

    note: str = "started; will resolve later"
    id: str = field(default_factory=lambda: f"later_{uuid.uuid4().hex}")


def defer(note: str = "started; will resolve later", handle_id: str | None = None) -> Deferred:
    """Make a handle, to be returned by a tool."""
    return Deferred(note) if handle_id is None else Deferred(note, handle_id)


class Registry:
    """Handles, their values and who waits for them. Safe from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._values: OrderedDict[str, Any] = OrderedDict()
        self._callbacks: dict[str, list[Callable[[Any], None]]] = {}

    def resolve(self, handle_id: str, value: Any) -> bool:
        """Give the value, once. False if there is one already. What a callback raises is not this caller's to see."""
        with self._changed:
            if handle_id in self._values:
                return False
            self._values[handle_id] = value
            while len(self._values) > KEPT:
                self._values.popitem(last=False)
            callbacks = self._callbacks.pop(handle_id, [])
            self._changed.notify_all()
        for callback in callbacks:
            _quietly(callback, value)
        return True

    def on_resolved(self, handle_id: str, callback: Callable[[Any], None]) -> None:
        """Call back with the value, at once if it is there."""
        with self._changed:
            if handle_id not in self._values:
                self._callbacks.setdefault(handle_id, []).append(callback)
                return
            value = self._values[handle_id]
        _quietly(callback, value)

    def wait(self, handle_id: str, timeout: float | None = None) -> Any:
        """Block until the value is there. Raises TimeoutError if it is not within `timeout` seconds."""
        seconds = clock.check_limit("timeout", timeout)
        with self._changed:
            if not self._changed.wait_for(lambda: handle_id in self._values, seconds):
                raise TimeoutError(f"{handle_id} has no value after {clock.format_duration(seconds or 0.0)}")
            return self._values[handle_id]

    def is_pending(self, handle_id: str) -> bool:
        """Whether somebody waits to be called back and there is no value yet."""
        with self._changed:
            return handle_id in self._callbacks

    def forget(self, handle_id: str) -> bool:
        """Drop the callbacks and the value; whether there were any."""
        with self._changed:
            callbacks = self._callbacks.pop(handle_id, None)
            return self._values.pop(handle_id, self) is not self or callbacks is not None


def _quietly(callback: Callable[[Any], None], value: Any) -> None:
    try:
        callback(value)
    except Exception:
        import logging

        logging.getLogger("deadstop").exception("a callback for a deferred value failed")


registry = Registry()
resolve = registry.resolve
on_resolved = registry.on_resolved
wait = registry.wait
is_pending = registry.is_pending
forget = registry.forget
