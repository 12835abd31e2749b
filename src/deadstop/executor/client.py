# SPDX-License-Identifier: Apache-2.0
"""The library's side: starts the private supervisor, hands it calls, and reads what becomes of them.

The supervisor keeps the deadline. What is kept here is only the answer to "and if the supervisor itself is stopped or
dead?": then this process kills the boundary through its own descriptor of it, sees that it is gone, and says what it
knows.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from .. import clock, errors, wire
from ..contract import receipt_from_dict
from ..model import Command, Place, command_to_dict, place_to_dict
from ..results import FiredLimit, Receipt, Status, ToolResult

START_S = 10.0  # how long the supervisor may take to come up
BACKSTOP_S = 1.0  # how long after a call's last possible end its result may take
PROOF_S = 5.0

OnOutput = Callable[[str, bytes], None]
_CODE = (
    "import sys; sys.path.insert(0, sys.argv[3]); "
    "from deadstop.supervisor.server import main; main(*map(int, sys.argv[1:3]))"
)


class Supervisor:
    """The one of this process. A forked child starts its own: it shares no socket, lifeline or call with its parent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._user = -1

    def connect(self) -> socket.socket:
        """A new channel for one call or boundary."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        with self._lock, theirs:
            try:
                self._offer(theirs)
            except OSError:
                self._stop()  # it died since the last call: a new one, once
                self._offer(theirs)
        return ours

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
        if not select.select([ours], [], [], START_S)[0] or ours.recv(16) != b"ready":
            ours.close()
            raise errors.InternalError("the supervisor process did not start")
        self._control, self._user = ours, os.geteuid()

    def _stop(self) -> None:
        """Let go of it: it ends, and everything it held."""
        if self._control:
            self._control.close()
        self._control = None

    def kill(self) -> None:
        """For a supervisor that does not answer. Everything it held dies with it."""
        with self._lock:
            if self._process:
                self._process.kill()
                self._process.wait(PROOF_S)
            self._stop()

    def forget(self) -> None:
        """In a forked child: the parent's supervisor is not ours."""
        self._lock = threading.Lock()
        self._stop()
        self._process = None

    def shut_down(self) -> None:
        """At exit: end it and wait, bounded, so that nothing outlives this process."""
        self._stop()
        if self._process:
            try:
                self._process.wait(PROOF_S)
            except subprocess.TimeoutExpired:
                self._process.kill()


supervisor = Supervisor()
os.register_at_fork(after_in_child=supervisor.forget)


