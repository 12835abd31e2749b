# SPDX-License-Identifier: Apache-2.0
"""One life of a session: the exec of its driver, what is written to it, and what it says (session_answers)."""

from __future__ import annotations

import asyncio
import errno
import signal
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..errors import NotAllowed
from ..results import ToolResult
from .drivers import BOOT, shell
from .session_answers import Answer, Damaged, Marks, Reading
from .wishes import ExecWish

if TYPE_CHECKING:
    from .execs import Exec

START_S = 15.0  # for the driver to say that it is there
INTERRUPT_S = 0.5  # between the interrupt and the kill
EVIDENCE_S = 0.2  # for what it was doing to be read, and for what heeds SIGTERM
END_S = 20.0  # for the result of an exec that is being killed; the supervisor bounds that itself
WHOLE_LIFE_S = 366 * 86400.0  # a session lives as long as its sandbox
TAIL = 65536
PYTHON = Path(__file__).parent / "drivers" / "python.py"
T = TypeVar("T")


class Place(Protocol):
    """What a session needs of its sandbox."""

    id: str

    @property
    def status(self) -> str: ...

    async def exec(self, wish: ExecWish) -> Exec: ...

    def touch(self) -> None: ...


class Driver:
    """One generation of a session: the exec, and what has been read of it."""

    def __init__(self, made: Exec, language: str, generation: int, prelude: bytes) -> None:
        self.exec, self.language, self.generation = made, language, generation
        self.reading = Reading(TAIL)
        self.damage: str | None = None
        self._prelude = prelude
        self._changed = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None
        self._output = made.subscribe(whole=True)
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def started(
        cls, sandbox: Place, language: str, cwd: str | None, env: Mapping[str, str], before: int
    ) -> Driver:
        argv: tuple[str, ...] = shell.ARGV
        prelude = shell.PRELUDE
        if language == "python":
            prelude = PYTHON.read_bytes()
            argv = ("python3", "-u", "-c", BOOT, str(len(prelude)))
        wish = ExecWish(
            argv, WHOLE_LIFE_S, cwd=cwd, env=dict(env), keep_stdin=True, background=True, tail=TAIL,
            shown=f"session {language}",
        )  # fmt: skip
        driver = cls(await sandbox.exec(wish), language, before + 1, prelude)
        try:
            answer = await driver.take(b"", START_S, TAIL)
        except BaseException:
            await to_its_end(driver.end())
            raise
        if answer is None:
            raise NotAllowed(_why_not(driver, await driver.end()))
        return driver

    @property
    def alive(self) -> bool:
        return self.exec.result is None and self.damage is None and not self._reader.done()

    async def _read(self) -> None:
        try:
            async for stream, data in self._output:
                self.reading.feed(stream, data)
                if self.reading.done:
                    self._changed.set()
        except Damaged as problem:
            self.damage = str(problem)
        finally:
            self.reading.flush()
            self._changed.set()

    async def take(self, code: bytes, seconds: float, tail: int) -> Answer | None:
        """Have it run this; its answer, or None if there is none after so long, or the driver is gone."""
        marks = Marks.new()
        self.reading.expect(marks, tail)
        self._changed.clear()
        if self.language == "bash":
            data = shell.request(code, marks.begin, marks.end)
        else:
            data = b"%s %010d\n%s%s\n" % (marks.begin, len(code), code, marks.end)
        data, self._prelude = self._prelude + data, b""
        # Not awaited: the driver takes the last of it only when the code has ended.
        self._writing = asyncio.create_task(self._write(data))
        return await self.next(seconds)

    async def _write(self, data: bytes) -> None:
        try:
            await self.exec.write(data)
        except NotAllowed as problem:
            if self.exec.result is None:  # it does not take what it is given, or its stdin was closed
                self.damage = str(problem)
            self._changed.set()

    async def next(self, seconds: float) -> Answer | None:
        """The answer to what was written, within so long."""
        if self.alive and not self.reading.done:
            try:
                await asyncio.wait_for(self._changed.wait(), seconds)
            except TimeoutError:
                pass
        if not self.reading.done:
            return None
        try:
            return self.reading.answer()
        except Damaged as problem:
            self.damage = str(problem)
            return None

    async def stop(self) -> Answer | None:
        """An interrupt, where it can live through one, then the end. Its late answer, or None if it is gone."""
        if self.language == "python" and self.alive:
            try:
                self.exec.signal(signal.SIGINT)
            except NotAllowed:
                pass  # it has just ended
            if (answer := await self.next(INTERRUPT_S)) is not None and self.alive:
                return answer
        await self.end()
        return None

    async def end(self) -> ToolResult | None:
        """Kill it, and what it started. None if nobody could be shown to be gone in time."""
        self.exec.cancel("caller")
        result = await self.exec.wait(EVIDENCE_S)
        if result is None:
            self.exec.hurry()
            result = await self.exec.wait(END_S)
        if self._writing is not None:
            self._writing.cancel()
        await asyncio.wait([self._reader], timeout=1.0)
        self._reader.cancel()
        return result


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await it whole even if nobody awaits this any more; then say so."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
        except Exception:
            break
    if cancelled:
        raise asyncio.CancelledError
    return task.result()


def _why_not(driver: Driver, result: ToolResult | None) -> str:
    program = "python3" if driver.language == "python" else "bash"
    if result is not None and (result.start_errno == errno.ENOENT or result.exit_code == 127):
        return f"there is no {program} in this sandbox"
    said = "".join(output.tail for output in (*driver.reading.before(), *driver.reading.output()))[-500:].strip()
    how = driver.damage or said or (str(result.status) if result else "it did not answer")
    return f"a {driver.language} session could not be started: {how}"
