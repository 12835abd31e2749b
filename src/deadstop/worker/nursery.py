# SPDX-License-Identifier: Apache-2.0
"""The process that call workers are forked from: the user's interpreter, with the user's modules loaded once.

It is a child of the supervisor, and so are the workers it forks (CLONE_PARENT), each under a pid 1 of its own: the
supervisor kills and collects them exactly as it does commands. The nursery runs none of the user's functions; it only
imports modules that a worker has imported before without harm. Forking is safe only while it has one thread, and
no descriptor lives through it: a module that starts a thread or process, or opens something, at import makes it begin
anew (exec, same process) and leave that module to the workers.

Orders (marshal, one packet each): ("fork", id, fallback, group paths), ("warm", names). Reports: ("ready",),
("forked", id, pid) with the lifeline and a pidfd, ("not_forked", id, errno, text), ("warming", name),
("warmed", name), ("cold", name).
"""

from __future__ import annotations

import gc
import importlib
import marshal
import os
import signal
import socket
import sys
from typing import Any, NoReturn

from ..boundary import syscalls
from ..boundary.cgroup import Group
from ..boundary.limits import Applied
from ..boundary.process import ProcessBoundary
from ..boundary.reaper import children_of, signal_tree
from ..boundary.subreaper import SubreaperBoundary
from . import start, streams

NAME = "deadstop-nursery"


class WorkerBoundary(ProcessBoundary):
    """A `process` boundary born as the supervisor's child, whose one command is a fork of this interpreter."""

    sibling = True

    def _spawn_inside(self, spec: int, stdio: list[int], error_fd: int) -> int:
        pid = os.fork()
        if pid == 0:
            start.start_forked(spec, stdio, error_fd)
        return pid


class WeakWorkerBoundary(SubreaperBoundary):
    """The same where the host refuses namespaces."""

    def _launch(self) -> tuple[int, int]:
        pid = syscalls.fork_sibling()
        self._in_child(pid)
        return pid, os.pidfd_open(pid)

    def _start(self, spec: int, stdio: list[int], error_fd: int) -> NoReturn:
        start.start_forked(spec, stdio, error_fd, enter=self._join)


class Nursery:
    """Takes orders until the supervisor is gone."""

    def __init__(self, control: socket.socket, settings: int, cold: list[str]) -> None:
        self.control, self.settings, self.cold = control, settings, cold

    def serve(self) -> NoReturn:
        self.say(("ready",))
        while order := self.control.recv(1 << 16):
            message = marshal.loads(order)
            if message[0] == "fork":
                self.fork(message[1], message[2], message[3])
            elif message[0] == "warm":
                self.warm(message[1])
        os._exit(0)

    def say(self, message: tuple[Any, ...], fds: list[int] | None = None) -> None:
        try:
            socket.send_fds(self.control, [marshal.dumps(message)], fds or [])
        except OSError:
            os._exit(0)

    def fork(self, number: int, fallback: bool, paths: tuple[str | None, dict[str, str]] | None) -> None:
        applied = Applied(group=Group.known(paths) if paths else None)
        gc.freeze()  # what is loaded now stays shared with the workers
        try:
            boundary = (WeakWorkerBoundary if fallback else WorkerBoundary)(applied)
        except OSError as problem:
            self.say(("not_forked", number, problem.errno or 0, problem.strerror or repr(problem)))
            return
        self.say(("forked", number, boundary.pid), [boundary.lifeline.fileno(), boundary.exit_fd])
        boundary.close()

    def warm(self, names: list[str]) -> None:
        for name in names:
            if name in sys.modules or name in self.cold:
                continue
            self.say(("warming", name))
            open_before = set(os.listdir("/proc/self/fd"))
            try:
                importlib.import_module(name)
            except BaseException:
                self.cold.append(name)
            opened = set(os.listdir("/proc/self/fd")) - open_before
            if len(os.listdir("/proc/self/task")) > 1 or opened or children_of(os.getpid()):
                self.say(("cold", name))
                self.begin_anew(name)
            self.say(("warmed", name))

    def begin_anew(self, name: str) -> NoReturn:
        """The same process and descriptors, without the module and its threads and processes."""
        signal_tree(os.getpid(), signal.SIGKILL)
        for fd in (self.control.fileno(), self.settings):
            os.set_inheritable(fd, True)
        arguments = [sys.executable, *sys.orig_argv[1:-1], ",".join([*self.cold, name])]
        os.execv(sys.executable, arguments)


def main(control_fd: int, settings_fd: int, cold: str) -> NoReturn:
    """Entry of the process that the supervisor starts. `settings_fd` says where the caller's modules are."""
    for fd in (control_fd, settings_fd):
        os.set_inheritable(fd, False)
    syscalls.set_process_name(NAME)
    syscalls.die_with_parent()
    streams.install()
    settings = marshal.loads(os.pread(settings_fd, os.fstat(settings_fd).st_size, 0))
    sys.path[:] = settings["sys_path"]
    try:
        os.chdir(settings["cwd"])
    except OSError:
        os.chdir("/")
    Nursery(socket.socket(fileno=control_fd), settings_fd, [name for name in cold.split(",") if name]).serve()
