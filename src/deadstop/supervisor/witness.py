# SPDX-License-Identifier: Apache-2.0
"""Who looks at a call for the supervisor: a reader of evidence near its end, a watcher of its input while it runs.

Both are processes of their own (collector.py). What they need is loaded when the first of them is: a call that ends by
itself does not pay for it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from .. import clock
from .collector import Collector, Report

if TYPE_CHECKING:
    from ..boundary.evidence import View
    from .call import Call


class Witness:
    """The readers of one call. None of them is ever waited for."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self._reader: Collector | None = None
        self._watcher: Collector | None = None
        self._wanted: Callable[[], None] | None = None

    def prepare(self) -> None:
        """Load what reading needs, while there is time: on a slow machine it takes longer than the evidence may."""
        importlib.import_module("deadstop.boundary.evidence")

    def read(self, complete: Callable[[], None]) -> None:
        """Begin to read evidence; `complete` is called if it comes to an end before it is stopped.

        The reader is forked when nothing else is to be done: a hundred calls that near their limits together must not
        hold up each other's ends.
        """
        self._wanted = complete
        if self.call.leader.pid and not self.call.room.ended:
            self.call.record.evidence_started()
            self.call.loop.later(self._begin, urgent=True)

    def _begin(self) -> None:
        complete, self._wanted = self._wanted, None
        if complete is None or self.call.room.ended:
            return
        from ..boundary.evidence import collect

        if self._reader:
            self._reader.stop()
        view, record = self._view(), self.call.record

        def end() -> None:
            record.evidence_ended()
            complete()

        self._reader = self._fork(lambda emit: collect(view, emit), record.add_evidence, end)

    def watch_input(self, report: Callable[[Report], None]) -> None:
        """Tell when the command begins, or ceases, to wait for an answer that cannot come."""
        from ..boundary.evidence import watch_input

        view = self._view()
        self._watcher = self._fork(lambda emit: watch_input(view, emit), report)

    def read_files(self, complete: Callable[[], None]) -> None:
        """Read the ends of the files named as evidence; `complete` is called when that is done."""
        from .files import read_tails

        paths, record = self.call.command.evidence_paths, self.call.record
        self._reader = self._fork(lambda emit: read_tails(paths, emit), record.files.append, complete)
        if self._reader is None:
            complete()

    def stop(self) -> None:
        """Take what has come so far. What is read after a SIGTERM or a kill would say nothing of before."""
        self._wanted = None
        for collector in (self._reader, self._watcher):
            if collector:
                collector.stop()

    def _fork(
        self,
        work: Callable[[Callable[[Report], None]], None],
        on_report: Callable[[Report], None],
        on_end: Callable[[], None] = lambda: None,
    ) -> Collector | None:
        """None when there is no process or descriptor to be had for it: a full host must not keep a call alive."""
        try:
            return Collector(self.call.loop, work, on_report, on_end)
        except OSError:
            return None

    def _view(self) -> View:
        from ..boundary.evidence import View

        call, room, now = self.call, self.call.room, clock.monotonic()
        tails = sorted(call.pumps, key=lambda pump: pump.tail.total > 0)
        return View(
            root=room.boundary.pid, leader=call.leader.pid, ours=room.boundary.helpers(),
            tail=b"".join(pump.tail.last(2000) for pump in tails), stdin=call.command.stdin,
            cgroup=self._counters(),
            out_rate=call.record.rate(now), elapsed=now - call.record.started,
            stacks=room.boundary.level == "process",  # never of what may be hostile: it is read with our rights
        )  # fmt: skip

    def _counters(self) -> dict[str, str]:
        """The boundary's; the list of processes is the command's own, if it has a part of its own."""
        group, part = self.call.room.boundary.group, self.call.part
        files = group.files() if group else {}
        return {**files, "procs": f"{part.group.v2}/cgroup.procs"} if part and part.group else files
