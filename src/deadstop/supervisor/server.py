# SPDX-License-Identifier: Apache-2.0
"""The private supervisor: one small process that the library starts on first use and that ends with its caller.

It is not in the caller, so that a caller that is frozen, killed or holds the interpreter lock moves no deadline. It
ends, and takes everything along, when the control socket closes or the caller's pidfd says that the caller is gone.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import socket
import sys
import traceback
from typing import Any, NoReturn

from .. import clock, wire
from ..boundary.process import ProcessBoundary
from ..contract import receipt_to_dict
from ..errors import BoundaryUnavailable, DeadstopError
from ..model import command_from_dict, place_from_dict
from ..results import FiredLimit, Receipt, Status, ToolResult
from .call import Call
from .engine import Engine
from .exchange import exchange_files
from .freezer import Freezer
from .life import Life, Lives
from .nursery import Interpreter, Nursery
from .pool import Pool
from .room import Room

SEND_BUFFER = 256 << 10  # output waiting for a slow caller, per call; beyond it the payload's own pipe fills
SHUTDOWN_S = 3.0
EXHAUSTED = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


class Peer:
    """One socket to the caller: buffered writes that never block, frames in."""

    def __init__(self, server: Server, channel: socket.socket) -> None:
        self.server, self.channel = server, channel
        self.loop = server.engine.loop
        self.call: Call | None = None
        self.room: Room | None = None
        self.pool: Pool | None = None
        self.life: Life | None = None
        self.freezer: Freezer | None = None
        self.closing = False
        self._pending = bytearray()
        self._parser = wire.Parser()
        self._fds: list[int] = []
        channel.setblocking(False)
        self.loop.watch(channel.fileno(), self._readable)

    # -- in ----------------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        got = wire.receive(self.channel)
        if got is None:
            return
        data, fds = got
        self._fds += fds
        if not data:
            self._lost()
            return
        for kind, body in self._parser.feed(data):
            self._handle(kind, body)

    def _handle(self, kind: bytes, body: bytes) -> None:
        given: list[int] = []
        try:
            if kind == wire.RUN:
                document = json.loads(body)
                given = self._take_fds(document)
                self.start(self.server.open(document["place"]), document, given, owns_room=True)
            elif kind == wire.OPEN:
                self._open(json.loads(body))
            elif kind == wire.EXEC:
                document = json.loads(body)
                given = self._take_fds(document, extra=1)
                self._execute(document, given)
            elif kind == wire.POOL:
                document = json.loads(body)
                given, self._fds = self._fds[:2], self._fds[2:]
                self.pool = self.server.open_pool(document, given)
            elif kind == wire.CANCEL and self.call:
                self.call.stop(Status.CANCELLED, reason=body.decode() or "caller")
            elif kind == wire.HURRY and self.call:
                self.call.hurry()
            elif kind == wire.SIGNAL and self.call:
                self.call.leader.signal(int(body))
            elif kind == wire.LIMIT and self.call:
                asked = json.loads(body)
                limit = FiredLimit("call", asked["seconds"], "given") if asked["deadline"] is not None else None
                self.call.set_limit(asked["deadline"], limit)
            elif kind == wire.PING:
                self.send(wire.frame(wire.PONG))
            elif self.room:
                self._room_order(self.room, kind, body)
        except Exception as problem:  # one bad call must not end the others
            self._refuse(problem)
        finally:
            for fd in given:
                os.close(fd)

    def _refuse(self, problem: Exception) -> None:
        kind, args = type(problem).__name__, list(problem.args)
        if not isinstance(problem, DeadstopError):
            kind, args = "InternalError", [f"the supervisor could not start the call: {problem}"]
        self.send(wire.json_frame(wire.FAILED, {"type": kind, "args": args}))

    def _open(self, document: dict[str, Any]) -> None:
        self.room = self.server.open(document["place"])
        self.room.listeners[0] = self._room_message
        self.room.counts = True
        self.freezer = Freezer(self.loop, self.room)
        if life := document.get("life"):
            self.life = Life(self.server.lives, self.room, life["expires_at"], life["ttl"], life["idle"])

    def _room_order(self, room: Room, kind: bytes, body: bytes) -> None:
        if kind == wire.KILL and room.ended:
            self._room_gone()
        elif kind == wire.KILL:
            room.kill(lambda: None, body.decode() or "killed")  # its end is told to all who listen, so to this one
        elif kind == wire.TOUCH and self.life:
            self.life.touch()
        elif kind == wire.EXTEND:
            asked = json.loads(body)
            if self.life is None:  # it was made to be taken by somebody, and now somebody has
                self.life = Life(self.server.lives, room, asked["expires_at"], asked["ttl"], asked["idle"])
                done = not self.life.over
            else:
                done = self.life.extend(asked["expires_at"], asked["ttl"], asked["idle"])
            self.send(wire.json_frame(wire.LIFE, {"expires_at": self.life.expires_at, "done": done}))
        elif kind == wire.SWAP:
            exchange_files(self.loop, room, json.loads(body), lambda text: self.send(wire.frame(wire.SWAPPED, text)))
        elif kind == wire.FREEZE and self.freezer:
            if body == b"1":
                self.freezer.freeze(lambda frozen: self.send(wire.frame(wire.FROZEN, b"1" if frozen else b"0")))
                return
            self.freezer.thaw()
            if body == b"0":  # "-": nobody waits for the answer
                self.send(wire.frame(wire.FROZEN, b"0"))

    def _take_fds(self, document: dict[str, Any], extra: int = 0) -> list[int]:
        count = document["has_cwd"] + document["has_stdin"] + extra
        fds, self._fds = self._fds[:count], self._fds[count:]
        return fds

    def _execute(self, document: dict[str, Any], given: list[int]) -> None:
        peer = self.server.add(socket.socket(fileno=given.pop(0)))
        if self.room is None or self.room.ended or self.room.kill_at is not None:
            peer.send(wire.json_frame(wire.FAILED, {"type": "BoundaryEnded", "args": []}))
        else:
            peer.run(self.room, document, given)

    def run(self, room: Room, document: dict[str, Any], fds: list[int]) -> None:
        """Start a command in a boundary that lives on. What goes wrong is said here, where its end is waited for."""
        try:
            self.start(room, document, fds, owns_room=False)
        except Exception as problem:
            self._refuse(problem)

    def start(self, room: Room, document: dict[str, Any], fds: list[int], *, owns_room: bool) -> None:
        """Start the call of this socket; `fds` are its folder and stdin, as the document says."""
        command = command_from_dict(document["command"])
        cwd = fds[0] if document["has_cwd"] else None
        stdin = fds[-1] if document["has_stdin"] else None
        sink = self if command.stream else None
        self.call = self.server.engine.start(room, command, stdin, cwd, self._done, owns_room=owns_room, sink=sink)
        if not self.closing:
            self.send(_root_frame(wire.STARTED, room), [room.boundary.exit_fd])

    def _lost(self) -> None:
        """The caller closed its end: nobody waits for this call any more."""
        self.closing = True
        self.loop.unwatch(self.channel.fileno())
        if self.call and not self.call.finished:
            self.call.stop(Status.CANCELLED, reason="owner_gone", grace=0, wait=False)
        elif self.room and not self.room.ended:
            self.room.kill(self.close, "owner_gone")
        elif self.pool:
            self.pool.close()
            self.close()
        else:
            self.close()

    # -- out ---------------------------------------------------------------------------------------------------------

    def _done(self, result: ToolResult) -> None:
        self.send(wire.frame(wire.DONE, result.to_json().encode()))
        if self.closing:
            self.close()

    def _room_message(self, message: tuple[object, ...], fds: list[int]) -> None:
        if message[0] == "ready" and self.room:
            self.send(_root_frame(wire.OPENED, self.room), [self.room.boundary.exit_fd])
        elif message[0] == "gone" and self.room and self.room.failed:
            args = [self.room.boundary.level, self.room.failed[1], ""]
            self.send(wire.json_frame(wire.FAILED, {"type": "BoundaryUnavailable", "args": args}))
        elif message[0] == "gone":
            self._room_gone()

    def _room_gone(self) -> None:
        room = self.room
        if room is None or room.gone is None or room.gone_at is None:
            return
        kill_at = room.kill_at if room.kill_at is not None else room.gone_at
        receipt = Receipt(
            boundary=room.boundary.level, method=tuple(room.boundary.methods), proof=room.gone.proof,
            survivors=room.gone.survivors, processes=room.processes, kill_ms=round((room.gone_at - kill_at) * 1000, 2),
            deadline_to_dead_ms=self.life.late_ms() if self.life else None, unkillable=room.unkillable,
        )  # fmt: skip
        self.send(wire.json_frame(wire.GONE, {**receipt_to_dict(receipt), "reason": _end_reason(room)}))

    def send(self, data: bytes, fds: list[int] | None = None) -> None:
        """Queue a frame. With descriptors it goes out at once or, to a caller that reads nothing, not at all."""
        if self.closing:
            return
        if fds:
            try:
                socket.send_fds(self.channel, [data], fds)
            except OSError:
                pass
            return
        self._pending += data
        self._flush()

    def _flush(self) -> None:
        was_full = len(self._pending) >= SEND_BUFFER
        try:
            while self._pending:
                del self._pending[: self.channel.send(self._pending[: 1 << 18])]
        except BlockingIOError:
            self.loop.watch_writable(self.channel.fileno(), self._flush)
        except OSError:
            self._pending.clear()
        if not self._pending:
            self.loop.unwatch_writable(self.channel.fileno())
        if was_full and len(self._pending) < SEND_BUFFER and self.call:
            self.call.resume_output()

    # -- as a sink ---------------------------------------------------------------------------------------------------

    def write(self, stream: str, data: bytes) -> None:
        self.send(wire.frame(wire.OUTPUT, wire.STREAMS[stream] + data))

    def full(self, stream: str) -> bool:
        return len(self._pending) >= SEND_BUFFER and not self.closing

    def broken(self, stream: str) -> bool:
        return False

    def close(self) -> None:
        self.closing = True
        self.loop.unwatch(self.channel.fileno())
        self.loop.unwatch_writable(self.channel.fileno())
        self.channel.close()
        self.server.peers.discard(self)


def _end_reason(room: Room) -> str:
    """Why it ended: asked for, or else killed for memory, or by itself, which nothing of ours does."""
    if room.end_reason:
        return room.end_reason
    group = room.boundary.applied.group
    return "resource" if group and group.out_of_memory_kills() else "failed"


def _is_over(room: Room) -> bool:
    """Ended, and its control groups given back, too."""
    return room.ended and (room.released or not room.exited)


def _complain(problem: Exception) -> None:
    """A defect of ours in one call's handling: it is shown, and the other calls go on."""
    sys.stderr.write("deadstop: internal error\n" + "".join(traceback.format_exception(problem)))


