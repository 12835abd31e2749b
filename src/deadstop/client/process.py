# SPDX-License-Identifier: Apache-2.0
"""Handles: a command that runs in the background, and a session that keeps its state."""

from __future__ import annotations

import asyncio
import signal as signals
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from .. import clock
from ..contract import result_from_dict
from ..errors import DeadstopError, UsageError
from ..results import ToolResult
from .asks import LONG_S, Ask, problem_of, sandbox_path
from .connection import Broken, Server
from .execs import MARGIN_S, Wish, result_in, wish_of
from .portal import portal
from .running import Budgeted

PIECE = 256 << 10  # of input, in one request
WAIT_S = 300.0  # one request to wait; then the next


class _Seen:
    """What both faces know without asking."""

    id: str
    _document: Mapping[str, Any]

    @property
    def cmd(self) -> str:
        """The command as it is shown."""
        return str(self._document.get("cmd", ""))

    @property
    def status(self) -> str:
        """running or ended, as last heard."""
        return str(self._document.get("status", "running"))

    @property
    def background(self) -> bool:
        return bool(self._document.get("background", True))

    @property
    def document(self) -> dict[str, Any]:
        return dict(self._document)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.status}: {self.cmd[:60]}>"


class AsyncProcess(_Seen):
    """The async twin of `Process`."""

    def __init__(self, server: Server, ref: str, exec_id: str, wish: Wish | None = None) -> None:
        self.id, self._server, self._ref, self._wish = exec_id, server, ref, wish
        shown = "" if wish is None else wish.cmd if isinstance(wish.cmd, str) else " ".join(wish.cmd)
        self._document: Mapping[str, Any] = {"exec_id": exec_id, "status": "running", "cmd": shown}
        self._budget: Budgeted | None = None

    @classmethod
    def seen(cls, server: Server, ref: str, document: Mapping[str, Any]) -> AsyncProcess:
        found = cls(server, ref, str(document["exec_id"]))
        found._document = document
        return found

    async def refresh(self) -> AsyncProcess:
        """See `Process.refresh`."""
        self._document = await self._server.document(Ask("GET", self._path()))
        return self

    async def tail(self, stream: str = "stdout") -> str:
        """See `Process.tail`."""
        return str((await self.refresh())._document.get(f"{stream}_tail", ""))

    async def output(self, stream: str = "both", *, follow: bool = False) -> AsyncGenerator[tuple[str, str], None]:
        """See `Process.output`."""
        query = {"stream": stream, "follow": "true" if follow else "false"}
        ask = Ask("GET", self._path("output"), query)
        if not follow:
            text = (await self._server.ask(ask)).data.decode("utf-8", "replace")
            if text:
                yield stream, text
            return
        async with aclosing(self._server.events(ask)) as events:
            async for name, document in events:
                if name in ("stdout", "stderr"):
                    yield name, str(document.get("chunk", ""))

    async def wait(self, timeout: float | None = None) -> ToolResult | None:
        """See `Process.wait`."""
        seconds = None if timeout == 0 else clock.check_limit("timeout", timeout)
        end = clock.monotonic() + (0.0 if timeout == 0 else seconds if seconds is not None else float("inf"))
        while True:
            left = max(0.0, min(end - clock.monotonic(), WAIT_S))
            query = {"timeout_s": f"{left:.3f}"}
            ask = Ask("GET", self._path("wait"), query, seconds=left + MARGIN_S)
            self._document = await self._server.document(ask)
            if (result := self._result()) is not None or clock.monotonic() >= end:
                return result

    def _result(self) -> ToolResult | None:
        result = result_in(self._document, self._wish)
        if result is not None and self._budget is not None:
            budget, self._budget = self._budget, None
            self._settled: ToolResult | None = budget.settled(result)
        return getattr(self, "_settled", None) or result

    async def signal(self, number: int | str) -> None:
        """See `Process.signal`."""
        try:
            name = signals.Signals[number] if isinstance(number, str) else signals.Signals(number)
        except (KeyError, ValueError):
            raise UsageError(f"signal: {number!r:.40} is not a signal, such as SIGINT or 2") from None
        await self._server.ask(Ask("POST", self._path("signal"), body={"signal": name.name}))

    async def write(self, data: bytes | str) -> None:
        """See `Process.write`."""
        raw = data.encode() if isinstance(data, str) else data
        for start in range(0, len(raw), PIECE):
            await self._put(raw[start : start + PIECE])

    async def close_stdin(self) -> None:
        """See `Process.close_stdin`."""
        await self._put(b"", {"close": "true"})

    async def _put(self, data: bytes, query: Mapping[str, str] | None = None) -> None:
        # Not repeatable: input that was sent twice is other input.
        seconds = self._wish.seconds + MARGIN_S if self._wish else LONG_S
        await self._server.ask(Ask("POST", self._path("stdin"), query or {}, content=data, seconds=seconds))

    async def _feed(self, data: bytes) -> None:
        """All of it and its end; a command that has ended, or reads no more, needs no more."""
        try:
            await self.write(data)
            await self.close_stdin()
        except DeadstopError:
            pass

    async def kill(self) -> ToolResult | None:
        """See `Process.kill`."""
        self._document = await self._server.document(Ask("DELETE", self._path(), seconds=60.0))
        return self._result()

    def _path(self, *rest: str) -> str:
        return sandbox_path(self._ref, "execs", self.id, *rest)


