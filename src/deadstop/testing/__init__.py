# SPDX-License-Identifier: Apache-2.0
"""For tests of programs that use deadstop: a service that loses answers, and deaths at chosen places.

`Authority` is a real HTTP server with a record of its own of what it has done (authority.py says how it can be made to
behave). `crash_at("http.written")` is the environment of a process that dies there (crashing.py).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .authority import Authority as Authority
    from .behaviour import WORDS as WORDS
    from .behaviour import Behaviour as Behaviour
    from .crashing import CRASH_POINTS as CRASH_POINTS
    from .crashing import crash_at as crash_at
    from .crashing import note_points as note_points
    from .crashing import points_passed as points_passed
    from .record import effects_in as effects_in

# Loaded when used, so that `python -m deadstop.testing.authority` does not find itself loaded already.
_HOME = {
    "Authority": "authority", "Behaviour": "behaviour", "CRASH_POINTS": "crashing", "WORDS": "behaviour",
    "crash_at": "crashing", "effects_in": "record", "note_points": "crashing", "points_passed": "crashing",
}  # fmt: skip

__all__ = [
    "CRASH_POINTS",
    "WORDS",
    "Authority",
    "Behaviour",
    "crash_at",
    "effects_in",
    "note_points",
    "points_passed",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
