# SPDX-License-Identifier: Apache-2.0
"""What a limit costs: function calls inline, in a killable worker, by value, in batches, at once, and of 10 MB."""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import deadstop

from .functions_rivals import PickleOverPipe, PipePingPong, PlainWorker, Rivals, in_blocks
from .functions_served import LIMIT_S, THREADS, Block, each, in_threads, together
from .functions_work import nothing, over_list, over_number
from .harness import Bench, Compared, Figure, Series

HOSTS = ("root", "user", "no-userns")
LARGE = 10_000_000
ONLY_P50 = "the target is for the p50"
ANY_P99 = 10_000.0


def measure(bench: Bench) -> Iterator[Figure]:
    yield from _inline(bench)
    yield from _killable(bench)
    yield from _by_value(bench)
    yield from _batch(bench)
    yield from _at_once(bench)
    yield from _large(bench)


def _inline(bench: Bench) -> Iterator[Figure]:
    tool = deadstop.tool(nothing, isolation="inline", timeout=None)
    with Rivals("PraisonAI") as rivals:
        candidates: dict[str, Block] = {
            "ours": together(tool.call),
            "bare call": together(nothing),
            "bare call in try": together(_in_try),
            **rivals.blocks("no limit"),
        }
        results = in_blocks(bench, candidates, rounds=150, calls=1000)
    ours = results.pop("ours")
    note = "; ".join(filter(None, (ONLY_P50, rivals.note)))
    yield Figure("inline call, no limit", ours, (2.5, ANY_P99), unit="us", beside=results, note=note)


def _in_try() -> object:
    """The least that says how a call ended."""
    start = time.monotonic()
    try:
        value = nothing()
    except Exception as problem:
        return problem
    return value, time.monotonic() - start


def _killable(bench: Bench) -> Iterator[Figure]:
    tool = deadstop.tool(operator.index, timeout=LIMIT_S)
    pipe, plain = PipePingPong(), PlainWorker()
    loop = asyncio.new_event_loop()
    with Rivals("pebble", "ProcessPoolExecutor") as pools, Rivals("PraisonAI") as praison:
        candidates: dict[str, Block] = {
            "ours": each(lambda: _value(tool.call(7), 7)),
            "async": lambda count: loop.run_until_complete(_async_block(tool, count)),
            "pipe, one byte": each(pipe.call),
            "packet and pickle": each(lambda: plain.call(operator.index, 7)),
            **pools.blocks("call"),
            **praison.blocks("limit"),
        }
        results = in_blocks(bench, candidates, rounds=40, calls=50)
    loop.close()
    pipe.close()
    plain.close()
    ours, async_ours = results.pop("ours"), results.pop("async")
    note = "; ".join(filter(None, (_times_as_fast(ours, results, 5), pools.note, praison.note)))
    name, times = "killable no-op, importable", ("pebble", 0.2)
    yield Figure(name, ours, (40.0, 250.0), unit="us", beside=results, most_times=times, note=note)
    yield Figure("  through call_async", async_ours, unit="us", beside=results)


def _times_as_fast(ours: Series, beside: dict[str, Series], wanted: int) -> str:
    if "pebble" not in beside:
        return ""
    return f"{beside['pebble'].p50 / ours.p50:.1f} times as fast as pebble, wanted {wanted}"


async def _async_block(tool: Any, count: int) -> list[float]:
    values = []
    for _ in range(count):
        start = time.perf_counter()
        _value(await tool.call_async(7), 7)
        values.append((time.perf_counter() - start) * 1e6)
    return values


def _by_value(bench: Bench) -> Iterator[Figure]:
    if find_spec("cloudpickle") is None:
        yield Figure("killable closure over a list", Series(()), unit="us", note="not installed: cloudpickle")
        return
    import cloudpickle

    changing, fixed = over_list(), over_number()
    by_list, by_number = (deadstop.tool(function, timeout=LIMIT_S) for function in (changing, fixed))
    with Rivals("pebble", "ProcessPoolExecutor") as rivals:
        candidates: dict[str, Block] = {
            "list": each(lambda: _value(by_list.call(7), 10)),
            "number": each(lambda: _value(by_number.call(7), 10)),
            "cloudpickle, there and back": each(lambda: cloudpickle.loads(cloudpickle.dumps(changing))),
            **rivals.blocks("closure"),
        }
        results = in_blocks(bench, candidates, rounds=40, calls=50)
    ours, unchanged = results.pop("list"), results.pop("number")
    note = "; ".join(filter(None, (ONLY_P50, _times_as_fast(ours, results, 2), rivals.note)))
    name, times, target = "killable closure over a list", ("pebble", 0.5), (90.0, ANY_P99)
    yield Figure(name, ours, target, unit="us", beside=results, most_times=times, note=note)
    yield Figure("  over a number, proven unchanged", unchanged, target, unit="us", beside=results, note=ONLY_P50)


def _batch(bench: Bench) -> Iterator[Figure]:
    tool, count = deadstop.tool(operator.index, timeout=LIMIT_S), 1000
    calls = [deadstop.Call(tool, number) for number in range(count)]
    with Rivals("PraisonAI") as rivals:
        candidates: dict[str, Block] = {"ours": lambda _: [_batch_once(calls)], **rivals.blocks("batch")}
        results = in_blocks(bench, candidates, rounds=30, calls=count)
    ours = results.pop("ours")
    name, note = f"batch of {count} no-ops, 4 workers, per call", rivals.note or "at most a third of PraisonAI"
    yield Compared(name, ours, unit="us", beside=results, most_times=("PraisonAI", 1 / 3), note=note)


def _batch_once(calls: list[Any]) -> float:
    start = time.perf_counter()
    results = deadstop.batch(calls, parallel=4)
    took = time.perf_counter() - start
    if [result.value for result in results] != list(range(len(calls))):
        raise RuntimeError("a batch gave something else")
    return took * 1e6 / len(calls)


def _at_once(bench: Bench) -> Iterator[Figure]:
    tool = deadstop.tool(operator.index, timeout=LIMIT_S)
    with Rivals("pebble", "ProcessPoolExecutor") as rivals:
        candidates = {"ours": in_threads(lambda: _value(tool.call(7), 7)), **rivals.blocks("threads")}
        results = in_blocks(bench, candidates, rounds=5, calls=50)
    ours = results.pop("ours")
    name = f"{THREADS} threads at once: latency / {THREADS}"
    yield Figure(name, ours, unit="us", beside=results, note=rivals.note)


def _large(bench: Bench) -> Iterator[Figure]:
    tool, data = deadstop.tool(nothing, timeout=LIMIT_S), bytes(LARGE)
    pipe = PickleOverPipe()

    def ours() -> None:
        if len(tool.call(data).value) != LARGE:
            raise RuntimeError("something else came back")

    candidates: dict[str, Block] = {"ours": each(ours), "pickle over a pipe": each(lambda: pipe.call(data))}
    results = in_blocks(bench, candidates, rounds=15, calls=3)
    pipe.close()
    beside = {"pickle over a pipe": _in_milliseconds(results["pickle over a pipe"])}
    name = "10 MB argument and result"
    most = ("pickle over a pipe", 2.0)
    yield Compared(name, _in_milliseconds(results["ours"]), beside=beside, most_times=most, note="at most twice that")


def _in_milliseconds(series: Series) -> Series:
    return Series(tuple(value / 1000 for value in series.values))


def _value(result: Any, wanted: object) -> None:
    if result.value != wanted:
        raise RuntimeError(f"the call gave something else: {result}")
