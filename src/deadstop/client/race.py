# SPDX-License-Identifier: Apache-2.0
"""Races over forks: what a loser did stays in its fork, and ends with it."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .. import clock
from ..contract import receipt_from_dict
from ..errors import DeadstopError, UsageError
from ..executor.function import run as run_call
from ..executor.race import RaceResult
from ..executor.tokens import Token
from ..executor.tool import Call
from ..results import Receipt, Status, ToolResult
from .execs import Command

if TYPE_CHECKING:
    from .synchronous import Sandbox

    Entry = Command | Callable[[Sandbox], ToolResult] | Call

MOST = 16
POLL_S = 0.05  # how often the token is asked; each command waits for it on its own


@dataclass(frozen=True, slots=True)
class ForkRace(RaceResult):
    """`winner` is the first acceptable result and `sandbox` the fork it was made in; both None if there was none.

    `results` and `receipts` have all, in the order of the entries; the winner's fork lives and has no receipt.
    """

    sandbox: Sandbox | None
    receipts: tuple[Receipt | None, ...]


def race_forks(
    sandbox: Sandbox, entries: Sequence[Entry], *, timeout: float = 300.0,
    accept: Callable[[ToolResult], bool] | None = None, cancel: Any = None,
) -> ForkRace:  # fmt: skip
    """Run each entry, a command, a function of its sandbox or a `Call`, in a fork of `sandbox`, all at once.

    The first result that is acceptable (`ok`, if `accept` is not given) wins: its fork is promoted, the other forks
    are killed, and their results are `cancelled`, reason `race_lost`. A function that is still under way loses its
    sandbox; its Python code is not interrupted, and not waited for. Raises UsageError before anything is forked.
    """
    listed: list[Any] = list(entries)
    if not 0 < len(listed) <= MOST or any(isinstance(entry, str) and not entry.strip() for entry in listed):
        raise UsageError(f"a race over forks needs 1 to {MOST} commands or functions, not {len(listed)}")
    for entry in listed:
        _check(entry)
    clock.check_limit("timeout", timeout)
    return _Race(sandbox, listed, timeout, accept or (lambda result: result.ok), cancel).run()


def _check(entry: Any) -> None:
    """Raises UsageError for what cannot race in a fork."""
    if isinstance(entry, Call):
        if entry.tool.declared is not None:
            raise UsageError(f"{entry.tool.name} may not race: it has effects, and a loser may have had its own")
    elif not (isinstance(entry, str) or callable(entry)):
        words = list(entry) if isinstance(entry, list | tuple) else []
        if not words or not all(isinstance(word, str) for word in words):
            raise UsageError(f"a race over forks is one of commands, functions of a sandbox, and Calls: {entry!r:.80}")


class _Race:
    def __init__(
        self, sandbox: Sandbox, entries: list[Any], timeout: float, accept: Callable[[ToolResult], bool], cancel: Any
    ) -> None:
        self.entries, self.timeout, self.accept, self.cancel = entries, timeout, accept, cancel
        self._token = None if cancel is None else Token(cancel)
        self.forks = sandbox.fork_tree(len(entries))
        self.results: list[ToolResult | None] = [None] * len(entries)
        self.receipts: list[Receipt | None] = [None] * len(entries)
        self.problem: BaseException | None = None
        self.won: int | None = None
        self._changed = threading.Condition()
        self._left = len(entries)

    def run(self) -> ForkRace:
        try:
            for number in range(len(self.entries)):
                context = contextvars.copy_context()  # the task and the deadlines around it hold in each
                body = (self._enter, number)
                threading.Thread(target=context.run, args=body, name="deadstop-race", daemon=True).start()
            self._wait()
        finally:
            self._settle()
        if self.problem is not None:
            raise self.problem
        winner = None if self.won is None else self.results[self.won]
        fork = None if self.won is None else self.forks[self.won]
        results = tuple(self._told(number, result) for number, result in enumerate(self.results))
        return ForkRace(winner, results, fork, tuple(self.receipts))

    def _enter(self, number: int) -> None:
        try:
            result = self._made(self.entries[number], self.forks[number])
        except DeadstopError as problem:
            result = _failed(self._name(number), problem)
        except BaseException as problem:
            result = _failed(self._name(number), problem)
        with self._changed:
            self._left -= 1
            if self.won is None or self.results[number] is None:
                self.results[number] = result
            try:
                if self.won is None and self.accept(result):
                    self.won = number
            except BaseException as problem:
                self.problem = self.problem or problem
            self._changed.notify_all()

    def _made(self, entry: Any, fork: Sandbox) -> ToolResult:
        if isinstance(entry, Call):
            limited = entry if entry.tool.timeout is not None else entry.limited(self.timeout)
            return run_call(limited.options(sandbox=fork, cancel=self.cancel))
        if not callable(entry):
            return fork.exec(entry, self.timeout, cancel=self.cancel)
        result = entry(fork)
        if isinstance(result, ToolResult):
            return result
        return ToolResult(tool=getattr(entry, "__name__", "function"), status=Status.COMPLETED, value=result)

    def _wait(self) -> None:
        end = clock.monotonic() + self.timeout + 30.0
        with self._changed:
            while self._left and self.won is None and self.problem is None:
                left = end - clock.monotonic()
                if left <= 0 or (self._token is not None and self._token.is_set()):
                    return
                self._changed.wait(left if self._token is None else min(left, POLL_S))

    def _settle(self) -> None:
        """Promote the winner, which ends the others, and make sure that they have."""
        receipts: dict[str, Any] = {}
        if self.won is not None:
            try:
                answer = self.forks[self.won].promote(cleanup_siblings=True)
                receipts = dict(answer.get("receipts") or {})
            except DeadstopError:
                pass  # the others are killed one by one below
        for number, fork in enumerate(self.forks):
            if number != self.won:
                self.receipts[number] = _ended(fork, receipts.get(fork.id))

    def _told(self, number: int, result: ToolResult | None) -> ToolResult:
        if number == self.won and result is not None:
            return result
        if result is None:
            name = self._name(number)
            return ToolResult(tool=name, status=Status.CANCELLED, reason="race_lost", receipt=self.receipts[number])
        if self.won is not None and result.status in (Status.CANCELLED, Status.UNKNOWN):
            return replace(result, status=Status.CANCELLED, reason="race_lost", error_type=None, error_message=None)
        return result

    def _name(self, number: int) -> str:
        entry = self.entries[number]
        if isinstance(entry, Call):
            return entry.tool.name
        if callable(entry):
            return str(getattr(entry, "__name__", "function"))
        return (entry if isinstance(entry, str) else str(entry[0])).split(None, 1)[0]


def _ended(fork: Sandbox, known: Any) -> Receipt | None:
    receipt = receipt_from_dict(known) if isinstance(known, dict) else None
    try:
        return fork.kill() or receipt
    except DeadstopError:
        return receipt


def _failed(name: str, problem: BaseException) -> ToolResult:
    return ToolResult(
        tool=name, status=Status.ERROR, error_type=type(problem).__name__, error_message=str(problem),
        exception=problem,
    )  # fmt: skip
