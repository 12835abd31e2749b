# SPDX-License-Identifier: Apache-2.0
"""The tail of a stream, and the pump that fills it from a real pipe."""

from __future__ import annotations

import fcntl
import os
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deadstop.clock import monotonic
from deadstop.supervisor.loop import Loop
from deadstop.supervisor.output import DRAIN_BYTES, Pump, Tail


@given(keep=st.integers(0, 50), chunks=st.lists(st.binary(max_size=120), max_size=30))
def test_the_last_bytes_of_any_chunking(keep: int, chunks: list[bytes]) -> None:
    tail, whole = Tail(keep), b""
    for chunk in chunks:
        tail.feed(chunk)
        whole += chunk
        expected = whole[-keep:] if keep else b""
        assert (tail.last(), tail.total) == (expected, len(whole))
    output = tail.output()
    assert output.raw == (whole[-keep:] if keep else b"")
    assert (output.bytes_total, output.bytes_dropped) == (len(whole), len(whole) - len(output.raw))
    assert output.truncated == (len(whole) > keep)


@given(keep=st.integers(0, 30), size=st.integers(0, 60), data=st.binary(max_size=200))
def test_last_of_a_size(keep: int, size: int, data: bytes) -> None:
    tail = Tail(keep)
    tail.feed(data)
    wanted = min(size, keep)
    assert tail.last(size) == (data[-wanted:] if wanted else b"")


def test_a_flood_takes_no_more_memory_than_twice_the_tail_and_a_chunk() -> None:
    tail, chunk = Tail(1 << 16), bytes(1 << 16)
    tracemalloc.start()
    try:
        for _ in range(2000):
            tail.feed(chunk)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert tail.total == 2000 << 16
    assert peak < 6 << 16


class Slow:
    """A sink that is full or broken when told so."""

    def __init__(self) -> None:
        self.got, self.is_full, self.is_broken = b"", False, False

    def write(self, stream: str, data: bytes) -> None:
        self.got += data

    def full(self, stream: str) -> bool:
        return self.is_full

    def broken(self, stream: str) -> bool:
        return self.is_broken


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """(read end, which the pump closes; write end)."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    yield reading, writing
    for fd in (reading, writing):
        try:
            os.close(fd)
        except OSError:
            pass


def run_until(loop: Loop, check: object, within: float = 5) -> None:
    end = monotonic() + within
    loop.at(end, lambda: None)
    while not check() and monotonic() < end:  # type: ignore[operator]
        loop.step()
    assert check()  # type: ignore[operator]


def test_a_pump_counts_keeps_and_hands_on(loop: Loop, pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    sizes: list[int] = []
    sink = Slow()
    pump = Pump(loop, ("stdout", reading, None), 4, sink, sizes.append)
    os.write(writing, b"abcdef")
    run_until(loop, lambda: pump.tail.total == 6)
    os.close(writing)
    run_until(loop, lambda: not pump.open)
    assert (pump.tail.last(), sink.got, sum(sizes)) == (b"cdef", b"abcdef", 6)


def test_nothing_is_read_while_the_sink_is_full(loop: Loop, pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    sink = Slow()
    sink.is_full = True
    pump = Pump(loop, ("stdout", reading, None), 100, sink, lambda size: None)
    os.write(writing, b"wait")
    woken: list[bool] = []
    loop.at(monotonic() + 0.05, lambda: woken.append(True))
    run_until(loop, lambda: woken)
    assert pump.tail.total == 0
    sink.is_full = False
    pump.resume()
    run_until(loop, lambda: pump.tail.total == 4)
    assert sink.got == b"wait"


def test_a_broken_sink_closes_the_pipe_so_that_the_writer_learns_of_it(loop: Loop, pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    sink = Slow()
    sink.is_broken = True
    pump = Pump(loop, ("stdout", reading, None), 100, sink, lambda size: None)
    os.write(writing, b"x")
    run_until(loop, lambda: not pump.open)
    with pytest.raises(BrokenPipeError):
        os.write(writing, b"y")


def test_drain_takes_what_is_there_and_does_not_wait_for_the_end(loop: Loop, pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    size = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 1 << 20)
    sink = Slow()
    pump = Pump(loop, ("stdout", reading, None), 10, sink, lambda size: None)
    os.set_blocking(writing, False)
    written = os.write(writing, b"x" * (size - 3)) + os.write(writing, b"end")
    began = monotonic()
    pump.drain()  # the writing end is still open
    assert monotonic() - began < 1
    assert pump.tail.total == written == len(sink.got)
    assert pump.tail.last() == b"xxxxxxxend"
    assert not pump.open


def test_drain_is_bounded_against_a_writer_that_never_stops(loop: Loop, pipe: tuple[int, int]) -> None:
    import subprocess

    reading, writing = pipe
    pump = Pump(loop, ("stdout", reading, None), 10, None, lambda size: None)
    with subprocess.Popen(["yes"], stdout=writing) as flood:
        run_until(loop, lambda: pump.tail.total > 0)
        before = pump.tail.total
        pump.drain()
        flood.kill()
    assert pump.tail.total - before <= DRAIN_BYTES + 65536


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """(our side, the payload's side); a pump closes both."""
    sides = os.openpty()
    yield sides
    for fd in sides:
        try:
            os.close(fd)
        except OSError:
            pass


def test_a_terminal_that_everybody_closed_is_read_on_when_it_is_opened_again(
    loop: Loop, terminal: tuple[int, int]
) -> None:
    ours, theirs = terminal
    name = os.ttyname(theirs)
    pump = Pump(loop, ("stdout", ours, theirs), 100, None, lambda size: None)
    said = b""
    for word in (b"one,", b"two,", b"three"):
        payload = os.open(name, os.O_RDWR | os.O_NOCTTY)
        os.write(payload, word)
        os.close(payload)
        said += word
        run_until(loop, lambda said=said: pump.tail.total == len(said))
        assert pump.read() is False  # nothing now, and neither an end nor EIO
        assert pump.open
    assert pump.tail.last() == b"one,two,three"


def test_a_pump_closes_both_sides_of_a_terminal(loop: Loop, terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    pump = Pump(loop, ("stdout", ours, theirs), 100, None, lambda size: None)
    os.write(theirs, b"bye")
    pump.drain()
    assert pump.tail.last() == b"bye" and not pump.open
    for fd in terminal:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    pump.close()  # a second time is harmless
