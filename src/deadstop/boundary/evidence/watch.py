# SPDX-License-Identifier: Apache-2.0
"""Notice a call that waits for input nobody has given, while it runs.

Every 50 ms one cheap question: has any member run? Only after `quiet` seconds with next to no CPU time used is the
wait graph read; two looks that agree make a report. Looks are then made ever more seldom, to one a second: while
nothing runs no answer can change, and a runtime whose own threads tick all the time must not be looked at every time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import proc
from .diagnose import diagnose
from .snapshot import Snapshot, members
from .view import View

_GATE = 0.05
_SLOW_GATE = 0.1  # after a second without change
_COST_FACTOR = 20  # with hundreds of members the gate opens more seldom: at most 5 % of a CPU
_LONGEST_PAUSE = 1.0  # between looks
_WORKING = 0.1  # of a CPU: less is a runtime's housekeeping, not work
_SURE = 0.8

Report = Callable[[dict[str, Any]], None]


def watch_input(view: View, report: Report, quiet: float = 0.1) -> None:
    """Report {"waiting": True, "pid", "since", "detail"} and {"waiting": False} until the call is over.

    `since` is on the monotonic clock: when the boundary was first seen quiet; `pid` is the number inside. A
    wait is reported within 0.3 s of going quiet on a machine that is not overloaded. Returns when the
    boundary's root is gone or its members are, or when the caller's parent process is.

    Not promised: a program that idles on its input by design, such as a server that speaks on stdin, looks
    the same. Programs we may not look into (setuid) are not recognised.
    """
    parent = os.getppid()
    watch = _Watch(view, report, quiet)
    while os.getppid() == parent and watch.step():
        time.sleep(watch.pause)


class _Watch:
    def __init__(self, view: View, report: Report, quiet: float) -> None:
        self._view = View(**{**vars(view), "window": 0.0, "tail": b""})
        self._report, self._quiet = report, quiet
        self._activity: dict[int, tuple[int, int, int]] = {}
        self._threads: dict[int, int] = {}
        self._gate_at = self._changed_at = self._quiet_since = time.monotonic()
        self._next_look = self._quiet_since + quiet
        self._look_pause = _GATE
        self._change_pause = quiet
        self._suspect: _Wait | None = None
        self._reported: _Wait | None = None
        self.pause = _GATE

    def step(self) -> bool:
        """One turn of the gate; False when there is nothing left to watch."""
        now = time.monotonic()
        if not _alive(self._view.root):
            return False
        activity = self._read_activity()
        if not _alive(self._view.leader) and not any(_alive(pid) for pid in activity):
            return False
        if activity != self._activity:
            self._changed(now, activity)
        self._gate_at = now
        if now >= self._next_look:
            self._look(now)
        gate = _GATE if now - self._changed_at < 1.0 else _SLOW_GATE
        self.pause = max(gate, _COST_FACTOR * (time.monotonic() - now))
        return True

    def _read_activity(self) -> dict[int, tuple[int, int, int]]:
        """CPU time and turns of every member. Threads start while others run, so only then are they counted."""
        found: dict[int, tuple[int, int, int]] = {}
        threads: dict[int, int] = {}
        for pid in members(self._view):
            threads[pid] = self._threads.get(pid, 0)
            now = proc.run_time(pid, threads[pid]) if threads[pid] else (-1, -1, -1)
            if now != self._activity.get(pid):
                stat = proc.stat(pid)
                if stat is None:
                    continue
                threads[pid] = stat.threads
                now = proc.run_time(pid, stat.threads)
            found[pid] = now
        self._threads = threads
        return found

    def _changed(self, now: float, activity: dict[int, tuple[int, int, int]]) -> None:
        before = self._activity
        wanted = sum(sum(new[:2]) - sum(before.get(pid, new)[:2]) for pid, new in activity.items())
        working = wanted / 1e9 > _WORKING * (now - self._gate_at) or activity.keys() != before.keys()
        if now - self._changed_at > _LONGEST_PAUSE:
            self._change_pause = self._quiet
        self._activity, self._changed_at = activity, now
        if self._reported is not None and not self._reported.holds():
            self._went_on(now)
        elif self._reported is None and working:
            self._start_over(now)
        else:
            self._next_look = min(self._next_look, now + self._change_pause)

    def _start_over(self, now: float) -> None:
        self._quiet_since = now
        self._next_look = now + self._quiet
        self._look_pause = _GATE
        self._suspect = None

    def _went_on(self, now: float) -> None:
        self._reported = None
        self._report({"waiting": False})
        self._start_over(now)

    def _look(self, now: float) -> None:
        wait = self._blocked_on_input()
        if self._reported is not None:
            if wait != self._reported:
                self._went_on(now)
                return
        elif wait is not None and wait == self._suspect:
            self._reported = wait
            number = proc.namespace_pid(wait.pid)
            self._report({"waiting": True, "pid": number, "since": self._quiet_since, "detail": wait.detail})
        elif wait is not None:  # seen for the first time: the look that confirms it comes soon
            self._suspect = wait
            self._next_look = now + _GATE
            return
        self._suspect = wait
        self._next_look = now + self._look_pause
        self._look_pause = min(1.5 * self._look_pause, _LONGEST_PAUSE)
        self._change_pause = min(1.5 * self._change_pause, _LONGEST_PAUSE)

    def _blocked_on_input(self) -> _Wait | None:
        snapshot = Snapshot(self._view)
        try:
            finding = diagnose(snapshot)
        finally:
            snapshot.close()
        if finding.kind != "waiting_for_input" or finding.confidence < _SURE:
            return None
        return _Wait(finding.pid, proc.reads_done(finding.pid), finding.detail)


@dataclass
class _Wait:
    """A process blocked on input; two are the same wait if it has read nothing in between."""

    pid: int
    reads: tuple[int, int] | None
    detail: str = field(compare=False)

    def holds(self) -> bool:
        """Whether the process is there and has read nothing since: the cheap half of a look."""
        return _alive(self.pid) and proc.reads_done(self.pid) == self.reads


def _alive(pid: int) -> bool:
    stat = proc.stat(pid)
    return stat is not None and stat.state not in "ZX"
