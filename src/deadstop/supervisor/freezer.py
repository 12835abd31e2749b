# SPDX-License-Identifier: Apache-2.0
"""Stops all in a boundary and lets it go on: by the cgroup freezer, else by SIGSTOP to each, until /proc shows it.

A stopped process can still be killed, and its limits go on. Without a freezer a process could be started again from
inside by another that was missed; passes go on until all are seen to be stopped.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

from .. import clock
from ..boundary.cgroup import Group
from ..boundary.reaper import signal_tree, state_of
from .loop import Loop
from .room import Room

BOUND_S = 2.0
LOOK_EVERY_S = 0.0003
QUIET_PASSES = 2


class Freezer:
    """Of one room. `told` is called with what was reached: frozen or not."""

    def __init__(self, loop: Loop, room: Room) -> None:
        self.loop, self.room = loop, room
        self.frozen = False
        self._stopped_before: frozenset[int] = frozenset()  # by themselves or each other: they stay so
        self._group: Group | None = None
        self._quiet = 0
        self._turn = 0  # who waits for what was asked for before is told nothing more

    def freeze(self, told: Callable[[bool], object]) -> None:
        self._turn += 1
        self._begin(self._turn, clock.monotonic() + BOUND_S, told)

    def _begin(self, turn: int, end: float, told: Callable[[bool], object]) -> None:
        """Not while a command is being born: one that is stopped before can be ended, but not be shown to have."""
        if turn != self._turn:
            return
        if not any(call.part and call.handed_over and not call.part.born for call in self.room.calls):
            group = self.room.boundary.group
            self._group = group if group and group.freeze(True) else None
            if self._group is None and not self.frozen:
                self._stopped_before = frozenset(pid for pid in self.room.boundary.members() if state_of(pid) in "Tt")
            self._quiet = 0
            self._look(turn, end, told)
        elif clock.monotonic() > end:
            told(False)
        else:
            self.loop.at(clock.monotonic() + LOOK_EVERY_S, lambda: self._begin(turn, end, told))

    def _look(self, turn: int, end: float, told: Callable[[bool], object]) -> None:
        if turn != self._turn:
            return
        if self.room.ended:
            told(False)
        elif self._is_still():
            self.frozen = True
            told(True)
        elif clock.monotonic() > end:
            self.thaw()
            told(False)
        else:
            self.loop.at(clock.monotonic() + LOOK_EVERY_S, lambda: self._look(turn, end, told))

    def _is_still(self) -> bool:
        if self._group:
            return self._group.frozen()
        if any(state_of(pid) not in "TtZX" for pid in self.room.boundary.members()):
            self._quiet = 0
            spare = self.room.boundary.helpers() | {self.room.boundary.pid}
            signal_tree(self.room.boundary.pid, signal.SIGSTOP, spare=spare)
            return False
        self._quiet += 1
        return self._quiet >= QUIET_PASSES

    def thaw(self) -> None:
        """Let go those that were stopped for this."""
        self.frozen = False
        self._turn += 1
        if self._group:
            self._group.freeze(False)
            return
        stay = self.room.boundary.helpers() | {self.room.boundary.pid} | self._stopped_before
        signal_tree(self.room.boundary.pid, signal.SIGCONT, spare=frozenset(stay))
