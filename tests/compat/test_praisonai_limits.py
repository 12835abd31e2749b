# SPDX-License-Identifier: Apache-2.0
"""Every odd limit and every odd cancel token: refused or failing closed, before anything runs."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from fractions import Fraction
from typing import Any
from unittest.mock import MagicMock

import pytest

import deadstop
from deadstop import CancelToken, InvalidLimit, UsageError
from deadstop.compat.praisonai import (
    InterruptController,
    ParallelToolCallExecutor,
    SequentialToolCallExecutor,
    ToolCall,
    ToolCancelledError,
    ToolResult,
    run_single_tool_call,
)

CALL = ToolCall("t", {}, "id")
LIMITED: list[dict[str, Any]] = [{}, {"timeout_ms": 5000}]


def where(name: str, arguments: dict[str, Any], tool_call_id: str) -> int:
    return os.getpid()


class Never:
    """A function that must not be called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, name: str, arguments: dict[str, Any], tool_call_id: str) -> None:
        self.calls += 1


@pytest.mark.parametrize("limit", [None, 0, -1, -0.5, Fraction(0)])
def test_no_limit_runs_in_the_callers_process(limit: Any) -> None:
    result = run_single_tool_call(CALL, where, timeout_ms=limit)
    assert (result.result, result.error, result.outcome) == (os.getpid(), None, None)


@pytest.mark.parametrize("limit", [1000, 2500.5, Fraction(3000), 1e13, 1e300, 2**1000])
def test_a_limit_runs_in_another_process_however_large_it_is(limit: Any) -> None:
    def execute(name: str, arguments: dict[str, Any], tool_call_id: str) -> int:
        time.sleep(0.02)  # waited for: where a limit that no clock can hold would show
        return os.getpid()

    result = run_single_tool_call(CALL, execute, timeout_ms=limit)
    assert result.error is None and result.result != os.getpid()
    assert result.outcome is not None and result.outcome.ok


ODD = [False, True, float("nan"), float("inf"), float("-inf"), "100", "", b"1", 10**400, object(), [5], 1j]


@pytest.mark.parametrize("limit", ODD, ids=lambda value: f"{value!r:.20}")
def test_what_is_no_limit_is_refused_before_anything_runs(limit: Any) -> None:
    body, token = Never(), MagicMock(is_set=Never())
    with pytest.raises(InvalidLimit, match=r"timeout_ms=.* is not allowed: give a finite number; None or 0"):
        run_single_tool_call(CALL, body, timeout_ms=limit, cancel_token=token)
    for executor in (SequentialToolCallExecutor(), ParallelToolCallExecutor(2)):
        with pytest.raises(ValueError, match="is not allowed"):
            executor.execute_batch([CALL, CALL], body, timeout_ms=limit)
    assert body.calls == 0


@pytest.mark.parametrize("workers", [0, -1, True, 2.0, "5", None])
def test_a_number_of_workers_is_one(workers: Any) -> None:
    with pytest.raises(InvalidLimit):
        ParallelToolCallExecutor(workers)


# -- tokens ----------------------------------------------------------------------------------------------------------


class Raises:
    def is_set(self) -> bool:
        raise RuntimeError("no backend")


class WantsMore:
    def is_set(self, what: str) -> bool:
        return False


class Property:
    @property
    def is_set(self) -> bool:
        raise RuntimeError("not even looked at")


class Async:
    async def is_cancelled(self) -> bool:
        return False


class NoTruth:
    class Answer:
        def __bool__(self) -> bool:
            raise RuntimeError("neither yes nor no")

    def is_set(self) -> Answer:
        return self.Answer()


