# SPDX-License-Identifier: Apache-2.0
"""A command in a sandbox as its server sees it: what it prints, how it ends, and what can be done to it meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from .. import clock, wire
from ..errors import NotAllowed, UsageError
from ..executor.client import failure
from ..model import Command
from ..results import Output, Status, ToolResult
from .link import Link, writable

BEHIND = 1 << 20  # bytes that a reader who must get all may be behind before the command is made to wait
FOLLOWED = 4 << 20  # bytes that one who follows may be behind before the oldest are dropped
STDIN_S = 30.0


class Spool:
    """The last bytes of a stream, and how many there were."""

    def __init__(self, keep: int) -> None:
        self.keep, self.total = keep, 0
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        self.total += len(data)
        self._bytes += data
        if len(self._bytes) > 2 * self.keep + 65536:
            del self._bytes[: len(self._bytes) - self.keep]

    def trim(self) -> None:
        """Nothing comes any more: keep no more than what is kept."""
        self._bytes = bytearray(self.data)

    @property
    def data(self) -> bytes:
        return bytes(self._bytes[max(0, len(self._bytes) - self.keep) :])

    @property
    def dropped(self) -> int:
        return self.total - min(self.total, self.keep)

    @property
    def kept(self) -> int:
        return self.total - self.dropped

    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


class Exec:
    """One command. Nothing is left out of `stdout` and `stderr` but what came before their last bytes."""

    def __init__(
        self, exec_id: str, sandbox_id: str, command: Command, *, shown: str, background: bool, tail: int
    ) -> None:  # fmt: skip
        self.id, self.sandbox_id, self.command = exec_id, sandbox_id, command
        self.cmd, self.background = shown, background
        self.started_at = time.time()
        self.stdout, self.stderr = Spool(tail), Spool(tail)
        self.result: ToolResult | None = None
        self.wish_on_timeout = "kill"
        self.on_end: Callable[[Exec], None] = lambda ended: None
        self.letting_go: asyncio.TimerHandle | None = None
        self._link: Link | None = None
        self._stdin = -1
        self._writing = asyncio.Lock()
        self._over = asyncio.Event()
        self._readers: set[_Reader] = set()

    @property
    def status(self) -> str:
        return "ended" if self.result else "running"

    def overdue(self) -> bool:
        """Its limit was met, or will be found to have been: its result may still be on its way."""
        if self.result is not None:
            return self.result.status is Status.TIMEOUT
        return self.command.deadline is not None and clock.monotonic() >= self.command.deadline

    # -- from the supervisor -----------------------------------------------------------------------------------------

    def follow(self, link: Link, stdin: int) -> None:
        """It has been handed over. `stdin` is our end of its input, or -1."""
        self._link, self._stdin = link, stdin
        link.on_frame, link.on_lost = self._frame, self._lost

    def _frame(self, kind: bytes, body: bytes) -> None:
        if kind == wire.OUTPUT:
            self._printed(wire.STREAM_NAMES[body[0]], body[1:])
        elif kind == wire.DONE:
            result = ToolResult.from_dict(json.loads(body))
            self.end(replace(result, stdout=self._output(self.stdout), stderr=self._output(self.stderr)))
        elif kind == wire.FAILED:
            problem = failure(body)
            self.end(self._without_answer(Status.REFUSED, "policy", str(problem)))

    def _printed(self, stream: str, data: bytes) -> None:
        (self.stdout if stream == "stdout" else self.stderr).feed(data)
        for reader in self._readers:
            reader.put(stream, data)
        if self._link and any(reader.holds_up for reader in self._readers):
            self._link.pause()

    def _lost(self) -> None:
        if self.result is None:
            self.end(self._without_answer(Status.UNKNOWN, None, "the supervisor ended: how it ended is not known"))

    def _without_answer(self, status: Status, reason: str | None, text: str) -> ToolResult:
        return ToolResult(
            tool=self.command.tool, status=status, reason=reason, call_id=self.command.call_id,
            started_at=clock.iso(self.started_at), duration_s=round(time.time() - self.started_at, 6),
            stdout=self._output(self.stdout), stderr=self._output(self.stderr), error_message=text,
            environment="nothing was started" if status is Status.REFUSED else "the sandbox has ended",
        )  # fmt: skip

    @staticmethod
    def _output(spool: Spool) -> Output:
        return Output(spool.data, spool.total, spool.dropped)

    def end(self, result: ToolResult) -> None:
        """Its one result."""
        if self.result is not None:
            return
        self.result = result
        if self.letting_go:
            self.letting_go.cancel()  # or it would keep what was printed for as long as the limit was
        self.close_stdin()
        if self._link:
            self._link.close()
        for spool in (self.stdout, self.stderr):
            spool.trim()
        self._over.set()
        for reader in self._readers:
            reader.end()
        self.on_end(self)

    # -- for its users -----------------------------------------------------------------------------------------------

    async def wait(self, timeout: float | None = None) -> ToolResult | None:
        """Its result; None if it is still running after `timeout` seconds."""
        if self.result is None:
            try:
                await asyncio.wait_for(self._over.wait(), timeout)
            except TimeoutError:
                return None
        return self.result

    def subscribe(self, *, past: bool = True, whole: bool = False) -> AsyncIterator[tuple[str, bytes]]:
        """What it prints, as (stream, bytes), until it has ended. Subscribed at once; iterate it, or it stays.

        With `past` what is kept of before comes first. With `whole` nothing is left out after that: the command waits
        for this reader. Without, the oldest is dropped for one who is too slow.
        """
        reader = _Reader(whole, self._caught_up)
        if past:
            for name, spool in (("stdout", self.stdout), ("stderr", self.stderr)):
                if spool.data:
                    reader.put(name, spool.data)
        if self.result is None:
            self._readers.add(reader)
        else:
            reader.end()
        return self._iterate(reader)

    async def _iterate(self, reader: _Reader) -> AsyncIterator[tuple[str, bytes]]:
        try:
            while (item := await reader.next()) is not None:
                yield item
        finally:
            self._readers.discard(reader)
            self._caught_up()

    def _caught_up(self) -> None:
        if self._link and not any(reader.holds_up for reader in self._readers):
            self._link.resume()

    def cancel(self, reason: str = "caller") -> None:
        """Have it killed, with evidence and a receipt. Its result tells when that is done."""
        if self._link and self.result is None:
            self.let_go()  # its result must come through
            self._link.channel.order(wire.CANCEL, reason)

    def let_go(self) -> None:
        """Its limit is over: a reader that is slow holds up its result no longer."""
        for reader in self._readers:
            reader.give_up()
        self._caught_up()

    def limit(self, seconds: float | None) -> None:
        """Another limit, from now on, or none: kept by the supervisor, as that it began with."""
        if self._link and self.result is None:
            deadline = None if seconds is None else clock.monotonic() + seconds
            self._link.channel.order(wire.LIMIT, json.dumps({"deadline": deadline, "seconds": seconds}))

    def hurry(self) -> None:
        """Skip what is left of evidence and grace."""
        if self._link and self.result is None:
            self._link.channel.order(wire.HURRY)

    def signal(self, number: int) -> None:
        """To its first process and those of its process group. No promise that it acts on it."""
        if number not in signal.valid_signals():
            raise UsageError(f"signal: {number} is none")
        if self.result is not None or self._link is None:
            raise NotAllowed(f"exec {self.id} has ended")
        self._link.channel.order(wire.SIGNAL, str(number))

    async def write(self, data: bytes) -> None:
        """To its stdin. Waits while its pipe is full, for STDIN_S at most."""
        async with self._writing:
            end = time.monotonic() + STDIN_S
            view = memoryview(data)
            while view:
                if self._stdin < 0:
                    raise NotAllowed(f"the stdin of exec {self.id} is closed")
                try:
                    view = view[os.write(self._stdin, view[: 1 << 16]) :]
                except BlockingIOError:
                    if not await writable(self._stdin, end - time.monotonic()):
                        raise NotAllowed(f"exec {self.id} has not read its stdin for {STDIN_S:.0f} s") from None
                except BrokenPipeError:
                    self.close_stdin()

    def close_stdin(self) -> None:
        """End of its input."""
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1

    def document(self, *, brief: bool = False) -> dict[str, Any]:
        """As the HTTP API gives it."""
        head = {
            "exec_id": self.id, "id": self.id, "sandbox_id": self.sandbox_id, "cmd": self.cmd[:4000],
            "status": self.status, "background": self.background, "started_at": clock.iso(self.started_at),
            "exit_code": self.result.exit_code if self.result else None,
        }  # fmt: skip
        if brief:
            return {**head, "outcome": str(self.result.status) if self.result else None}
        return {
            **head,
            "stdout_tail": self.stdout.text(), "stdout_bytes": self.stdout.total,
            "stderr_tail": self.stderr.text(), "stderr_bytes": self.stderr.total,
            "result": self.result.to_dict() if self.result else None,
        }  # fmt: skip


class _Reader:
    """One who reads along."""

    def __init__(self, whole: bool, caught_up: Callable[[], None]) -> None:
        self.whole, self._caught_up = whole, caught_up
        self._items: deque[tuple[str, bytes] | None] = deque()
        self._size = 0
        self._there = asyncio.Event()

    @property
    def holds_up(self) -> bool:
        return self.whole and self._size > BEHIND

    def give_up(self) -> None:
        """From now on it gets what it is fast enough for: nothing may wait for it any more."""
        self.whole = False

    def put(self, stream: str, data: bytes) -> None:
        self._items.append((stream, data))
        self._size += len(data)
        while not self.whole and self._size > FOLLOWED and len(self._items) > 1:
            dropped = self._items.popleft()
            self._size -= len(dropped[1]) if dropped else 0
        self._there.set()

    def end(self) -> None:
        self._items.append(None)
        self._there.set()

    async def next(self) -> tuple[str, bytes] | None:
        while not self._items:
            self._there.clear()
            await self._there.wait()
        item = self._items.popleft()
        if item is not None:
            held_up, self._size = self.holds_up, self._size - len(item[1])
            if held_up and not self.holds_up:
                self._caught_up()
        return item
