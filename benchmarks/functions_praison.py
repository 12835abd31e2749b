# SPDX-License-Identifier: Apache-2.0
"""PraisonAI's tool-call executor, measured in a process of its own: its import is heavy, and starts threads.

`python -m benchmarks.functions_praison` reads a line (what, how many) and writes the microseconds of each call as a
line of JSON. The caller's process is idle meanwhile, so that it is measured in turn like everything else.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

PACKAGE = "praisonaiagents"
LIMIT_MS = 5000
START_S = 90.0


class Praison:
    """The caller's side."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.functions_praison"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env={**os.environ, **QUIET},
        )  # fmt: skip
        self.version = self._line()["version"]

    @staticmethod
    def missing() -> bool:
        return importlib.util.find_spec(PACKAGE) is None

    def _line(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("PraisonAI's process ended")
        return json.loads(line)

    def block(self, what: str) -> Callable[[int], list[float]]:
        def block(count: int) -> list[float]:
            assert self._process.stdin
            print(what, count, file=self._process.stdin, flush=True)
            values: list[float] = self._line()
            return values

        return block

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


QUIET = {"PRAISONAI_TELEMETRY_DISABLED": "true", "DO_NOT_TRACK": "true", "OTEL_SDK_DISABLED": "true"}


def _executor() -> Any:
    import praisonaiagents.tools.call_executor as executor

    return executor


def _calls(executor: Any, count: int) -> list[Any]:
    return [executor.ToolCall("nothing", {}, f"c{number}") for number in range(count)]


def _execute(name: str, arguments: Any, tool_call_id: str | None = None) -> None:
    return None


def _serve() -> None:
    executor = _executor()
    one, in_turn = _calls(executor, 1), executor.SequentialToolCallExecutor()
    parallel = executor.ParallelToolCallExecutor(max_workers=4)
    timed: dict[str, Callable[[], Any]] = {
        "inline": lambda: in_turn.execute_batch(one, _execute),
        "limit": lambda: in_turn.execute_batch(one, _execute, timeout_ms=LIMIT_MS),
    }
    _answer({"version": _version()})
    for line in sys.stdin:
        what, count = line.split()
        if what == "parallel":
            calls = _calls(executor, int(count))
            start = time.perf_counter()
            results = parallel.execute_batch(calls, _execute, timeout_ms=LIMIT_MS)
            assert all(result.error is None for result in results)
            _answer([(time.perf_counter() - start) * 1e6 / len(calls)])
        elif what == "loop":
            start = time.perf_counter()
            for _ in range(int(count)):
                in_turn.execute_batch(one, _execute)
            _answer([(time.perf_counter() - start) * 1e6 / int(count)])
        else:
            _answer(_each(timed[what], int(count)))


def _each(call: Callable[[], Any], count: int) -> list[float]:
    values = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        values.append((time.perf_counter() - start) * 1e6)
    return values


def _version() -> str:
    from importlib.metadata import version

    return version(PACKAGE)


def _answer(answer: Any) -> None:
    print(json.dumps(answer), file=_out, flush=True)


if __name__ == "__main__":
    _out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # what it prints at import is no answer
        _serve()