@pytest.mark.parametrize("options", LIMITED, ids=["inline", "limited"])
@pytest.mark.parametrize("token", [Raises(), WantsMore(), Property(), Async()], ids=lambda each: type(each).__name__)
def test_a_token_that_cannot_answer_counts_as_set_and_says_so(token: Any, options: dict[str, Any]) -> None:
    body = Never()
    result = run_single_tool_call(CALL, body, cancel_token=token, **options)
    assert body.calls == 0
    assert isinstance(result.error, ToolCancelledError) and result.error_kind == "cancelled"
    assert str(result.error).startswith(
        "Tool 't' cancelled before execution: the cancel token failed and counts as set"
    )
    assert result.result == {"error": "cancelled", "tool": "t"}


@pytest.mark.parametrize("options", LIMITED, ids=["inline", "limited"])
def test_any_name_that_says_set_is_a_yes(options: dict[str, Any]) -> None:
    class Both:
        cancelled = True

        def __init__(self, is_set: Any) -> None:
            self.is_set = is_set

    body = Never()
    for token in (Both(lambda: False), Both(None), MagicMock()):
        result = run_single_tool_call(CALL, body, cancel_token=token, **options)
        assert (result.error_kind, str(result.error)) == ("cancelled", "Tool 't' cancelled before execution")
    assert body.calls == 0


@pytest.mark.parametrize("options", LIMITED, ids=["inline", "limited"])
def test_what_can_never_say_set_is_refused(options: dict[str, Any]) -> None:
    body = Never()
    for token in (object(), 1, "stop", False):
        with pytest.raises(UsageError, match="has none of is_set, is_cancelled, cancelled"):
            run_single_tool_call(CALL, body, cancel_token=token, **options)
        for executor in (SequentialToolCallExecutor(), ParallelToolCallExecutor(2)):
            with pytest.raises(UsageError):
                executor.execute_batch([CALL, CALL], body, cancel_token=token, **options)
    assert body.calls == 0


@pytest.mark.parametrize("options", LIMITED, ids=["inline", "limited"])
def test_tokens_of_every_make_let_a_call_run_until_they_are_set(options: dict[str, Any]) -> None:
    class Flag:
        is_cancelled = False

    events: list[Any] = [threading.Event(), asyncio.Event(), CancelToken()]
    controller, flag = InterruptController(), Flag()
    tokens = [*events, controller, flag]
    assert [run_single_tool_call(CALL, where, cancel_token=each, **options).error for each in tokens] == [None] * 5
    for each in events:
        each.set()
    controller.request("enough")
    flag.is_cancelled = True
    kinds = {run_single_tool_call(CALL, where, cancel_token=each, **options).error_kind for each in tokens}
    assert kinds == {"cancelled"}


def test_cancelled_beats_the_limit_and_is_asked_before_the_body() -> None:
    token = threading.Event()
    token.set()
    result = run_single_tool_call(CALL, where, timeout_ms=0.001, cancel_token=token)
    assert (result.error_kind, result.progress) == ("cancelled", [])


def test_an_inline_tool_can_ask_the_token_itself() -> None:
    token = threading.Event()

    def execute(name: str, arguments: dict[str, Any], tool_call_id: str) -> str:
        deadstop.check()
        token.set()
        deadstop.check()
        return "went on"

    result = run_single_tool_call(CALL, execute, cancel_token=token)
    assert isinstance(result.error, deadstop.ToolCancelledError)
    assert run_single_tool_call(CALL, where).error is None  # and nobody else is asked for it afterwards


def test_a_token_that_breaks_while_the_call_runs_ends_it() -> None:
    class Breaks:
        asked = 0

        def is_set(self) -> bool:
            self.asked += 1
            if self.asked > 5:
                raise RuntimeError("lost its backend")
            return False

    def execute(name: str, arguments: dict[str, Any], tool_call_id: str) -> None:
        time.sleep(20)

    result: ToolResult = run_single_tool_call(CALL, execute, timeout_ms=15_000, cancel_token=Breaks())
    assert result.error_kind == "cancelled"
    assert str(result.error).startswith("Tool 't' cancelled while it ran: the cancel token failed")
