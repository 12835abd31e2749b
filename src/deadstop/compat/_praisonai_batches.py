# SPDX-License-Identifier: Apache-2.0
"""Batches of tool calls: one after another, or side by side; results always in the order of the calls."""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from ..clock import check_count
from ..errors import InvalidLimit
from ..executor.batch import batch
from ..executor.workers import MAX_WORKERS
from ..results import ToolResult as Outcome
from ._praisonai_calls import (
    Killable,
    cancelled_before,
    carrying,
    inline_is_allowed,
    run_checked,
)
from ._praisonai_limits import cancelled, seconds_of
from ._praisonai_outcomes import could_not_be_sent, is_terminal
from ._praisonai_paths import has_write_conflicts
from ._praisonai_types import OnProgress, ToolCall, ToolResult

_log = logging.getLogger("deadstop.compat.praisonai")


class ToolCallExecutor(Protocol):
    """What both executors offer."""

    def execute_batch(
        self, tool_calls: list[ToolCall], execute_tool_fn: Callable[..., Any], on_progress: OnProgress | None = None,
        timeout_ms: float | None = None, cancel_token: Any = None,
    ) -> list[ToolResult]:  # fmt: skip
        """Run them all and give their results in the order of the calls."""
        ...


class SequentialToolCallExecutor:
    """One call after another."""

    def execute_batch(
        self, tool_calls: list[ToolCall], execute_tool_fn: Callable[..., Any], on_progress: OnProgress | None = None,
        timeout_ms: float | None = None, cancel_token: Any = None,
    ) -> list[ToolResult]:  # fmt: skip
        """As `run_single_tool_call`, for each. A ToolExecutionError ends the batch; its `results` are those before."""
        seconds = None if timeout_ms is None else seconds_of("timeout_ms", timeout_ms, 0.001)
        results: list[ToolResult] = []
        for call in tool_calls:
            result = run_checked(call, execute_tool_fn, on_progress, seconds, timeout_ms, cancel_token)
            if result.error is not None and is_terminal(result.error):
                raise carrying(result.error, results)
            results.append(result)
        return results


class ParallelToolCallExecutor:
    """Up to `max_workers` calls at once: processes where there is a limit, threads where there is none.

    One call alone, and calls that seem to write to overlapping paths, go one after another.
    """

    def __init__(self, max_workers: int = 5) -> None:
        """Raises InvalidLimit for anything but a whole number above zero."""
        if check_count("max_workers", max_workers) is None:
            raise InvalidLimit("max_workers=None is not allowed: give a whole number above zero")
        self.max_workers = max_workers

    def execute_batch(
        self, tool_calls: list[ToolCall], execute_tool_fn: Callable[..., Any], on_progress: OnProgress | None = None,
        timeout_ms: float | None = None, cancel_token: Any = None,
    ) -> list[ToolResult]:  # fmt: skip
        """As `run_single_tool_call`, for each; a call's limit counts from its own start.

        All calls of the batch are run to their end even if one raises ToolExecutionError; then the first such error
        is raised, and its `results` are those of the other calls.
        """
        seconds = None if timeout_ms is None else seconds_of("timeout_ms", timeout_ms, 0.001)
        if len(tool_calls) < 2 or has_write_conflicts(tool_calls):
            return SequentialToolCallExecutor().execute_batch(
                tool_calls, execute_tool_fn, on_progress, timeout_ms, cancel_token
            )
        ended: list[ToolResult] = []  # in the order in which they ended
        if seconds is None:
            results = self._in_threads(tool_calls, execute_tool_fn, on_progress, cancel_token, ended)
        else:
            killable = [Killable(call, execute_tool_fn, on_progress, seconds, timeout_ms) for call in tool_calls]
            results = self._in_workers(killable, cancel_token, ended)
        terminal = next((each.error for each in ended if each.error is not None and is_terminal(each.error)), None)
        if terminal is not None:
            raise carrying(terminal, [each for each in results if each.error is not terminal])
        return results

    def _in_threads(
        self, calls: list[ToolCall], execute: Callable[..., Any], on_progress: OnProgress | None, cancel_token: Any,
        ended: list[ToolResult],
    ) -> list[ToolResult]:  # fmt: skip
        def run(call: ToolCall) -> ToolResult:
            result = run_checked(call, execute, on_progress, None, None, cancel_token)
            ended.append(result)
            return result

        if cancel_token is not None:
            cancelled(cancel_token)  # raises for what is no token, while nothing runs yet
        with ThreadPoolExecutor(min(self.max_workers, len(calls)), "deadstop-praisonai") as threads:
            futures = [threads.submit(contextvars.copy_context().run, run, call) for call in calls]
            return [future.result() for future in futures]

    def _in_workers(self, killable: list[Killable], cancel_token: Any, ended: list[ToolResult]) -> list[ToolResult]:
        if cancel_token is not None and (why := cancelled(cancel_token)) is not None:
            return [cancelled_before(each.tool_call, why) for each in killable]
        results: list[ToolResult | None] = [None] * len(killable)
        unsent: list[int] = []

        def take(index: int, outcome: Outcome) -> None:
            if could_not_be_sent(outcome) and inline_is_allowed():
                unsent.append(index)
            else:
                results[index] = killable[index].result(outcome)
                ended.append(results[index])  # type: ignore[arg-type]

        options: dict[str, Any] = {"parallel": min(self.max_workers, MAX_WORKERS), "cancel": cancel_token}
        batch([each.call() for each in killable], on_result=take, **options)
        if unsent:
            here = sorted(unsent)
            found = batch([killable[index].call(inline=True) for index in here], **options)
            for index, outcome in zip(here, found, strict=True):
                results[index] = killable[index].result(outcome)
                ended.append(results[index])  # type: ignore[arg-type]
        return [each for each in results if each is not None]


def create_tool_call_executor(parallel: bool = False, max_workers: int = 5) -> ToolCallExecutor:
    """A ParallelToolCallExecutor or a SequentialToolCallExecutor."""
    return ParallelToolCallExecutor(max_workers) if parallel else SequentialToolCallExecutor()
