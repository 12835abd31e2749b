# SPDX-License-Identifier: Apache-2.0
"""The library's side of a call: hands it to the private supervisor, and reads what becomes of it.

The supervisor keeps the deadline. What is kept here is only the answer to "and if the supervisor itself is stopped or
dead?": then this process sees to it that the boundary is gone, through its own descriptor, and says what it knows.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from typing import Any

from .. import clock, errors, wire
from ..contract import receipt_from_dict
from ..model import Command, Place, command_to_dict, place_to_dict
from ..results import FiredLimit, Receipt, Status, ToolResult
from .private import supervisor, wait_readable

BACKSTOP_S = 1.0  # how long after a call's last possible end its result may take
PROOF_S = 5.0
SEND_S = 10.0
ENDING_S = 0.25

OnOutput = Callable[[str, bytes], None]


class Channel:
    """The socket of one call or boundary, and the reading of it, for blocking and for event loop use alike."""

    def __init__(self, connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
        self.socket = connection
        self.process = process  # the supervisor at the other end
        self.root = -1  # pidfd of the boundary's first process: readable when that is gone
        self.root_is_all = False  # it is the first process of a namespace: its end is the end of everything inside
        self._parser = wire.Parser()
        self._sending = threading.Lock()
        connection.setblocking(False)
        _open_channels.add(self)

    def send(
        self,
        kind: bytes,
        document: dict[str, Any] | None = None,
        fds: list[int] | None = None,
        until: float | None = None,
    ) -> None:
        """Send a frame whole, or what the peer takes until then: one that is gone or stopped is found out later."""
        left = memoryview(wire.frame(kind) if document is None else wire.json_frame(kind, document))
        end = min(clock.monotonic() + SEND_S, until or float("inf"))
        with self._sending:
            while left and clock.monotonic() < end:
                try:
                    sent = socket.send_fds(self.socket, [left], fds) if fds else self.socket.send(left)
                except BlockingIOError:
                    _wait_writable(self.socket.fileno(), end - clock.monotonic())
                    continue
                except OSError:
                    return
                left, fds = left[sent:], None

    def order(self, kind: bytes, text: str = "") -> None:
        """A small frame that must not block; lost only if the peer reads nothing, which the backstop finds out."""
        try:
            self.socket.send(wire.frame(kind, text.encode()))
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
        frames = self._parser.feed(data) if data else None
        for kind, body in frames or ():
            if kind in (wire.STARTED, wire.OPENED):
                self.root_is_all = body == b"namespace"
        return frames

    def end_from_here(self, level: str) -> Receipt:
        """The supervisor is dead or does not answer: see to it that the boundary ends, and say what that shows.

        Without its supervisor every boundary ends by itself, for its lifeline is closed. A namespace is killed from
        here as well; a subreaper must be left to sweep, and whether it finished cannot be seen from here.
        """
        supervisor.kill(self.process)
        gone = self.root < 0
        if self.root >= 0:
            if self.root_is_all:
                _send_kill(self.root)
            gone = bool(wait_readable([self.root], PROOF_S))
        shown = gone and self.root_is_all
        method = ("pidfd",) if self.root_is_all else ("lifeline",)
        return Receipt(level, method, "pid_namespace_reaped" if shown else "none", 0 if shown else None)

    def close(self) -> None:
        _open_channels.discard(self)
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
        self._asked = False
        # When to ask whether the supervisor is still there; None while the call may take for ever.
        self.answer_by = None if command.deadline is None else command.deadline + command.grace + BACKSTOP_S

    @property
    def over(self) -> bool:
        return self.result is not None or self.problem is not None

    def overdue(self) -> None:
        """The time for an answer is over. A supervisor that lives is asked for a sign of that, and waited for."""
        if self._asked:
            self.lost("the supervisor did not answer in time")
        else:
            self._asked = True
            self.channel.order(wire.PING)
            self.answer_by = clock.monotonic() + BACKSTOP_S

    def pump(self) -> None:
        """Read what is there."""
        frames = self.channel.read()
        if frames is None:
            if _has_ended(self.channel.process):
                self.lost("the supervisor ended")
            else:
                self.problem = errors.InternalError("the supervisor could not take the call: is it out of descriptors?")
            return
        for kind, body in frames:
            if kind == wire.OUTPUT and self.on_output:
                self.on_output(wire.STREAM_NAMES[body[0]], body[1:])
            elif kind == wire.PONG:
                self._asked, self.answer_by = False, clock.monotonic() + BACKSTOP_S
            elif kind == wire.DONE:
                self.result = ToolResult.from_dict(json.loads(body))
            elif kind == wire.FAILED:
                self.problem = failure(body)

    def cancel(self, reason: str = "caller") -> None:
        self.channel.order(wire.CANCEL, reason)

    def lost(self, why: str) -> None:
        """No word will come from the supervisor any more: end the boundary from here and say what is known."""
        overdue = self.command.deadline is not None and clock.monotonic() >= self.command.deadline
        receipt = self.channel.end_from_here(self.level)
        limit = self.command.limit or FiredLimit("call", None, "given")
        self.result = ToolResult(
            tool=self.command.tool, status=Status.TIMEOUT if overdue else Status.UNKNOWN, call_id=self.command.call_id,
            limit=limit if overdue else None, receipt=receipt, started_at=clock.now_iso(),
            environment="the boundary was ended by the caller", degraded=(f"{why}: its output and evidence are lost",),
        )  # fmt: skip


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Its sockets close a moment before it can be collected."""
    try:
        process.wait(ENDING_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _send_kill(pidfd: int) -> None:
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _wait_writable(fd: int, seconds: float) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    poll.poll(max(0.0, seconds) * 1000)


def start_run(place: Place, command: Command, cwd: int | None, stdin: int | None, on_output: OnOutput | None) -> Call:
    """Hand over a one-shot call."""
    channel = Channel(*supervisor.connect())
    fds = [fd for fd in (cwd, stdin) if fd is not None]
    document = {
        "place": place_to_dict(place), "command": command_to_dict(command),
        "has_cwd": cwd is not None, "has_stdin": stdin is not None,
    }  # fmt: skip
    call = Call(channel, place.isolation, command, on_output)
    channel.send(wire.RUN, document, fds, call.answer_by)
    return call


def start_in(
    boundary: Channel, level: str, command: Command, cwd: int | None, stdin: int | None, on_output: OnOutput | None
) -> Call:
    """Hand over a call into an opened boundary."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    channel = Channel(ours, boundary.process)
    call = Call(channel, level, command, on_output)
    with theirs:
        fds = [theirs.fileno(), *(fd for fd in (cwd, stdin) if fd is not None)]
        document = {
            "command": command_to_dict(command),
            "has_cwd": cwd is not None,
            "has_stdin": stdin is not None,
        }
        boundary.send(wire.EXEC, document, fds, call.answer_by)
    return call


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
