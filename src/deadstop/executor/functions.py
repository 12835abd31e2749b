# SPDX-License-Identifier: Apache-2.0
"""How each function is sent to workers: by its importable name, or by value, each time anew unless it cannot change."""

from __future__ import annotations

import itertools
import os
import types
from pickle import dumps
from typing import TYPE_CHECKING, Any

from ..closures import Held, pack_function, reference, same, snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

# What a RUN packet calls: a number that was loaded, a number with the name to look up, or the function itself.
Target = int | tuple[int, tuple[str, str, str | None] | None] | bytes

_numbers = itertools.count(1)


_first_seen: dict[str, int] = {}


def changed_since_first_use(module: str, file: str | None) -> bool:
    """Whether a module's file is another one than when a function of it was first sent: it was reloaded."""
    try:
        now = os.stat(file).st_mtime_ns if file else 0
    except OSError:
        now = 0
    return _first_seen.setdefault(module, now) != now


class Parts(bytes):
    """The number of a function, and what it holds now."""


class Sent:
    """One function on its way. `target()` says what a RUN packet calls, and what must have been loaded for it."""

    __slots__ = ("_bare", "_body", "_by_name", "_number", "_unchanging", "_whole_module", "function", "module", "place")

    def __init__(self, function: Callable[..., Any], *, whole_module: bool) -> None:
        self.function, self._whole_module = function, whole_module
        place = None if whole_module else reference(function)
        if place is not None and changed_since_first_use(place[0], place[2]):
            place, whole_module = None, True  # workers may have what was there before
            self._whole_module = True
        self._by_name = place is not None
        self.place = place
        self.module = place[0] if place else None
        self._number = next(_numbers)
        # Each set as one, for threads that send the same function at once: what it consisted of, its number, its LOAD.
        self._unchanging: tuple[tuple[Any, ...], int, bytes] | None = None
        self._bare: tuple[tuple[Any, ...], int, bytes] | None = None
        self._body = dumps((self._number, place, None), 5) if place else b""

    def target(self) -> tuple[int, Target, bytes]:
        """(number that has to be known to the worker, what to call, LOAD body that makes it known).

        Raises UsageError for a function that cannot be sent.
        """
        if self._by_name:
            return self._number, self._number, self._body
        function = self.function
        now = snapshot(function) if type(function) is types.FunctionType else None
        known = self._unchanging
        if now is not None and known is not None and same(known[0], now):
            return known[1], known[1], known[2]
        if now is None and not self._whole_module and (found := self._parts()) is not None:
            return found
        packed = pack_function(function, whole_module=self._whole_module)
        if now is not None:
            number = next(_numbers)
            body = dumps((number, None, packed), 5)
            self._unchanging = now, number, body
            return number, number, body
        # It holds something that may change: it goes along with every call. Loaded once before, for its imports.
        return self._number, packed, dumps((self._number, None, packed), 5)

    def _parts(self) -> tuple[int, Target, bytes] | None:
        """The function without what may change in it is loaded once, and that goes along with each call."""
        function: Any = self.function
        if type(function) is not types.FunctionType or function.__kwdefaults__ or function.__dict__:
            return None
        try:
            held = Held(function)
        except ValueError:
            return None
        bare = self._bare
        if bare is None or not same(bare[0], held.fixed):
            if held.packed(0) is None:
                return None
            number = next(_numbers)
            body = dumps((number, None, pack_function(held.without(function))), 5)
            bare = self._bare = held.fixed, number, body
        _, number, body = bare
        packed = held.packed(number)
        return None if packed is None else (number, Parts(packed), body)
