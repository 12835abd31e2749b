# SPDX-License-Identifier: Apache-2.0
"""A boundary in use: hands its messages to the calls in it and watches its end. **This is where a kill happens.**

`Room.kill` is the only place that ends a boundary (`Part.kill` ends one command in a boundary that lives on). It sends
the kill, waits (without blocking) for the descriptor that proves the end, and gives up honestly after PROOF_S: then
the receipt says `unkillable` or proof `none`, never zero.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from .. import clock
from ..boundary import reaper
from ..boundary.base import Boundary, Gone
from ..boundary.cgroup import Group
from ..boundary.sandbox import SandboxBoundary
from ..boundary.subreaper import SubreaperBoundary
from ..results import FiredLimit, Unkillable
from .loop import Loop, Timer
from .stuck import stuck

if TYPE_CHECKING:
    from .call import Call

COUNTED = 64  # how far processes are counted where that takes a walk: the kill waits for it
PROOF_S = 5.0  # how long a kill may take before we say that it could not be shown
RELEASE_EVERY_S, RELEASE_TRIES = 0.002, 250
SWEEP_EVERY_S = 0.001
TIDY_FROM = 16  # left groups
REAPER_S = 2.0  # how long a reaper without a namespace may take before the supervisor does its work


class Room:
    """One boundary and who is in it. `on_message` and `on_gone` are set by the engine."""

    def __init__(self, loop: Loop, boundary: Boundary, reopen: Callable[[], Boundary] | None) -> None:
        self.loop, self.boundary, self._reopen = loop, boundary, reopen
        self.listeners: dict[int, Callable[[tuple[object, ...], list[int]], None]] = {}
        self.waiting: list[Callable[[], None]] = []
        self.ready = False
        self.failed: tuple[int, str] | None = None
        self.terminating = False
        self.kill_at: float | None = None
        self.gone_at: float | None = None
        self.gone: Gone | None = None
        self.unkillable: tuple[Unkillable, ...] = ()
        self.remarks: list[str] = []
        self._memory_kills = 0
        self.counts = False  # whether a kill is to count what it ends: calls of their own do that themselves
        self.calls: set[Call] = set()  # those that are running
        self.left_at: float | None = None  # when the last of them was over
        self.left_groups: list[Group] = []
        self._tidy_at = TIDY_FROM
        self.processes = 0  # of the payload, as counted at the kill
        self.end_reason = ""  # why it was killed, by whoever asked first
        self.end_limit: FiredLimit | None = None  # the limit that ended it, if one did
        self.exited = False  # the boundary's first process was collected
        self.released = False  # nothing of the boundary is left on this host, or it was given up on
        self._bound: Timer | None = None
        self._attach()

    def _attach(self) -> None:
        self.loop.children.add(self.boundary.pid)
        self.remarks = [*self.boundary.applied.degraded, *self.boundary.weaker]
        self.loop.watch(self.boundary.lifeline.fileno(), self.receive)
        self.loop.watch(self.boundary.exit_fd, self._exited)

    @property
    def ended(self) -> bool:
        return self.gone is not None

    @property
    def methods(self) -> list[str]:
        return self.boundary.methods

    def members(self, limit: int = 100_000) -> list[int]:
        return self.boundary.members(limit)

    def count(self, limit: int) -> int:
        return self.boundary.count(limit)

    # -- messages ----------------------------------------------------------------------------------------------------

    def receive(self) -> None:
        """Hand on what init has to say. Also called before a deadline is judged: the message may be there already."""
        while not self.ended and (got := self.boundary.receive()):
            message, fds = got
            if not message:
                self.loop.unwatch(self.boundary.lifeline.fileno())
                return
            self._handle(message, fds)

    def _handle(self, message: tuple[object, ...], fds: list[int]) -> None:
        if message[0] == "ready":
            self.ready = True
            self.remarks += self.boundary.facts.get("degraded", [])  # type: ignore[arg-type]
            self._tell(("ready",))
        elif message[0] == "failed":
            self.failed = (int(message[1]), str(message[2]))  # type: ignore[call-overload]
        elif listener := self.listeners.get(message[1]):  # type: ignore[call-overload]
            listener(message, fds)
            return
        for fd in fds:
            os.close(fd)

    def _tell(self, message: tuple[object, ...]) -> None:
        for listener in list(self.listeners.values()):
            listener(message, [])

    # -- the end -----------------------------------------------------------------------------------------------------

    def terminate(self) -> None:
        """SIGTERM to everything inside, the commands of others included."""
        self.terminating = True
        self.boundary.terminate()

    def kill(self, when_gone: Callable[[], None], reason: str = "killed") -> None:
        """End everything inside; `when_gone` is called once, when that is shown or given up on."""
        if self.ended:
            when_gone()
            return
        self.waiting.append(when_gone)
        if self.kill_at is None:
            self.end_reason = reason
            self.processes = self.boundary.count(limit=COUNTED) if self.counts else 0
            self.kill_at = clock.monotonic()
            self.boundary.kill()
            fallback = isinstance(self.boundary, SubreaperBoundary)
            self._bound = self.loop.at(self.kill_at + (REAPER_S if fallback else PROOF_S), self._overdue)

    def _overdue(self) -> None:
        if isinstance(self.boundary, SubreaperBoundary) and "pidfd" not in self.boundary.methods:
            self.boundary.kill_reaper()
            self._bound = self.loop.at(clock.monotonic() + PROOF_S, self._overdue)
            return
        self.unkillable = tuple(stuck(self.boundary.members(limit=1000)))
        self._settle(Gone("none", None))

    def _exited(self) -> None:
        self.receive()
        self.loop.unwatch(self.boundary.exit_fd)
        late = self.ended
        gone = self.boundary.collect()
        self.exited = True
        self.loop.children.discard(self.boundary.pid)
        if self.failed and self._reopen and not late and self.kill_at is None:
            self._replace()
            return
        if gone.proof == "none" and isinstance(self.boundary, SubreaperBoundary):
            self._sweep_orphans(clock.monotonic() + PROOF_S)
        elif late:
            self._clear(self.boundary)
        else:
            self._settle(gone)

    def _replace(self) -> None:
        """The namespaces were given and then turned out to be of no use (a host policy): take the weaker kind."""
        self.loop.unwatch(self.boundary.lifeline.fileno())
        self._clear(self.boundary)
        assert self._reopen is not None
        self.boundary, self._reopen, self.failed, self.exited = self._reopen(), None, None, False
        self._attach()

    def _sweep_orphans(self, end: float) -> None:
        """The reaper was killed: what it held came to us. Whatever is no known child is swept, a pass at a time."""
        known = frozenset(self.loop.children)
        if reaper.sweep(known):
            self._settle(Gone("scan", 0))
        elif clock.monotonic() < end:
            self.loop.at(clock.monotonic() + SWEEP_EVERY_S, lambda: self._sweep_orphans(end))
        else:
            left = [pid for pid in reaper.children_of(os.getpid()) if pid not in known]
            self.unkillable = tuple(stuck(left))
            self._settle(Gone("none", len(left)))

    def _settle(self, gone: Gone) -> None:
        if self._bound:
            self._bound.cancel()
        self.gone, self.gone_at = gone, clock.monotonic()
        self.loop.unwatch(self.boundary.lifeline.fileno())
        waiting, self.waiting = self.waiting, []
        for tell in waiting:
            tell()
        self._tell(("gone",))  # to those who did not ask for it
        if self.exited:
            self._clear(self.boundary)

    def _clear(self, boundary: Boundary) -> None:
        """Give back descriptors at once, and the cgroup as soon as the kernel lets go of it."""
        boundary.close()
        self.loop.later(partial(self._release, boundary, RELEASE_TRIES))

    def leave(self, group: Group) -> None:
        """Of a command that is over, with background processes in it. Those that are empty by now go."""
        self.left_groups.append(group)
        if len(self.left_groups) > self._tidy_at:  # not each time: one that is in use costs as much as one that is not
            self.left_groups = [each for each in self.left_groups if not each.remove()]
            self._tidy_at = max(TIDY_FROM, 2 * len(self.left_groups))

    def _release(self, boundary: Boundary, tries: int) -> None:
        self.released = boundary.release()
        if not self.released and tries:
            again = partial(self.loop.later, partial(self._release, boundary, tries - 1))
            self.loop.at(clock.monotonic() + RELEASE_EVERY_S, again)
        else:
            self.released = True

    # -- what a limit says -------------------------------------------------------------------------------------------

    def memory_kills(self) -> int:
        """How many inside were killed for memory, so far."""
        group = self.boundary.group
        return group.out_of_memory_kills() if not self.ended and group and "memory" in group.enforced else 0

    def forgive(self) -> None:
        """Whoever was killed for memory so far: it is not the fault of who comes now."""
        self._memory_kills = self.memory_kills()

    def resource_exceeded(self) -> str | None:
        """The ceiling that was hit: memory (a member was killed for it) or disk (the private files are full)."""
        group = self.boundary.group
        if not self.ended and group and "memory" in group.enforced:
            kills, self._memory_kills = self._memory_kills, group.out_of_memory_kills()
            if self._memory_kills > kills:  # one for each: a kept boundary's next command is not to blame
                return "memory"
        if isinstance(self.boundary, SandboxBoundary) and self.boundary.disk_full():
            return "disk"
        return None

    @property
    def watches_resources(self) -> bool:
        group = self.boundary.group
        return bool(group and "memory" in group.enforced) or isinstance(self.boundary, SandboxBoundary)
