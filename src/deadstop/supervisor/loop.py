# SPDX-License-Identifier: Apache-2.0
"""One thread, one poll, one heap of times: what keeps every deadline.

No asyncio: it starts slower than a whole call.
"""

from __future__ import annotations

import heapq
import os
import select
import time
from collections import deque
from collections.abc import Callable

from .. import clock
from ..boundary import timers

# The loop woke up this much later than it meant to: this process itself was stopped, or the machine slept.
GAP_S = 0.25
PRECISE_S = 1.0  # waits shorter than this end to the microsecond: epoll alone rounds up to the next millisecond
CHORE_S = 0.05
TIDY_FROM = 256  # timers; most are cancelled long before their time, and would stay until then
LONGEST_WAIT_S = 86_400.0  # what epoll takes is bounded; waking for nothing once a day is not a cost


class Timer:
    """A call to be made at a time; `cancel` forgets it."""

    __slots__ = ("callback", "when")

    def __init__(self, when: float, callback: Callable[[], object]) -> None:
        self.when = when
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Loop:
    """Watches descriptors and times. Callbacks never block. What is due is done before what is readable."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._alarm = timers.Timer(timers.create())
        self._armed: float | None = None
        self._poll.register(self._alarm.fd, select.EPOLLIN | select.EPOLLET)
        self._readers: dict[int, Callable[[], object]] = {}
        self._writers: dict[int, Callable[[], object]] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._count = 0
        self._tidy_at = TIDY_FROM
        self._chores: deque[tuple[float, Callable[[], object]]] = deque()
        self.on_error: Callable[[Exception], object] | None = None  # where one call's trouble must not end the others
        self.children: set[int] = set()  # processes of ours that a sweep for orphans must spare, with all below them
        self.gap_s = 0.0  # total time this process did not run when it should have

    def watch(self, fd: int, callback: Callable[[], object]) -> None:
        self._change(fd, self._readers, callback)

    def watch_writable(self, fd: int, callback: Callable[[], object]) -> None:
        self._change(fd, self._writers, callback)

    def unwatch(self, fd: int) -> None:
        self._change(fd, self._readers, None)

    def unwatch_writable(self, fd: int) -> None:
        self._change(fd, self._writers, None)

    def _change(self, fd: int, table: dict[int, Callable[[], object]], callback: Callable[[], object] | None) -> None:
        known = fd in self._readers or fd in self._writers
        if callback is None:
            table.pop(fd, None)
        else:
            table[fd] = callback
        events = (select.EPOLLIN if fd in self._readers else 0) | (select.EPOLLOUT if fd in self._writers else 0)
        if events and known:
            self._poll.modify(fd, events)
        elif events:
            self._poll.register(fd, events)
        elif known:
            self._poll.unregister(fd)

    def at(self, when: float, callback: Callable[[], object]) -> Timer:
        timer = Timer(when, callback)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, timer))
        if len(self._timers) > self._tidy_at:
            self._timers = [entry for entry in self._timers if entry[2].callback is not None]
            heapq.heapify(self._timers)
            self._tidy_at = max(TIDY_FROM, 2 * len(self._timers))
        return timer

    def later(self, chore: Callable[[], object], *, urgent: bool = False) -> None:
        """Do this when nothing else is to be done, one such thing at a time, but do it within CHORE_S.

        For what takes milliseconds and is not urgent: a deadline must not wait behind twenty new boundaries. What is
        `urgent` is still one thing at a time between others, but comes next.
        """
        if urgent:
            self._chores.appendleft((clock.monotonic(), chore))
        else:
            self._chores.append((clock.monotonic() + CHORE_S, chore))

    def step(self) -> None:
        """Wait for the next thing that happens and handle it."""
        due = self._next_due()
        if self._chores:
            due = clock.monotonic() if due is None else min(due, clock.monotonic())
        wait = LONGEST_WAIT_S if due is None else min(LONGEST_WAIT_S, max(0.0, due - clock.monotonic()))
        if due is not None and 0 < wait < PRECISE_S and due != self._armed:
            self._alarm.arm(due)
            self._armed = due
        asleep_before = time.clock_gettime(time.CLOCK_BOOTTIME) - clock.monotonic()
        events = self._poll.poll(wait)
        now = clock.monotonic()
        if due is not None and now - due > GAP_S:
            self.gap_s += now - due
        asleep = time.clock_gettime(time.CLOCK_BOOTTIME) - now - asleep_before
        if asleep > GAP_S:
            self.gap_s += asleep
        # A callback may close a descriptor and another may get its number: only who was watching then is told.
        told = [(fd, event, self._readers.get(fd), self._writers.get(fd)) for fd, event in events]
        self._run_timers(now)
        for fd, event, reader, writer in told:
            if event & ~select.EPOLLOUT and reader and self._readers.get(fd) is reader:
                self._call(reader)
            if event & ~select.EPOLLIN and writer and self._writers.get(fd) is writer:
                self._call(writer)
            self._run_timers(clock.monotonic())
        if self._chores and (not told or self._chores[0][0] <= now):
            self._call(self._chores.popleft()[1])

    def _call(self, callback: Callable[[], object]) -> None:
        if self.on_error is None:
            callback()
            return
        try:
            callback()
        except Exception as problem:
            self.on_error(problem)

    def _next_due(self) -> float | None:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def _run_timers(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if timer.callback is not None:
                callback, timer.callback = timer.callback, None
                self._call(callback)

    def close(self) -> None:
        self._poll.close()
        os.close(self._alarm.fd)
