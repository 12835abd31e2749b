# SPDX-License-Identifier: Apache-2.0
"""One command over one WebSocket: its output comes out, input and signals go in, and closing it ends the command."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import WSMsgType, web

from ..errors import DeadstopError
from .answers import exit_event
from .bodies import Base64, SignalNumber, StreamCommand
from .commands import cancelled, chunks, ended, started
from .problems import Problem, problem_of
from .signals import signal_number

if TYPE_CHECKING:
    from ..sandbox.execs import Exec
    from .front import Call

__all__ = ["serve_command"]

START_S = 30.0  # for the first message
HEARTBEAT_S = 20.0
MESSAGE_BYTES = 1 << 20


class _Start(StreamCommand, tag="start"):
    pass


class _Stdin(msgspec.Struct, tag="stdin", forbid_unknown_fields=True):
    data: str = ""
    data_base64: Base64 = ""

    @property
    def bytes(self) -> bytes:
        return self.data.encode() + b64decode(self.data_base64)


class _StdinClose(msgspec.Struct, tag="stdin_close", forbid_unknown_fields=True):
    pass


class _Signal(msgspec.Struct, tag="signal", forbid_unknown_fields=True):
    signal: str | SignalNumber


class _Cancel(msgspec.Struct, tag="cancel", forbid_unknown_fields=True):
    pass


_decode = msgspec.json.Decoder(_Start | _Stdin | _StdinClose | _Signal | _Cancel).decode


async def serve_command(call: Call[Any, Any]) -> web.StreamResponse:
    """The whole conversation. Refusals before it begins are problem documents, later ones `error` messages."""
    call.sandbox.check_live()
    wire = web.WebSocketResponse(heartbeat=HEARTBEAT_S, max_msg_size=MESSAGE_BYTES)
    if not wire.can_prepare(call.request).ok:
        raise Problem(426, "upgrade", "a WebSocket is needed", headers={"Upgrade": "websocket"})
    await wire.prepare(call.request)
    try:
        await _converse(call, wire)
    except (Problem, DeadstopError, msgspec.MsgspecError) as refusal:
        problem = problem_of(refusal)
        await _send(wire, "error", {"error": problem.detail, "kind": problem.kind, "status": problem.status})
    await wire.close()
    return wire


async def _converse(call: Call[Any, Any], wire: web.WebSocketResponse) -> None:
    try:
        first = await asyncio.wait_for(_receive(wire), START_S)
    except TimeoutError:
        raise Problem(408, "slow", "the first message did not come in time") from None
    if first is None:
        return
    if not isinstance(first, _Start):
        raise Problem(422, "usage", "the first message must be of type start")
    command = await started(call, first.wish(keep_stdin=True))
    await _send(wire, "started", {"exec_id": command.id})
    listening = asyncio.ensure_future(_listen(command, wire))
    try:
        async for name, document in chunks(command, whole=True):
            await _send(wire, name, document)
        result = await command.wait()
        assert result is not None
        last = exit_event(ended(command, result))
        await _send(wire, str(last.name), last.data)
    finally:
        listening.cancel()
        await asyncio.wait([listening])
        await asyncio.shield(asyncio.ensure_future(cancelled(command)))


async def _listen(command: Exec, wire: web.WebSocketResponse) -> None:
    """Do what the client says. When it says no more, or nonsense, the command ends."""
    try:
        while (message := await _receive(wire)) is not None:
            try:
                await _do(command, message)
            except (Problem, DeadstopError, msgspec.MsgspecError) as refusal:
                await _send(wire, "refused", {"error": problem_of(refusal).detail})
    except (msgspec.MsgspecError, Problem) as nonsense:
        await _send(wire, "refused", {"error": problem_of(nonsense).detail})
    command.cancel()


async def _do(command: Exec, message: object) -> None:
    match message:
        case _Stdin():
            await command.write(message.bytes)
        case _StdinClose():
            command.close_stdin()
        case _Signal():
            command.signal(signal_number(message.signal))
        case _Cancel():
            command.cancel()
        case _:
            raise Problem(409, "not_allowed", "a command is running already")


async def _receive(wire: web.WebSocketResponse) -> object | None:
    """The next message; None when the client has closed. Raises MsgspecError and Problem."""
    message = await wire.receive()
    if message.type is WSMsgType.TEXT:
        found: object = _decode(message.data)
        return found
    if message.type is WSMsgType.BINARY:
        raise Problem(422, "usage", "messages are JSON text; give bytes as data_base64")
    return None


async def _send(wire: web.WebSocketResponse, kind: str, document: dict[str, Any]) -> None:
    if not wire.closed:
        await wire.send_str(msgspec.json.encode({"type": kind, **document}).decode())
