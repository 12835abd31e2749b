# SPDX-License-Identifier: Apache-2.0
"""How late a deadline is: 100 calls at once, their deadlines spread over one second, no grace."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import deadstop
from deadstop import clock
from deadstop.executor.prepare import Options, prepare
from deadstop.results import Status, ToolResult

from .harness import Bench, Figure, Series, milliseconds
from .ours import BOUND_S, FirstOutput, Ours

HOSTS = ("root", "user", "no-userns")
CALLS, SPREAD_S = 100, 1.0
TARGET = (25.0,)


def measure(bench: Bench) -> Iterator[Figure]:
    """The receipt says when the boundary was proved empty; the caller's own clock says when the result was there."""
    ours = Ours()
    lead = _lead(bench, ours)
    by_receipt = [value for _ in range(1 if bench.quick else 2) for value in _engine(bench, ours, lead)]
    yield _figure("deadline to dead: 100 at once", by_receipt)
    dead, told = asyncio.run(_library(bench, lead))
    yield _figure("  through run_async, by the receipt", dead)
    yield _figure("  through run_async, until the result is there", told, target=())


def _lead(bench: Bench, ours: Ours) -> float:
    """Seconds until the first deadline, so that all calls run by then: what is measured is the end, not the start."""
    start = clock.monotonic()
    for _ in range(10):
        room, _ = ours.create(ours.prepared(bench.payload("hello")))
        ours.kill(room)
    return 1.0 + 3 * CALLS * (clock.monotonic() - start) / 10


def _figure(name: str, values: list[float], target: tuple[float, ...] = TARGET) -> Figure:
    series = Series(tuple(values))
    return Figure(name, series, target, note=f"largest {max(values):.1f}, earliest {min(values):.1f}")


def _engine(bench: Bench, ours: Ours, lead: float) -> list[float]:
    results, sinks = list[ToolResult](), [FirstOutput() for _ in range(CALLS)]
    begin = clock.monotonic() + lead
    ours.protect()
    for number, sink in enumerate(sinks):
        options = _options(begin + SPREAD_S * number / CALLS)
        one = prepare(bench.payload("hello"), options, stdin="null")
        room = ours.engine.open(one.place)
        ours.engine.start(room, one.command, None, None, results.append, owns_room=True, sink=sink)
        ours.step_until(lambda: sink.at is not None)  # noqa: B023  (used within this round)
    ours.step_until(lambda: len(results) == CALLS, lead + SPREAD_S + BOUND_S)
    ours.relax()
    if max(sink.at or begin for sink in sinks) >= begin:
        raise RuntimeError(f"the machine is too busy: not all of {CALLS} calls ran {lead:.1f} s after the first began")
    return [_overshoot(result) for result in results]


def _options(due: float) -> Options:
    return Options(timeout=due - clock.monotonic(), grace=0)


def _overshoot(result: ToolResult) -> float:
    if result.status is not Status.TIMEOUT or result.receipt is None or result.receipt.deadline_to_dead_ms is None:
        raise RuntimeError(f"this call should have timed out: {result}")
    return result.receipt.deadline_to_dead_ms


async def _library(bench: Bench, lead: float) -> tuple[list[float], list[float]]:
    begin = clock.monotonic()
    calls = [_call(bench, begin + lead + SPREAD_S * number / CALLS) for number in range(CALLS)]
    pairs = await asyncio.gather(*calls)
    return [dead for dead, _ in pairs], [told for _, told in pairs]


async def _call(bench: Bench, due: float) -> tuple[float, float]:
    options: dict[str, Any] = {"timeout": due - clock.monotonic(), "grace": 0}
    result = await deadstop.run_async(bench.payload("hello"), **options)
    return _overshoot(result), milliseconds(due)
