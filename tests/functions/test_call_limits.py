# SPDX-License-Identifier: Apache-2.0
"""Limits that are none, on the native API: a clear error before anything runs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

import deadstop
from deadstop import Call, InvalidLimit, SoftLimit, UsageError
from deadstop.executor import private
from deadstop.executor.tool import Tool

WRONG = [
    0,
    0.0,
    -0.0,
    -1,
    -1e-9,
    False,
    True,
    math.nan,
    math.inf,
    -math.inf,
    "100",
    b"1",
    "",
    [],
    {},
    object(),
    1j,
    10**400,
]
RIGHT = [1e13, 1e-3, 5, Fraction(1, 2), 2**60]
ran: list[int] = []


def tool() -> None:
    ran.append(1)


def names(values: list[Any]) -> list[str]:
    return [f"{type(value).__name__}-{str(value)[:12]}" for value in values]


def ask_on_soft(question: SoftLimit) -> str:
    return "extend"


@pytest.fixture(autouse=True)
def nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(self: object) -> None:
        raise AssertionError("a supervisor was asked for")

    monkeypatch.setattr(private.Supervisor, "connect", connect)
    ran.clear()


def refuses(make: Callable[[], object], kind: type[Exception] = InvalidLimit) -> str:
    with pytest.raises(kind) as raised:
        make()
    assert ran == []
    return str(raised.value)


@pytest.mark.parametrize("value", WRONG, ids=names(WRONG))
def test_a_timeout_that_is_none(value: Any) -> None:
    for make in (
        lambda: deadstop.tool(tool, timeout=value),
        lambda: deadstop.tool(timeout=value)(tool),
        lambda: deadstop.tool(tool, timeout=value, isolation="inline"),
        lambda: Call(tool).options(timeout=value),
        lambda: Call(tool).limited(value),
        lambda: Tool(tool, {}).with_options(timeout=value),
        lambda: deadstop.batch([Call(tool)], timeout=value),
        lambda: asyncio.run(deadstop.batch_async([Call(tool)], timeout=value)),
        lambda: deadstop.race([Call(deadstop.tool(tool, effect="none"))], timeout=value),
    ):
        words = refuses(make)
        assert "timeout" in words and "finite number above zero" in words and "\n" not in words


@pytest.mark.parametrize("value", WRONG, ids=names(WRONG))
def test_other_limits_that_are_none(value: Any) -> None:
    one = [Call(tool)]
    assert "deadline" in refuses(lambda: deadstop.batch(one, deadline=value))
    assert "soft_timeout" in refuses(lambda: deadstop.tool(tool, soft_timeout=value, on_soft=ask_on_soft))
    assert "soft_answer" in refuses(lambda: deadstop.tool(tool, soft_timeout=1, on_soft=ask_on_soft, soft_answer=value))
    refuses(lambda: deadstop.deadline(value).__enter__())


@pytest.mark.parametrize("value", RIGHT, ids=names(RIGHT))
def test_a_timeout_that_is_one(value: Any) -> None:
    """A finite number above zero, however large: 1e13 seconds never come, and are no error."""
    made = deadstop.tool(tool, timeout=value)
    assert made.timeout == float(value) and made.source == "given"


def test_none_is_no_limit_and_nothing_said_is_the_default() -> None:
    assert deadstop.tool(tool, timeout=None).timeout is None
    default = deadstop.tool(tool)
    assert (default.timeout, default.source) == (60.0, "default")


def test_a_decimal_is_no_limit() -> None:
    """It is a number and no Real: the numbers module says so."""
    refuses(lambda: deadstop.tool(tool, timeout=Decimal("1.5")))


@pytest.mark.parametrize("parallel", [0, -1, True, 1.0, "2", math.nan, None, 65, 10**30])
def test_a_parallel_that_is_none(parallel: Any) -> None:
    assert "parallel" in refuses(lambda: deadstop.batch([Call(tool)], parallel=parallel), UsageError)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"isolation": "thread"}, "isolation"), ({"effect": "some"}, "effect"), ({"soft_timeout": 1}, "on_soft"),
        ({"on_soft": ask_on_soft}, "soft_timeout"), ({"isolation": "inline", "memory": 1 << 30}, "memory"),
        ({"isolation": "inline", "soft_timeout": 1, "on_soft": ask_on_soft}, "soft_timeout"), ({"memory": 0}, "memory"),
        ({"memory": "512M"}, "memory"), ({"pids": -1}, "pids"), ({"cpus": 0}, "cpus"), ({"net": True}, "net"),
    ],
)  # fmt: skip
def test_an_option_that_is_none(options: dict[str, Any], words: str) -> None:
    assert words in refuses(lambda: deadstop.tool(tool, **options), UsageError)


def test_an_unknown_option_is_an_error() -> None:
    refuses(lambda: deadstop.tool(tool, time_out=1), UsageError)


@pytest.mark.parametrize("value", [None, 3, "name", ["list"]])
def test_what_is_no_function_is_no_tool(value: Any) -> None:
    refuses(lambda: deadstop.call(value), UsageError)


def test_a_call_has_its_arguments_already() -> None:
    refuses(lambda: deadstop.call(Call(tool), 1), UsageError)
    refuses(lambda: asyncio.run(deadstop.call_async(Call(tool), one=1)), UsageError)


@pytest.mark.parametrize("token", [object(), 1, "set", [], 0])
def test_what_is_no_token(token: Any) -> None:
    refuses(lambda: deadstop.call(Call(tool).options(cancel=token)), UsageError)
    refuses(lambda: asyncio.run(deadstop.call_async(Call(tool).options(cancel=token))), UsageError)
    refuses(lambda: deadstop.batch([Call(tool)], cancel=token), UsageError)
    refuses(lambda: deadstop.race([Call(deadstop.tool(tool, effect="none"))], cancel=token), UsageError)


def test_a_very_long_limit_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As inline: no boundary is needed to see that the arithmetic holds."""
    result = deadstop.call(deadstop.tool(tool, timeout=1e13, isolation="inline"))
    assert result.ok and ran == [1]