def _root_frame(kind: bytes, room: Room) -> bytes:
    """Says whether killing the boundary's first process, whose pidfd goes along, ends all of it."""
    return wire.frame(kind, b"namespace" if isinstance(room.boundary, ProcessBoundary) else b"subreaper")


class Server:
    """All the sockets of one caller."""

    def __init__(self, control: socket.socket, caller: int) -> None:
        self.engine = Engine()
        self.engine.protect()
        self.engine.loop.on_error = _complain
        self.control = control
        self.lives = Lives(self.engine.loop)
        self.peers: set[Peer] = set()
        self.rooms: list[Room] = []
        self.nurseries: dict[Interpreter, Nursery] = {}
        self.cold: dict[Interpreter, set[str]] = {}
        self.warmed: dict[Interpreter, list[str]] = {}
        self.over_at: float | None = None
        control.setblocking(False)
        self.engine.loop.watch(control.fileno(), self._control)
        self.engine.loop.watch(caller, self._shut_down)

    def open(self, place: dict[str, Any]) -> Room:
        self.rooms = [room for room in self.rooms if not _is_over(room)]
        try:
            room = self.engine.open(place_from_dict(place))
        except OSError as problem:
            fix = BoundaryUnavailable.TRY_AGAIN if problem.errno in EXHAUSTED else ""
            raise BoundaryUnavailable(place["isolation"], f"{problem.strerror} ({problem.filename})", fix) from problem
        self.rooms.append(room)
        return room

    def open_pool(self, document: dict[str, Any], given: list[int]) -> Pool:
        """`given`: the pool's own socket, which becomes ours, and the page, which stays the giver's."""
        return Pool(self, place_from_dict(document["place"]), document, socket.socket(fileno=given.pop(0)), given[0])

    def nursery(self, interpreter: Interpreter) -> Nursery:
        """The one for this interpreter; another if it was lost."""
        found = self.nurseries.get(interpreter)
        if found is None or found.lost:
            found = Nursery(self.engine.loop, interpreter, self.cold_modules(interpreter))
            self.nurseries[interpreter] = found
            found.warm(self.warmed.setdefault(interpreter, []))
        return found

    def cold_modules(self, interpreter: Interpreter) -> set[str]:
        """Modules that may not be loaded before a fork."""
        return self.cold.setdefault(interpreter, set())

    def warm(self, interpreter: Interpreter, names: list[str]) -> None:
        known = self.warmed.setdefault(interpreter, [])
        new = [name for name in names if name not in known]
        known += new
        if new:
            self.nursery(interpreter).warm(new)

    def add(self, channel: socket.socket) -> Peer:
        peer = Peer(self, channel)
        self.peers.add(peer)
        return peer

    def _control(self) -> None:
        while (got := wire.receive(self.control)) is not None:
            data, fds = got
            if not data:
                self._shut_down()
                return
            for fd in fds:
                self.add(socket.socket(fileno=fd))

    def _shut_down(self) -> None:
        if self.over_at is None:
            self.over_at = clock.monotonic() + SHUTDOWN_S
            self.engine.loop.unwatch(self.control.fileno())
            for peer in list(self.peers):
                peer._lost()
            for nursery in self.nurseries.values():
                nursery.close()
            for room in self.rooms:
                room.kill(lambda: None)
            self.engine.loop.at(self.over_at, lambda: None)

    def serve(self) -> None:
        self.engine.run(self._finished)

    def _finished(self) -> bool:
        if self.over_at is None:
            return False
        return all(_is_over(room) for room in self.rooms) or clock.monotonic() >= self.over_at


def main(control_fd: int, caller_fd: int) -> NoReturn:
    """Entry of the process that the library starts. Its exit ends whatever it still held."""
    os.chdir("/")
    importlib.import_module("deadstop.boundary.evidence")  # now, not when a deadline is near
    server = Server(socket.socket(fileno=control_fd), caller_fd)
    try:
        server.control.send(b"ready")
    except OSError:  # whoever started us has gone already
        os._exit(0)
    server.serve()
    os._exit(0)
