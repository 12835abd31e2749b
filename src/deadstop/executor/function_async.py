# SPDX-License-Identifier: Apache-2.0
"""`deadstop.call_async`: the same engine, seen from an event loop, which it never blocks for longer than a packet."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from .. import clock, deadlines
from ..results import ToolResult
from .flight import PROOF_S, Flight, State
from .function import QUEUE_S, TRIES, abandon, launch, with_token_error
from .inline import run_inline_async
from .refusals import cancelled_before, no_capacity
from .tokens import POLL_S, Token
from .tool import Call, put_together
from .workers import Pool, Waiter, Worker, pool_of

_monotonic = clock.monotonic


async def call_async(target: Call | Callable[..., Any], /, *args: Any, **kwargs: Any) -> ToolResult:
    """The async twin of `call`, for sync and async tools alike: both run in a worker.

    Cancelling the task that awaits it kills the call and waits, shielded and bounded, until that is shown.
    """
    return await run_async(put_together(target, args, kwargs))


async def run_async(asked: Call) -> ToolResult:
    """Run a call that has been put together."""
    if deadlines.entered.get():
        from .tasks import within_task_async

        return await within_task_async(asked, run_one_async)
    return await run_one_async(asked)


async def run_one_async(asked: Call) -> ToolResult:
    """As `run_async`, for one that its task has let through."""
    token = None
    if asked.cancel is not None:
        token = Token(asked.cancel)
        if token.is_set():
            return cancelled_before(asked, token)
    if asked.tool.declared is not None:
        from .effects import run_effect_async

        return await run_effect_async(asked, partial(_run_one, token=token))
    return await _run_one(asked, token)


async def _run_one(asked: Call, token: Token | None) -> ToolResult:
    if asked.sandbox is not None:
        result: ToolResult = await asked.sandbox.run_function_async(asked)
        return result
    if asked.tool.inline:
        return await run_inline_async(asked)
    for _ in range(TRIES):
        flight = await _start(asked, token)
        if isinstance(flight, ToolResult):
            return flight
        result = await Watch(flight, token).result()
        if not flight.died_unsent:
            break
    return result


async def _start(asked: Call, token: Token | None) -> Flight | ToolResult:
    queued = _monotonic()
    assert asked.tool.place is not None
    place = asked.tool.place
    loop = asyncio.get_running_loop()
    # The first one starts a process: not on the loop's time.
    pool = await loop.run_in_executor(None, pool_of, place) if is_cold(place) else pool_of(place)
    worker = pool.take_free()
    if worker is None:
        found = await _wait_in_line(pool, asked, token)
        if isinstance(found, ToolResult):
            return found
        worker = found
    return launch(asked, pool, worker, queued)


def is_cold(place: Any) -> bool:
    from .workers import _pools

    found = _pools.get(place)
    return found is None or found.closed


async def _wait_in_line(pool: Pool, asked: Call, token: Token | None) -> Worker | ToolResult:
    until = min(_monotonic() + QUEUE_S, asked.outer()[0])
    waiter = pool.enqueue()
    try:
        while not waiter.served():
            pool.harvest()
            if waiter.served():
                break
            if pool.problem is not None:
                raise pool.problem
            if token is not None and token.is_set():
                return cancelled_before(asked, token)
            if _monotonic() >= until:
                return no_capacity(asked, QUEUE_S)
            await _either(pool, waiter, min(until - _monotonic(), POLL_S if token else 1.0))
        worker, waiter.worker = waiter.worker, None
        assert worker is not None
        return worker
    finally:
        if waiter.worker is not None:
            pool.give(waiter.worker)
        pool.leave(waiter)


async def _either(pool: Pool, waiter: Waiter, seconds: float) -> None:
    """Until something is delivered, the waiter is told, or the time is over. On copies: a loop has one watcher each."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    copies = [os.dup(fd) for fd in (pool.orders.fileno(), waiter.event)]

    def tell() -> None:
        if not ready.done():
            ready.set_result(None)

    for fd in copies:
        loop.add_reader(fd, tell)
    timer = loop.call_later(max(0.0, seconds), tell)
    try:
        await ready
    finally:
        timer.cancel()
        for fd in copies:
            loop.remove_reader(fd)
            os.close(fd)


