# SPDX-License-Identifier: Apache-2.0
"""Runs the reading of evidence in a process of its own, so that it can never delay a kill.

Reading /proc can block: `cmdline` waits for a memory lock that a process in uninterruptible sleep may hold. So a
forked child reads and writes what it finds to a pipe; the supervisor takes what has come when the time is over and
ends the child.
"""

from __future__ import annotations

import gc
import json
import os
import signal
from collections.abc import Callable
from typing import Any

from .. import clock
from ..boundary import syscalls
from ..boundary.payload import reset_signals
from .loop import Loop

Report = dict[str, Any]


class Collector:
    """One child that emits JSON lines; `on_report` gets each, `on_end` the end of them."""

    def __init__(
        self,
        loop: Loop,
        work: Callable[[Callable[[Report], None]], None],
        on_report: Callable[[Report], None],
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.loop, self.on_report, self.on_end = loop, on_report, on_end
        self._buffer = b""
        self._read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(write, True)
        try:
            self._pid = os.fork()
        except OSError:
            os.close(self._read)
            os.close(write)
            raise
        if self._pid == 0:
            _child(work, write)
        os.close(write)
        loop.children.add(self._pid)
        loop.watch(self._read, self._readable)

    @property
    def running(self) -> bool:
        return self._read >= 0

    def _readable(self) -> None:
        if self._take():
            return
        self._end()
        self.on_end()

    def _take(self) -> bool:
        """Read what is there; False at the end."""
        try:
            data = os.read(self._read, 1 << 20)
        except BlockingIOError:
            return True
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self.on_report(json.loads(line))
        return bool(data)

    def stop(self) -> None:
        """Take what has come so far and end the child, whatever it is doing."""
        if self.running:
            self._take()
            self._end()

    def _end(self) -> None:
        self.loop.unwatch(self._read)
        os.close(self._read)
        self._read = -1
        os.kill(self._pid, signal.SIGKILL)  # not collected yet: the number is still its own
        _reap(self.loop, self._pid)


def _reap(loop: Loop, pid: int) -> None:
    """Collect a killed child without waiting: one stuck in the kernel is asked after again later."""
    if os.waitpid(pid, os.WNOHANG)[0]:
        loop.children.discard(pid)
    else:
        loop.at(clock.monotonic() + 0.005, lambda: _reap(loop, pid))


def _child(work: Callable[[Callable[[Report], None]], None], write: int) -> None:
    try:
        gc.disable()  # a collected socket of the supervisor's would close a number that is ours by now
        syscalls.die_with_parent()
        syscalls.close_all_except({2, write})
        reset_signals()
        if os.getpriority(os.PRIO_PROCESS, 0) < 0:
            os.nice(5)  # below the supervisor, still above what it looks at
        work(lambda report: _emit(write, report))
    except BaseException as problem:
        _emit(write, {"failed": repr(problem)})
    finally:
        os._exit(0)


def _emit(write: int, report: Report) -> None:
    data = json.dumps(report).encode() + b"\n"
    while data:
        data = data[os.write(write, data) :]
