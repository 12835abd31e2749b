# SPDX-License-Identifier: Apache-2.0
"""Passing a payload's output on to our own stdout and stderr without ever blocking on a slow reader.

Setting O_NONBLOCK on an inherited descriptor would change it for every other program that has it. So pipes and
terminals are opened a second time through /proc/self/fd, which makes an open file of our own. Regular files never
block and are written as they are (a second opening would have its own position). Where reopening is refused, writes
stay within what a descriptor that polls writable takes at once.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Callable

from .. import clock
from ..supervisor.loop import Loop

BUFFER = 65536
SAFE_WRITE = 4096  # PIPE_BUF: what a writable pipe takes without blocking


class Writer:
    """One destination: a bounded buffer and a descriptor that does not block."""

    def __init__(self, loop: Loop, fd: int, drained: Callable[[], None]) -> None:
        self.loop, self.drained = loop, drained
        self.broken = False
        self._pending = bytearray()
        self._watched = False
        self.fd, self._regular, self._chunk = _open_again(fd)

    @property
    def full(self) -> bool:
        return len(self._pending) >= BUFFER

    @property
    def pending(self) -> int:
        return len(self._pending)

    def write(self, data: bytes) -> None:
        if not self.broken:
            self._pending += data
            self.flush()

    def flush(self) -> None:
        """Write what the descriptor takes now; be called again when it takes more."""
        was_full = self.full
        try:
            while self._pending and (self._regular or _writable(self.fd)):
                del self._pending[: os.write(self.fd, self._pending[: self._chunk])]
        except BlockingIOError:
            pass
        except OSError:
            self.broken = True  # nobody reads any more
            self._pending.clear()
        self._watch(bool(self._pending))
        if was_full and not self.full:
            self.drained()

    def _watch(self, wanted: bool) -> None:
        if wanted and not self._watched:
            self.loop.watch_writable(self.fd, self.flush)
        elif self._watched and not wanted:
            self.loop.unwatch_writable(self.fd)
        self._watched = wanted

    def finish(self, seconds: float) -> int:
        """Hand over the rest, but not for ever: how many bytes were given up on."""
        end = clock.monotonic() + seconds
        while self._pending and (left := end - clock.monotonic()) > 0:
            if select.select([], [self.fd], [], left)[1]:
                self.flush()
        self._watch(False)
        lost = len(self._pending)
        self.broken = self.broken or lost > 0  # whoever did not read until now gets no more
        self._pending.clear()
        return lost


class StandardStreams:
    """The sink of `deadstop run`: stdout to stdout, stderr to stderr."""

    def __init__(self, loop: Loop, drained: Callable[[], None]) -> None:
        self._writers = {"stdout": Writer(loop, 1, drained), "stderr": Writer(loop, 2, drained)}

    def write(self, stream: str, data: bytes) -> None:
        self._writers[stream].write(data)

    def full(self, stream: str) -> bool:
        return self._writers[stream].full

    def broken(self, stream: str) -> bool:
        return self._writers[stream].broken

    def finish(self, seconds: float) -> int:
        """Hand over the rest within this time; how many bytes were given up on."""
        end = clock.monotonic() + seconds
        return sum(writer.finish(end - clock.monotonic()) for writer in self._writers.values())


def _open_again(fd: int) -> tuple[int, bool, int]:
    """(descriptor, whether it is a regular file, how much to write at once)."""
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd, True, BUFFER
    if not stat.S_ISSOCK(mode):
        try:
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
            return os.open(f"/proc/self/fd/{fd}", flags), False, BUFFER
        except OSError:
            pass
    return fd, False, SAFE_WRITE


def _writable(fd: int) -> bool:
    return bool(select.select([], [fd], [], 0)[1])
