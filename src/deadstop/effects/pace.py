# SPDX-License-Identifier: Apache-2.0
"""How many events one receiver is sent at once: as many as it takes without falling behind.

Not every receiver serves several connections, or has room for those that wait: what is too much is lost there, and
costs seconds. So the number begins at one, grows while answers come fast and in turn, and is halved where they do not.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import clock

__all__ = ["AT_ONCE", "MOST_SLOW", "Pace", "Slots", "Try"]

AT_ONCE = 6  # a waiting line of five, as is usual in small servers, is enough for that
MOST_SLOW = 16  # to one receiver, besides
SLOW_S, SLOW_TIMES = 0.25, 8  # or so many times its best, whichever is longer
BEHIND_S, BEHIND_TIMES = 0.05, 4
REGROWTH = 1 / 16  # for each answer, once it was too much
REFUSALS = 3  # in a row, of whatever events: then it is the receiver that says no, or is not there
SHORTEST_REST_S, LONGEST_REST_S = 1.0, 60.0


class Slots:
    """How many slow ones all receivers may have together."""

    def __init__(self, most: int) -> None:
        self.left = most


@dataclass(slots=True, eq=False)
class Try:
    """One POST under way. A slow one no longer counts as one of those that are sent at once."""

    began: float
    slow: bool = False


class Pace:
    """Of one receiver, on one event loop."""

    def __init__(self, slots: Slots) -> None:
        self.window = 1.0
        self._slots = slots
        self._out: set[Try] = set()
        self._slow = 0
        self._best = float("inf")
        self._unchecked = True  # it was never too much so far
        self._cut_at = 0.0
        self._refusals, self._rests_until = 0, 0.0

    @property
    def patience(self) -> float:
        """Seconds after which one is slow."""
        return SLOW_S if self._best == float("inf") else max(SLOW_S, SLOW_TIMES * self._best)

    def rests(self) -> bool:
        """It has asked to be left alone, or was not there: one event a second is enough to find that it is again."""
        return clock.monotonic() < self._rests_until

    def room(self) -> int:
        """How many more may be sent now."""
        return 0 if self.rests() else max(0, int(self.window) - len(self._out) + self._slow)

    def begin(self) -> Try:
        made = Try(clock.monotonic())
        self._out.add(made)
        return made

    def slow(self, one: Try) -> None:
        """It has not been answered for `patience`: others need not wait behind it."""
        if one not in self._out or one.slow:
            return
        self._too_much(one)
        if self._slow < MOST_SLOW and self._slots.left > 0:
            one.slow = True
            self._slow += 1
            self._slots.left -= 1

    def end(self, one: Try, *, taken: bool = False, busy: bool = False, rest_s: float | None = None) -> None:
        """`taken` by its receiver; `busy`: no answer, or one that says that it was too much. `rest_s`: as long it wants
        to be left alone, whatever the event; 0 where nobody is there."""
        if busy:
            self._too_much(one)
        self.forget(one)
        if taken:
            self._grow(one)
        if rest_s is not None:
            self._refused(rest_s)
        elif taken:
            self._refusals = 0

    def forget(self, one: Try) -> None:
        """It is over, however it ended."""
        self._out.discard(one)
        if one.slow:
            one.slow = False
            self._slow -= 1
            self._slots.left += 1

    def _grow(self, one: Try) -> None:
        seconds = clock.monotonic() - one.began
        self._best = min(self._best, seconds)
        behind = seconds > BEHIND_TIMES * self._best + BEHIND_S
        overtook = any(each.began < one.began and not each.slow for each in self._out)
        if not behind and not overtook:
            self.window = min(AT_ONCE, self.window + (1 if self._unchecked else REGROWTH))

    def _too_much(self, one: Try) -> None:
        """Once for those that were under way together; one alone was not too much."""
        if len(self._out) < 2 or one.began < self._cut_at:
            return
        self.window, self._cut_at, self._unchecked = max(1.0, self.window / 2), clock.monotonic(), False

    def _refused(self, rest_s: float) -> None:
        self._refusals += 1
        if self._refusals >= REFUSALS:
            self.window, self._unchecked = 1.0, True
            self._rests_until = clock.monotonic() + min(LONGEST_REST_S, max(SHORTEST_REST_S, rest_s))
