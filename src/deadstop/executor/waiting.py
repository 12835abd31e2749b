# SPDX-License-Identifier: Apache-2.0
"""Waiting for a call's result: once blocking, once in an event loop. Neither keeps the time of a call."""

from __future__ import annotations

import asyncio
import os

from .. import clock, wire
from ..cancel import CancelToken
from ..errors import BoundaryUnavailable, InternalError
from ..results import Status, ToolResult
from . import client
from .client import Call
from .prepare import refused
from .private import LONGEST_WAIT_S, wait_readable


def wait(call: Call, cancel: CancelToken | None) -> ToolResult:
    """The blocking face: until the result, the token, or the moment at which a supervisor must have answered."""
    asked = False
    try:
        while not call.over:
            own = call.channel.socket.fileno()
            token = cancel.fileno() if cancel is not None and not asked else None
            ready = wait_readable([own] if token is None else [own, token], _patience(call))
            if token in ready:
                asked = True
                call.cancel()
            if own in ready:
                call.pump()
            elif not ready and _patience(call) == 0:
                call.overdue()
        return _outcome(call)
    finally:
        call.channel.close()  # if we leave early (KeyboardInterrupt), this kills the call


def _patience(call: Call) -> float | None:
    return None if call.answer_by is None else max(0.0, call.answer_by - clock.monotonic())


def _outcome(call: Call) -> ToolResult:
    if isinstance(call.problem, client.BoundaryEnded):
        return refused(call.command, "policy", str(call.problem))
    if call.problem is not None:
        raise call.problem
    if call.result is None:
        raise InternalError("a call ended without a result")
    error = call.result.error
    if call.result.status is Status.REFUSED and error and error["type"] == "BoundaryUnavailable":
        raise BoundaryUnavailable(call.level, str(error["message"]))
    return call.result


async def wait_async(call: Call, cancel: CancelToken | None) -> ToolResult:
    """The event loop's face."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    descriptor = call.channel.socket.fileno()
    timers: list[asyncio.TimerHandle] = []

    def pump() -> None:
        try:
            call.pump()
        except Exception as problem:  # what `on_output` raises is the caller's to see
            if not done.done():
                done.set_exception(problem)
        if call.over and not done.done():
            done.set_result(None)

    def overdue() -> None:
        if _patience(call) == 0 and not call.over:
            call.overdue()
        if not call.over:
            watch_time()
        elif not done.done():
            done.set_result(None)

    def watch_time() -> None:
        patience = _patience(call)
        if patience is not None:
            timers.append(loop.call_later(min(patience, LONGEST_WAIT_S), overdue))
            del timers[:-1]

    loop.add_reader(descriptor, pump)
    # A loop watches a descriptor once, and a token may be shared by many calls: each watches a copy.
    token = os.dup(cancel.fileno()) if cancel is not None else None
    if token is not None:
        loop.add_reader(token, _cancel_once, loop, token, call)
    watch_time()
    try:
        await asyncio.shield(done)
    except asyncio.CancelledError:
        call.cancel()
        call.channel.order(wire.HURRY)
        await asyncio.wait([done], timeout=client.PROOF_S)  # shielded and bounded: until it is shown to be gone
        raise
    finally:
        loop.remove_reader(descriptor)
        if token is not None:
            loop.remove_reader(token)
            os.close(token)
        for timer in timers:
            timer.cancel()
        call.channel.close()
    return _outcome(call)


def _cancel_once(loop: asyncio.AbstractEventLoop, token: int, call: Call) -> None:
    loop.remove_reader(token)
    call.cancel()


def checked(result: ToolResult, check: bool) -> ToolResult:
    if check:
        result.unwrap()
    return result
