# SPDX-License-Identifier: Apache-2.0
"""The layer in seconds: tools that raise ToolTimeoutError, deferred values, and the interrupt controller's turns."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from pathlib import Path

import pytest

from deadstop import InvalidLimit
from deadstop.compat.praisonai import (
    DeferredResolver,
    InterruptController,
    ToolExitError,
    ToolNotSendableError,
    ToolTimeoutError,
    effective_tool_timeout,
    wrap_with_timeout,
)


def double(x: int, *, wait: float = 0.0) -> int:
    """Doubles."""
    time.sleep(wait)
    return x * 2


async def double_async(x: int, *, wait: float = 0.0) -> int:
    await asyncio.sleep(wait)
    return x * 2


def fails(text: str) -> None:
    raise LookupError(text)


def test_a_limited_function_is_itself_until_its_limit() -> None:
    limited = wrap_with_timeout(double, 0.3)
    assert (limited.__name__, limited.__doc__, limited(4)) == ("double", "Doubles.", 8)
    with pytest.raises(ToolTimeoutError) as raised:
        limited(4, wait=20)
    error = raised.value
    assert (error.tool_name, error.timeout_seconds, error.background_work_may_continue) == ("double", 0.3, False)
    assert str(error) == "Tool 'double' exceeded its limit of 0.3s"
    assert error.result.receipt.survivors == 0  # type: ignore[attr-defined]
    with pytest.raises(LookupError, match="gone"):
        wrap_with_timeout(fails, 5)("gone")
    with pytest.raises(ToolExitError):
        wrap_with_timeout(lambda: exit(1), 5)()


def test_the_work_is_really_gone(tmp_path: Path) -> None:
    def writes(path: str) -> None:
        Path(path, "begun").touch()
        time.sleep(0.7)
        Path(path, "late").touch()

    with pytest.raises(ToolTimeoutError) as raised:
        wrap_with_timeout(writes, 0.3)(str(tmp_path))
    assert raised.value.background_work_may_continue is False
    over = time.monotonic() + 0.6
    while time.monotonic() < over:
        assert [path.name for path in tmp_path.iterdir()] == ["begun"]
        time.sleep(0.05)


def test_an_async_function_stays_one() -> None:
    async def body() -> None:
        limited = wrap_with_timeout(double_async, 0.3)
        assert await limited(4) == 8
        with pytest.raises(ToolTimeoutError):
            await limited(4, wait=20)

    asyncio.run(body())


def test_no_limit_is_no_wrapping_and_wrapping_twice_is_wrapping_once() -> None:
    assert all(wrap_with_timeout(double, each) is double for each in (None, 0, -1, 0.0))
    again = wrap_with_timeout(wrap_with_timeout(double, 0.2), 5)
    assert again(4, wait=0.4) == 8 and again._deadstop_unlimited is double
    assert wrap_with_timeout(wrap_with_timeout(double, 5), None) is not double
    for odd in (True, float("nan"), float("inf"), "5"):
        with pytest.raises(InvalidLimit):
            wrap_with_timeout(double, odd)  # type: ignore[arg-type]


class FrameworkTool:
    description = "doubles"

    def __init__(self) -> None:
        self.name = "calc"
        self.uses = 0

    def _run(self, x: int, wait: float = 0.0) -> int:
        return double(x, wait=wait)

    def run(self, x: int, wait: float = 0.0) -> int:
        return self._run(x, wait)

    def __call__(self, x: int, wait: float = 0.0) -> int:
        return self._run(x, wait)


def test_a_frameworks_tool_keeps_its_class_and_is_not_changed() -> None:
    inner = FrameworkTool()
    limited = wrap_with_timeout(inner, 0.3)
    assert isinstance(limited, FrameworkTool) and (limited.name, limited.description) == ("calc", "doubles")
    assert [limited.run(2), limited._run(3), limited(4)] == [4, 6, 8]
    for run in (limited.run, limited._run, limited):
        with pytest.raises(ToolTimeoutError):
            run(2, wait=20)
    limited.uses = 3
    assert inner.uses == 3 and not {"run", "_run", "__call__"} & vars(inner).keys()
    other = wrap_with_timeout(limited, 5)
    assert other.run(2, wait=0.4) == 4 and type(other) is not type(limited)


def test_what_cannot_be_sent_is_said_and_the_opt_in_holds_here_too(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()

    def waits() -> bool:
        return never.wait(0.1)

    with pytest.raises(ToolNotSendableError, match="DEADSTOP_PRAISONAI_INLINE"):
        wrap_with_timeout(waits, 5)()
    monkeypatch.setenv("DEADSTOP_PRAISONAI_INLINE", "1")
    assert wrap_with_timeout(waits, 5)() is False
    with pytest.raises(ToolTimeoutError) as raised:
        wrap_with_timeout(waits, 0.02)()
    assert raised.value.background_work_may_continue is True


def test_the_error_can_be_made_and_sent_as_theirs() -> None:
    error = ToolTimeoutError(tool_name="t", timeout_seconds=0.1, background_work_may_continue=True)
    again = pickle.loads(pickle.dumps(error))
    assert (again.tool_name, again.timeout_seconds, again.background_work_may_continue) == ("t", 0.1, True)
    assert isinstance(again, TimeoutError) and str(again) == str(error)


def test_the_tightest_limit_wins_and_the_command_line_over_all() -> None:
    roles = {"roles": {"a": {"tool_timeout": 30}, "b": {"tool_timeout": 10.5}, "c": {}, "d": None}}
    assert effective_tool_timeout(roles) == 10.5
    assert effective_tool_timeout(roles, {"tool_timeout": 60}) == 60.0
    assert effective_tool_timeout(roles, {"tool_timeout": True}) == 10.5
    assert effective_tool_timeout({"agents": {"a": {"tool_timeout": 7}}}) == 7.0
    assert effective_tool_timeout({"roles": {"a": {"tool_timeout": True}, "b": {"tool_timeout": "5"}}}) is None
    assert effective_tool_timeout({"roles": {"a": {"tool_timeout": 0}, "b": {"tool_timeout": 5}}}) == 5.0
    assert effective_tool_timeout({}) is None
    with pytest.raises(InvalidLimit):
        effective_tool_timeout({"roles": {"a": {"tool_timeout": float("nan")}}})


# -- deferred values -------------------------------------------------------------------------------------------------


def test_a_value_and_its_callback_meet_in_either_order() -> None:
    resolver, seen = DeferredResolver(), []
    resolver.register("a", lambda *told: seen.append(told), "s1")
    assert (resolver.is_pending("a"), resolver.resolve("a", 1), resolver.resolve("b", None)) == (True, True, False)
    assert resolver.register_if_absent("b", lambda *told: seen.append(told))
    assert seen == [("a", 1, "s1"), ("b", None, None)]
    assert not resolver.is_pending("a") and not resolver.is_pending("b")


def test_early_values_are_bounded() -> None:
    resolver, seen = DeferredResolver(), []
    for number in range(10_001):
        resolver.resolve(str(number), number)
    for name in ("0", "1"):
        resolver.register(name, lambda handle, value, session: seen.append(value))
    assert seen == [1]


# -- turns -----------------------------------------------------------------------------------------------------------


def test_a_request_reaches_the_turns_that_run_and_no_later_one() -> None:
    controller = InterruptController()
    first, second = controller._begin_turn(), controller._begin_turn()
    controller.request("stop")
    controller._end_turn(second)
    third = controller._begin_turn()
    turns = [controller._turn_is_cancelled(turn) for turn in (first, second, third)]
    assert turns == [True, False, False] and controller.is_set()


def test_a_request_made_between_turns_reaches_the_next_one_only() -> None:
    controller = InterruptController()
    controller.request()
    turns = [controller._begin_turn(), controller._begin_turn()]
    assert [controller._turn_is_cancelled(turn) for turn in turns] == [True, False]
    controller.clear()
    assert not any(map(controller._turn_is_cancelled, turns)) and not controller.is_set()
    assert controller._begin_turn() not in turns
