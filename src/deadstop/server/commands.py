# SPDX-License-Identifier: Apache-2.0
"""A command and its client: it is started whole or not at all, and a foreground one ends when the client goes."""

from __future__ import annotations

import asyncio
import codecs
from base64 import b64encode
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from .answers import Ended, exit_event
from .replies import Event

if TYPE_CHECKING:
    from ..results import ToolResult
    from ..sandbox.execs import Exec
    from ..sandbox.wishes import ExecWish
    from .front import Call

__all__ = ["Foreground", "cancelled", "chunks", "command_events", "ended", "started", "watched"]

CANCEL_S = 10.0  # how long the end of a command whose client has gone is waited for


async def started(call: Call[Any, Any], wish: ExecWish) -> Exec:
    """The command, under way. If the client goes while it starts, it is cancelled as soon as it can be."""
    task = asyncio.ensure_future(call.sandbox.exec(wish, key=call.key))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        call.front.finish(asyncio.ensure_future(_cancel_when_started(task)))
        raise


async def _cancel_when_started(task: asyncio.Future[Exec]) -> None:
    command = await task
    if not command.background:
        await cancelled(command)


async def watched(command: Exec) -> ToolResult:
    """Its result. If the client goes, so does the command."""
    try:
        result = await command.wait()
    except asyncio.CancelledError:
        await asyncio.shield(asyncio.ensure_future(cancelled(command)))
        raise
    assert result is not None  # without a timeout, wait ends with a result
    return result


async def cancelled(command: Exec) -> None:
    """Cancel it, and wait (bounded) for its end."""
    if command.result is None:
        command.cancel()
        await command.wait(CANCEL_S)


def ended(command: Exec, result: ToolResult) -> Ended:
    truncated = command.stdout.dropped > 0 or command.stderr.dropped > 0
    return Ended(command.id, result, command.stdout.text(), command.stderr.text(), truncated)


async def command_events(command: Exec, stream: str = "both", *, whole: bool = False) -> AsyncGenerator[Event, None]:
    """What it prints, and how it ended. With `whole` nothing is left out: the command waits for a slow reader."""
    source = chunks(command, stream, whole=whole)
    try:
        async for name, document in source:
            yield Event(name, document)
    finally:
        await source.aclose()
    result = await command.wait()
    assert result is not None
    yield exit_event(ended(command, result))


class Foreground:
    """As `command_events`, and the command is cancelled if its reader goes, be it before the first event."""

    def __init__(self, command: Exec) -> None:
        self._command = command
        self._events = command_events(command, whole=True)

    def __aiter__(self) -> Foreground:
        return self

    async def __anext__(self) -> Event:
        return await anext(self._events)

    async def aclose(self) -> None:
        await self._events.aclose()
        await asyncio.shield(asyncio.ensure_future(cancelled(self._command)))


async def chunks(
    command: Exec, stream: str = "both", *, whole: bool = False
) -> AsyncGenerator[tuple[str, dict[str, str]], None]:
    """(stream, {"chunk": text}) until it has ended; with `chunk_base64` beside it where the text is not all of it."""
    halves = {"stdout": _Halves(), "stderr": _Halves()}
    source = command.subscribe(whole=whole)
    try:
        async for name, data in source:
            document = halves[name].take(data)
            if document and stream in ("both", name):
                yield name, document
        for name, half in halves.items():
            document = half.take(b"", final=True)
            if document and stream in ("both", name):
                yield name, document
    finally:
        await source.aclose()  # type: ignore[attr-defined]


class _Halves:
    """Bytes as text, characters that were cut in two kept together."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    def take(self, data: bytes, *, final: bool = False) -> dict[str, str] | None:
        text = self._decoder.decode(data, final)
        if not text:
            return None
        raw = text.encode("utf-8", "surrogateescape")
        shown = raw.decode("utf-8", "replace")
        return {"chunk": shown} if shown == text else {"chunk": shown, "chunk_base64": b64encode(raw).decode("ascii")}
