# SPDX-License-Identifier: Apache-2.0
"""A command's first process, through a descriptor of our own: its death is seen even if init does not tell."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from ..boundary.reaper import pid_of
from .loop import Loop

PIDFD_SIGNAL_PROCESS_GROUP = 4


class Leader:
    """`pid` is 0 until it has become the command, and what is sent to it before that waits for it."""

    def __init__(self, loop: Loop, gone: Callable[[], object]) -> None:
        self.loop, self._gone = loop, gone
        self.pid, self.fd = 0, -1
        self._early: list[int] = []

    def found(self, fd: int) -> None:
        """It runs; `fd` becomes ours."""
        self.fd, self.pid = fd, pid_of(fd)
        self.loop.watch(fd, self._ended)
        for number in self._early:
            self.signal(number)

    def _ended(self) -> None:
        self.loop.unwatch(self.fd)
        self._gone()

    def signal(self, number: int) -> None:
        """To it and those of its process group. Nothing happens when it is gone."""
        if self.fd < 0:
            self._early.append(number)
            return
        try:
            signal.pidfd_send_signal(self.fd, number, None, PIDFD_SIGNAL_PROCESS_GROUP)
        except ProcessLookupError:
            pass
        except OSError:
            self._signal_alone(number)

    def _signal_alone(self, number: int) -> None:
        """Before Linux 6.9."""
        try:
            signal.pidfd_send_signal(self.fd, number)
        except OSError:
            pass  # gone, or not ours to signal: raised from here it would be taken for the end of the command

    def close(self) -> None:
        if self.fd >= 0:
            self.loop.unwatch(self.fd)
            os.close(self.fd)
            self.fd = -1
