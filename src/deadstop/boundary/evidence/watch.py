# SPDX-License-Identifier: Apache-2.0
"""Notice a call that waits for input nobody has given, while it runs.

Every 50 ms one cheap question: has any member run? Only after `quiet` seconds without, the wait graph is
read; two looks that agree make a report. While nothing runs no answer can change, so looks then back off to
one a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from . import proc
from .diagnose import diagnose
from .snapshot import Finding, Snapshot, members
from .view import View

_GATE = 0.05
_SLOW_GATE = 0.1  # after a second without change
_LONGEST_PAUSE = 1.0  # between looks
_COST_FACTOR = 20  # with hundreds of members the gate opens more seldom: at most 5 % of a CPU
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
        self._activity: dict[int, tuple[int, int]] = {}
        self._threads: dict[int, int] = {}
        self._quiet_since = time.monotonic()
        self._next_look = self._quiet_since + quiet
        self._look_pause = _GATE
        self._suspect: int | None = None
        self._reported: tuple[int, tuple[int, int] | None] | None = None
        self.pause = _GATE

    def step(self) -> bool:
        """One turn of the gate; False when there is nothing left to watch."""
        now = time.monotonic()
        root = proc.stat(self._view.root)
        if root is None or root.state in "ZX":
            return False
        activity = self._read_activity()
        gate_cost = time.monotonic() - now
        if not self._alive(self._view.leader) and not any(self._alive(pid) for pid in activity):
            return False
        if activity != self._activity:
            self._activity = activity
            self._ran(now)
        elif now >= self._next_look:
            self._look(now)
        self.pause = _GATE if now - self._quiet_since < 1.0 else _SLOW_GATE
        self.pause = max(self.pause, _COST_FACTOR * gate_cost)
        return True

    def _read_activity(self) -> dict[int, tuple[int, int]]:
        """CPU time and turns of every member. A thread is started by one that runs, so only then are they
        counted.
        """
        found: dict[int, tuple[int, int]] = {}
        threads: dict[int, int] = {}
        for pid in members(self._view):
            threads[pid] = self._threads.get(pid, 0)
            now = proc.run_time(pid, threads[pid]) if threads[pid] else (-1, -1)
            if now != self._activity.get(pid):
                stat = proc.stat(pid)
                if stat is None:
                    continue
                threads[pid] = stat.threads
                now = proc.run_time(pid, stat.threads)
            found[pid] = now
        self._threads = threads
        return found

    @staticmethod
    def _alive(pid: int) -> bool:
        stat = proc.stat(pid)
        return stat is not None and stat.state not in "ZX"

    def _ran(self, now: float) -> None:
        """Somebody ran. A program that polls its input with a time limit runs too, and is still the same
        wait.
        """
        if self._reported is not None:
            finding = self._blocked_on_input()
            if finding is not None and (finding.pid, proc.reads_done(finding.pid)) == self._reported:
                return
            self._reported = None
            self._report({"waiting": False})
        self._quiet_since = now
        self._next_look = now + self._quiet
        self._look_pause = _GATE
        self._suspect = None

    def _look(self, now: float) -> None:
        finding = self._blocked_on_input()
        if finding is None:
            self._suspect = None
        elif self._suspect == finding.pid and self._reported is None:
            self._reported = (finding.pid, proc.reads_done(finding.pid))
            number = proc.namespace_pid(finding.pid)
            self._report({"waiting": True, "pid": number, "since": self._quiet_since, "detail": finding.detail})
        else:
            self._suspect = finding.pid
        self._next_look = now + self._look_pause
        self._look_pause = min(2 * self._look_pause, _LONGEST_PAUSE)

    def _blocked_on_input(self) -> Finding | None:
        snapshot = Snapshot(self._view)
        try:
            finding = diagnose(snapshot)
        finally:
            snapshot.close()
        return finding if finding.kind == "waiting_for_input" and finding.confidence >= _SURE else None
