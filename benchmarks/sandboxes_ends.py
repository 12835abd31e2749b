# SPDX-License-Identifier: Apache-2.0
"""When processes end, seen from outside: a pidfd on each, and one poll, by the clocks that their limits are kept on."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable

from deadstop.boundary.syscalls import prctl

PR_SET_TIMERSLACK = 29


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Watch:
    """Pidfds on processes; `ends` tells when each one ended, on CLOCK_BOOTTIME."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._poll = select.poll()
        self._pids: dict[int, int] = {}
        for pid in pids:
            fd = os.pidfd_open(pid)
            self._pids[fd] = pid
            self._poll.register(fd, select.POLLIN)
        prctl(PR_SET_TIMERSLACK, 1)

    def ends(self, until: float) -> dict[int, float]:
        """pid -> when it ended. Raises RuntimeError if some still live at `until` (CLOCK_BOOTTIME)."""
        found: dict[int, float] = {}
        try:
            while self._pids and (left := until - boottime()) > 0:
                for fd, _ in self._poll.poll(left * 1000):
                    found[self._pids.pop(fd)] = boottime()
                    self._poll.unregister(fd)
                    os.close(fd)
            if self._pids:
                raise RuntimeError(f"{len(self._pids)} processes outlived their limit by far")
        finally:
            for fd in self._pids:
                os.close(fd)
        return found
