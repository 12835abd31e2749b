# SPDX-License-Identifier: Apache-2.0
"""Around a fork no SQLite connection is open.

SQLite remembers the locks of its process, and POSIX locks are not inherited. A child would go by its parent's memory:
take for locked what is not, and for its own what it has not, so that somebody else deletes the log it writes to.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

__all__ = ["add"]


class _Store(Protocol):
    def leave(self) -> bool:
        """Close what is open, and keep everybody out until `come_back`. False if it could not be done in time."""

    def come_back(self) -> None:
        """In the parent."""


_stores: weakref.WeakSet[_Store] = weakref.WeakSet()
_forking = threading.local()


def add(store: _Store) -> None:
    _stores.add(store)


def _before() -> None:
    _forking.left = [store for store in list(_stores) if store.leave()]


def _after_in_parent() -> None:
    for store in _forking.left:
        store.come_back()
    _forking.left = []


def _after_in_child() -> None:
    _forking.left = []  # they are the parent's


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
