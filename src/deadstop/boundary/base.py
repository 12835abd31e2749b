# SPDX-License-Identifier: Apache-2.0
"""What every boundary is to its supervisor: something that starts commands, and that ends as one.

A boundary is one process of ours (pid 1 of a namespace, or a subreaper) and everything below it. The supervisor holds
two descriptors of it: the lifeline (a socket pair for orders and reports; the other end exists only in that process)
and `exit_fd`, a pidfd that becomes readable when that process is gone, which each kind makes the proof that all is
gone. Nothing here waits: the supervisor's loop watches both descriptors and keeps the time.
"""

from __future__ import annotations

import marshal
import os
import signal
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from .. import wire
from . import payload
from .init import MESSAGE_BYTES
from .limits import Applied
from .reaper import descendants, state_of

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True, slots=True)
class Gone:
    """What collecting a boundary showed. `proof` is "none" when nothing was shown."""

    proof: str
    survivors: int | None


class Boundary:
    """Common part of all kinds. Subclasses give `level`, `_launch`, `_serve` and `_judge`."""

    level = "process"
    weaker: tuple[str, ...] = ()  # why this is not the strongest kind, one line each

    def __init__(self, applied: Applied) -> None:
        self.applied = applied
        self.group = applied.group
        self.methods: list[str] = []
        self.facts: dict[str, object] = {}
        self._gone: Gone | None = None
        self.lifeline, self._inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self.lifeline.setblocking(False)
        try:
            self.pid, self.exit_fd = self._launch()
        except OSError:
            self.lifeline.close()
            self.release()
            raise
        finally:
            self._inner.close()

    @classmethod
    def adopt(cls, applied: Applied, lifeline: socket.socket, pid: int, exit_fd: int) -> Self:
        """One that a sibling process launched as a child of ours, and handed over."""
        boundary = cls.__new__(cls)
        boundary.applied, boundary.group = applied, applied.group
        boundary.methods, boundary.facts, boundary._gone = [], {}, None
        boundary.lifeline, boundary.pid, boundary.exit_fd = lifeline, pid, exit_fd
        lifeline.setblocking(False)
        return boundary

    def _launch(self) -> tuple[int, int]:
        raise NotImplementedError

    def _judge(self, status: os.waitid_result) -> Gone:
        raise NotImplementedError

    def _serve(self) -> NoReturn:
        raise NotImplementedError

    def _in_child(self, pid: int) -> None:
        """In the forked child (pid 0): serve, and leave without running anything of the supervisor's."""
        if pid == 0:
            try:
                self._serve()
            finally:
                os._exit(125)

    # -- orders ------------------------------------------------------------------------------------------------------

    def run(self, command_id: int, command: payload.Request, stdio: list[int]) -> None:
        """Start a command; `stdio` is stdin, stdout, stderr and, if it names no path, its folder.

        Reported by `receive`.
        """
        spec = os.memfd_create("deadstop-command", os.MFD_CLOEXEC)
        try:
            data = marshal.dumps(command)
            while data:
                data = data[os.write(spec, data) :]
            socket.send_fds(self.lifeline, [marshal.dumps(("run", command_id))], [spec, *stdio])
        finally:
            os.close(spec)

    def terminate(self) -> None:
        """SIGTERM to everything inside. Best effort: only `kill` is certain."""
        self._order("terminate")

    def kill(self) -> None:
        """SIGKILL to everything inside, in ways that need nobody's help inside. Idempotent."""
        if self.group and self.group.kill():
            self._used("cgroup.kill")
        self._kill_root()

    def _kill_root(self) -> None:
        try:
            signal.pidfd_send_signal(self.exit_fd, signal.SIGKILL)
            self._used("pidfd")
        except ProcessLookupError:
            pass

    def _order(self, word: str) -> None:
        try:
            self.lifeline.send(marshal.dumps((word,)))
        except OSError:
            pass

    def _used(self, method: str) -> None:
        if method not in self.methods:
            self.methods.append(method)

    # -- reports -----------------------------------------------------------------------------------------------------

    def receive(self) -> tuple[tuple[object, ...], list[int]] | None:
        """The next message of init with its descriptors; ((),[]) at end-of-file; None when there is none now."""
        try:
            data, fds = wire.receive_fds(self.lifeline, MESSAGE_BYTES, 4)
        except BlockingIOError:
            return None
        except OSError:
            return (), []
        if not data:
            return (), []
        message: tuple[object, ...] = marshal.loads(data)
        if message[0] == "ready":
            self.facts = message[1]  # type: ignore[assignment]
        return message, fds

    def helpers(self) -> frozenset[int]:
        """Host pids of our own processes inside, init not counted."""
        return frozenset()

    def members(self, limit: int = 100_000) -> list[int]:
        """Host pids of everything inside that is not ours. A count of the moment: not a proof of anything."""
        ours = self.helpers() | {self.pid}
        found = descendants(self.pid, limit=limit + len(ours))
        return [pid for pid in found if pid not in ours and state_of(pid) not in "ZX"][:limit]

    def count(self, limit: int) -> int:
        """How many inside are not ours: from the cgroup in one read, without one by walking, up to `limit`."""
        if self.group and self.group.v2:
            return len(set(self.group.members()) - self.helpers() - {self.pid})
        return len(self.members(limit))

    def collect(self) -> Gone:
        """Call when `exit_fd` is readable: collects the process and says what its end proves."""
        if self._gone is None:
            self._gone = self._judge(os.waitid(os.P_PIDFD, self.exit_fd, os.WEXITED))  # type: ignore[arg-type]
        return self._gone

    def close(self) -> None:
        self.lifeline.close()
        if self.exit_fd >= 0:
            os.close(self.exit_fd)
            self.exit_fd = -1

    def release(self) -> bool:
        """Take the cgroup away; False if that has to be tried again. Once it worked there is nothing left of this."""
        return self.group is None or self.group.remove()