class Channel:
    """The socket of one call or boundary, and the reading of it, for blocking and for event loop use alike."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.root = -1  # pidfd of the boundary's first process: readable when all of it is gone
        self.closed = False
        self._parser = wire.Parser()
        _open_channels.add(self)

    def send(self, kind: bytes, document: dict[str, Any] | None = None, fds: list[int] | None = None) -> None:
        data = wire.frame(kind) if document is None else wire.json_frame(kind, document)
        try:
            if fds:
                sent = socket.send_fds(self.socket, [data], fds)
                data = data[sent:]
            self.socket.sendall(data)
        except OSError:
            pass  # it is gone: reading says so

    def order(self, kind: bytes, text: str = "") -> None:
        try:
            self.socket.sendall(wire.frame(kind, text.encode()))
        except OSError:
            pass

    def read(self) -> list[tuple[bytes, bytes]] | None:
        """Frames that are there; None at the end of them all."""
        got = wire.receive(self.socket)
        if got is None:
            return []
        data, fds = got
        if fds:
            self.root = fds[0]
        return self._parser.feed(data) if data else None

    def kill_root(self) -> bool:
        """Kill the boundary from here and wait for the proof; False if it could not be shown."""
        if self.root < 0:
            return False
        try:
            signal.pidfd_send_signal(self.root, signal.SIGKILL)
        except ProcessLookupError:
            pass
        return bool(select.select([self.root], [], [], PROOF_S)[0])

    def close(self) -> None:
        _open_channels.discard(self)
        self.closed = True
        self.socket.close()
        if self.root >= 0:
            os.close(self.root)
            self.root = -1


_open_channels: set[Channel] = set()


def _drop_channels() -> None:
    for channel in list(_open_channels):
        channel.close()


os.register_at_fork(after_in_child=_drop_channels)


class Call:
    """One call in flight. `handle` eats frames; `result` is set at the end."""

    def __init__(self, channel: Channel, level: str, command: Command, on_output: OnOutput | None) -> None:
        self.channel, self.level, self.command, self.on_output = channel, level, command, on_output
        self.result: ToolResult | None = None
        self.problem: Exception | None = None
        channel.socket.setblocking(False)

    @property
    def over(self) -> bool:
        return self.result is not None or self.problem is not None

    def backstop(self) -> float | None:
        """When to stop believing in the supervisor."""
        if self.command.deadline is None:
            return None
        return self.command.deadline + self.command.grace + BACKSTOP_S

    def pump(self) -> None:
        """Read what is there."""
        frames = self.channel.read()
        if frames is None:
            self.lost("the supervisor ended")
            return
        for kind, body in frames:
            if kind == wire.OUTPUT and self.on_output:
                self.on_output(wire.STREAM_NAMES[body[0]], body[1:])
            elif kind == wire.DONE:
                self.result = ToolResult.from_dict(json.loads(body))
            elif kind == wire.FAILED:
                self.problem = failure(body)

    def cancel(self, reason: str = "caller") -> None:
        self.channel.order(wire.CANCEL, reason)

    def lost(self, why: str) -> None:
        """No word will come from the supervisor any more: end the boundary from here and say what is known."""
        overdue = self.command.deadline is not None and clock.monotonic() >= self.command.deadline
        supervisor.kill()
        gone = self.channel.kill_root()
        receipt = Receipt(
            boundary=self.level,
            method=("pidfd",),
            proof="pid_namespace_reaped" if gone else "none",
            survivors=0 if gone else None,
        )
        limit = self.command.limit or FiredLimit("call", None, "given")
        self.result = ToolResult(
            tool=self.command.tool, status=Status.TIMEOUT if overdue else Status.UNKNOWN, call_id=self.command.call_id,
            limit=limit if overdue else None, receipt=receipt, started_at=clock.now_iso(),
            environment="the boundary was ended by the caller", degraded=(f"{why}: its output and evidence are lost",),
        )  # fmt: skip


def start_run(place: Place, command: Command, cwd: int | None, stdin: int | None, on_output: OnOutput | None) -> Call:
    """Hand over a one-shot call."""
    channel = Channel(supervisor.connect())
    fds = [fd for fd in (cwd, stdin) if fd is not None]
    document = {
        "place": place_to_dict(place), "command": command_to_dict(command),
        "has_cwd": cwd is not None, "has_stdin": stdin is not None,
    }  # fmt: skip
    channel.send(wire.RUN, document, fds)
    return Call(channel, place.isolation, command, on_output)


def start_in(
    boundary: Channel, level: str, command: Command, cwd: int | None, stdin: int | None, on_output: OnOutput | None
) -> Call:
    """Hand over a call into an opened boundary."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    channel = Channel(ours)
    with theirs:
        fds = [theirs.fileno(), *(fd for fd in (cwd, stdin) if fd is not None)]
        document = {
            "command": command_to_dict(command),
            "has_cwd": cwd is not None,
            "has_stdin": stdin is not None,
        }
        boundary.send(wire.EXEC, document, fds)
    return Call(channel, level, command, on_output)


class BoundaryEnded(errors.DeadstopError):
    """The kept boundary has ended: nothing can be run in it any more."""

    def __str__(self) -> str:
        return "this boundary has ended: open a new one"


def failure(body: bytes) -> Exception:
    """The supervisor's refusal as the exception it stands for."""
    document = json.loads(body)
    kind = (
        BoundaryEnded
        if document["type"] == "BoundaryEnded"
        else getattr(errors, document["type"], errors.InternalError)
    )
    problem: Exception = kind(*document["args"])
    return problem


def gone_receipt(body: bytes) -> Receipt | None:
    return receipt_from_dict(json.loads(body))