class Process(_Seen):
    """A command in the background of a sandbox. It ends at its own limit, with its sandbox, or by `kill`."""

    def __init__(self, face: AsyncProcess) -> None:
        self.id, self._face = face.id, face

    @property
    def _document(self) -> Mapping[str, Any]:  # type: ignore[override]
        return self._face._document

    def refresh(self) -> Process:
        """Ask for its state as it is now."""
        portal.run(self._face.refresh())
        return self

    def tail(self, stream: str = "stdout") -> str:
        """The last output that is kept, as it is now; also after its end."""
        return portal.run(self._face.tail(stream))

    def output(self, stream: str = "both", *, follow: bool = False) -> Iterator[tuple[str, str]]:
        """(stream, text) of what is kept; with `follow`, also of what comes, until it has ended."""
        return portal.iterate(self._face.output(stream, follow=follow))

    def wait(self, timeout: float | None = None) -> ToolResult | None:
        """The result when it has ended; None if it still runs after `timeout` seconds (None: wait for its end)."""
        return portal.run(self._face.wait(timeout))

    def signal(self, number: int | str) -> None:
        """Send it a signal: SIGINT, or a number."""
        portal.run(self._face.signal(number))

    def write(self, data: bytes | str) -> None:
        """To its stdin, if it was started with `keep_stdin`. Waits while it does not read."""
        portal.run(self._face.write(data))

    def close_stdin(self) -> None:
        """It reads the end of its input."""
        portal.run(self._face.close_stdin())

    def kill(self) -> ToolResult | None:
        """End it and all it started; the result, with the receipt. Idempotent."""
        return portal.run(self._face.kill())


# -- sessions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """What one piece of code gave. `session_ended`: its state is lost, and the next run begins anew.

    `result` is the `ToolResult` of the run; for one that met its limit it says so, and `error` does too.
    """

    results: tuple[Mapping[str, Any], ...]
    stdout: str
    stderr: str
    error: str | None
    exit: int | None
    duration_ms: float
    session_ended: bool
    result: ToolResult | None

    @property
    def ok(self) -> bool:
        return not self.error and not self.exit and (self.result is None or self.result.ok)

    @property
    def value(self) -> str | None:
        """The text of the last expression, if it had a value."""
        texts = [each.get("data") for each in self.results if str(each.get("type", "")).startswith("text/")]
        return None if not texts else str(texts[-1])


def _answer(document: Mapping[str, Any]) -> Answer:
    found = document.get("result")
    error = document.get("error")
    return Answer(
        results=tuple(document.get("results") or ()),
        stdout=str(document.get("stdout") or ""),
        stderr=str(document.get("stderr") or ""),
        error=None if not error else str(error),
        exit=document.get("exit"),
        duration_ms=float(document.get("duration_ms") or 0.0),
        session_ended=bool(document.get("session_ended", document.get("status") == 504)),
        result=result_from_dict(found) if isinstance(found, dict) else None,
    )


class AsyncSession:
    """The async twin of `Session`."""

    def __init__(self, server: Server, ref: str, session_id: str, language: str) -> None:
        self._server, self._ref, self.id, self.language = server, ref, session_id, language

    async def run(self, code: str, timeout: float = 30.0) -> Answer:
        """See `Session.run`."""
        if not isinstance(code, str):
            raise UsageError(f"code: {code!r:.60} is not text")
        wish = wish_of([f"session {self.language}", code or " "], timeout)
        budget = Budgeted(wish, None)
        if (refused := budget.refused()) is not None:
            return _answer({"result": refused.to_dict(), "error": (refused.error or {}).get("message")})
        try:
            document = await self._ran(code, wish.seconds)
        except DeadstopError:
            budget.withdrawn()
            raise
        if (result := result_in(document, wish)) is not None:
            document = {**document, "result": budget.settled(result).to_dict()}
        return _answer(document)

    async def _ran(self, code: str, seconds: float) -> dict[str, Any]:
        # Not repeatable: code that ran twice did its work twice.
        body = {"code": code, "timeout_ms": round(seconds * 1000, 3)}
        ask = Ask("POST", self._path("run"), body=body, seconds=seconds + MARGIN_S)
        try:
            reply = await self._server.answer(ask)
        except Broken as problem:
            raise self._server.unreachable(problem) from None
        document = reply.document()
        if not reply.ok and "result" not in document:
            raise problem_of(reply)
        return document

    async def close(self) -> None:
        """See `Session.close`."""
        await self._server.ask(Ask("DELETE", self._path()))

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await asyncio.shield(self.close())

    def _path(self, *rest: str) -> str:
        return sandbox_path(self._ref, "repl", "sessions", self.id, *rest)


class Session:
    """A shell or a Python interpreter in a sandbox that keeps its state from run to run."""

    def __init__(self, face: AsyncSession) -> None:
        self._face, self.id, self.language = face, face.id, face.language

    def run(self, code: str, timeout: float = 30.0) -> Answer:
        """Run a piece of code in it; at its limit the session is killed and `session_ended` is set."""
        return portal.run(self._face.run(code, timeout))

    def close(self) -> None:
        """End it. Idempotent."""
        portal.run(self._face.close())

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
