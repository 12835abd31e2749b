# SPDX-License-Identifier: Apache-2.0
"""What function calls are compared with, each in a process of its own: their threads would disturb the others.

`python -m benchmarks.functions_served NAME` reads lines (what, how many) and answers each with a line of JSON: what
every one of so many calls took, in microseconds. It is idle in between, so that all can be measured in turn.
"""

from __future__ import annotations

import importlib.util
import json
import operator
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from .functions_work import call_packed, nothing, over_list

Block = Callable[[int], list[float]]  #: so many calls, one after another: what each took, in microseconds

LIMIT_S = 5.0
THREADS = 20
PACKAGES = {"PraisonAI": "praisonaiagents", "pebble": "pebble", "ProcessPoolExecutor": "concurrent.futures"}
QUIET = {"PRAISONAI_TELEMETRY_DISABLED": "true", "DO_NOT_TRACK": "true", "OTEL_SDK_DISABLED": "true"}


def installed(name: str) -> bool:
    return importlib.util.find_spec(PACKAGES[name]) is not None


class Served:
    """The side of the one who asks."""

    def __init__(self, name: str, *words: str, module: str = "functions_served") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.{module}", name, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env={**os.environ, **QUIET},
        )  # fmt: skip
        self.name = name

    def block(self, what: str) -> Block:
        def block(count: int) -> list[float]:
            assert self._process.stdin
            assert self._process.stdout
            print(what, count, file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
            if not line:
                raise RuntimeError(f"{self.name}'s process ended")
            values: list[float] = json.loads(line)
            return values

        return block

    def close(self) -> None:
        """It ends with its input; what it does not end itself is none of ours."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


# -- measuring ---------------------------------------------------------------------------------------------------------


def each(call: Callable[[], Any]) -> Block:
    """The calls of a block timed one by one."""

    def block(count: int) -> list[float]:
        values = []
        for _ in range(count):
            start = time.perf_counter()
            call()
            values.append((time.perf_counter() - start) * 1e6)
        return values

    return block


def together(call: Callable[[], Any]) -> Block:
    """The calls of a block timed as one: for calls that take no longer than reading the clock."""

    def block(count: int) -> list[float]:
        repeated = range(count)
        start = time.perf_counter()
        for _ in repeated:
            call()
        return [(time.perf_counter() - start) * 1e6 / count]

    return block


def in_threads(call: Callable[[], Any]) -> Block:
    """So many calls in each of the threads, all at once; what each call took, divided by the number of threads."""

    def block(count: int) -> list[float]:
        values: list[float] = []
        ready = threading.Barrier(THREADS)

        def body() -> None:
            ready.wait()
            values.extend(value / THREADS for value in each(call)(count))

        threads = [threading.Thread(target=body) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(values) != THREADS * count:
            raise RuntimeError("a thread failed")
        return values

    return block


# -- what is measured --------------------------------------------------------------------------------------------------


def _pebble() -> dict[str, Block]:
    from pebble import ProcessPool

    one, many = ProcessPool(max_workers=1), ProcessPool(max_workers=THREADS)

    def call(pool: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        return pool.schedule(function, args=arguments, timeout=LIMIT_S).result()

    return {
        "call": each(lambda: call(one, operator.index, 7)),
        "closure": each(lambda: call(one, call_packed, _dumps(over_list()), 7)),
        "threads": in_threads(lambda: call(many, operator.index, 7)),
    }


def _executor() -> dict[str, Block]:
    one, many = ProcessPoolExecutor(1), ProcessPoolExecutor(THREADS)
    return {
        "call": each(lambda: one.submit(operator.index, 7).result()),
        "closure": each(lambda: one.submit(call_packed, _dumps(over_list()), 7).result()),
        "threads": in_threads(lambda: many.submit(operator.index, 7).result()),
    }


def _dumps(function: Callable[..., Any]) -> bytes:
    import cloudpickle

    packed: bytes = cloudpickle.dumps(function)
    return packed


def _praison() -> dict[str, Block]:
    import praisonaiagents.tools.call_executor as executor

    in_turn, parallel = executor.SequentialToolCallExecutor(), executor.ParallelToolCallExecutor(max_workers=4)
    limit_ms = int(LIMIT_S * 1000)

    def calls(count: int) -> list[Any]:
        return [executor.ToolCall("nothing", {}, f"c{number}") for number in range(count)]

    def execute(name: str, arguments: Any, tool_call_id: str | None = None) -> object:
        return nothing()

    def batch(count: int) -> list[float]:
        asked = calls(count)
        start = time.perf_counter()
        results = parallel.execute_batch(asked, execute, timeout_ms=limit_ms)
        took = time.perf_counter() - start
        if any(result.error is not None for result in results):
            raise RuntimeError("a call of the batch failed")
        return [took * 1e6 / count]

    one = calls(1)
    return {
        "no limit": together(lambda: in_turn.execute_batch(one, execute)),
        "limit": each(lambda: in_turn.execute_batch(one, execute, timeout_ms=limit_ms)),
        "batch": batch,
    }


def _serve(name: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what they print at import is no answer
    blocks = {"PraisonAI": _praison, "pebble": _pebble, "ProcessPoolExecutor": _executor}[name]()
    for line in sys.stdin:
        what, _, count = line.rpartition(" ")
        print(json.dumps(blocks[what](int(count))), file=answers, flush=True)
    os.killpg(0, 9)  # with the processes of its pools, which know no quicker way


if __name__ == "__main__":
    os.setsid()
    _serve(sys.argv[1])
