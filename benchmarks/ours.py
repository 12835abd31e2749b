# SPDX-License-Identifier: Apache-2.0
"""deadstop's engine in this process, as `deadstop run` and the private supervisor use it; and its rivals."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from deadstop import clock
from deadstop.boundary import payload, syscalls
from deadstop.boundary.cgroup import read
from deadstop.boundary.reaper import descendants
from deadstop.executor.prepare import Options, Prepared, prepare
from deadstop.results import ToolResult
from deadstop.supervisor.engine import Engine
from deadstop.supervisor.room import Room

from .harness import milliseconds

BOUND_S = 20.0


class FirstOutput:
    """A sink that only remembers when the first bytes came."""

    def __init__(self) -> None:
        self.at: float | None = None

    def write(self, stream: str, data: bytes) -> None:
        if self.at is None:
            self.at = clock.monotonic()

    def full(self, stream: str) -> bool:
        return False

    def broken(self, stream: str) -> bool:
        return False


class Ours:
    """One engine. It runs with the supervisor's priority only while it is used, so that rivals run with ours."""

    def __init__(self) -> None:
        self._nice = os.getpriority(os.PRIO_PROCESS, 0)
        self._oom = int(read("/proc/self/oom_score_adj"))
        self.engine = Engine()

    def prepared(self, argv: Sequence[str], **options: Any) -> Prepared:
        return prepare(argv, Options(timeout=60.0, **options), stdin="null")

    def open(self, prepared: Prepared) -> Room:
        """A boundary that is ready for commands."""
        room = self.engine.open(prepared.place)
        self.step_until(lambda: room.ready or room.ended)
        return room

    def start(self, prepared: Prepared, *, room: Room | None = None) -> tuple[Room, FirstOutput, list[ToolResult]]:
        """Start a command, in a boundary of its own unless one is given, and wait for its first output."""
        sink, results = FirstOutput(), list[ToolResult]()
        used = room or self.engine.open(prepared.place)
        self.engine.start(used, prepared.command, None, None, results.append, owns_room=room is None, sink=sink)
        self.step_until(lambda: sink.at is not None or bool(results))
        if sink.at is None:
            raise RuntimeError(f"the payload did not start: {results}")
        return used, sink, results

    def create(self, prepared: Prepared) -> tuple[Room, float]:
        """The boundary, and milliseconds from nothing to the first output in it."""
        self.protect()
        start = clock.monotonic()
        room, sink, _ = self.start(prepared)
        return room, milliseconds(start, sink.at)

    def kill(self, room: Room) -> float:
        """Milliseconds from the kill to the proof. Fails if there is none."""
        start = clock.monotonic()
        room.kill(lambda: None)
        self.step_until(lambda: room.ended)
        self.relax()
        if room.gone is None or room.gone.proof == "none":
            raise RuntimeError(f"no proof of the end: {room.gone} {room.unkillable}")
        return milliseconds(start, room.gone_at)

    def step_until(self, done: Callable[[], bool], seconds: float = BOUND_S) -> None:
        end = clock.monotonic() + seconds
        bound = self.engine.loop.at(end, lambda: None)
        while not done() and clock.monotonic() < end:
            self.engine.loop.step()
        bound.cancel()

    def protect(self) -> None:
        self.engine.protect()

    def relax(self) -> None:
        payload.restore_priority(self._nice, self._oom)


# -- what it is compared with --------------------------------------------------------------------------------------


def plain_subprocess(argv: Sequence[str]) -> float:
    """subprocess.Popen to the first output; then killed."""
    start = clock.monotonic()
    process = subprocess.Popen(list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert process.stdout
    assert os.read(process.stdout.fileno(), 6)
    took = milliseconds(start)
    process.kill()
    process.wait()
    process.stdout.close()
    return took


def find_bwrap() -> str | None:
    return shutil.which("bwrap")


def bare_bwrap(argv: Sequence[str], env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """bubblewrap with the fewest arguments that isolate, its payload's output on a pipe."""
    words = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-all", "--die-with-parent"]
    return subprocess.Popen([*words, "--", *argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=env)


def end_bwrap(process: subprocess.Popen[bytes]) -> None:
    """From the inside out: killed from outside alone, bubblewrap now and then leaves its payload behind."""
    for pid in [*reversed(descendants(process.pid)), process.pid]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()
    if process.stdout:
        process.stdout.close()


class RawNamespace:
    """A pid namespace made with nothing but system calls: a pid 1 that sleeps, the payload its child."""

    def __init__(self, argv: Sequence[str], limit: tuple[int, int] | None = None) -> None:
        flags = syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNS
        if os.geteuid() != 0:
            flags |= syscalls.CLONE_NEWUSER
        read, write = os.pipe2(os.O_CLOEXEC)
        self.pid, self.pidfd = syscalls.clone3(flags)
        if self.pid == 0:
            self._be_pid1(list(argv), write, limit)
        os.close(write)
        self.output = read

    def _be_pid1(self, argv: list[str], write: int, limit: tuple[int, int] | None) -> None:
        try:
            payload.reset_signals()
            syscalls.die_with_parent()
            if os.fork() == 0:
                os.dup2(write, 1, inheritable=True)
                if limit:
                    resource.setrlimit(limit[0], (limit[1], limit[1]))
                os.execv(argv[0], argv)
            os.close(write)
            while True:
                signal.pause()
        finally:
            os._exit(125)

    def first_output(self) -> None:
        assert os.read(self.output, 6), "the payload did not start"

    def kill(self) -> float:
        start = clock.monotonic()
        signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        took = milliseconds(start)
        os.close(self.output)
        os.close(self.pidfd)
        return took
