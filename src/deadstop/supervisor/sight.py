# SPDX-License-Identifier: Apache-2.0
"""Who looks at a call worker before it is killed: the worker itself for its Python stacks, a reader for the rest.

The stacks come from a signal handler in C (faulthandler): it needs no interpreter lock, so that it answers from inside
a native call, too. They come through a pipe; a worker whose main thread has blocked the signal gives none.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from .. import clock
from ..boundary.base import Boundary
from ..boundary.reaper import descendants
from ..packing import STACKS_SIGNAL
from ..results import Evidence, ProcessSeen
from .collector import Collector, Report
from .loop import Loop
from .output import Pump
from .report import diagnosis_of

if TYPE_CHECKING:
    from ..boundary.evidence import View

    Emit = Callable[[Report], None]

STACKS_BYTES = 32_768
DIAGNOSE_S = 0.04  # a shorter time before a deadline is not enough to look at anything but the stacks
SHARED = "/dev/shm/"
_OURS = "deadstop/worker/calls.py"  # the frame that every call's frames end at
_OUTERMOST = b"<module>"  # the main thread is told of last, and this is its outermost frame


class Sight:
    """What is seen of one worker, once per call. `on_stacks` is called when the stacks are complete."""

    def __init__(self, loop: Loop, on_stacks: Callable[[], None]) -> None:
        self.loop, self.on_stacks = loop, on_stacks
        self.begun: float | None = None
        self.took = 0.0
        self.count = 0
        self._stacks = bytearray()
        self._seen: Report = {}
        self._reader: Collector | None = None
        self._pipe, self.workers_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        loop.watch(self._pipe, self.read_stacks)

    def ask_for_stacks(self, leader_fd: int) -> bool:
        """Only of a call that is to end: a native function may take the signal for the end of its waiting."""
        self.begun = self.begun or clock.monotonic()
        try:
            signal.pidfd_send_signal(leader_fd, STACKS_SIGNAL)
        except OSError:
            return False
        return True

    def diagnose(self, boundary: Boundary, leader: int, pumps: list[Pump]) -> None:
        """Have somebody find out what the call waits for. It does not notice."""
        from ..boundary.evidence import View, collect

        if self.begun is not None:
            return
        self.begun = clock.monotonic()
        tails = sorted(pumps, key=lambda pump: pump.tail.total > 0)
        view = View(
            root=boundary.pid, leader=leader, ours=boundary.helpers(), reused=True,
            stacks=boundary.level == "process",
            tail=b"".join(pump.tail.last(2000) for pump in tails),
            cgroup=boundary.group.files() if boundary.group else {},
        )  # fmt: skip
        try:
            self._reader = Collector(self.loop, lambda emit: _see(view, collect, emit), self._add)
        except OSError:
            pass  # no process or descriptor to be had for it

    def look_at_memory(self, boundary: Boundary, leader: int, then: Callable[[], None]) -> bool:
        """Of a completed call that leaves something running only what outlives the kill is of interest."""
        root = boundary.pid
        try:
            self._reader = Collector(self.loop, lambda emit: _see_memory(root, leader, emit), self._add, then)
        except OSError:
            return False
        return True

    def _add(self, report: Report) -> None:
        self._seen.update(report)
        self.count = max(self.count, report.get("count", 0))
        self._note_time()

    def _note_time(self) -> None:
        if self.begun is not None:
            self.took = clock.monotonic() - self.begun

    def read_stacks(self) -> None:
        try:
            data = os.read(self._pipe, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self.loop.unwatch(self._pipe)
        self._stacks += data
        del self._stacks[:-STACKS_BYTES]
        self._note_time()
        if self._stacks.rstrip().endswith(_OUTERMOST):
            self.on_stacks()

    def forget(self) -> None:
        """The call ended in time after all, or goes on."""
        self.stop()
        self._reader, self._seen, self.begun, self.count = None, {}, None, 0
        self._stacks.clear()

    def stop(self) -> None:
        """Take what has come so far."""
        if self._reader:
            self._reader.stop()

    def evidence(self) -> Evidence | None:
        """None if nobody has looked."""
        if self.begun is None:
            return None
        stacks = trimmed(self._stacks.decode("utf-8", "replace")) or self._seen.get("stacks")
        return Evidence(
            diagnosis=diagnosis_of(self._seen), stacks=stacks, took_ms=round(self.took * 1000, 1),
            processes=tuple(ProcessSeen(**process) for process in self._seen.get("processes", ())),
            complete=stacks is not None and (self._reader is None or bool(self._seen.get("complete"))),
        )  # fmt: skip

    def left_in_memory(self) -> tuple[str, ...]:
        """Shared memory that the call had mapped and that is still there."""
        return tuple(path for path in self._seen.get("shared", ()) if os.path.exists(path))

    def let_go(self) -> None:
        """The worker has its end of the pipe."""
        if self.workers_end >= 0:
            os.close(self.workers_end)
            self.workers_end = -1

    def close(self) -> None:
        self.stop()
        self.let_go()
        self.loop.unwatch(self._pipe)
        os.close(self._pipe)


def _see_memory(root: int, leader: int, emit: Emit) -> None:
    emit({"shared": sorted(shared_memory([leader, *descendants(root, limit=32)]))})


def _see(view: View, collect: Callable[[View, Emit], None], emit: Emit) -> None:
    _see_memory(view.root, view.leader, emit)
    collect(view, emit)


def shared_memory(pids: list[int]) -> set[str]:
    """Files of /dev/shm that these have mapped. They outlive whoever made them."""
    found: set[str] = set()
    for pid in pids:
        try:
            with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
                found.update(line[line.index(SHARED) :].strip() for line in file if SHARED in line)
        except OSError:
            continue
    return {path for path in found if not path.endswith(" (deleted)")}


def trimmed(stacks: str) -> str:
    """Without the frames that every worker has below its call: they say nothing to anybody."""
    kept, ours = [], False
    for line in stacks.splitlines():
        ours = (ours or _OURS in line) and line.startswith("  ")
        if not ours:
            kept.append(line)
    return "\n".join(kept).strip()
