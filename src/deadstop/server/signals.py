# SPDX-License-Identifier: Apache-2.0
"""Signals by name."""

from __future__ import annotations

import signal

from ..errors import UsageError

__all__ = ["signal_number"]


def signal_number(asked: str | float) -> int:
    """Of SIGINT, INT, int or 2. Raises UsageError."""
    if not isinstance(asked, str):
        return int(asked)
    name = asked.upper()
    found = getattr(signal, name if name.startswith("SIG") else f"SIG{name}", None)
    if not isinstance(found, signal.Signals):
        raise UsageError(f"signal: {asked!r:.40} is none")
    return int(found)
