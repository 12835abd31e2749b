# SPDX-License-Identifier: Apache-2.0
"""The process that holds a boundary from within: pid 1 of its namespace, or a subreaper where there are no namespaces.

It is forked from the supervisor, never exec'ed and never the payload. It does four things: start commands it is told
to start, collect the dead, report how each command ended, and end itself (and with it everything) when the supervisor
is gone. The supervisor is at the other end of one socket pair, the lifeline: no descriptor of it exists anywhere
else, so end-of-file on it means that the supervisor died or let go.

Why the payload cannot touch it: every signal is ignored (the kernel drops them for pid 1 anyway), and it is not
dumpable, so that a process of the same user can neither attach to it nor open its memory. Root inside the `process`
boundary still could; that is why the supervisor holds its own descriptor of each command's first process and never
waits without a limit.

Messages (one packet each, marshal): supervisor to init ("run", id) with [spec, stdin, stdout, stderr, cwd]
descriptors, ("terminate",), ("kill",). Init to supervisor ("ready", facts), ("failed", errno, text), ("started", id)
with a pidfd, ("not_started", id, errno, step), ("ended", id, wait status, monotonic time).
"""

from __future__ import annotations

import gc
import marshal
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from .. import wire
from . import payload, syscalls
from .reaper import drain, terminate_descendants

LIFELINE_LOST = 137
MESSAGE_BYTES = 4096
TEXT_CHARS = 800  # of a complaint: it must fit into a message


class Spawner(Protocol):
    """Starts one command as a child of init and returns its pid as init sees it."""

    def __call__(self, spec: int, stdio: list[int], error_fd: int) -> int: ...


class SetUpFailed(Exception):
    """The boundary could not be made; nothing was started. Carries an errno and a text for people."""


def fork_payload(spec: int, stdio: list[int], error_fd: int) -> int:
    pid = os.fork()
    if pid == 0:
        payload.start(spec, stdio, error_fd)
    return pid


def seal(lifeline: int, name: str, keep: set[int]) -> None:
    """First thing in the forked child: nothing of the supervisor's stays open, nobody inside can reach in."""
    gc.disable()  # collecting a leftover object of the supervisor's would close a number that is ours by now
    syscalls.set_process_name(name)
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_IGN)
    syscalls.close_all_except({lifeline, *keep})
    while (fd := os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)) < 2:
        pass  # 0 to 2 must never become one of our own descriptors
    if fd > 2:
        os.close(fd)


class Init:
    """The loop. `is_pid1` decides how to end everything: by exiting, or by killing until nothing is left."""

    def __init__(self, lifeline: socket.socket, spawn: Spawner, *, is_pid1: bool, helpers: frozenset[int]) -> None:
        self.lifeline = lifeline
        self.spawn = spawn
        self.is_pid1 = is_pid1
        self.helpers = helpers  # processes of ours inside that a payload's SIGTERM must not end
        self.commands: dict[int, int] = {}  # pid -> command id
        self.wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)

    def serve(self, facts: dict[str, object], fds: list[int]) -> NoReturn:
        self.send(("ready", facts), fds)
        for fd in fds:
            os.close(fd)
        poll = select.poll()
        poll.register(self.lifeline, select.POLLIN)
        poll.register(self.wake_read, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self.wake_read:
                    os.read(self.wake_read, 4096)
                else:
                    self.receive()
            self.collect()

    def receive(self) -> None:
        try:
            data, fds = wire.receive_fds(self.lifeline, MESSAGE_BYTES, 8)
        except OSError:
            data, fds = b"", []
        if not data:
            self.end_everything()
        message = marshal.loads(data)
        if message[0] == "run":
            self.run(message[1], fds)
        elif message[0] == "terminate":
            self.terminate()
        elif message[0] == "kill":
            self.end_everything()

    def run(self, command_id: int, fds: list[int]) -> None:
        error_read, error_write = os.pipe2(os.O_CLOEXEC)
        try:
            pid = self.spawn(fds[0], fds[1:], error_write)
        except OSError as problem:
            self.send(("not_started", command_id, problem.errno or 0, "fork"))
            return
        finally:
            for fd in (error_write, *fds):
                os.close(fd)
        problem_report = self.wait_for_exec(error_read)
        os.close(error_read)
        if problem_report:
            number, step = marshal.loads(problem_report)
            self.send(("not_started", command_id, number, step))
            return
        self.commands[pid] = command_id
        pidfd = os.pidfd_open(pid)  # not collected yet, so it is still this one
        self.send(("started", command_id), [pidfd])
        os.close(pidfd)

    def wait_for_exec(self, error_read: int) -> bytes:
        """What the child reports, or nothing at its exec. A stopped child does neither: so watch the lifeline, too."""
        poll = select.poll()
        poll.register(error_read, select.POLLIN)
        poll.register(self.lifeline, 0)  # end-of-file only
        if error_read not in dict(poll.poll()):
            self.end_everything()
        return os.read(error_read, 4096)

    def collect(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.commands:
                self.report(pid, status, time.monotonic())

    def report(self, pid: int, status: int, when: float) -> None:
        self.send(("ended", self.commands.pop(pid), status, when))

    def terminate(self) -> None:
        """SIGTERM to everything inside, and SIGCONT, because a stopped process could not act on it.

        As pid 1, kill(-1) is one atomic sweep that leaves out only ourselves.
        """
        if not self.is_pid1 or self.helpers:
            terminate_descendants(self.helpers)
            return
        try:
            os.kill(-1, signal.SIGTERM)
            os.kill(-1, signal.SIGCONT)
        except ProcessLookupError:
            pass

    def end_everything(self) -> NoReturn:
        if self.is_pid1:
            os._exit(
                LIFELINE_LOST
            )  # the kernel kills and collects the whole namespace before this pid can be waited for
        drain()
        os._exit(0)

    def send(self, message: tuple[Any, ...], fds: list[int] | None = None) -> None:
        try:
            socket.send_fds(self.lifeline, [marshal.dumps(message)], fds or [])
        except OSError:
            self.end_everything()


def run_init(
    set_up: Callable[[], tuple[dict[str, object], list[int]]],
    lifeline: socket.socket,
    spawn: Spawner,
    *,
    is_pid1: bool,
    helpers: Callable[[], frozenset[int]] = frozenset,
) -> NoReturn:
    """Body of the forked child: set up, then serve. `set_up` gives facts and descriptors for the supervisor."""
    try:
        facts, fds = set_up()
    except SetUpFailed as problem:
        number, text = int(problem.args[0]), str(problem.args[1])
    except OSError as problem:
        number, text = problem.errno or 0, f"{problem.filename or 'set-up'}: {problem.strerror}"
    else:
        Init(lifeline, spawn, is_pid1=is_pid1, helpers=helpers()).serve(facts, fds)
    socket.send_fds(lifeline, [marshal.dumps(("failed", number, text[:TEXT_CHARS]))], [])
    os._exit(125)
