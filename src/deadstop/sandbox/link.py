# SPDX-License-Identifier: Apache-2.0
"""The front's side of one boundary or command at the supervisor: frames in and out on the front's event loop.

The supervisor keeps every time limit. What arrives here arrives when the front gets to it; nothing depends on when.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from .. import wire
from ..boundary.cgroup import read
from ..boundary.reaper import descendants
from ..boundary.sandbox import HOLDER
from ..errors import BoundaryUnavailable, CapacityError, InternalError, NotAllowed
from ..executor.client import PROOF_S, Channel, failure
from ..executor.private import supervisor, wait_readable
from ..model import Command, Place, command_to_dict, place_to_dict

ANSWER_S = 15.0
RETRY_S = 2.0


class SupervisorLost(InternalError):
    """The supervisor ended, and with it all it held."""

    def __str__(self) -> str:
        return "the supervisor ended, and with it every sandbox it held"


class Link:
    """A channel that is read as long as it is there. `on_frame` gets each frame, in their order; `on_lost` its end."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.on_frame: Callable[[bytes, bytes], None] = lambda kind, body: None
        self.on_lost: Callable[[], None] = lambda: None
        self.loop = asyncio.get_running_loop()
        self._waiting: dict[bytes, asyncio.Future[bytes]] = {}
        self._reading = False
        self.closed = False
        self.resume()

    def pause(self) -> None:
        """Read no more for now: what is sent waits with the supervisor, and then in the payload's own pipe."""
        if self._reading:
            self._reading = False
            self.loop.remove_reader(self.channel.socket.fileno())

    def resume(self) -> None:
        if not self._reading and not self.closed:
            self._reading = True
            self.loop.add_reader(self.channel.socket.fileno(), self._readable)

    def _readable(self) -> None:
        frames = self.channel.read()
        if frames is None:
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(SupervisorLost())
            try:
                self.on_lost()  # while the boundary's descriptor is there: what became of it is still to be seen
            finally:
                self.close()
            return
        for kind, body in frames:
            opening = self._waiting.get(wire.OPENED)
            if kind == wire.GONE and opening and not opening.done():
                opening.set_exception(NotAllowed("it ended while it was being made"))
            asked = self._waiting.pop(wire.OPENED if kind == wire.FAILED else kind, None)
            if asked is not None and not asked.done():
                if kind == wire.FAILED:
                    asked.set_exception(failure(body))
                else:
                    asked.set_result(body)
            self.on_frame(kind, body)

    async def answer(self, kind: bytes, send: Callable[[], None], seconds: float = ANSWER_S) -> bytes:
        """The next frame of this kind after what `send` sends. One at a time of each kind."""
        waiting = self._waiting[kind] = self.loop.create_future()
        try:
            send()
            return await asyncio.wait_for(waiting, seconds)
        except TimeoutError:
            raise InternalError("the supervisor did not answer in time") from None
        finally:
            if self._waiting.get(kind) is waiting:
                del self._waiting[kind]

    async def ask(self, kind: bytes, text: str, answered_by: bytes) -> bytes:
        return await self.answer(answered_by, lambda: self.channel.order(kind, text))

    async def writable(self) -> None:
        """Wait until an order can be given that this process does not have to wait for. Raises CapacityError."""
        if not self.closed and not await writable(self.channel.socket.fileno(), ANSWER_S):
            raise CapacityError("the supervisor takes no orders", "host", 1.0)

    def close(self) -> None:
        if not self.closed:
            self.pause()
            self.closed = True
            self.channel.close()


async def writable(fd: int, seconds: float) -> bool:
    """Whether more can be written within so long."""
    loop, copy = asyncio.get_running_loop(), os.dup(fd)  # the number may be closed meanwhile, and given away
    there = loop.create_future()

    def tell() -> None:
        if not there.done():
            there.set_result(None)

    loop.add_writer(copy, tell)
    try:
        await asyncio.wait_for(there, max(0.0, seconds))
        return True
    except TimeoutError:
        return False
    finally:
        loop.remove_writer(copy)
        os.close(copy)


async def connected() -> Link:
    """A link of its own at the supervisor, which is started if there is none: not on this loop's time."""
    return Link(Channel(*await asyncio.to_thread(supervisor.connect)))


async def open_boundary(place: Place, life: dict[str, Any] | None) -> Link:
    """A new boundary at the supervisor, ready. Raises BoundaryUnavailable, SupervisorLost."""
    link = await connected()
    try:
        order = {"place": place_to_dict(place), "life": life}
        await link.answer(wire.OPENED, lambda: link.channel.send(wire.OPEN, order))
    except BoundaryUnavailable as problem:
        link.close()
        if problem.temporary:
            raise CapacityError(f"the host has nothing left to make it of: {problem.reason}", "host", RETRY_S) from None
        raise
    except BaseException:
        link.close()  # which ends it
        raise
    return link


def start_command(boundary: Link, command: Command, stdin: int | None) -> Link:
    """A command in it; its own link tells the rest."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    with theirs:
        link = Link(Channel(ours, boundary.channel.process))
        fds = [theirs.fileno(), *([] if stdin is None else [stdin])]
        document = {"command": command_to_dict(command), "has_cwd": False, "has_stdin": stdin is not None}
        boundary.channel.send(wire.EXEC, document, fds)
    return link


def shown_gone(channel: Channel) -> Coroutine[Any, Any, bool]:
    """After the supervisor was lost: whether the boundary's first process is gone, and with it all inside. Bounded.

    Call it while the channel is open, and await what it gives.
    """
    return _shown_gone(os.dup(channel.root) if channel.root >= 0 and channel.root_is_all else -1)


async def _shown_gone(root: int) -> bool:
    """`root` is a copy of its own."""
    if root < 0:
        return False
    try:
        return bool(await asyncio.to_thread(wait_readable, [root], PROOF_S))
    finally:
        os.close(root)


def life(expires_at: float, ttl: float, idle: float | None) -> dict[str, Any]:
    return {"expires_at": expires_at, "ttl": ttl, "idle": idle}


def extend_text(expires_at: float, ttl: float, idle: float | None) -> str:
    return json.dumps(life(expires_at, ttl, idle))


def holder_of(init: int) -> int:
    """bubblewrap's holder in a new boundary, while nothing of a payload's is in it: it sees the files as they do."""
    for pid in descendants(init):
        if read(f"/proc/{pid}/comm").strip() == os.path.basename(HOLDER):
            return pid
    return 0
