# SPDX-License-Identifier: Apache-2.0
"""Code that smolagents' own limits do not end, or only late: here each ends within its limit and 512 MB."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest

pytest.importorskip("smolagents", reason="smolagents is not installed")
pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")

from deadstop.adapters.smolagents import DeadstopPythonExecutor, InterpreterLost, InterpreterTimeout
from deadstop.results import ToolResult

pytestmark = [pytest.mark.alone, pytest.mark.slow]

LIMIT_S, MARGIN_S = 1.0, 0.5
MEMORY = 512 << 20
AT_ONCE = 8
IMPORTS = ["operator", "functools", "decimal", "fractions", "zlib", "re", "resource"]

# Each would run for longer than the limit, whatever else it does.
ENDLESS = {
    "power": "10 ** 10 ** 8",
    "pow": "pow(10, 10 ** 8)",
    "operator.pow": "import operator\noperator.pow(10, 10 ** 8)",
    "perm": "import math\nmath.perm(10 ** 6)",
    "reduce": "import functools, operator\nfunctools.reduce(operator.mul, range(1, 300000))",
    "sum": "sum(range(10 ** 9))",
    "max": "max(range(10 ** 9))",
    "all": "all(map(bool, range(1, 10 ** 9)))",
    "regex": "import re\nre.match('(a+)+$', 'a' * 40 + '!')",
    "decimal": "import decimal\ndecimal.getcontext().prec = 10 ** 7\ndecimal.Decimal(2).sqrt()",
    "from_bytes": "int.from_bytes(b'z' * 100000, 'big') ** 10 ** 4",
    "squares": "x = 3\nfor i in range(40):\n    x = x * x",
    "dropwhile": "import itertools\nnext(itertools.dropwhile(lambda n: True, itertools.count()))",
    "deque": "import collections, itertools\ncollections.deque(itertools.repeat(1), maxlen=0)",
    "for": "for i in range(10 ** 9):\n    pass",
    "int subclass": "class Big(int):\n    pass\nBig(10) ** 10 ** 8",
    "mean": "import statistics\nstatistics.mean(range(10 ** 8))",
    "sleep": "import time\ntime.sleep(6)",
    "while": "while True:\n    pass",
    "factorial": "import math\nmath.factorial(10 ** 6)",
    "comb": "import math\nmath.comb(10 ** 6, 5 * 10 ** 5)",
    "fraction": "import fractions\nfractions.Fraction(3, 7) ** 10 ** 7",
}
# Each would need more memory than it may have.
LARGE = {
    "zfill": "'x'.zfill(2 * 10 ** 9)",
    "percent": "'%1000000000d' % 1",
    "f-string": "f'{1:>1000000000d}'",
    "format": "'{:1000000000d}'.format(1)",
    "ljust": "'x'.ljust(10 ** 9)",
    "shift": "1 << 10 ** 11",
    "string": "'a' * 10 ** 10",
    "list": "[0] * 10 ** 9",
    "list of range": "list(range(10 ** 9))",
    "sorted": "sorted(range(10 ** 8))",
    "product": "import itertools\nlist(itertools.product(range(100), repeat=5))",
    "zip": "list(zip(*[iter(range(10 ** 8))] * 2))",
    "replace": "('a' * 10 ** 5).replace('a', 'b' * 10 ** 5)",
    "join": "('a' * 10 ** 5).join(['b'] * 10 ** 5)",
    "sample": "import random\nrandom.sample(range(10 ** 9), 10 ** 8)",
}
# Each ends by itself, one way or the other.
HARMLESS = {
    "zlib": "import zlib\nlen(zlib.decompress(zlib.compress(b'0' * 10 ** 8)))",
    "recursion": "def f(n):\n    return f(n + 1)\nf(0)",
    "hash": "hash('a')",
    "digits": "str(10 ** 5000)",
}
BOMBS = {**ENDLESS, **LARGE, **HARMLESS}


@dataclass
class Outcome:
    """What a bomb came to."""

    seconds: float
    error: Exception | None
    kept: object  # what a variable of an earlier step is in the next
    after: object
    logs: str

    @property
    def result(self) -> ToolResult | None:
        return getattr(self.error, "result", None)


def explode(code: str) -> Outcome:
    executor = DeadstopPythonExecutor(IMPORTS, timeout_seconds=LIMIT_S, memory=MEMORY, guard=False)
    executor.send_tools({})
    executor.send_variables({"given": 40})
    executor("mine = 1")
    begun, error = time.monotonic(), None
    try:
        executor(code)
    except Exception as problem:
        error = problem
    seconds = time.monotonic() - begun
    after = executor("given + 2")
    outcome = Outcome(seconds, error, executor.state.get("mine"), after.output, after.logs)
    executor.cleanup()
    return outcome


class Peak:
    """The largest resident size of any process below this one, looked at again and again."""

    def __init__(self) -> None:
        self.bytes, self.looked, self.idle, self._stop = 0, 0, 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            self.looked += 1
            for pid in below(os.getpid()):
                self.bytes = max(self.bytes, resident(pid))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def idle_size() -> int:
    executor = DeadstopPythonExecutor(IMPORTS)
    size = executor("import resource\nresource.getrusage(resource.RUSAGE_SELF).ru_maxrss").output
    executor.cleanup()
    return size * 1024


def below(root: int) -> list[int]:
    found, todo = [], [root]
    while todo:
        parent = todo.pop()
        try:
            threads = os.listdir(f"/proc/{parent}/task")
            for thread in threads:
                with open(f"/proc/{parent}/task/{thread}/children") as file:
                    children = [int(pid) for pid in file.read().split()]
                found += children
                todo += children
        except OSError:
            continue
    return found


def resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


@pytest.fixture(scope="module")
def peak() -> Iterator[Peak]:
    watching = Peak()
    yield watching
    watching.stop()


@pytest.fixture(scope="module")
def exploded(peak: Peak) -> Iterator[dict[str, Future[Outcome]]]:
    """All of them, several at a time: what is measured is a limit of wall time."""
    peak.idle = idle_size()  # and the first worker loads what the others find loaded
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name: pool.submit(explode, code) for name, code in BOMBS.items()}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_ends_in_time_and_the_next_step_works(name: str, exploded: dict[str, Future[Outcome]]) -> None:
    outcome = exploded[name].result(timeout=50)
    assert outcome.seconds < LIMIT_S + MARGIN_S
    assert outcome.after == 42
    if name in ENDLESS:
        assert isinstance(outcome.error, InterpreterTimeout | InterpreterLost)  # memory may be over before the time
    if name in LARGE:
        assert outcome.error is not None
    if outcome.result is None:
        assert name not in ENDLESS and outcome.kept == 1 and outcome.logs == ""
        return
    receipt, memory = outcome.result.receipt, outcome.result.limits["memory"]
    assert receipt is not None and receipt.survivors == 0
    assert memory is not None and memory.value == MEMORY and memory.enforced_by in ("cgroup", "rlimit")
    assert "steps are gone: mine." in str(outcome.error) and "steps are gone: mine." in outcome.logs
    assert outcome.kept is None


def test_no_process_was_ever_larger_than_allowed(exploded: dict[str, Future[Outcome]], peak: Peak) -> None:
    for future in exploded.values():
        future.result(timeout=50)
    assert peak.looked > 100
    # What a worker shares with what it was forked from is part of its size, and not of what it is charged for.
    assert MEMORY // 2 < peak.bytes <= MEMORY + peak.idle < MEMORY + (128 << 20)
