# SPDX-License-Identifier: Apache-2.0
"""One command's own processes in a boundary that lives on: **the second and last place where a kill happens.**

Where there is a cgroup the command is in one of its own, inside the boundary's: the kernel kills every member at once,
forks in flight included, and an empty group is the proof. Elsewhere whatever carries the command's mark in its
environment or descends from its first process is killed, pass by pass, until two passes find nothing: proof `scan`.
What has wiped its environment and left its parents is the command's if nothing else ran meanwhile; if something did,
nobody can say whose it is, and the proof is `none`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from .. import clock
from ..boundary.base import Gone
from ..boundary.reaper import state_of, tree
from ..results import Unkillable
from .loop import Loop, Timer
from .stuck import stuck

if TYPE_CHECKING:
    from .room import Room

PROOF_S = 5.0
LOOK_EVERY_S = 0.0005
LOOKS_SLOWER_S = 0.005  # after the first milliseconds a look costs more than it tells
QUIET_PASSES = 2
DYING_S = 0.25  # a process on its way out has lost its environment already
AT_ONCE = 128  # descriptors held while signals go out
MARK = "DEADSTOP_CALL"
PREFIX = f"{MARK}=".encode()


class Ending(Protocol):
    """What a call ends by: the whole boundary (Room), or its own part of it."""

    kill_at: float | None
    gone: Gone | None
    gone_at: float | None
    unkillable: tuple[Unkillable, ...]

    @property
    def methods(self) -> list[str]: ...
    def terminate(self) -> None: ...
    def kill(self, when_gone: Callable[[], None]) -> None: ...
    def members(self, limit: int) -> list[int]: ...
    def count(self, limit: int) -> int: ...


class Part:
    """The processes of one command. `close` when the command is over: what it left in the background lives on."""

    def __init__(self, loop: Loop, room: Room, number: int, call_id: str) -> None:
        self.loop, self.room = loop, room
        self.mark = f"{MARK}={call_id}".encode()
        group = room.boundary.group
        self.group = group.part(number) if group else None
        self.leader = 0
        self.born = False  # its first process is in its place, or will never be
        self.methods: list[str] = []
        self.kill_at: float | None = None
        self.gone: Gone | None = None
        self.gone_at: float | None = None
        self.unkillable: tuple[Unkillable, ...] = ()
        self._when_gone: list[Callable[[], None]] = []
        self._quiet = 0
        self._nobodys: list[int] = []  # alive, and perhaps of this command
        self._look: Timer | None = None
        self._before = frozenset() if self.group else frozenset(tree(room.boundary.pid))
        others = [call.part for call in room.calls if call.part and call.part.gone is None]
        self._alone = not others  # in the boundary, from its start to its end
        for other in others:
            other._alone = False

    def members(self, limit: int = 100_000) -> list[int]:
        """Host pids of what is alive of it, as of now."""
        if self.group:
            return self.group.members()[:limit]
        return self._found()[:limit]

    def _found(self) -> list[int]:
        """Without a group: those below the command's first process, and orphans that carry its mark.

        What is below another command's first process is that command's: it is not looked into, which with many
        commands would be most of the work.
        """
        boundary = self.room.boundary
        ours = boundary.helpers() | {boundary.pid}
        leaders = {call.part.leader: call.part for call in self.room.calls if call.part and call.part.leader}
        if self.leader:
            leaders[self.leader] = self
        whose: dict[int, Part | str | None] = {}
        for pid, parent in tree(boundary.pid).items():
            earlier = "earlier" if pid in self._before and pid not in ours else None
            whose[pid] = leaders.get(pid) or whose.get(parent) or earlier
        self._nobodys = []
        mine = [pid for pid, part in whose.items() if part is self]
        for pid in (pid for pid, part in whose.items() if part is None and pid not in ours):
            marked = self._mark_of(pid)
            if marked == self.mark or (marked is None and self._alone):
                mine.append(pid)
            elif marked is None and state_of(pid) not in "ZX":
                self._nobodys.append(pid)
        return [pid for pid in mine if state_of(pid) not in "ZX"]

    def count(self, limit: int) -> int:
        return len(self.members(limit))

    def _mark_of(self, pid: int) -> bytes | None:
        """The mark of the command that started it; None if it has none, or does not let us see it."""
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                words = file.read(1 << 18).split(b"\0")
        except OSError:
            return None
        return next((word for word in words if word.startswith(PREFIX)), None)

    def terminate(self) -> None:
        """SIGTERM to each, and SIGCONT, because a stopped process could not act on it."""
        self._signal(signal.SIGTERM, signal.SIGCONT)

    def _signal(self, *numbers: int) -> None:
        """These signals to each that is there now."""
        members = self.members()
        for first in range(0, len(members), AT_ONCE):
            self._signal_some(members[first : first + AT_ONCE], numbers)

    def _signal_some(self, pids: list[int], numbers: tuple[int, ...]) -> None:
        opened = {}
        for pid in pids:
            try:
                opened[pid] = os.pidfd_open(pid)
            except OSError:
                continue
        still = set(self.group.members()) if self.group else opened.keys()  # a number could have been given away
        for pid, pidfd in opened.items():
            for number in numbers if pid in still else ():
                try:
                    signal.pidfd_send_signal(pidfd, number)
                except OSError:
                    break
            os.close(pidfd)

    def kill(self, when_gone: Callable[[], None]) -> None:
        """End all of it; `when_gone` is called once, when that is shown or given up on."""
        if self.gone is not None:
            when_gone()
            return
        self._when_gone.append(when_gone)
        if self.kill_at is None:
            self.kill_at = clock.monotonic()
            self.methods.append("cgroup.kill" if self.group else "pidfd")
            self._pass()

    def _pass(self) -> None:
        self._look = None
        if self.gone is not None:
            return
        if self._is_empty():
            if self._nobodys:
                self._settle(Gone("none", None))
            else:
                self._settle(Gone("cgroup_empty" if self.group else "scan", 0))
            return
        now = clock.monotonic()
        assert self.kill_at is not None
        if now - self.kill_at > PROOF_S:
            self.unkillable = tuple(stuck(self.members(1000)))
            self._settle(Gone("none", len(self.unkillable) or None))
            return
        wait = LOOK_EVERY_S if now - self.kill_at < 20 * LOOK_EVERY_S else LOOKS_SLOWER_S
        self._look = self.loop.at(now + wait, self._pass)

    def _is_empty(self) -> bool:
        """After another blow. Before the first process is known to be in there, empty means nothing."""
        if self.group:
            self.group.kill()
            return self.born and not self.group.populated()
        left = [pid for pid in self.members() if state_of(pid) not in "ZX"]
        if left:
            self._quiet = 0
            self._signal(signal.SIGSTOP)  # first: a killed process of a bomb makes room for another
            self._signal(signal.SIGKILL)
            return False
        self._quiet += 1
        if self._nobodys and clock.monotonic() - (self.kill_at or 0.0) < DYING_S:
            return False
        return self.born and self._quiet >= QUIET_PASSES

    def boundary_gone(self, gone: Gone) -> None:
        """The whole boundary ended, and this with it."""
        if self.gone is None:
            if self._look:
                self._look.cancel()
            self._settle(gone)

    def _settle(self, gone: Gone) -> None:
        self.gone, self.gone_at = gone, clock.monotonic()
        tell, self._when_gone = self._when_gone, []
        for each in tell:
            each()

    def close(self) -> None:
        """Give the group back. One that background processes still use goes later, at the latest with the boundary."""
        if self.group and not self.group.remove():
            self.room.leave(self.group)


def join_descriptor(part: Part | None) -> list[int]:
    """What the command needs in order to be born into its part."""
    return [part.group.open_for_joining()] if part and part.group else []
