# SPDX-License-Identifier: Apache-2.0
"""A worker of one's own: calls on it find what earlier ones left in memory, until one of them meets its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .. import clock
from ..errors import UsageError
from ..results import LimitReport, ToolResult
from .function import TRIES, launch, wait, wait_in_line
from .tasks import within_task
from .tokens import Token
from .tool import Call, Tool, put_together, tool_of
from .workers import Pool, Worker, pool_of

if TYPE_CHECKING:
    from .flight import Flight


class KeptWorker:
    """One worker process for many calls, one after another. What they leave in it (module globals) stays.

    A call that meets a limit, is cancelled or crashes takes the worker with it, and with it all that was kept; the
    next call gets a new one, and `generation` counts them. Threads and processes that a call leaves behind live on
    until then. Use as a context manager, or `close`.
    """

    def __init__(self, tool: Tool[..., Any]) -> None:
        """`tool` gives the place: isolation and ceilings."""
        tool = tool_of(tool)
        if tool.place is None:
            raise UsageError("an inline tool has no worker to keep")
        self._place = tool.place
        self._worker: Worker | None = None
        self._pool: Pool | None = None
        self._lock = threading.RLock()
        self.generation = 0
        self.closed = False

    def call(self, function: Call | Callable[..., Any], /, *args: Any, **kwargs: Any) -> ToolResult:
        """As `deadstop.call`, on this worker."""
        return self.run(put_together(function, args, kwargs))

    def run(self, asked: Call) -> ToolResult:
        """Run a call here. Its tool's isolation and ceilings are those of this worker. Threads wait for one another."""
        if asked.sandbox is not None:
            raise UsageError("a kept worker runs its calls itself, not in a sandbox")
        with self._lock:
            if self.closed:
                raise UsageError("this worker was closed")
            return within_task(asked, self._run_one)

    def _run_one(self, asked: Call) -> ToolResult:
        if asked.tool.declared is not None:
            from .effects import run_effect

            return run_effect(asked, self._run_here)
        return self._run_here(asked)

    def _run_here(self, asked: Call) -> ToolResult:
        token = Token(asked.cancel) if asked.cancel is not None else None
        queued = clock.monotonic()
        for _ in range(TRIES):
            worker = self._take(asked, token)
            if isinstance(worker, ToolResult):
                return worker
            flight = launch(asked, self, worker, queued)
            if isinstance(flight, ToolResult):
                return flight
            result = wait(flight, token)
            if not flight.died_unsent:
                break
        return result

    def _take(self, asked: Call, token: Token | None) -> Worker | ToolResult:
        if self._worker is None or self._worker.closed:  # in a forked child it is the parent's
            self._pool = pool_of(self._place)
            found = self._pool.take_free() or wait_in_line(self._pool, asked, token)
            if isinstance(found, ToolResult):
                return found
            self._worker = found
            self.generation += 1
        return self._worker

    # -- as a flight sees its pool -----------------------------------------------------------------------------------

    keeps_remains = True

    @property
    def pool(self) -> Pool:
        assert self._pool is not None
        return self._pool

    @property
    def limits(self) -> Mapping[str, LimitReport | None]:
        return self.pool.limits

    @property
    def remarks(self) -> tuple[str, ...]:
        return self.pool.remarks

    @property
    def process(self) -> Any:
        return self.pool.process

    def give(self, worker: Worker) -> None:
        """It stays here."""

    def lose(self, worker: Worker, *, replace: bool = False) -> None:
        self._worker = None
        self.pool.lose(worker, replace=replace and not self.closed)

    def let_go(self, flight: Flight) -> None:
        """It goes on without its caller: the worker is that call's own from now on."""
        self._worker, flight.pool = None, self.pool

    def has_loaded(self, worker: Worker, module: str | None) -> bool:
        return self.pool.has_loaded(worker, module)

    def warm_up(self, modules: list[str]) -> None:
        self.pool.warm_up(modules)

    def give_up(self) -> None:
        self.pool.give_up()

    def close(self) -> None:
        """End it, and the call that runs on it: that one then says how it ended."""
        self.closed = True
        worker = self._worker
        if worker is not None and not worker.closed:
            if self._lock.acquire(blocking=False):
                self.lose(worker)
                self._lock.release()
            else:
                worker.order("kill", "cancelled", "caller", None)

    def __enter__(self) -> KeptWorker:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self.__dict__.get("closed", True):
            self.close()
