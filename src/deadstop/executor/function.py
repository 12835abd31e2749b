# SPDX-License-Identifier: Apache-2.0
"""`deadstop.call`: a function that always returns, seen from code that waits for it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import clock, deadlines
from ..results import ToolResult
from .flight import Flight, State, hand_over
from .inline import run_inline
from .private import wait_readable
from .refusals import cancelled_before, cannot_be_sent, no_capacity, over_before_start
from .tokens import POLL_S, Token
from .tool import Call, Tool, put_together
from .workers import Pool, Worker, pool_of, wait_for

if TYPE_CHECKING:
    from .functions import Target
    from .kept import KeptWorker

QUEUE_S = 300.0  # how long a call may wait for a worker before it is refused for want of capacity
TRIES = 5  # how often a call may meet a worker that had died before it was handed the call
_INFINITE = float("inf")
_monotonic = clock.monotonic


def call(target: Call | Callable[..., Any], /, *args: Any, **kwargs: Any) -> ToolResult:
    """Run a tool, or any function, with these arguments, and say how it ended.

    The limits are the tool's (see `deadstop.tool`); a plain function has the defaults, a `Call` brings its own
    arguments. With `sandbox=` (a `deadstop.Sandbox`) it runs in there, and what it returns is plain data. Blocks until
    the call has ended, and is gone if it was killed. Safe from any thread, and from inside a running event loop, which
    it then blocks: there use `call_async`.

    Raises UsageError for what is not allowed and BoundaryUnavailable where the host cannot give the isolation asked
    for, in both cases before anything ran. What the function raises is in the result.
    """
    if type(target) is Tool and "sandbox" not in kwargs:
        return target.call(*args, **kwargs)
    return run(put_together(target, args, kwargs))


def run(asked: Call) -> ToolResult:
    """Run a call that has been put together."""
    if deadlines.entered.get():
        from .tasks import within_task

        return within_task(asked, run_one)
    return run_one(asked)


def run_one(asked: Call) -> ToolResult:
    """As `run`, for one that its task has let through."""
    token = None
    if asked.cancel is not None:
        token = Token(asked.cancel)
        if token.is_set():
            return cancelled_before(asked, token)
    if asked.tool.declared is not None:
        from .effects import run_effect

        return run_effect(asked, partial(_run_one, token=token))
    return _run_one(asked, token)


def _run_one(asked: Call, token: Token | None) -> ToolResult:
    if asked.sandbox is not None:
        result: ToolResult = asked.sandbox.run_function(asked)
        return result
    if asked.tool.inline:
        return run_inline(asked)
    for _ in range(TRIES):
        flight = start(asked, token)
        if isinstance(flight, ToolResult):
            return flight
        result = wait(flight, token)
        if not flight.died_unsent:
            break
    return result


def ended(begun: Flight | ToolResult) -> ToolResult | None:
    """The result of a call that has been handed over; None if its worker had died before."""
    if isinstance(begun, ToolResult):
        return begun
    result = wait(begun, None)
    return None if begun.died_unsent else result


def start(asked: Call, token: Token | None) -> Flight | ToolResult:
    """Take a worker and hand the call over; a result if it ends before."""
    queued = _monotonic()
    assert asked.tool.place is not None
    pool = asked.tool.pool = pool_of(asked.tool.place)
    worker = pool.take_free()
    if worker is None:
        found = wait_in_line(pool, asked, token)
        if isinstance(found, ToolResult):
            return found
        worker = found
    return launch(asked, pool, worker, queued)


def launch(asked: Call, pool: Pool | KeptWorker, worker: Worker, queued: float) -> Flight | ToolResult:
    """Put the call on this worker: load its function first where it is new there."""
    end, limit = asked.outer()
    if end <= _monotonic():
        pool.give(worker)
        return over_before_start(asked, limit)
    try:
        flight = Flight(asked, pool, worker, queued)
        sent = asked.tool.sent
        target: Target
        number, target, body = sent.target()
        if number in worker.known:
            return hand_over(flight, target) or flight
        if pool.has_loaded(worker, sent.module):
            refused = hand_over(flight, (number, sent.place))  # it only has to be looked up: no need to ask first
            if refused is None:
                worker.known.add(number)
            return refused or flight
        flight.load(number, target, body)
    except Exception as problem:  # it is a function that cannot be sent
        worker.forget_surroundings()
        pool.give(worker)
        return cannot_be_sent(asked, problem)
    except BaseException:
        pool.lose(worker)  # an interrupt in between: nobody knows what it has
        raise
    return flight


def wait_in_line(pool: Pool, asked: Call, token: Token | None) -> Worker | ToolResult:
    until = min(_monotonic() + QUEUE_S, asked.outer()[0])
    waiter = pool.enqueue()
    try:
        source = token.source if token else None
        while not wait_for(pool, waiter, _slice(until, token), source):
            if token is not None and token.is_set():
                return cancelled_before(asked, token)
            if _monotonic() >= until:
                return no_capacity(asked, QUEUE_S)
        assert waiter.worker is not None
        worker, waiter.worker = waiter.worker, None
        return worker
    finally:
        if waiter.worker is not None:
            pool.give(waiter.worker)
        pool.leave(waiter)


def _slice(until: float, token: Token | None) -> float:
    """A token that cannot be waited for is asked again and again."""
    foreign = token is not None and token.source is None
    return min(until, _monotonic() + POLL_S) if foreign else until


def wait(flight: Flight, token: Token | None) -> ToolResult:
    """Block until the result. An exception of the caller's (an interrupt) ends the call, too."""
    try:
        if token is None and flight.soft_at is None:
            return _wait_plainly(flight)
        return _wait_watching(flight, token)
    except BaseException:
        abandon(flight)
        raise


