# SPDX-License-Identifier: Apache-2.0
"""Start a command below a tiny parent of its own, the way a boundary holds a call; end all of it again.

Needs nothing but the standard library, so that `zoo_figures.py` can run as another user.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import pty
import select
import signal
import time
from typing import Any

from deadstop.boundary.evidence import View, collect, proc

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _TIOCSCTTY = 1, 36, 0x540E


class Case:
    """A running command; `root` is its parent, a subreaper, which ends everything when `close` drops its
    lifeline.
    """

    def __init__(self, argv: list[str], stdin: str = "null", env: dict[str, str] | None = None, cgroup: Any = None):
        self.stdin, self.output, self.started = stdin, bytearray(), time.monotonic()
        self.cgroup: dict[str, str] = {}
        self.input = -1
        theirs_in, theirs_out = self._open_streams()
        lifeline_read, self._lifeline = os.pipe()
        told, tell = os.pipe()
        self.root = os.fork()
        if self.root == 0:
            try:
                if cgroup is not None:
                    cgroup()
                _hold(argv, env, theirs_in, theirs_out, lifeline_read, tell, stdin == "tty")
            finally:
                os._exit(70)
        for number in {theirs_in, theirs_out, lifeline_read, tell}:
            os.close(number)
        with open(told, "rb") as pipe:
            self.leader = int(pipe.readline() or b"0")
        assert self.leader, f"could not start {argv}"

    def _open_streams(self) -> tuple[int, int]:
        if self.stdin == "tty":
            self._read_end, slave = pty.openpty()
            self.input = self._read_end
            os.set_blocking(self._read_end, False)
            return slave, os.dup(slave)
        self._read_end, theirs_out = os.pipe()
        os.set_blocking(self._read_end, False)
        if self.stdin == "open":
            theirs_in, self.input = os.pipe()
            return theirs_in, theirs_out
        return os.open(os.devnull, os.O_RDONLY), theirs_out

    def pump(self, seconds: float = 0.0) -> int:
        """Take what it has printed, for `seconds` at most; returns the number of bytes."""
        end, taken = time.monotonic() + seconds, 0
        while True:
            left = max(0.0, end - time.monotonic())
            if not select.select([self._read_end], [], [], left)[0]:
                return taken
            try:
                data = os.read(self._read_end, 1 << 16)
            except (BlockingIOError, OSError):
                return taken
            if not data:
                return taken
            taken += len(data)
            self.output = bytearray((bytes(self.output) + data)[-8000:])
            if left <= 0:
                return taken

    def view(self, **changes: Any) -> View:
        known: dict[str, Any] = {
            "root": self.root,
            "leader": self.leader,
            "tail": bytes(self.output),
            "stdin": self.stdin,
            "cgroup": self.cgroup,
            "elapsed": time.monotonic() - self.started,
        }
        return View(**{**known, **changes})

    def look(self, **changes: Any) -> dict[str, Any]:
        """All that `collect` emits, merged, and the CPU time it took."""
        merged: dict[str, Any] = {}
        order: list[str] = []

        def emit(part: dict[str, Any]) -> None:
            merged.update(part)
            order.extend(part)

        before = time.thread_time()
        collect(self.view(**changes), emit)
        merged["cpu_ms"] = (time.thread_time() - before) * 1000
        merged["order"] = order
        return merged

    def close(self) -> None:
        """End it and everything below it; returns when all are gone."""
        for number in (self._lifeline, self._read_end, self.input):
            if number >= 0:
                with contextlib.suppress(OSError):
                    os.close(number)
        self._lifeline = self._read_end = self.input = -1
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.root, 0)

    def __enter__(self) -> Case:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _hold(
    argv: list[str], env: dict[str, str] | None, stdin: int, stdout: int, lifeline: int, tell: int, tty: bool
) -> None:
    """The tiny parent: start the command, then wait for the lifeline to close, then end all that is below."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number, place in ((stdin, 200), (stdout, 201), (lifeline, 202), (tell, 203)):
        os.dup2(number, place)
    os.closerange(3, 200)
    os.closerange(204, 65536)
    leader = os.fork()
    if leader == 0:
        _become(argv, env, tty)
    os.write(203, b"%d\n" % leader)
    for number in (200, 201, 203):
        os.close(number)
    _bury(202)
    os._exit(0)


def _become(argv: list[str], env: dict[str, str] | None, tty: bool) -> None:
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.setsid()
        if tty:
            fcntl.ioctl(200, _TIOCSCTTY, 0)
        for place, number in ((0, 200), (1, 201), (2, 201)):
            os.dup2(number, place)
        os.closerange(3, 256)
        os.execvpe(argv[0], argv, env if env is not None else dict(os.environ))
    finally:
        os._exit(127)


def _bury(lifeline: int) -> None:
    while True:
        ready = select.select([lifeline], [], [], 0.05)[0]
        _reap_others()
        if ready:
            break
    end = time.monotonic() + 20
    while time.monotonic() < end:
        below = proc.descendants(os.getpid())
        for pid in below:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        while _reap_others():
            pass
        if not below:
            return
        time.sleep(0.002)


def _reap_others() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False
