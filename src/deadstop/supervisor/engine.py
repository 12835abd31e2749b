# SPDX-License-Identifier: Apache-2.0
"""The supervisor's engine: opens boundaries, starts calls in them, keeps the loop.

Used by `deadstop run` and by the server.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable

from ..boundary.cgroup import Hierarchies
from ..boundary.open import open_boundary, open_fallback
from ..boundary.payload import set_oom_score_adj
from ..boundary.reaper import children_of
from ..boundary.sandbox import SandboxBoundary
from ..model import Command, Place
from ..results import ToolResult
from .call import Call
from .loop import Loop
from .output import Sink, Source
from .room import Room

NICE = -10
OOM_SCORE_ADJ = -900


class Engine:
    """Everything a single-threaded supervisor holds."""

    def __init__(self) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored, the kernel would throw statuses away
        signal.pthread_sigmask(signal.SIG_SETMASK, [])  # inherited as blocked, it would never wake init
        self.loop = Loop()
        self.hierarchies = Hierarchies()
        self.loop.children |= set(children_of(os.getpid()))  # what this process had before it became a supervisor
        self._numbers = 0

    def protect(self) -> None:
        """Let this process run while a bomb or a balloon does. What it starts gets the caller's own values back."""
        try:
            os.setpriority(os.PRIO_PROCESS, 0, min(NICE, os.getpriority(os.PRIO_PROCESS, 0)))
        except PermissionError:
            pass  # an ordinary user cannot; the kernel's fairness between sessions still helps
        set_oom_score_adj(OOM_SCORE_ADJ)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # about nine descriptors for each call

    def open(self, place: Place) -> Room:
        """A boundary to run commands in. Raises BoundaryUnavailable."""
        reopen = None
        if place.isolation == "process":
            reopen = lambda: open_fallback(place, self.hierarchies)  # noqa: E731  (needs the same two names)
        return Room(self.loop, open_boundary(place, self.hierarchies), reopen)

    def start(
        self,
        room: Room,
        command: Command,
        stdin: int | None,
        cwd: int | None,
        done: Callable[[ToolResult], None],
        *,
        owns_room: bool,
        sink: Sink | None = None,
    ) -> Call:
        """Start a command. `stdin` (None: /dev/null, or the terminal) and `cwd` stay the caller's to close."""
        self._numbers += 1
        opened: list[int] = []
        try:
            stdio, sources = _channels(command, stdin, opened)
            if command.cwd is None:
                stdio.append(os.open(".", os.O_PATH | os.O_CLOEXEC) if cwd is None else os.dup(cwd))
            elif isinstance(room.boundary, SandboxBoundary):
                room.boundary.give(stdio[1:3])
        except OSError:
            for fd in opened:
                os.close(fd)
            raise
        return Call(self.loop, room, self._numbers, command, stdio, sources, owns_room=owns_room, sink=sink, done=done)

    def run(self, finished: Callable[[], bool]) -> None:
        while not finished():
            self.loop.step()

    def clear(self, room: Room) -> None:
        """Stay until the room's last traces on this host are gone. Bounded, and short."""
        self.run(lambda: room.released or not room.exited)


def _channels(command: Command, stdin: int | None, opened: list[int]) -> tuple[list[int], list[Source]]:
    """Payload's stdin, stdout, stderr, and our reading ends. All is in `opened`, too, in case a later step fails."""
    if command.tty:
        import fcntl
        import struct
        import termios

        opened += os.openpty()
        master, slave = opened
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *command.tty, 0, 0))
        opened += [os.dup(slave), os.dup(slave), os.dup(slave)]
        return [slave, *opened[2:4]], [("stdout", master, opened[4])]
    opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) if stdin is None else os.dup(stdin))
    opened += os.pipe2(os.O_CLOEXEC)
    opened += os.pipe2(os.O_CLOEXEC)
    source, out_read, out_write, err_read, err_write = opened
    return [source, out_write, err_write], [("stdout", out_read, None), ("stderr", err_read, None)]