def abandon(flight: Flight) -> None:
    """Nobody waits for it any more: end it."""
    flight.pool.lose(flight.worker)


def _wait_plainly(flight: Flight) -> ToolResult:
    while True:
        if flight.soft_at is not None:
            return _wait_watching(flight, None)  # it has begun only now
        try:
            if flight.state in (State.RUNNING, State.LOADING):
                result = flight.step()  # the socket gives up now and then, to have the time looked at
            elif wait_readable([flight.fd], max(0.0, flight.overdue_at - _monotonic())):
                result = flight.step(socket.MSG_DONTWAIT)
            else:
                result = None
        except BlockingIOError:
            result = None
        if result is not None:
            return result
        if _monotonic() > flight.overdue_at:
            return flight.lost("the supervisor did not answer in time")


def _wait_watching(flight: Flight, token: Token | None) -> ToolResult:
    from .soft import question

    source = token.source if token is not None else None
    while True:
        if token is not None and flight.cancel_reason is None and token.is_set():
            flight.cancel(token.reason)
        until = flight.overdue_at
        if flight.soft_at is not None and flight.state is State.RUNNING:
            until = min(until, flight.soft_at)
        watched = [flight.fd] + ([source] if source is not None and flight.cancel_reason is None else [])
        ready = wait_readable(watched, max(0.0, _slice(until, token) - _monotonic()))
        now = _monotonic()
        if flight.fd in ready:
            try:
                result = flight.step(socket.MSG_DONTWAIT)
            except BlockingIOError:
                result = None
            if result is not None:
                return result if token is None or not token.error else with_token_error(result, token)
            if (
                flight.question is not None
                and (detached := question(flight, token.is_set if token else bool)) is not None
            ):
                return detached
        elif flight.soft_at is not None and now >= flight.soft_at and flight.state is State.RUNNING:
            flight.freeze(now + flight.call.tool.soft_answer)
        if now > flight.overdue_at:
            return flight.lost("the supervisor did not answer in time")


def with_token_error(result: ToolResult, token: Token) -> ToolResult:
    return ToolResult.made({**vars(result), "degraded": (*result.degraded, token.error)})
