# SPDX-License-Identifier: Apache-2.0
"""Those that a SIGKILL did not end."""

from __future__ import annotations

from collections.abc import Iterable

from ..boundary.cgroup import read
from ..results import Unkillable


def stuck(pids: Iterable[int]) -> list[Unkillable]:
    """What each of them is, and what it waits in."""
    found = []
    for pid in pids:
        command = read(f"/proc/{pid}/comm").strip()
        found.append(Unkillable(pid, command, read(f"/proc/{pid}/wchan").strip("0 \n") or None))
    return found
