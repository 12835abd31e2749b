# SPDX-License-Identifier: Apache-2.0
"""Sessions: a Python interpreter or a shell in a sandbox that keeps its state from one run to the next.

Each is a background exec of a driver (drivers/) with its stdin kept open. A run that meets its time limit is
interrupted where the driver can live through that, and killed with its session where it does not end then. Whatever
ends a session, the answer of that run says so, and the next run begins in a new one, which it says as well.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import clock
from ..errors import CapacityError, NotAllowed, NotFound, SandboxPaused, UsageError
from ..results import FiredLimit, Status, ToolResult
from .session_answers import Answer
from .session_driver import TAIL, Driver, Place, to_its_end
from .wishes import check_seconds

DEFAULT_RUN_S = 30.0
SESSIONS = 16
BACKSTOP_S = 2.0
CODE_BYTES = 4 << 20
LANGUAGES = {"python": "python", "python3": "python", "py": "python", "bash": "bash", "sh": "bash", "shell": "bash"}
LOST = "the session was restarted: its state is lost"


@dataclass(frozen=True, slots=True)
class SessionAnswer:
    """How one run ended, and what it showed.

    `exit` is a command's exit status (for Python 0, 1 after an exception, what sys.exit said, 130 after an interrupt).
    `session_ended`: its state is lost with this run. `generation` counts the drivers of this session, from 1.
    `notes` are for whoever reads the answer; `background` was printed between the last run and this one, by what
    earlier ones left running. `result` is the whole of it as a ToolResult.
    """

    results: tuple[dict[str, str], ...]
    stdout: str
    stderr: str
    error: str | None
    exit: int
    duration_ms: int
    session_ended: bool
    generation: int
    result: ToolResult
    notes: tuple[str, ...] = ()
    background: str = ""

    def document(self) -> dict[str, Any]:
        """As the HTTP API gives it."""
        return {
            "results": list(self.results), "stdout": self.stdout, "stderr": self.stderr, "error": self.error,
            "exit": self.exit, "duration_ms": self.duration_ms, "session_ended": self.session_ended,
            "generation": self.generation, "notes": list(self.notes), "background": self.background,
            "truncated": self.result.stdout.truncated or self.result.stderr.truncated,
            "result": self.result.to_dict(),
        }  # fmt: skip


class Sessions:
    """Those of one sandbox."""

    def __init__(self, sandbox: Place, *, most: int = SESSIONS) -> None:
        self._sandbox, self._most = sandbox, most
        self._sessions: dict[str, Session] = {}

    async def open(
        self, language: str = "python", *, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> Session:
        """A new one, ready for its first run. Raises UsageError, CapacityError, NotAllowed, SandboxEnded."""
        if language.lower() not in LANGUAGES:
            raise UsageError(f"language: {language!r:.40} is neither python nor bash")
        if len(self._sessions) >= self._most:
            raise CapacityError(f"a sandbox has at most {self._most} sessions: close one", "sessions")
        session = Session(self._sandbox, LANGUAGES[language.lower()], cwd, env or {})
        self._sessions[session.id] = session  # it counts from now on
        try:
            await session.start()
        except BaseException:
            self._sessions.pop(session.id, None)
            raise
        return session

    def get(self, session_id: str) -> Session:
        """Raises NotFound."""
        if session_id not in self._sessions:
            raise NotFound("session", session_id)
        return self._sessions[session_id]

    def all(self) -> list[Session]:
        return list(self._sessions.values())

    async def close(self, session_id: str) -> bool:
        """End it, and what it left running. False if there was none."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            await session.close()
        return session is not None

    async def close_all(self) -> None:
        await asyncio.gather(*(self.close(each) for each in list(self._sessions)))


class Session:
    """One of them. Runs are made one after another, in the order they were asked for."""

    def __init__(self, sandbox: Place, language: str, cwd: str | None, env: Mapping[str, str]) -> None:
        self.id, self.language = f"ses_{secrets.token_hex(10)}", language
        self.created_at = time.time()
        self.generation, self.runs = 0, 0
        self.closed = False
        self._sandbox, self._cwd, self._env = sandbox, cwd, env
        self._driver: Driver | None = None
        self._lock = asyncio.Lock()

    @property
    def busy(self) -> bool:
        return self._lock.locked()

    def document(self) -> dict[str, Any]:
        return {
            "id": self.id, "language": self.language, "created_at": clock.iso(self.created_at), "busy": self.busy,
            "generation": self.generation, "runs": self.runs, "exec_id": self._driver.exec.id if self._driver else None,
        }  # fmt: skip

    async def start(self) -> None:
        async with self._lock:
            await self._ready()

    async def run(
        self, code: str, timeout_s: float | None = DEFAULT_RUN_S, *, tail: int = TAIL, restart: bool = True
    ) -> SessionAnswer:
        """Run code in it. `timeout_s` counts from when earlier runs have ended; 0 is over already.

        Cancelled (the caller is gone), the run is interrupted or killed before this returns. Raises UsageError,
        SandboxPaused, SandboxEnded; NotFound for a session that was closed. `restart=False` raises NotAllowed for one
        that has ended since instead of beginning anew.
        """
        data = self._checked(code)
        seconds = DEFAULT_RUN_S if timeout_s is None else timeout_s
        if seconds != 0:
            check_seconds("timeout_s", seconds)
        queued = time.monotonic()
        async with self._lock:
            if self.closed:
                raise NotFound("session", self.id)
            if self._sandbox.status == "paused":
                raise SandboxPaused(self._sandbox.id)
            waited = time.monotonic() - queued
            if seconds == 0:
                return self._over(waited)
            known = self.generation
            driver = await self._ready(restart=restart)
            notes = (LOST,) if known and self.generation != known else ()
            self.runs += 1
            run = _Run(driver, FiredLimit("call", seconds, "given" if timeout_s is not None else "default"), waited)
            try:
                self._sandbox.touch()
                return await run.answer(data, tail, notes)
            finally:
                self._sandbox.touch()
                if not driver.alive:
                    self._driver = None

    def _checked(self, code: str) -> bytes:
        data = code.encode("utf-8", "surrogateescape")
        if len(data) > CODE_BYTES:
            raise UsageError(f"code: {len(data)} bytes are more than {CODE_BYTES}")
        if self.language == "bash" and b"\0" in data:
            raise UsageError("code: a shell takes no NUL bytes")
        return data

    async def _ready(self, *, restart: bool = True) -> Driver:
        driver = self._driver
        if driver is not None and driver.alive:
            return driver
        if self.generation and not restart:
            raise NotAllowed(f"session {self.id} has ended")
        made = self._driver = await Driver.started(self._sandbox, self.language, self._cwd, self._env, self.generation)
        self.generation += 1
        return made

    def _over(self, waited: float) -> SessionAnswer:
        result = ToolResult(
            tool=f"session {self.language}", status=Status.REFUSED, reason="deadline_over",
            limit=FiredLimit("call", 0.0), started_at=clock.now_iso(), queued_s=waited,
            environment="nothing was started",
        )  # fmt: skip
        return SessionAnswer(
            (), "", "", "timeout: its limit was over before it began", 125, 0, False, self.generation, result
        )

    async def close(self) -> None:
        """End it with what it left running. A run that is being made then says how it ended."""
        self.closed = True
        driver, self._driver = self._driver, None
        if driver is not None:
            await driver.end()


