# SPDX-License-Identifier: Apache-2.0
"""How tools are used in programs: many batches at once, methods, equal objects, wrong options, budgets of what ran."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

import deadstop
from deadstop import Call
from deadstop.errors import UsageError


def slow(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@dataclass(frozen=True)
class Adds:
    name: int
    amount: int = field(compare=False, default=0)

    def __call__(self) -> int:
        return self.amount


class Page:
    def __init__(self, number: int) -> None:
        self.number = number

    @deadstop.tool(timeout=5, name="page")
    def get(self, more: int) -> int:
        return self.number + more


def shared() -> list[Any]:
    value: list[Any] = ["a"]
    for _ in range(40):
        value = [value, value]
    return value


def test_batches_of_many_threads_do_not_starve_one_another() -> None:
    deadstop.call(slow, 0)
    found: list[list[str]] = []

    def body() -> None:
        found.append([result.status.value for result in deadstop.batch([Call(slow, 0.05)], deadline=8)])

    threads = [threading.Thread(target=body) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == [["completed"]] * 16


def test_a_detached_call_takes_its_kept_worker_with_it() -> None:
    with deadstop.KeptWorker(deadstop.tool(slow)) as kept:
        first = kept.run(
            Call(slow, 0.6).options(timeout=5, soft_timeout=0.1, on_soft=lambda _: "detach"),
        )
        assert kept.call(slow, 0.01).value == 0.01
        assert first.deferred is not None
        assert deadstop.deferred.wait(first.deferred, 10).value == 0.6  # type: ignore[attr-defined]


def test_a_few_bytes_that_stand_for_a_huge_value_are_told_in_bounded_time() -> None:
    result = deadstop.call(shared)
    begun = time.monotonic()
    assert len(result.for_model()) <= 2000
    assert "value" in result.to_dict()
    assert time.monotonic() - begun < 20


def test_objects_that_are_equal_are_not_the_same_function() -> None:
    assert [deadstop.call(Adds(1, 10)).value, deadstop.call(Adds(1, 20)).value] == [10, 20]


def test_a_decorated_method_is_a_tool_of_its_instance() -> None:
    page = Page(40)
    assert page.get(2) == 42
    assert page.get.call(2).tool == "page"
    assert deadstop.call(page.get, 2).value == 42


@pytest.mark.parametrize(
    "options",
    [
        {"idle_timeout": 1}, {"cwd": "/"}, {"timout": 1}, {"writes": "db"}, {"writes": 3}, {"name": 3},
        {"soft_timeout": 5, "timeout": 5, "on_soft": print}, {"soft_timeout": 1, "on_soft": "kill"},
    ],
)  # fmt: skip
def test_an_option_that_would_do_nothing_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        deadstop.tool(slow, **options)


def test_only_the_same_function_counts_as_the_same_call() -> None:
    with deadstop.Task(repeat_limit=2):
        fails = [deadstop.call(lambda n: 1 // (n - n), 8).status.value for _ in range(3)]
        other = deadstop.call(lambda n: n, 8)
    assert (fails, other.value) == (["error", "error", "refused"], 8)


def test_what_never_started_takes_no_step() -> None:
    token = deadstop.CancelToken()
    token.set()
    with deadstop.Task(steps=1) as task:
        assert deadstop.call(Call(slow, 0).options(cancel=token)).status == "cancelled"
        with pytest.raises(UsageError):
            deadstop.call(Call(slow, 0).options(cancel=3))
        assert task.left().steps == 1
        assert deadstop.call(slow, 0).ok


def test_a_deadline_that_is_over_loads_nothing() -> None:
    with deadstop.deadline(0.001):
        time.sleep(0.01)
        result = deadstop.call(lambda: None)
    assert (result.status, result.reason) == ("refused", "deadline_over")


def test_the_documented_modules_are_there_after_the_import_alone() -> None:
    assert deadstop.deferred.resolve and deadstop.guard.check  # type: ignore[attr-defined]
