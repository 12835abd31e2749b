# SPDX-License-Identifier: Apache-2.0
"""Sources that nest deep, such as a sum of a thousand terms: the compiler takes them, so the guard must too."""

from __future__ import annotations

import builtins
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

__all__ = ["deep_enough"]

_DEEP = 20_000
_one_at_a_time = threading.Lock()


def deep_enough(make: Callable[[], T], source: str, mode: str) -> T:
    """`make()`, once more with a higher recursion limit if it needs that and the plain compiler takes the source.

    The compiler's own limit is what keeps the C stack whole: what it takes is at most some three thousand deep.
    """
    try:
        return make()
    except RecursionError:
        builtins.compile(source, "<depth>", mode, dont_inherit=True)
    with _one_at_a_time:
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(max(before, _DEEP))
        try:
            return make()
        finally:
            sys.setrecursionlimit(before)
