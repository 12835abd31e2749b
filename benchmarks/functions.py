# SPDX-License-Identifier: Apache-2.0
"""What a limit costs: function calls inline, in a killable worker, by value, in batches, at once, and of 10 MB."""

from __future__ import annotations

import asyncio
import operator
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import deadstop

from .functions_rivals import (
    Block,
    PickleOverPipe,
    PipePingPong,
    PlainWorker,
    Rivals,
    each,
    in_blocks,
    together,
)
from .functions_work import call_packed, nothing, over_list, over_number
from .harness import Bench, Figure, Series

HOSTS = ("root", "user", "no-userns")
LIMIT_S = 5.0
THREADS = 20
LARGE = 10_000_000
ONLY_P50 = "the target is for the p50"


class Compared(Figure):
    """A figure whose only target is a ratio to what is beside it."""

    @property
    def met(self) -> bool | None:
        if self.most_times is None or self.most_times[0] not in self.beside:
            return None
        return self.ratio(self.most_times[0]) <= self.most_times[1]


def measure(bench: Bench) -> Iterator[Figure]:
    with Rivals() as rivals:
        yield from _inline(bench, rivals)
        yield from _killable(bench, rivals)
        yield from _by_value(bench, rivals)
        yield from _batch(bench, rivals)
    yield from _at_once(bench)
    yield from _large(bench)


def _inline(bench: Bench, rivals: Rivals) -> Iterator[Figure]:
    tool = deadstop.tool(nothing, isolation="inline", timeout=None)
    candidates: dict[str, Block] = {
        "ours": together(tool.call),
        "bare call": together(nothing),
        "bare call in try": together(_in_try),
    }
    if rivals.praison is not None:
        candidates["PraisonAI, no limit"] = rivals.praison.block("loop")
    results = in_blocks(bench, candidates, rounds=150, calls=1000)
    ours = results.pop("ours")
    note = "; ".join(filter(None, (ONLY_P50, rivals.note)))
    yield Figure("inline call, no limit", ours, (2.5, 20.0), unit="us", beside=results, note=note)


def _in_try() -> object:
    """The least that says how a call ended."""
    start = time.monotonic()
    try:
        value = nothing()
    except Exception as problem:
        return problem
    return value, time.monotonic() - start


def _killable(bench: Bench, rivals: Rivals) -> Iterator[Figure]:
    tool = deadstop.tool(operator.index, timeout=LIMIT_S)
    pipe, plain = PipePingPong(), PlainWorker()
    loop = asyncio.new_event_loop()
    candidates: dict[str, Block] = {
        "ours": each(lambda: _value(tool.call(7), 7)),
        "async": lambda count: loop.run_until_complete(_async_block(tool, count)),
        "pipe, one byte": each(pipe.call),
        "packet and pickle": each(lambda: plain.call(operator.index, 7)),
        **_pools(rivals, operator.index, 7),
    }
    if rivals.praison is not None:
        candidates["PraisonAI"] = rivals.praison.block("limit")
    results = in_blocks(bench, candidates, rounds=40, calls=50)
    loop.close()
    pipe.close()
    plain.close()
    ours, async_ours = results.pop("ours"), results.pop("async")
    times = ("pebble", 0.2)
    yield Figure(
        "killable no-op, importable", ours, (40.0, 250.0), unit="us", beside=results, most_times=times, note=rivals.note
    )
    yield Figure("  through call_async", async_ours, unit="us", beside=results)


async def _async_block(tool: Any, count: int) -> list[float]:
    values = []
    for _ in range(count):
        start = time.perf_counter()
        _value(await tool.call_async(7), 7)
        values.append((time.perf_counter() - start) * 1e6)
    return values


def _pools(rivals: Rivals, function: Callable[..., Any], *arguments: Any) -> dict[str, Block]:
    executor, pebble = rivals.executor, rivals.pebble
    found: dict[str, Block] = {"ProcessPoolExecutor": each(lambda: executor.submit(function, *arguments).result())}
    if pebble is not None:
        found["pebble"] = each(lambda: pebble.schedule(function, args=arguments, timeout=LIMIT_S).result())
    return found


