# SPDX-License-Identifier: Apache-2.0
"""The supervisor's loop: timers in order, descriptors, changes from within callbacks, and lost time."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Iterator

import pytest

from deadstop import clock
from deadstop.clock import VirtualClock
from deadstop.supervisor.loop import GAP_S, Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def pipes() -> Iterator[Callable[[], tuple[int, int]]]:
    fds: list[int] = []

    def make() -> tuple[int, int]:
        pair = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        fds.extend(pair)
        return pair

    yield make
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            pass


def test_timers_run_in_the_order_of_their_times(loop: Loop) -> None:
    ran: list[int] = []
    with VirtualClock() as time:
        order = list(range(50))
        random.Random(1).shuffle(order)
        for number in order:
            loop.at(time.now + number / 100, lambda number=number: ran.append(number))
        time.advance(1)
        loop.step()
    assert ran == list(range(50))


def test_timers_of_one_time_run_in_the_order_they_were_set(loop: Loop) -> None:
    ran: list[int] = []
    with VirtualClock() as time:
        for number in range(20):
            loop.at(time.now, lambda number=number: ran.append(number))
        loop.step()
    assert ran == list(range(20))


def test_a_timer_never_runs_before_its_time_and_runs_once(loop: Loop, pipes: Callable[[], tuple[int, int]]) -> None:
    ran: list[float] = []
    reading, writing = pipes()
    os.write(writing, b"x")
    loop.watch(reading, lambda: None)  # never read: every step returns at once
    with VirtualClock() as time:
        due = time.now + 1
        loop.at(due, lambda: ran.append(clock.monotonic()))
        for _ in range(20):
            loop.step()
            time.advance(0.125)
    assert ran == [due]


def test_a_cancelled_timer_does_not_run(loop: Loop) -> None:
    ran: list[str] = []
    with VirtualClock() as time:
        first = loop.at(time.now + 1, lambda: ran.append("first"))
        loop.at(time.now + 2, lambda: ran.append("second"))
        first.cancel()
        first.cancel()
        time.advance(3)
        loop.step()
        first.cancel()
    assert ran == ["second"]


def test_a_timer_may_cancel_a_later_one_that_is_due_too(loop: Loop) -> None:
    ran: list[str] = []
    with VirtualClock() as time:
        loop.at(time.now, lambda: later.cancel())
        later = loop.at(time.now, lambda: ran.append("later"))
        loop.at(time.now, lambda: ran.append("last"))
        loop.step()
    assert ran == ["last"]


def test_a_timer_may_set_another_one(loop: Loop) -> None:
    ran: list[str] = []
    began = clock.monotonic()
    loop.at(began + 0.01, lambda: loop.at(clock.monotonic() + 0.02, lambda: ran.append("second")))
    while not ran:
        loop.step()
    assert 0.03 <= clock.monotonic() - began < 1


def test_real_timers_are_kept_to_a_few_milliseconds(loop: Loop) -> None:
    late: list[float] = []
    began = clock.monotonic()
    for number in range(1, 11):
        when = began + number * 0.01
        loop.at(when, lambda when=when: late.append(clock.monotonic() - when))
    while len(late) < 10:
        loop.step()
    assert min(late) >= 0
    assert sorted(late)[5] < 0.02


@pytest.mark.parametrize("seconds", [3e6, 1e10, 1e300])
def test_a_time_further_away_than_the_kernel_counts_does_not_end_the_loop(
    loop: Loop, pipes: Callable[[], tuple[int, int]], seconds: float
) -> None:
    """epoll takes its wait as a C int of milliseconds: 24 days."""
    reading, writing = pipes()
    got: list[bytes] = []
    loop.watch(reading, lambda: got.append(os.read(reading, 10)))
    loop.at(clock.monotonic() + seconds, lambda: None)
    os.write(writing, b"x")
    loop.step()
    assert got == [b"x"]


def test_what_is_due_comes_before_what_is_readable(loop: Loop, pipes: Callable[[], tuple[int, int]]) -> None:
    ran: list[str] = []
    reading, writing = pipes()
    os.write(writing, b"x")
    loop.watch(reading, lambda: ran.append("readable"))
    loop.at(clock.monotonic(), lambda: ran.append("due"))
    loop.step()
    assert ran == ["due", "readable"]


def test_a_timer_that_comes_due_while_descriptors_are_handled_does_not_wait_for_all_of_them(
    loop: Loop, pipes: Callable[[], tuple[int, int]]
) -> None:
    ran: list[str] = []
    with VirtualClock() as time:
        loop.at(time.now + 0.25, lambda: ran.append("timer"))
        for _ in range(4):
            reading, writing = pipes()
            os.write(writing, b"x")
            loop.watch(reading, lambda: (time.advance(0.125), ran.append("read")))
        loop.step()
    assert ran == ["read", "read", "timer", "read", "read"]


def test_readable_writable_and_both_on_one_descriptor(loop: Loop) -> None:
    left, right = socket.socketpair()
    ran: list[str] = []
    with left, right:
        loop.watch(left.fileno(), lambda: ran.append("read"))
        loop.watch_writable(left.fileno(), lambda: ran.append("write"))
        loop.step()
        assert ran == ["write"]
        right.send(b"x")
        loop.step()
        assert ran == ["write", "read", "write"]
        loop.unwatch_writable(left.fileno())
        loop.step()
        assert ran[3:] == ["read"]
        loop.unwatch(left.fileno())
        loop.unwatch(left.fileno())  # more than once is harmless
        loop.at(clock.monotonic(), lambda: ran.append("timer"))
        loop.step()
        assert ran[4:] == ["timer"]


def test_the_end_of_a_pipe_wakes_its_reader(loop: Loop, pipes: Callable[[], tuple[int, int]]) -> None:
    reading, writing = pipes()
    got: list[bytes] = []
    loop.watch(reading, lambda: got.append(os.read(reading, 10)))
    os.close(writing)
    loop.step()
    assert got == [b""]


def test_a_gone_reader_wakes_the_one_who_waits_to_write(loop: Loop, pipes: Callable[[], tuple[int, int]]) -> None:
    reading, writing = pipes()
    try:
        while True:
            os.write(writing, bytes(65536))
    except BlockingIOError:
        pass
    ran: list[bool] = []
    loop.watch_writable(writing, lambda: ran.append(True))
    os.close(reading)
    loop.step()
    assert ran == [True]


def test_watching_again_replaces_the_callback(loop: Loop, pipes: Callable[[], tuple[int, int]]) -> None:
    reading, writing = pipes()
    ran: list[str] = []
    loop.watch(reading, lambda: ran.append("old"))
    loop.watch(reading, lambda: ran.append("new"))
    os.write(writing, b"x")
    loop.step()
    assert ran == ["new"]


def test_a_callback_may_unwatch_another_that_is_ready_too(loop: Loop, pipes: Callable[[], tuple[int, int]]) -> None:
    ran: list[int] = []
    pairs = [pipes() for _ in range(5)]

    def only_one(mine: int) -> None:
        ran.append(mine)
        for reading, _ in pairs:
            loop.unwatch(reading)

    for reading, writing in pairs:
        os.write(writing, b"x")
        loop.watch(reading, lambda mine=reading: only_one(mine))
    loop.step()
    assert len(ran) == 1


def test_a_callback_may_unwatch_and_close_itself(loop: Loop, pipes: Callable[[], tuple[int, int]]) -> None:
    reading, writing = pipes()
    os.write(writing, b"x")
    ran: list[bool] = []

    def end() -> None:
        ran.append(True)
        loop.unwatch(reading)
        os.close(reading)

    loop.watch(reading, end)
    loop.step()
    loop.at(clock.monotonic(), lambda: None)
    loop.step()
    assert ran == [True]


def test_a_number_taken_again_in_a_callback_is_not_mistaken_for_the_old_one(
    loop: Loop, pipes: Callable[[], tuple[int, int]]
) -> None:
    """A closed descriptor's number may stand for something new by the time a stale event for it is handled."""
    ran: list[str] = []
    first_read, first_write = pipes()
    second_read, second_write = pipes()
    quiet_read, _quiet_write = pipes()

    def replace(other: int) -> Callable[[], None]:
        def run() -> None:
            ran.append("first")
            loop.unwatch(other)
            os.dup2(quiet_read, other)  # the number lives on, and is not readable
            os.set_blocking(other, False)
            loop.watch(other, lambda: os.read(other, 1))

        return run

    os.write(first_write, b"x")
    os.write(second_write, b"x")
    loop.watch(first_read, replace(second_read))
    loop.watch(second_read, replace(first_read))
    try:
        loop.step()
    except BlockingIOError:
        pytest.fail("a stale event reached the new owner of the number: its callback must expect to find nothing")
    assert ran == ["first"]