class _Run:
    """One run on a driver."""

    def __init__(self, driver: Driver, limit: FiredLimit, waited: float) -> None:
        self.driver, self.limit, self.waited = driver, limit, waited
        self.started, self.started_at = time.monotonic(), clock.now_iso()

    async def answer(self, code: bytes, tail: int, notes: tuple[str, ...]) -> SessionAnswer:
        driver = self.driver
        timed_out = False
        try:
            # The supervisor has a limit, too, a little behind ours: it holds if this server is stopped meanwhile.
            driver.exec.limit((self.limit.seconds or 0.0) + BACKSTOP_S)
            answer = await driver.take(code, self.limit.seconds or 0.0, tail)
            if answer is None:
                timed_out = driver.alive
                answer = await to_its_end(driver.stop())
        except asyncio.CancelledError:
            await to_its_end(driver.stop())
            raise
        driver.exec.limit(None)
        fields = self._fields(notes)
        if answer is None:
            return self._made(self._lost(fields, timed_out), notes, (), None, ended=True)
        fields.update(status=Status.COMPLETED, exit_code=answer.exit)
        if timed_out:
            fields.update(status=Status.TIMEOUT, exit_code=None, limit=self.limit)
            fields["environment"] = "the run was interrupted; its session lives on with its state"
        return self._made(fields, notes, answer.results, answer, ended=False)

    def _fields(self, notes: tuple[str, ...]) -> dict[str, Any]:
        out, err = self.driver.reading.output()
        return {
            "tool": f"session {self.driver.language}", "call_id": self.driver.exec.id, "stdout": out, "stderr": err,
            "started_at": self.started_at, "duration_s": round(time.monotonic() - self.started, 6),
            "queued_s": round(self.waited, 6), "degraded": notes,
        }  # fmt: skip

    def _lost(self, fields: dict[str, Any], timed_out: bool) -> dict[str, Any]:
        """The session has ended with this run."""
        found = self.driver.exec.result
        told = {} if found is None else {key: value for key, value in vars(found).items() if key not in fields}
        fields = {"status": Status.UNKNOWN, **told, **fields, "environment": "its session has ended; its state is lost"}
        if timed_out:
            fields.update(status=Status.TIMEOUT, limit=self.limit, exit_code=None, signal=None, reason=None)
        elif self.driver.damage is not None:
            fields.update(status=Status.CRASHED, error_message=f"the session sent {self.driver.damage}", reason=None)
        return fields

    def _made(
        self, fields: dict[str, Any], notes: tuple[str, ...], results: tuple[dict[str, str], ...],
        answer: Answer | None, *, ended: bool,
    ) -> SessionAnswer:  # fmt: skip
        result = ToolResult(**fields)
        before = "".join(output.tail for output in self.driver.reading.before())
        told = "".join(f"deadstop: {note}\n" for note in notes)
        return SessionAnswer(
            results, result.stdout.tail, told + result.stderr.tail, self._error(result, answer),
            answer.exit if answer else result.exit_status(), round(result.duration_s * 1000), ended,
            self.driver.generation, result, notes, before,
        )  # fmt: skip

    def _error(self, result: ToolResult, answer: Answer | None) -> str | None:
        limit = f"timeout: the run did not end within {self.limit.seconds:g} s"
        if answer is not None:
            if result.status is not Status.TIMEOUT:
                return answer.error
            return f"{limit} and was interrupted; the session keeps its state\n{answer.error or ''}".rstrip()
        if result.status is Status.TIMEOUT:
            return f"{limit}; its session was killed, and its state is lost"
        if result.status is Status.COMPLETED:
            how = f"exit code {result.exit_code}"
        else:
            how = result.error["message"] if result.error else str(result.status)
        return f"the session ended ({how}); its state is lost"