def _by_value(bench: Bench, rivals: Rivals) -> Iterator[Figure]:
    if find_spec("cloudpickle") is None:
        yield Figure("killable closure over a list", Series(()), note="not installed: cloudpickle")
        return
    import cloudpickle

    changing, fixed = over_list(), over_number()
    by_list, by_number = (deadstop.tool(function, timeout=LIMIT_S) for function in (changing, fixed))
    executor, pebble = rivals.executor, rivals.pebble
    candidates: dict[str, Block] = {
        "list": each(lambda: _value(by_list.call(7), 10)),
        "number": each(lambda: _value(by_number.call(7), 10)),
        "cloudpickle, there and back": each(lambda: cloudpickle.loads(cloudpickle.dumps(changing))),
        "ProcessPoolExecutor": each(lambda: executor.submit(call_packed, cloudpickle.dumps(changing), 7).result()),
    }
    if pebble is not None:
        candidates["pebble"] = each(
            lambda: pebble.schedule(call_packed, args=(cloudpickle.dumps(changing), 7), timeout=LIMIT_S).result()
        )
    results = in_blocks(bench, candidates, rounds=40, calls=50)
    ours = [results.pop(name) for name in ("list", "number")]
    yield Figure(
        "killable closure over a list", ours[0], (90.0, 400.0), unit="us", beside=results, most_times=("pebble", 0.5),
        note=ONLY_P50,
    )  # fmt: skip
    yield Figure("  over a number, proven unchanged", ours[1], (90.0, 400.0), unit="us", beside=results)


def _batch(bench: Bench, rivals: Rivals) -> Iterator[Figure]:
    count = 1000
    calls = [deadstop.Call(deadstop.tool(operator.index, timeout=LIMIT_S), number) for number in range(count)]
    candidates: dict[str, Block] = {"ours": lambda _: [_batch_once(calls)]}
    if rivals.praison is not None:
        candidates["PraisonAI"] = rivals.praison.block("parallel")
    results = in_blocks(bench, candidates, rounds=12, calls=count)
    ours = results.pop("ours")
    name = f"batch of {count} no-ops, 4 workers, per call"
    yield Compared(
        name, ours, unit="us", beside=results, most_times=("PraisonAI", 1 / 3), note="at most a third of PraisonAI"
    )


def _batch_once(calls: list[Any]) -> float:
    start = time.perf_counter()
    results = deadstop.batch(calls, parallel=4)
    took = time.perf_counter() - start
    if [result.value for result in results] != list(range(len(calls))):
        raise RuntimeError("a batch gave something else")
    return took * 1e6 / len(calls)


def _at_once(bench: Bench) -> Iterator[Figure]:
    tool = deadstop.tool(operator.index, timeout=LIMIT_S)
    with Rivals(workers=THREADS, praison=False) as rivals:
        executor, pebble = rivals.executor, rivals.pebble
        candidates: dict[str, Block] = {
            "ours": _in_threads(lambda: _value(tool.call(7), 7)),
            "ProcessPoolExecutor": _in_threads(lambda: executor.submit(operator.index, 7).result()),
        }
        if pebble is not None:
            candidates["pebble"] = _in_threads(
                lambda: pebble.schedule(operator.index, args=(7,), timeout=LIMIT_S).result()
            )
        results = in_blocks(bench, candidates, rounds=5, calls=50)
    ours = results.pop("ours")
    per_call = {name: Series(tuple(value / THREADS for value in series.values)) for name, series in results.items()}
    whole = Series(tuple(value / THREADS for value in ours.values))
    yield Figure(f"{THREADS} threads at once, latency over {THREADS}", whole, unit="us", beside=per_call)


def _in_threads(call: Callable[[], Any]) -> Block:
    """So many calls in each of the threads, all at once; the latency of every one of them."""

    def block(count: int) -> list[float]:
        values: list[float] = []
        ready = threading.Barrier(THREADS)

        def body() -> None:
            ready.wait()
            values.extend(each(call)(count))

        threads = [threading.Thread(target=body) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(values) != THREADS * count:
            raise RuntimeError("a thread failed")
        return values

    return block


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