def test_a_callback_may_watch_a_new_descriptor(loop: Loop, pipes: Callable[[], tuple[int, int]]) -> None:
    first_read, first_write = pipes()
    second_read, second_write = pipes()
    ran: list[str] = []
    os.write(first_write, b"x")
    os.write(second_write, b"x")

    def first() -> None:
        loop.unwatch(first_read)
        loop.watch(second_read, lambda: ran.append("second"))

    loop.watch(first_read, first)
    loop.step()
    loop.step()
    assert ran == ["second"]


def test_time_in_which_it_should_have_run_is_counted(loop: Loop) -> None:
    with VirtualClock() as time:
        loop.at(time.now + 0.5, lambda: None)
        time.advance(0.5 + GAP_S + 2)
        loop.step()
        assert loop.gap_s == pytest.approx(GAP_S + 2)
        loop.at(time.now, lambda: None)
        loop.step()
        assert loop.gap_s == pytest.approx(GAP_S + 2)


def test_ordinary_lateness_is_no_gap(loop: Loop) -> None:
    with VirtualClock() as time:
        for _ in range(20):
            loop.at(time.now, lambda: None)
            time.advance(GAP_S * 0.9)
            loop.step()
    assert loop.gap_s == 0.0


def test_a_loop_without_timers_waits_without_counting_a_gap(loop: Loop, pipes: Callable[[], tuple[int, int]]) -> None:
    import threading

    reading, writing = pipes()
    loop.watch(reading, lambda: os.read(reading, 1))
    timer = threading.Timer(GAP_S + 0.1, os.write, (writing, b"x"))
    timer.start()
    loop.step()
    timer.join(5)
    assert loop.gap_s == 0.0


def test_a_stale_event_reaches_neither_the_old_reader_nor_the_new_one_of_a_number(
    loop: Loop, pipes: Callable[[], tuple[int, int]]
) -> None:
    """Two are ready in one batch; the first closes the second, and a new, silent pipe gets its number."""
    ran: list[str] = []
    pairs = [pipes(), pipes()]

    def replace(other: int) -> None:
        ran.append("first")
        loop.unwatch(other)
        os.close(other)
        taken = min(pipes())  # the lowest free number
        assert taken == other
        loop.watch(taken, lambda: ran.append("new"))

    for (reading, writing), (other, _) in zip(pairs, reversed(pairs), strict=True):
        os.write(writing, b"x")
        loop.watch(reading, lambda other=other: replace(other))
    loop.step()
    assert ran == ["first"]
