# SPDX-License-Identifier: Apache-2.0
"""The page of memory through which a caller tells the supervisor when its workers' calls must have ended.

One slot per worker: the deadline of the call that is running there (seconds on CLOCK_MONOTONIC; 0 when none is, and
infinity for one without a limit) and how long before it the supervisor should take evidence. Writing it costs no
system call, which is why a limit costs next to nothing. The supervisor writes there how many bytes the worker has
printed. The workers cannot see it.
"""

from __future__ import annotations

import mmap
import os

SLOTS = 1024
SIZE = SLOTS * 24


class Page:
    """The memory itself, mapped by both sides."""

    def __init__(self, fd: int | None = None) -> None:
        """The caller makes it; the supervisor maps what it was sent. The descriptor stays the giver's to close."""
        self.fd = -1
        if fd is None:
            self.fd = fd = os.memfd_create("deadstop-slots", os.MFD_CLOEXEC)
            os.ftruncate(fd, SIZE)
        self.cells = memoryview(mmap.mmap(fd, SIZE)).cast("d")


class Slot:
    """One worker's place in the page."""

    __slots__ = ("_cells", "_place", "number")

    def __init__(self, page: Page, number: int) -> None:
        self._cells, self._place, self.number = page.cells, 3 * number, number

    def begin(self, deadline: float, lead: float) -> None:
        self._cells[self._place + 1] = lead
        self._cells[self._place] = deadline

    def end(self) -> None:
        self._cells[self._place] = 0.0

    def read(self) -> tuple[float, float]:
        """(deadline, lead)."""
        return self._cells[self._place], self._cells[self._place + 1]

    @property
    def printed(self) -> float:
        """Bytes that the supervisor has read of what the worker printed, ever."""
        return self._cells[self._place + 2]

    def print(self, size: float) -> None:
        self._cells[self._place + 2] += size

    def reset(self) -> None:
        """For another worker."""
        self._cells[self._place] = self._cells[self._place + 2] = 0.0
