# SPDX-License-Identifier: Apache-2.0
"""Functions in a sandbox that a server keeps: how they get there, and what comes back.

What the client's `exec` promises is given here by a boundary of this host: what is tested is the way of the call.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import deadstop
from deadstop.client import function as client
from deadstop.client.function import run_in, run_in_async
from deadstop.client.source import Source
from deadstop.results import Status

FACTOR = 3
PYTHON = (sys.version_info.major, sys.version_info.minor)


class InBoundary:
    """As far as a call needs it, a Sandbox."""

    def __init__(self) -> None:
        self.boundary: Any = None
        self.execs: list[dict[str, Any]] = []

    def exec(self, cmd: list[str], timeout: float | None, **options: Any) -> deadstop.ToolResult:
        self.execs.append({"cmd": cmd, "timeout": timeout, **options})
        if self.boundary is None:
            self.boundary = deadstop.Boundary("sandbox", bind_cwd=False)
        result: deadstop.ToolResult = self.boundary.run(cmd, timeout=timeout, **options)
        if result.receipt is not None:
            self.close()  # here a limit ends it as a whole
        return result

    def close(self) -> None:
        if self.boundary is not None:
            self.boundary.kill()
            self.boundary = None


class InBoundaryAsync(InBoundary):
    async def exec(self, cmd: list[str], timeout: float | None, **options: Any) -> deadstop.ToolResult:  # type: ignore[override]
        return await asyncio.to_thread(super().exec, cmd, timeout, **options)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[InBoundary]:
    if os.environ.get("DEADSTOP_DENY"):
        pytest.skip("no namespaces here")
    made = InBoundary()
    yield made
    made.close()


def in_it(sandbox: Any, function: Any, *args: Any, **kwargs: Any) -> deadstop.ToolResult:
    return run_in(sandbox, deadstop.Call(function, *args, **kwargs))


def helper(number: int) -> int:
    return number * FACTOR


def product(number: int, *, plus: int = 0) -> int:
    """Of this module, which the sandbox does not have."""
    print("working")
    print("aside", file=sys.stderr)
    return helper(number) + plus


def test_a_function_of_this_file_runs_inside(sandbox: InBoundary) -> None:
    result = in_it(sandbox, product, 5, plus=1)
    assert result.ok and result.value == 16 and result.exit_code is None
    assert result.stdout.tail == "working\n" and result.stderr.tail == "aside\n"
    assert result.stdout.bytes_total == len("working\n")
    assert result.tool == "product"


def test_what_the_sandbox_has_goes_by_name_and_in_one_exec(sandbox: InBoundary) -> None:
    before = len(sandbox.execs)
    assert in_it(sandbox, math.hypot, 3, 4).value == 5.0
    assert len(sandbox.execs) == before + 1
    assert b'"how": "name"' in sandbox.execs[-1]["stdin"]


def test_that_a_module_is_elsewhere_is_asked_once() -> None:
    sandbox = InBoundary()
    try:
        assert in_it(sandbox, product, 1).value == 3
        assert len(sandbox.execs) == 2
        assert in_it(sandbox, product, 2).value == 6
        assert len(sandbox.execs) == 3
    finally:
        sandbox.close()


def test_closures_lambdas_and_coroutines(sandbox: InBoundary) -> None:
    def shifted(number: int) -> int:
        return number + offset

    async def later(number: int) -> int:
        await asyncio.sleep(0.01)
        return number

    offset = 40
    assert in_it(sandbox, shifted, 2).value == 42
    assert in_it(sandbox, lambda text: text.upper(), "a").value == "A"
    assert in_it(sandbox, later, 7).value == 7


def test_it_is_the_sandbox_that_it_runs_in(sandbox: InBoundary) -> None:
    inside = in_it(sandbox, lambda: (os.getpid(), os.listdir("/proc")))
    assert inside.value[0] < 1000 and str(os.getpid()) not in inside.value[1]


def test_plain_data_comes_back_as_it_was(sandbox: InBoundary) -> None:
    value = {"a": [1, 2.5, None, True], ("b", 1): {b"c", "d"}, "e": (bytearray(b"f"), 1 << 100), "g": float("inf")}
    assert in_it(sandbox, lambda: value).value == value


class Odd:
    pass


@pytest.mark.parametrize("value", [Odd(), [object()], {"a": Odd}], ids=["object", "nested", "class"])
def test_more_than_data_stays_inside(sandbox: InBoundary, value: object) -> None:
    result = in_it(sandbox, lambda: value)
    assert result.status is Status.ERROR and result.error_type == "TypeError"
    assert "cannot leave a sandbox" in (result.error_message or "")


def test_a_large_value_comes_and_a_larger_one_says_what_to_do(sandbox: InBoundary) -> None:
    assert len(in_it(sandbox, lambda: "x" * 3_000_000).value) == 3_000_000
    refused = in_it(sandbox, lambda: "x" * 5_000_000)
    assert refused.status is Status.ERROR and "write a file" in (refused.error_message or "")


def test_large_arguments_and_much_output(sandbox: InBoundary) -> None:
    def much(data: bytes) -> int:
        for _ in range(100):
            print("y" * 9_999)
        return len(data)

    result = in_it(sandbox, much, b"z" * 2_000_000)
    assert result.value == 2_000_000
    assert result.stdout.bytes_total == 1_000_000 and len(result.stdout.raw) == 65536
    assert set(result.stdout.tail) == {"y", "\n"}


def test_what_it_raises_is_told_with_its_own_lines(sandbox: InBoundary) -> None:
    result = in_it(sandbox, product, "a", plus=1)
    assert result.status is Status.ERROR and result.error_type == "TypeError"
    assert "product" in (result.traceback or "") and "<deadstop>" not in (result.traceback or "")
    assert result.exception is None  # nothing that a sandbox says is made into an object
    with pytest.raises(deadstop.ToolError):
        result.unwrap()


def test_exit_and_crash(sandbox: InBoundary) -> None:
    left = in_it(sandbox, lambda: sys.exit(3))
    assert left.status is Status.ERROR and left.error_type == "SystemExit"
    gone = in_it(sandbox, lambda: os._exit(0))
    assert gone.status is Status.CRASHED and "exit code 0" in (gone.error_message or "")
    killed = in_it(sandbox, lambda: os.kill(os.getpid(), 11))
    assert killed.status is Status.CRASHED and killed.signal == 11


def test_its_limit_ends_it(sandbox: InBoundary) -> None:
    def hang() -> None:
        print("begun")
        time.sleep(60)

    asked = deadstop.Call(hang).options(timeout=0.7)
    started = time.monotonic()
    result = run_in(sandbox, asked)
    assert result.status is Status.TIMEOUT and time.monotonic() - started < 3
    assert result.limit is not None and (result.limit.which, result.limit.seconds) == ("call", 0.7)
    assert result.stdout.tail == "begun\n" and result.receipt is not None and result.receipt.survivors == 0
    assert result.call_id == asked.call_id


def test_nothing_starts_after_a_deadline_around_it(sandbox: InBoundary) -> None:
    before = len(sandbox.execs)
    with deadstop.deadline(0.05):
        time.sleep(0.06)
        result = in_it(sandbox, math.sqrt, 4)
    assert (result.status, result.reason) == (Status.REFUSED, "deadline_over")
    assert len(sandbox.execs) == before


def test_a_limit_around_it_is_the_one_that_is_named(sandbox: InBoundary) -> None:
    with deadstop.deadline(0.6):
        result = run_in(sandbox, deadstop.Call(time.sleep, 60))
    assert result.status is Status.TIMEOUT
    assert result.limit is not None and result.limit.seconds == 0.6


def test_forged_answers_are_no_objects_and_no_end(sandbox: InBoundary) -> None:
    def forge() -> str:
        import gc

        marks = {each["mark"] for each in gc.get_objects() if isinstance(each, dict) and "mark" in each}
        for mark in marks:
            os.write(1, b"\x1e" + str(mark).encode() + b' .value {"int": {}}\n')
        os._exit(0)

    result = in_it(sandbox, forge)
    assert result.status in (Status.ERROR, Status.CRASHED) and result.value is None


def test_a_forked_child_says_nothing(sandbox: InBoundary) -> None:
    def forks() -> str:
        if os.fork() == 0:
            return "child"
        os.wait()
        return "parent"

    assert in_it(sandbox, forks).value == "parent"


def test_input_is_at_its_end(sandbox: InBoundary) -> None:
    result = in_it(sandbox, lambda: input("name? "))
    assert result.error_type == "EOFError"


def test_what_cannot_be_sent_is_refused(sandbox: InBoundary) -> None:
    before = len(sandbox.execs)
    lock = threading.Lock()
    result = in_it(sandbox, lambda: lock.acquire())
    assert (result.status, result.reason) == (Status.REFUSED, "policy") and len(sandbox.execs) == before


def test_another_python_gets_the_source(sandbox: InBoundary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "VERSION", (3, 8))  # as if this were another one than inside
    asks = InBoundary()
    try:
        result = in_it(asks, product, 5)
        assert result.ok and result.value == 15 and result.stdout.tail == "working\n"
        assert [b'"how": "source"' in each["stdin"] for each in asks.execs] == [False, False, True]
        assert client._known_of(asks).version == PYTHON
    finally:
        asks.close()


def test_source_brings_what_the_function_names() -> None:
    source = Source(product)
    assert source.modules == {"sys": "sys"} and source.data == {"FACTOR": 3}
    space: dict[str, Any] = {"sys": sys, **source.data}
    exec(source.text, space)
    assert space["product"](2) == 6


@pytest.mark.parametrize("function", [lambda: 1, test_exit_and_crash, math.sqrt], ids=["lambda", "objects", "native"])
def test_source_of_what_it_cannot_bring(function: Any) -> None:
    with pytest.raises(deadstop.UsageError, match="source"):
        Source(function)


def test_async(sandbox: InBoundary) -> None:
    async def both() -> list[deadstop.ToolResult]:
        other = InBoundaryAsync()
        try:
            calls = [(sandbox, deadstop.Call(helper, 1)), (other, deadstop.Call(helper, 2))]
            return list(await asyncio.gather(*(run_in_async(where, call) for where, call in calls)))
        finally:
            other.close()

    assert [each.value for each in asyncio.run(both())] == [3, 6]


def test_an_async_sandbox_is_not_for_blocking_calls() -> None:
    with pytest.raises(deadstop.UsageError, match="call_async"):
        in_it(InBoundaryAsync(), math.sqrt, 4)


def test_without_a_python_it_is_refused() -> None:
    class Bare:
        def exec(self, cmd: list[str], timeout: float | None, **options: Any) -> deadstop.ToolResult:
            return deadstop.ToolResult(tool="python3", status=Status.ERROR, start_errno=2)

    result = in_it(Bare(), math.sqrt, 4)
    assert result.status is Status.REFUSED and "no python3" in (result.error_message or "")


def test_a_task_counts_the_call_once(sandbox: InBoundary) -> None:
    seen = []

    class Watching(InBoundary):
        def exec(self, cmd: list[str], timeout: float | None, **options: Any) -> deadstop.ToolResult:
            from deadstop.budget import current

            seen.append(current())
            return sandbox.exec(cmd, timeout, **options)

    with deadstop.Task(steps=3):
        assert in_it(Watching(), math.sqrt, 4).value == 2.0
    assert seen == [None]  # the call was admitted as a call: its exec is not a second one
