# SPDX-License-Identifier: Apache-2.0
"""Who is told when the value of a deferred call has come. Handles live in the process that registered them."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

KEPT_EARLY = 10_000  # values that came before anybody asked; the oldest are dropped first
OnResolved = Callable[[str, Any, str | None], None]
_log = logging.getLogger("deadstop.compat.praisonai")


class DeferredResolver:
    """Callbacks by handle. A value that comes first waits for its callback. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, tuple[OnResolved, str | None]] = {}
        self._early: OrderedDict[str, Any] = OrderedDict()

    def register(self, handle_id: str, on_resolved: OnResolved, session_id: str | None = None) -> None:
        """Have `on_resolved(handle_id, value, session_id)` called once; at once if the value is there.

        The first registration of a handle stands; a second one is ignored.
        """
        self.register_if_absent(handle_id, on_resolved, session_id)

    def register_if_absent(self, handle_id: str, on_resolved: OnResolved, session_id: str | None = None) -> bool:
        """As `register`; False if the handle had a callback already."""
        with self._lock:
            if handle_id in self._waiting:
                return False
            if handle_id not in self._early:
                self._waiting[handle_id] = on_resolved, session_id
                return True
            value = self._early.pop(handle_id)
        _tell(on_resolved, handle_id, value, session_id)
        return True

    def resolve(self, handle_id: str, value: Any) -> bool:
        """Deliver the value. False if nobody has registered yet: then it is kept for who does."""
        with self._lock:
            found = self._waiting.pop(handle_id, None)
            if found is None:
                self._early[handle_id] = value
                while len(self._early) > KEPT_EARLY:
                    self._early.popitem(last=False)
                return False
        _tell(found[0], handle_id, value, found[1])
        return True

    def is_pending(self, handle_id: str) -> bool:
        """Whether a callback waits for the value."""
        with self._lock:
            return handle_id in self._waiting

    def cancel(self, handle_id: str) -> bool:
        """Drop the callback, and a value that came early; whether there was a callback."""
        with self._lock:
            self._early.pop(handle_id, None)
            return self._waiting.pop(handle_id, None) is not None


def _tell(on_resolved: OnResolved, handle_id: str, value: Any, session_id: str | None) -> None:
    try:
        on_resolved(handle_id, value, session_id)
    except Exception:
        _log.warning("the callback for the deferred value %s failed", handle_id, exc_info=True)


_resolver = DeferredResolver()


def get_deferred_resolver() -> DeferredResolver:
    """The one of this process."""
    return _resolver


def register_deferred(handle_id: str, on_resolved: OnResolved, session_id: str | None = None) -> None:
    """`register` with the resolver of this process."""
    _resolver.register(handle_id, on_resolved, session_id)


def resolve_deferred(handle_id: str, value: Any) -> bool:
    """`resolve` with the resolver of this process."""
    return _resolver.resolve(handle_id, value)
