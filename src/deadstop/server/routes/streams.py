# SPDX-License-Identifier: Apache-2.0
"""Output as it comes: of one command, over a WebSocket both ways, and of all commands of a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import TYPE_CHECKING, Any

from ..bodies import NoQuery, OutputQuery, StreamCommand
from ..commands import Foreground, chunks, started
from ..front import Call
from ..replies import EVENTS, Event, Events, Text
from ..route import Answer, Route
from ..websocket import serve_command
from .execs import COMMAND_ERRORS, kept, tail_of
from .sandboxes import ONE

if TYPE_CHECKING:
    from ...sandbox.execs import Exec
    from ...sandbox.host import Host
    from ...sandbox.sandbox import Sandbox

TAG = "streams"
LOG_CHARS = 8 << 20  # of one answer
BEHIND = 1000  # lines that one who follows the log may be behind before its commands' readers wait


async def stream_command(call: Call[StreamCommand, NoQuery]) -> Events:
    command = await started(call, call.body.wish())
    return Events(Foreground(command), {"X-Deadstop-Exec": command.id}, ends_on_stop=False)


async def open_websocket(call: Call[None, NoQuery]) -> Any:
    return await serve_command(call)


async def get_logs(call: Call[None, OutputQuery]) -> Text | Events:
    sandbox, query = call.sandbox, call.query
    if query.follow:
        return Events(_lines(call.host, sandbox, query.stream))
    before = [tail_of(document, query.stream) for document in reversed(await kept(call))]
    return Text(_last(before or (_kept(command, query.stream) for command in reversed(sandbox.execs.values()))))


def _last(newest_first: Iterable[str]) -> str:
    """The texts in their order, the oldest left out where they are too many."""
    found: list[str] = []
    size = 0
    for text in newest_first:
        found.append(text[max(0, size + len(text) - LOG_CHARS) :])
        size += len(text)
        if size >= LOG_CHARS:
            break
    return "".join(reversed(found))


def _kept(command: Exec, stream: str) -> str:
    spools = {"stdout": command.stdout, "stderr": command.stderr}
    return "".join(spool.text() for name, spool in spools.items() if stream in ("both", name))


async def _lines(host: Host, sandbox: Sandbox, stream: str) -> AsyncGenerator[Event, None]:
    """Every line of its commands, first of those that have ended, until it has ended itself."""
    news = host.events.listen(sandbox.id)  # from now on, so that no command is missed
    running = []
    for command in list(sandbox.execs.values()):
        if command.result is None:
            running.append(command)
        else:
            for line in _kept(command, stream).splitlines():
                yield _line(line)
    followed = _Followed(sandbox, stream, running)
    task = asyncio.ensure_future(followed.read(news))
    try:
        while (text := await followed.lines.get()) is not None:
            yield _line(text)
    finally:
        task.cancel()
        await asyncio.wait([task])


def _line(text: str) -> Event:
    return Event(None, {"line": text})


class _Followed:
    """The lines of several commands, each whole, as they come."""

    def __init__(self, sandbox: Sandbox, stream: str, running: list[Exec]) -> None:
        self.lines: asyncio.Queue[str | None] = asyncio.Queue(BEHIND)
        self._sandbox, self._stream, self._running = sandbox, stream, running

    async def read(self, news: Any) -> None:
        try:
            async with asyncio.TaskGroup() as readers:
                for command in self._running:
                    readers.create_task(self._read_one(command))
                while self._sandbox.record.live:
                    event = await anext(news, None)
                    if event is None:
                        break
                    started = self._sandbox.execs.get(event.get("exec_id", ""))
                    if event["type"] == "exec_started" and started is not None and started not in self._running:
                        readers.create_task(self._read_one(started))
        finally:
            await news.aclose()
        await self.lines.put(None)

    async def _read_one(self, command: Exec) -> None:
        rest = {"stdout": "", "stderr": ""}
        async for name, document in chunks(command, self._stream):
            *whole, rest[name] = (rest[name] + document["chunk"]).split("\n")
            for line in whole:
                await self.lines.put(line)
        for line in rest.values():
            if line:
                await self.lines.put(line)


ROUTES = (
    Route(
        method="POST", path=f"{ONE}/exec/stream", handler=stream_command, tag=TAG, body=StreamCommand, keyed=True,
        follows_client=True, errors=COMMAND_ERRORS,
        summary="Run a command: events stdout and stderr {chunk}, then exit {exit_code} or error {error}",
        answers={200: Answer(None, "the events", EVENTS, {"X-Deadstop-Exec": "the command's id"})},
        example={"cmd": "for i in 1 2 3; do echo $i; sleep 1; done", "timeout_seconds": 10},
    ),
    Route(
        method="GET", path=f"{ONE}/exec/ws", handler=open_websocket, tag=TAG, errors=(409, 410, 426),
        summary="Run a command over a WebSocket: start, stdin, signal, cancel; stdout, stderr, exit, error",
        answers={101: Answer(None, "the socket is open")},
    ),
    Route(
        method="GET", path=f"{ONE}/logs", handler=get_logs, tag=TAG, query=OutputQuery,
        summary="What all its commands printed; with follow=true as events {line} until it ends",
        answers={200: Answer(None, "the output", "text/plain", also=EVENTS)},
    ),
)  # fmt: skip
