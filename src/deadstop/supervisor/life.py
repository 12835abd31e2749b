# SPDX-License-Identifier: Apache-2.0
"""How long kept boundaries may live: a TTL each, on CLOCK_BOOTTIME, and apart from it an idle time.

One heap and one timer descriptor for all of them: a life costs nothing until it is over, however many there are. The
clock goes on while the machine sleeps, and the timer fires when it wakes. Nothing moves the end of a life but `extend`.
"""

from __future__ import annotations

import heapq
import os
import time
from typing import TYPE_CHECKING

from .. import clock
from ..boundary import timers
from ..clock import boottime
from ..results import FiredLimit
from .call import EVIDENCE_S

if TYPE_CHECKING:
    from .loop import Loop
    from .room import Room

TIDY_FROM = 256  # entries of the heap
LOOKED_AT = 16  # commands of one boundary whose evidence is read at its end


class Lives:
    """All of one supervisor."""

    def __init__(self, loop: Loop) -> None:
        self._timer = timers.Timer(timers.create(time.CLOCK_BOOTTIME))
        self._heap: list[tuple[float, int, Life]] = []
        self._count = 0
        self._tidy_at = TIDY_FROM
        loop.watch(self._timer.fd, self._fired)

    def wake(self, when: float, life: Life) -> None:
        """Have `life.look` called then, or earlier: one that is to be woken before that looks, and asks again."""
        if when >= life.wakes_at:
            return
        life.wakes_at = when
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, life))
        if len(self._heap) > self._tidy_at:  # of what was killed nothing is to stay until its life would have ended
            self._heap = [entry for entry in self._heap if entry[0] == entry[2].wakes_at and not entry[2].over]
            heapq.heapify(self._heap)
            self._tidy_at = max(TIDY_FROM, 2 * len(self._heap))
        self._arm()

    def _arm(self) -> None:
        """For the first of all: whoever it was that moved."""
        if self._heap and self._heap[0][0] != self._timer.armed:
            self._timer.arm(self._heap[0][0])

    def _fired(self) -> None:
        try:
            os.read(self._timer.fd, 8)
        except BlockingIOError:
            return
        self._timer.armed = 0.0
        try:
            while self._heap and self._heap[0][0] <= boottime():
                when, _, life = heapq.heappop(self._heap)
                if when == life.wakes_at:  # else it was to be woken earlier, and was
                    life.wakes_at = float("inf")
                    life.look()
        finally:
            self._arm()  # also if one of them could not be looked at: the others' times are kept


class Life:
    """The life of one room. `expires_at` is a point on CLOCK_BOOTTIME; `idle` the seconds it may do nothing."""

    def __init__(self, lives: Lives, room: Room, expires_at: float, ttl: float, idle: float | None) -> None:
        self.lives, self.room = lives, room
        self.expires_at, self.ttl, self.idle = expires_at, ttl, idle
        self.last_used = boottime()
        self._warned_of: float | None = None
        self.wakes_at = float("inf")  # the one entry of the heap that counts
        lives.wake(self._next(), self)

    @property
    def over(self) -> bool:
        return self.room.ended or self.room.kill_at is not None

    def extend(self, expires_at: float, ttl: float, idle: float | None) -> bool:
        """The new end, unless it is over: the one line at which an extension and the end of a life are told apart."""
        if self.over or boottime() >= self.expires_at:
            return False
        self.expires_at, self.ttl, self.idle = expires_at, ttl, idle
        self.lives.wake(self._next(), self)
        return True

    def touch(self) -> None:
        self.last_used = boottime()

    def _idle_end(self) -> float:
        """Never while a command runs: every look at the time finds it in use. It counts from the end of the last."""
        if self.idle is None:
            return float("inf")
        if self.room.calls:
            self.last_used = boottime()
        elif self.room.left_at is not None:
            self.last_used = max(self.last_used, boottime() - (clock.monotonic() - self.room.left_at))
        return self.last_used + self.idle

    def _next(self) -> float:
        lead = self.expires_at - EVIDENCE_S
        return min(lead if self._warned_of != self.expires_at else self.expires_at, self._idle_end())

    def look(self) -> None:
        if self.over:
            return
        now = boottime()
        if now >= self.expires_at:
            self._end("ttl", FiredLimit("ttl", self.ttl, "given"))
        elif now >= self._idle_end():
            self._end("idle", FiredLimit("idle", self.idle, "given"))
        else:
            near = now >= self.expires_at - EVIDENCE_S and self._warned_of != self.expires_at
            if near:
                self._warned_of = self.expires_at
            self.lives.wake(self._next(), self)
            for call in list(self.room.calls)[:LOOKED_AT] if near else ():
                if not call.record.status and call.leader.pid:
                    call.witness.read(lambda: None)  # what it is doing, while it is

    def _end(self, reason: str, limit: FiredLimit) -> None:
        self.room.end_limit = limit
        try:
            for call in list(self.room.calls):
                call.overtaken(limit, clock.monotonic() - max(0.0, boottime() - self.expires_at))
        finally:
            self.room.kill(lambda: None, reason)

    def late_ms(self) -> float | None:
        """How long after the end of its life it was shown to be gone; for a room that ended by it."""
        if self.room.end_reason != "ttl" or self.room.gone_at is None:
            return None
        asleep = boottime() - clock.monotonic()
        return round((self.room.gone_at + asleep - self.expires_at) * 1000, 2)
