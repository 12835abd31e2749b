# SPDX-License-Identifier: Apache-2.0
"""What a payload prints: counted whole, kept as a bounded tail, handed on as it comes, never waited for.

Nothing here can be made to grow by a payload. When whoever receives the stream is slow, reading stops until it has
taken what there is; the payload then blocks in its own write, as it would on any full pipe, and its deadline goes on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from ..results import Output
from .loop import Loop

CHUNK = 65536
Source = tuple[str, int, int | None]  # stream, our reading end, the payload's side of a terminal
# After the end nothing writes any more, so what is left is at most what the pipe holds (a payload can enlarge it).
DRAIN_BYTES = 16 << 20


class Sink(Protocol):
    """Where output goes as it comes. `write` never blocks; while `full`, no more is read."""

    def write(self, stream: str, data: bytes) -> None: ...
    def full(self, stream: str) -> bool: ...
    def broken(self, stream: str) -> bool: ...


class Tail:
    """The last bytes of a stream, and how many there were in all."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self.total = 0
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        self.total += len(data)
        self._bytes += data[-self.keep :] if self.keep else b""
        if len(self._bytes) > 2 * self.keep:
            del self._bytes[: -self.keep or None]

    def last(self, size: int | None = None) -> bytes:
        size = self.keep if size is None else min(size, self.keep)
        return bytes(self._bytes[-size:]) if size else b""

    def output(self) -> Output:
        kept = self.last()
        return Output(kept, self.total, self.total - len(kept))


class Pump:
    """Reads one pipe or terminal of a call. `on_data` is told how many bytes came.

    With a terminal the payload's side of it is kept open, too: while nobody has that side open reading fails as if
    it were over, though the payload may open it again.
    """

    def __init__(
        self, loop: Loop, source: Source, keep: int, sink: Sink | None, on_data: Callable[[int], None]
    ) -> None:
        self.loop, self.sink, self.on_data = loop, sink, on_data
        self.name, fd, self._other_side = source
        self.fd = fd
        self.tail = Tail(keep)
        os.set_blocking(fd, False)
        loop.watch(fd, self.read)

    @property
    def open(self) -> bool:
        return self.fd >= 0

    def read(self) -> bool:
        """One read; False when there is nothing (more) now."""
        if not self.open or (self.sink and self.sink.full(self.name)):
            self.pause()
            return False
        try:
            data = os.read(self.fd, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self._take(data)
        return True

    def _take(self, data: bytes) -> None:
        self.tail.feed(data)
        if self.sink:
            self.sink.write(self.name, data)
            if self.sink.broken(self.name):
                self.close()  # the reader of our output is gone: let the payload meet the same SIGPIPE
        self.on_data(len(data))

    def restart(self) -> None:
        """Count and keep from here on."""
        self.tail = Tail(self.tail.keep)

    def pause(self) -> None:
        if self.open:
            self.loop.unwatch(self.fd)

    def resume(self) -> None:
        if self.open:
            self.loop.watch(self.fd, self.read)

    def drain(self) -> None:
        """Take what is there now, then close; never wait for end-of-file. For when nothing inside writes any more."""
        end = self.tail.total + DRAIN_BYTES
        sink, self.sink = self.sink, None
        while self.open and self.tail.total < end:
            try:
                data = os.read(self.fd, CHUNK)
            except OSError:
                break
            if not data:
                break
            self.tail.feed(data)
            if sink and not sink.broken(self.name):
                sink.write(self.name, data)
        self.close()

    def close(self) -> None:
        if self.open:
            self.loop.unwatch(self.fd)
            os.close(self.fd)
            self.fd = -1
            if self._other_side is not None:
                os.close(self._other_side)
