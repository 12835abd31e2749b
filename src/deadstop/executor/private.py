# SPDX-License-Identifier: Apache-2.0
"""The private supervisor of this process: started on first use, ended with it, never shared with a forked child."""

from __future__ import annotations

import atexit
import os
import select
import socket
import subprocess
import sys
import threading

from .. import errors

START_S = 10.0  # how long the supervisor may take to come up
END_S = 5.0
LONGEST_WAIT_S = 86_400.0

_CODE = (
    "import sys; sys.path.insert(0, sys.argv[3]); "
    "from deadstop.supervisor.server import main; main(*map(int, sys.argv[1:3]))"
)


class Supervisor:
    """The one of this process. A forked child starts its own: it shares no socket, lifeline or call with its parent."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._user = -1

    def connect(self) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        """A new channel for one call or boundary, and the process that it is connected to."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        with self._lock, theirs:
            try:
                self._offer(theirs)
            except OSError:
                self._stop()  # it died since the last call: a new one, once
                self._offer(theirs)
            assert self._process is not None
            return ours, self._process

    def _offer(self, channel: socket.socket) -> None:
        if self._control is None or self._user != os.geteuid():
            self._stop()
            self._start()
        assert self._control is not None
        socket.send_fds(self._control, [b"new"], [channel.fileno()])

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        caller = os.pidfd_open(os.getpid())
        home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _CODE, str(theirs.fileno()), str(caller), home],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
                pass_fds=(theirs.fileno(), caller),
            )  # fmt: skip
        finally:
            theirs.close()
            os.close(caller)
        if not wait_readable([ours.fileno()], START_S) or ours.recv(16) != b"ready":
            ours.close()
            raise errors.InternalError("the supervisor process did not start")
        self._control, self._user = ours, os.geteuid()

    def _stop(self) -> None:
        """Let go of it: it ends, and everything it held."""
        if self._control:
            self._control.close()
        self._control = None
        if self._process:
            self._process.poll()

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """For one that does not answer. Everything it held dies with it; a successor is left alone."""
        with self._lock:
            process.kill()
            process.wait(END_S)
            if process is self._process:
                self._stop()

    def forget(self) -> None:
        """In a forked child: the parent's supervisor is not ours."""
        self._lock = threading.RLock()
        self._stop()
        self._process = None

    def shut_down(self) -> None:
        """At exit: end it and wait, bounded, so that nothing outlives this process."""
        self._stop()
        if self._process:
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()


supervisor = Supervisor()
os.register_at_fork(after_in_child=supervisor.forget)
atexit.register(supervisor.shut_down)


def wait_readable(sources: list[int], seconds: float | None) -> list[int]:
    """Those of these descriptors that can be read; poll and not select, which takes no number above 1023."""
    poll = select.poll()
    for fd in sources:
        poll.register(fd, select.POLLIN)
    milliseconds = None if seconds is None else min(seconds, LONGEST_WAIT_S) * 1000
    return [fd for fd, _ in poll.poll(milliseconds)]
