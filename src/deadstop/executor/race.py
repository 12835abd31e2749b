# SPDX-License-Identifier: Apache-2.0
"""Races: the first acceptable result wins, the other calls are killed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError
from ..results import Status, ToolResult
from .batch import Engine, checked_calls
from .in_thread import in_thread
from .prepare import DEFAULT, Default
from .tool import Call
from .workers import MAX_WORKERS


@dataclass(frozen=True, slots=True)
class RaceResult:
    """`winner` is the first acceptable result, None if there was none; `results` has all, in the order of the calls."""

    winner: ToolResult | None
    results: tuple[ToolResult, ...]


def race(
    calls: Iterable[Call], *, accept: Callable[[ToolResult], bool] | None = None,
    timeout: float | Default | None = DEFAULT, deadline: float | None = None, cancel: Any = None, sandbox: Any = None,
) -> RaceResult:  # fmt: skip
    """Run calls at once; the first result that is acceptable (`ok`, if `accept` is not given) wins.

    The others are killed: their results are `cancelled`, reason `race_lost`, with receipts. Only tools declared with
    `effect="none"` may race, for a loser may have done half of what it does, and only killable ones: raises
    UsageError for others, before anything runs.

    With a `sandbox` each of `calls` is a command, or a function of a sandbox, that runs in a fork of it: whatever it
    does stays there, so anything may race. The winner's fork is kept (`Sandbox.race`).
    """
    listed = list(calls)
    if sandbox is not None:
        return _over_forks(sandbox, listed, accept, timeout, deadline, cancel)
    for each in listed:
        if isinstance(each, Call) and (each.tool.effect != "none" or each.tool.inline):
            why = "it is inline and cannot be killed" if each.tool.inline else "declare it with effect='none'"
            raise UsageError(f"{each.tool.name} may not race: {why}")
    if not listed:
        raise UsageError("a race needs at least one call")
    acceptable = accept or (lambda result: result.ok)
    won: list[ToolResult] = []

    def on_result(_: int, result: ToolResult) -> None:
        if not won and result.status is not Status.CANCELLED and acceptable(result):
            won.append(result)
            engine.stop("race_lost")

    checked = checked_calls(listed, min(len(listed), MAX_WORKERS), timeout, deadline)
    engine = Engine(checked, min(len(listed), MAX_WORKERS), cancel, on_result)
    results = engine.run()
    return RaceResult(won[0] if won else None, tuple(results))


def _over_forks(
    sandbox: Any, entries: list[Any], accept: Any, timeout: float | Default | None, deadline: float | None, cancel: Any
) -> RaceResult:
    limits = [limit for limit in (timeout, deadline) if limit is not None and not isinstance(limit, Default)]
    given = {"timeout": min(limits)} if limits else {}
    raced: RaceResult = sandbox.race(entries, accept=accept, cancel=cancel, **given)
    return raced


async def race_async(calls: Iterable[Call], **options: Any) -> RaceResult:
    """The async twin of `race`."""
    found: RaceResult = await in_thread(
        lambda token: race(calls, **{**options, "cancel": token}), options.get("cancel")
    )
    return found
