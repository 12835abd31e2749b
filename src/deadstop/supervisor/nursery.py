# SPDX-License-Identifier: Apache-2.0
"""The supervisor's side of a nursery: starts it, asks it for boundaries, starts another when it is lost."""

from __future__ import annotations

import errno
import marshal
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import clock, wire
from .loop import Loop

WARM_S = 10.0  # for one module that a worker has imported before
START_S = 30.0  # to come up, and for one order; an import that hangs must not hold up workers for ever

_CODE = (
    "import sys; sys.path.insert(0, sys.argv[3]); "
    "from deadstop.worker.nursery import main; main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[4])"
)

Forked = Callable[[tuple[int, int, socket.socket] | None, tuple[int, str]], None]


@dataclass(frozen=True)
class Interpreter:
    """The caller's Python: what a nursery runs. Two pools share a nursery if these are equal."""

    executable: str
    flags: tuple[str, ...]
    environ: tuple[tuple[str, str], ...]
    cwd: str
    sys_path: tuple[str, ...]
    home: str  # the folder that deadstop is imported from

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Interpreter:
        environ = tuple((name, value) for name, value in document["environ"])
        return cls(**{**document, "flags": tuple(document["flags"]), "environ": environ,
                      "sys_path": tuple(document["sys_path"])})  # fmt: skip


class Nursery:
    """One process that forks workers. Orders wait here until it is ready; those it loses with it are told so."""

    def __init__(self, loop: Loop, interpreter: Interpreter, cold: set[str]) -> None:
        self.loop, self.interpreter, self.cold = loop, interpreter, cold
        self.waiting: dict[int, Forked] = {}
        self.lost = False
        self._warming = ""  # the module that it is importing
        self._numbers = 0
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self.control.setblocking(False)
        self._unsent: list[bytes] = []
        settings = _memory(marshal.dumps({"sys_path": list(interpreter.sys_path), "cwd": interpreter.cwd}))
        try:
            self.pid = self._spawn(theirs.fileno(), settings)
        finally:
            theirs.close()
            os.close(settings)
        self.pidfd = os.pidfd_open(self.pid)
        loop.children.add(self.pid)
        loop.watch(self.control.fileno(), self._readable)
        self._due = loop.at(clock.monotonic() + START_S, self._overdue)

    def _spawn(self, control: int, settings: int) -> int:
        python = self.interpreter
        nothing = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]
        for fd in (control, settings):
            os.set_inheritable(fd, True)  # both are closed here right after
        numbers = [str(control), str(settings)]
        argv = [python.executable, *python.flags, "-c", _CODE, *numbers, python.home, ",".join(sorted(self.cold))]
        return os.posix_spawn(python.executable, argv, dict(python.environ), file_actions=nothing, setsid=True)

    # -- orders ------------------------------------------------------------------------------------------------------

    def fork(self, fallback: bool, paths: object, forked: Forked) -> None:
        """A new boundary with a worker's init in it; `forked` gets (pid, exit_fd, lifeline), or None and why."""
        self._numbers += 1
        self.waiting[self._numbers] = forked
        self._order(("fork", self._numbers, fallback, paths))

    def warm(self, names: list[str]) -> None:
        self._order(("warm", [name for name in names if name not in self.cold]))

    def _order(self, message: tuple[Any, ...]) -> None:
        if not self._warming and (message[0] != "fork" or len(self.waiting) == 1):
            self._due.cancel()
            self._due = self.loop.at(clock.monotonic() + START_S, self._overdue)
        self._unsent.append(marshal.dumps(message))
        self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                self.control.send(self._unsent[0])
                del self._unsent[0]
            self.loop.unwatch_writable(self.control.fileno())
        except BlockingIOError:
            self.loop.watch_writable(self.control.fileno(), self._flush)
        except OSError:
            pass  # its end is read in `_readable`

    # -- reports -----------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        while not self.lost and (got := wire.receive(self.control, 1 << 16)) is not None:
            data, fds = got
            if not data:
                self._gone()
                return
            self._handle(marshal.loads(data), fds)

    def _handle(self, message: tuple[Any, ...], fds: list[int]) -> None:
        if message[0] == "forked" and len(fds) != 2:
            for fd in fds:
                os.close(fd)  # with the lifeline gone, what was made ends by itself
            self.waiting.pop(message[1])(None, (errno.EMFILE, "the supervisor is out of descriptors"))
        elif message[0] == "forked":
            lifeline = socket.socket(fileno=fds[0])
            self.waiting.pop(message[1])((message[2], fds[1], lifeline), (0, ""))
        elif message[0] == "not_forked":
            self.waiting.pop(message[1])(None, (message[2], message[3]))
        elif message[0] == "cold":
            self.cold.add(message[1])
        elif message[0] == "warming":
            self._due.cancel()
            self._warming = message[1]
            self._due = self.loop.at(clock.monotonic() + WARM_S, self._overdue)
        elif message[0] == "warmed":
            self._due.cancel()
            self._warming = ""
        if self.waiting and not self._warming:
            self._due.cancel()
            self._due = self.loop.at(clock.monotonic() + START_S, self._overdue)
        elif not self.waiting and not self._warming:
            self._due.cancel()

    def _overdue(self) -> None:
        """It hangs in an import, or its start does."""
        if not self.lost:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def _gone(self) -> None:
        self.lost = True
        if self._warming:
            self.cold.add(self._warming)  # it hung, or ended us
        self._due.cancel()
        self.loop.unwatch(self.control.fileno())
        self.loop.unwatch_writable(self.control.fileno())
        self.control.close()
        self.loop.watch(self.pidfd, self._collect)
        waiting, self.waiting = self.waiting, {}
        for forked in waiting.values():
            forked(None, (0, "the process that workers are forked from ended"))

    def _collect(self) -> None:
        self.loop.unwatch(self.pidfd)
        os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
        os.close(self.pidfd)
        self.loop.children.discard(self.pid)

    def close(self) -> None:
        """End it. The workers it forked live on: they are the supervisor's children."""
        if not self.lost:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)


def _memory(data: bytes) -> int:
    fd = os.memfd_create("deadstop-settings", os.MFD_CLOEXEC)
    os.write(fd, data)
    return fd