class Watch:
    """One flight on one loop."""

    def __init__(self, flight: Flight, token: Token | None) -> None:
        self.flight, self.token = flight, token
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[ToolResult] = self.loop.create_future()
        self.watched = -1
        self.timer: asyncio.TimerHandle | None = None
        self.token_copy = -1

    async def result(self) -> ToolResult:
        flight = self.flight
        early = self._early()
        if early is not None:
            await asyncio.sleep(0)  # a loop of short calls must not keep the event loop to itself
            return early
        self._follow()
        if self.token is not None and self.token.source is not None:
            self.token_copy = os.dup(self.token.source)
            self.loop.add_reader(self.token_copy, self._token_set)
        self._watch_time()
        try:
            result = await asyncio.shield(self.done)
        except asyncio.CancelledError:
            flight.cancel()
            self._follow()
            await asyncio.wait([self.done], timeout=PROOF_S)
            if not self.done.done() or self.done.exception() is not None:
                abandon(flight)
            raise
        except BaseException:
            abandon(flight)
            raise
        finally:
            self._stop()
        return with_token_error(result, self.token) if self.token is not None and self.token.error else result

    def _early(self) -> ToolResult | None:
        """A short call has often ended by the time it was handed over: then nothing has to be watched."""
        if self.flight.state not in (State.RUNNING, State.LOADING):
            return None
        try:
            return self.flight.step(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except BaseException:  # what `on_progress` raises is the caller's to see
            abandon(self.flight)
            raise

    def _follow(self) -> None:
        if self.watched != self.flight.fd:
            if self.watched >= 0:
                self.loop.remove_reader(self.watched)
            self.watched = self.flight.fd
            self.loop.add_reader(self.watched, self._readable)

    def _readable(self) -> None:
        watched, self.watched = self.watched, -1
        self.loop.remove_reader(watched)  # before a result closes it
        try:
            result = self.flight.step(socket.MSG_DONTWAIT)
        except BlockingIOError:
            result = None
        except BaseException as problem:  # what `on_progress` raises is the caller's to see
            if not self.done.done():
                self.done.set_exception(problem)
            return
        self._settle(result)

    def _settle(self, result: ToolResult | None) -> None:
        if result is not None:
            if not self.done.done():
                self.done.set_result(result)
            return
        if self.flight.question is not None:
            self._ask()
        self._follow()
        self._watch_time()

    def _ask(self) -> None:
        from .soft import question

        flight = self.flight
        asked, flight.question = flight.question, None

        def ask() -> ToolResult | None:
            flight.question = asked
            return question(flight)

        def answered(future: asyncio.Future[ToolResult | None]) -> None:
            if not self.done.done():
                self._settle(future.result())

        self.loop.run_in_executor(None, ask).add_done_callback(answered)

    def _watch_time(self) -> None:
        if self.timer:
            self.timer.cancel()
        flight, now = self.flight, _monotonic()
        until = flight.overdue_at
        if flight.soft_at is not None and flight.state is State.RUNNING:
            until = min(until, flight.soft_at)
        if self.token is not None and self.token.source is None and flight.cancel_reason is None:
            until = min(until, now + POLL_S)
        self.timer = self.loop.call_later(min(max(0.0, until - now), 3600.0), self._on_time)

    def _on_time(self) -> None:
        flight, now = self.flight, _monotonic()
        if self.done.done():
            return
        if self.token is not None and flight.cancel_reason is None and self.token.is_set():
            flight.cancel(self.token.reason)
        elif flight.soft_at is not None and now >= flight.soft_at and flight.state is State.RUNNING:
            flight.freeze(now + flight.call.tool.soft_answer)
        elif now > flight.overdue_at:
            self._stop()
            self.done.set_result(flight.lost("the supervisor did not answer in time"))
            return
        self._follow()
        self._watch_time()

    def _token_set(self) -> None:
        self.loop.remove_reader(self.token_copy)
        self.flight.cancel()
        self._follow()

    def _stop(self) -> None:
        if self.timer:
            self.timer.cancel()
        if self.watched >= 0:
            self.loop.remove_reader(self.watched)
            self.watched = -1
        if self.token_copy >= 0:
            self.loop.remove_reader(self.token_copy)
            os.close(self.token_copy)
            self.token_copy = -1
