# SPDX-License-Identifier: Apache-2.0
"""Commands while they run: in one answer, or as a stream of output that a token can end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

from .. import clock
from ..cancel import CancelToken
from ..errors import DeadstopError
from ..executor.admission import Admission
from ..executor.tokens import POLL_S, Token
from ..results import ToolResult
from .asks import LONG_S, Ask, Events, sandbox_path
from .connection import AGAIN_S, Broken, Server
from .execs import MARGIN_S, Wish, cancelled_before, over_before_start, result_in, result_of, unknown

EXEC_HEADER = "x-deadstop-exec"
PROOF_S = 10.0  # how long the end of a cancelled command is waited for

Piece = tuple[str, bytes]


class Budgeted:
    """One command and the task it is made in: asked before, told after."""

    def __init__(self, wish: Wish, cancel: Any) -> None:
        self._wish, self._admission = wish, Admission()
        self.token = None if cancel is None else Token(cancel)

    def refused(self) -> ToolResult | None:
        wish = self._wish
        if self.token is not None and self.token.is_set():
            return cancelled_before(wish)
        return over_before_start(wish) or self._admission.refusal(wish.tool, "", wish.compared)

    def settled(self, result: ToolResult) -> ToolResult:
        return self._admission.settled(result)

    def withdrawn(self) -> None:
        self._admission.withdrawn()


async def whole(server: Server, ref: str, wish: Wish) -> ToolResult:
    """The result in one answer. If this task is cancelled, the connection closes, and the server ends the command."""
    try:
        return result_of(await server.answer(wish.ask(ref)), wish)
    except Broken as problem:
        if problem.late:
            return unknown(wish, f"the server did not answer within {MARGIN_S:g} s of the command's limit")
        return unknown(wish, f"the connection to the server broke: {problem}")


class Running:
    """The output of one command as it comes; `result` when it has ended."""

    def __init__(self, server: Server, ref: str, wish: Wish, token: Token | None) -> None:
        self._server, self._ref, self._wish, self._token = server, ref, wish, token
        self.result: ToolResult | None = None
        self._id: str | None = None

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """(stream, bytes). Closing it early ends the command."""
        end = clock.monotonic() + self._wish.seconds + MARGIN_S
        ask, sent = self._wish.ask_stream(self._ref), False  # the same again: the key belongs to these bytes
        for pause in (*AGAIN_S, None):
            try:
                async with aclosing(self._once(ask, end)) as pieces:
                    async for piece in pieces:
                        yield piece
                problem: Exception = EOFError("its stream ended early")
            except Broken as broken:
                sent = sent or broken.sent
                if not sent:
                    raise self._server.unreachable(broken) from None
                if self._id is None and not broken.late and pause is not None:
                    await asyncio.sleep(pause)
                    continue  # nothing was heard of it yet: with its key it is started once
                problem = broken
            except TimeoutError as late:
                problem = late
            break
        if self.result is None:
            self.result = await self._asked_again(problem)

    async def _once(self, ask: Ask, end: float) -> AsyncGenerator[Piece, None]:
        watch: asyncio.Task[None] | None = None
        try:
            async with self._server.opened(ask) as response:
                self._id = response.headers.get(EXEC_HEADER)
                if self._token is not None:
                    watch = asyncio.create_task(self._cancel_when_set(self._token))
                async with aclosing(_until(response.aiter_bytes(), end)) as chunks:
                    async for piece in self._read(chunks):
                        yield piece
        finally:
            if watch is not None:
                watch.cancel()

    async def _read(self, chunks: AsyncIterator[bytes]) -> AsyncGenerator[Piece, None]:
        parser = Events()
        async for data in chunks:
            for name, document in parser.feed(data):
                if name in ("stdout", "stderr"):
                    yield name, _bytes_of(document)
                elif name in ("exit", "error"):
                    self._id = document.get("exec_id") or self._id
                    self.result = result_in(document, self._wish)
                    if self.result is None:
                        raise DeadstopError(str(document.get("error") or "the stream ended without a result"))
                    return

    async def _asked_again(self, problem: Exception) -> ToolResult:
        """Its stream broke: the server knows how the command ended, or will within moments."""
        if self._id is not None:
            query = {"timeout_s": str(PROOF_S)}
            ask = Ask("GET", sandbox_path(self._ref, "execs", self._id, "wait"), query, seconds=PROOF_S + MARGIN_S)
            with suppress(DeadstopError):
                found = result_in(await self._server.document(ask), self._wish)
                if found is not None:
                    return found
        return unknown(self._wish, f"the output of the command broke off: {str(problem) or 'no answer in time'}")

    async def _cancel_when_set(self, token: Token) -> None:
        await _set(token)
        if self._id is not None:
            ask = Ask("DELETE", sandbox_path(self._ref, "execs", self._id), seconds=LONG_S)
            with suppress(DeadstopError):
                await self._server.ask(ask)


async def _until(chunks: AsyncIterator[bytes], end: float) -> AsyncGenerator[bytes, None]:
    """Raises TimeoutError when the time is over; a slow reader of ours does not count."""
    iterator = chunks.__aiter__()
    while True:
        try:
            async with asyncio.timeout(max(MARGIN_S, end - clock.monotonic())):
                data = await iterator.__anext__()
        except StopAsyncIteration:
            return
        yield data


def _bytes_of(document: Any) -> bytes:
    if isinstance(document, dict) and "chunk_base64" in document:
        from base64 import b64decode

        return b64decode(document["chunk_base64"])
    text = document.get("chunk", "") if isinstance(document, dict) else str(document)
    return text.encode("utf-8", "surrogateescape")


async def _set(token: Token) -> None:
    """Until a token is set."""
    if not isinstance(token.given, CancelToken):
        while not token.is_set():
            await asyncio.sleep(POLL_S)
        return
    loop = asyncio.get_running_loop()
    happened = asyncio.Event()
    descriptor = os.dup(token.given.fileno())  # a loop watches a descriptor once, and a token may be shared
    loop.add_reader(descriptor, happened.set)
    try:
        await happened.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
