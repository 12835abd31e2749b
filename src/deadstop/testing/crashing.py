# SPDX-License-Identifier: Apache-2.0
"""Let a process die at a chosen place, to see what its successor makes of what it left."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ..errors import UsageError
from ..ledger.crash import AT_VARIABLE, RECORD_VARIABLE

__all__ = ["CRASH_POINTS", "crash_at", "note_points", "points_passed"]

#: The places of a write over HTTP, in the order in which one that goes well passes them.
CRASH_POINTS = (
    "submit.before_commit",
    "submit.committed",
    "claim.committed",
    "http.connected",
    "http.half_written",
    "http.written",
    "http.half_read",
    "http.replied",
    "finish.in_transaction",
    "finish.committed",
)


def crash_at(point: str, n: int = 1, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """`env` (os.environ if None) for a process that kills itself with SIGKILL when it passes `point` the n-th time.

    Points beyond those of CRASH_POINTS exist (reconciling, delivery, ...); a misspelt one is never passed, so have the
    test see that the process died. Raises UsageError for a name without a dot or a count below one.
    """
    if "." not in point or ":" in point or n < 1:
        raise UsageError(f"crash_at({point!r:.60}, {n!r:.20}): give a point such as 'http.written' and a count from 1")
    return {**_environment(env), AT_VARIABLE: f"{point}:{n}"}


def note_points(file: str | Path, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """`env` for a process that notes in `file` every point it passes."""
    return {**_environment(env), RECORD_VARIABLE: str(file)}


def points_passed(file: str | Path) -> list[str]:
    """What was noted, in order; [] if nothing was."""
    path = Path(file)
    return path.read_text().split() if path.exists() else []


def _environment(env: Mapping[str, str] | None) -> dict[str, str]:
    return dict(os.environ if env is None else env)
