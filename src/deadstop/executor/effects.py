# SPDX-License-Identifier: Apache-2.0
"""Calls of tools with effects: the intent is durable before the call can start, and its end before anybody hears of it.

One place below every way to call a tool, so that no loop above it can send anything twice. A call that is killed, lost
or raised something leaves its operation unknown; only the ledger says that it may be sent again. Commands go the same
way (run_effect.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from .. import clock, deferred
from ..contract import receipt_to_dict
from ..errors import (
    Accepted,
    BoundaryUnavailable,
    EffectError,
    LedgerUnavailable,
    NotSent,
    OperationConflict,
    Rejected,
    StaleClaim,
    UsageError,
)
from ..ledger.answers import key_conflict, not_sent_now, not_written_down, with_operation
from ..ledger.canonical import fingerprint, selected
from ..ledger.ledger import Ledger, default
from ..ledger.records import Claim, Intent, Outcome, Record
from ..ledger.states import TERMINAL, Phase, State
from ..operation import Acting, Operation, acting_now
from ..results import Status, ToolResult
from .heartbeat import beating
from .intents import binding_of, digest_of, target_of, task_id
from .refusals import NOTHING_STARTED, never_ran

if TYPE_CHECKING:
    from ..ledger.definition import Definition
    from ..results import Progress
    from .heartbeat import Lease
    from .tool import Call

T = TypeVar("T")


class Startable(Protocol):
    """What is run under a claim: it looks at its lease last of all before it starts."""

    lease: Lease | None


W = TypeVar("W", bound=Startable)

__all__ = ["Effected", "binding_of", "in_other_hands", "in_thread", "outcome_of", "perform", "perform_async",
           "result_of", "run_effect", "run_effect_async", "task_id"]  # fmt: skip

MARGIN_S = 10.0  # what a lease has beyond the last moment at which the call may still run
POLL_S = (0.005, 0.1)  # how often the one who waits for another run's answer looks
THREADS = 16  # of an event loop's calls, for the ledger alone: its other work must not wait for these, nor they for it
_BEFORE_ANYTHING_RAN = (UsageError, BoundaryUnavailable)  # as long as no word of its progress has come


def run_effect(asked: Call, go: Callable[[Call], ToolResult]) -> ToolResult:
    """Run a call whose tool has effects. Raises LedgerUnavailable, and what `go` raises, before anything was sent."""
    return perform(EffectOfCall(asked), go)


def perform(effected: Effected[W], go: Callable[[W], ToolResult]) -> ToolResult:
    """Run it under its operation, or say why not."""
    try:
        found = effected.checked(effected.open())
    except BaseException:
        effected.never_started()
        raise
    if isinstance(found, ToolResult):
        return found
    try:
        with beating(effected.ledger, effected.claim) as found.lease:
            result = go(found)
    except BaseException as problem:
        effected.broken_off(problem)
        raise
    return effected.close(result)


def result_of(asked: Call) -> ToolResult:
    """Its result, also where running it raises. What the ledger then knows is told to the next such call."""
    from .function import run_one

    try:
        return run_one(asked)
    except LedgerUnavailable as problem:  # before anything ran
        return never_ran(asked, Status.REFUSED, "policy", str(problem))
    except Exception as problem:
        message = f"its end was not waited for: {problem!r:.200}"
        return ToolResult(
            tool=asked.tool.name, status=Status.UNKNOWN, call_id=asked.call_id, effect="unknown", error_message=message
        )


async def run_effect_async(asked: Call, go: Callable[[Call], Awaitable[ToolResult]]) -> ToolResult:
    """The async twin: the ledger is opened, read and written to in threads."""
    return await perform_async(await in_thread(EffectOfCall, asked), go)


async def perform_async(effected: Effected[W], go: Callable[[W], Awaitable[ToolResult]]) -> ToolResult:
    """The async twin of `perform`."""
    found = await _opened(effected)
    if isinstance(found, ToolResult):
        return found
    try:
        with beating(effected.ledger, effected.claim) as found.lease:
            result = await go(found)
    except BaseException as problem:
        await asyncio.shield(in_thread(effected.broken_off, problem))
        raise
    return await asyncio.shield(in_thread(effected.close, result))


async def _opened(effected: Effected[W]) -> ToolResult | W:
    """As `Effected.open` and `checked`. Who is cancelled meanwhile has sent nothing, and that is written down."""
    try:
        pause, longest = POLL_S
        found = await asyncio.shield(in_thread(effected.try_to_open))
        while isinstance(found, Record):
            await asyncio.sleep(min(pause, max(0.0, effected.until - clock.monotonic())))
            pause = min(pause * 2, longest)
            found = await asyncio.shield(in_thread(effected.look_again, found))
        return await asyncio.shield(in_thread(effected.checked, found)) if effected.is_late() else found
    except asyncio.CancelledError:
        effected.leave()
        raise


def in_thread(work: Callable[..., T], *given: Any) -> asyncio.Future[T]:
    made = asyncio.get_running_loop().run_in_executor(_executor(), contextvars.copy_context().run, work, *given)
    made.add_done_callback(lambda done: done.cancelled() or done.exception())  # also of one nobody waits for any more
    return made


@cache
def _executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="deadstop-ledger")


os.register_at_fork(after_in_child=_executor.cache_clear)


class Effected(ABC, Generic[W]):
    """One call or command with an effect, from its intent to its end in the ledger."""

    operation_id: str  # since there has been a claim

    def __init__(self, tool: str, call_id: str, definition: Definition, end: float) -> None:
        """`end`: CLOCK_MONOTONIC, until when it may run."""
        self.tool, self.call_id = tool, call_id
        self.ledger: Ledger = default()
        self.definition = self.ledger.define(definition)
        if end == float("inf"):
            raise UsageError(f"{self.tool} has effects, and so it needs a limit: give it a timeout")
        self.seconds = max(0.001, end - clock.monotonic())
        self.intent = self._intent()
        self.claim: Claim | None = None
        self.until = clock.monotonic() + self.seconds  # for how long another run's answer is waited for
        self._began = 0.0  # CLOCK_BOOTTIME before the claim was made
        self._progress = False  # something has come from it: it has begun
        self._left = False  # its caller was cancelled before it could start
        self._guard = threading.Lock()

    @abstractmethod
    def _intent(self) -> Intent: ...

    @abstractmethod
    def _started_with(self, operation: Operation) -> W:
        """What is to be run, with its operation."""

    @abstractmethod
    def outcome_of(self, result: ToolResult) -> Outcome: ...

    def open(self) -> ToolResult | W:
        """The call with its operation, to be run now; or the result of one that must not be."""
        found = self.try_to_open()
        while isinstance(found, Record):
            record = in_other_hands(self.ledger, found, self.until, self.is_given_up)
            found = self._found(record) if record.state is not State.PREPARED else self.try_to_open()
        return found

    def is_given_up(self) -> bool:
        """Nobody wants another run's answer any more."""
        return False

    def try_to_open(self) -> ToolResult | W | Record:
        """As `open`; the operation where another run is sending it."""
        self._began = clock.boottime()
        try:
            # As long as the call itself can live, whatever becomes of this process: nobody else sends it meanwhile.
            begun = self.ledger.begin(self.intent, self.seconds + MARGIN_S)
        except OperationConflict as problem:
            record = self.ledger.get(problem.op_id)
            return key_conflict(self.tool, self.call_id, record, self._definition(record))
        if begun.claim is None:
            return begun.record if begun.record.state is State.DISPATCHING else self._found(begun.record)
        with self._guard:
            self.claim, left = begun.claim, self._left
        if left:
            self.never_started()
        self.operation_id = begun.claim.op_id
        return self._started_with(replace(Operation.of(begun.claim.record), deadline=time.time() + self.seconds))

    def look_again(self, record: Record) -> ToolResult | W | Record:
        """What has become of an operation that another run is sending."""
        self.ledger.sweep_one(record.op_id)
        record = self.ledger.get(record.op_id)
        if record.state is State.PREPARED:
            return self.try_to_open()
        if record.state is State.DISPATCHING and clock.monotonic() < self.until and not self.is_given_up():
            return record
        return self._found(record)

    def is_late(self) -> bool:
        """So long after the claim that it may have been lost: this process, or the machine, was stopped meanwhile."""
        return clock.boottime() - self._began > MARGIN_S / 2

    def checked(self, found: ToolResult | W) -> ToolResult | W:
        """The call if it may still be sent; nothing may be under a claim that is lost."""
        if isinstance(found, ToolResult) or self.claim is None or not self.is_late():
            return found
        try:
            self.claim = self.ledger.heartbeat(self.claim, self.claim.lease_s)
        except StaleClaim:
            self.claim = None
            return self._found(self.ledger.get(self.operation_id))
        return found

    def leave(self) -> None:
        """Its caller goes away before it could start."""
        with self._guard:
            self._left, claimed = True, self.claim is not None
        if claimed:
            with contextlib.suppress(RuntimeError):  # the interpreter is ending
                _executor().submit(self.never_started)

    def _found(self, record: Record) -> ToolResult:
        value = self.ledger.value(record.op_id) if record.state is State.SUCCEEDED else (False, None)
        return not_sent_now(self.tool, self.call_id, record, self._definition(record), value=value)

    def _definition(self, record: Record) -> Any:
        return self.ledger.definition(record.tool, record.definition)

    def close(self, result: ToolResult) -> ToolResult:
        """The result as the ledger has taken it."""
        assert self.claim is not None
        if result.deferred is not None and result.status is not Status.COMPLETED:
            return self._goes_on(result, result.deferred)
        outcome = self.outcome_of(result)
        problem: Exception | None = None
        record = replace(self.claim.record, state=State.UNKNOWN, owner=None, lease_ms=None)
        definition = self.definition
        try:
            try:
                record = self.ledger.finish(self.claim, outcome)
            except StaleClaim as late:
                problem, record = late, self.ledger.get(self.claim.op_id)
            if record.state not in TERMINAL:
                definition = self._definition(record)
        except Exception as unwritten:  # whatever it is: the effect may be there, and its caller has to be told so
            problem = problem or unwritten
        if isinstance(problem, StaleClaim) and result.environment == NOTHING_STARTED:
            return self._found(record)
        if problem is not None and not (isinstance(problem, StaleClaim) and record.state is State.SUCCEEDED):
            return not_written_down(result, record, definition, problem)
        return self._told(result, record, definition, outcome)

    def _told(self, result: ToolResult, record: Record, definition: Definition, outcome: Outcome) -> ToolResult:
        return with_operation(result, record, definition, outcome)

    def _goes_on(self, result: ToolResult, handle: str) -> ToolResult:
        """Detached: it may send as long as its hard limit lets it. Until then its lease stands, so nobody else does."""
        assert self.claim is not None
        deferred.on_resolved(handle, self._came_later)
        return with_operation(result, self.claim.record, self.definition, None)

    def _came_later(self, value: Any) -> None:
        if isinstance(value, ToolResult):
            self._tell(self.outcome_of(value))

    def broken_off(self, problem: BaseException) -> None:
        """No result came: the caller was interrupted, or nothing could be started."""
        if isinstance(problem, _BEFORE_ANYTHING_RAN) and not self._progress:
            self.never_started()
        else:
            self._tell(Outcome(State.UNKNOWN, certain=False, observation=f"broken off: {type(problem).__name__}"))

    def never_started(self) -> None:
        self._tell(Outcome(State.PREPARED, phase=Phase.PREPARE, observation=NOTHING_STARTED))

    def _tell(self, outcome: Outcome) -> None:
        if self.claim is None:
            return
        try:
            self.ledger.finish(self.claim, outcome)
        except Exception:
            pass  # its lease runs out, and then it is unknown, which is what it is


class EffectOfCall(Effected["Call"]):
    """Of a function."""

    def __init__(self, asked: Call) -> None:
        declared = asked.tool.declared
        assert declared is not None
        self.asked, self.declared = asked, declared
        super().__init__(asked.tool.name, asked.call_id, declared.effect.define(asked.tool.name), asked.resolve()[0])

    def _intent(self) -> Intent:
        effect, asked = self.declared.effect, self.asked
        arguments = self.declared.arguments(asked.args, asked.kwargs)
        told = {name: value for name, value in arguments.items() if name not in effect.redact}
        fields = selected(told if effect.fingerprint is None else arguments, effect.fingerprint)
        print_of = fingerprint(self.tool, fields)
        acting: Acting = asked.acting or acting_now()
        correlation = acting.correlation or task_id()
        binding, holds = binding_of(asked.key, correlation, print_of)
        return Intent(
            scope=f"{effect.scope}/{self.tool}", binding=binding, fingerprint=print_of, tool=self.tool,
            definition=self.definition.version, correlation=correlation or asked.call_id,
            target=target_of(effect, told), holds=holds, digest=digest_of(told),
            sealed={"request": fields} if effect.fingerprint is not None else {}, asked_by=acting.asked_by,
            authorised_by=acting.authorised_by, request_s=self.seconds + MARGIN_S,
            recovery_s=self.definition.recovery_s,
        )  # fmt: skip

    def _started_with(self, operation: Operation) -> Call:
        call = self.asked.with_arguments(*self.declared.given(self.asked.args, self.asked.kwargs, operation))
        if (tell := call.on_progress) is not None:

            def noted(progress: Progress) -> None:
                self._progress = True
                tell(progress)

            call.on_progress = noted
        return call

    def outcome_of(self, result: ToolResult) -> Outcome:
        return outcome_of(result, self.operation_id)


def in_other_hands(
    ledger: Ledger, record: Record, until: float, is_given_up: Callable[[], bool] = lambda: False
) -> Record:
    """The operation when the one who is sending it has his answer, which is ours too; or at `until` (CLOCK_MONOTONIC),
    when our own time is over."""
    pause, longest = POLL_S
    while record.state is State.DISPATCHING and (left := until - clock.monotonic()) > 0 and not is_given_up():
        time.sleep(min(pause, left))
        pause = min(pause * 2, longest)
        ledger.sweep_one(record.op_id)
        record = ledger.get(record.op_id)
    return record


def outcome_of(result: ToolResult, op_id: str) -> Outcome:
    """What the end of a call says about its effect. What says nothing, or speaks of another operation, is UNKNOWN."""
    receipt = None if result.receipt is None else receipt_to_dict(result.receipt)
    if result.status is Status.COMPLETED and result.deferred is not None:
        return Outcome(
            State.UNKNOWN, phase=Phase.AWAIT_RESPONSE, observation=f"begun; its end comes as {result.deferred}"
        )
    if result.status is Status.COMPLETED:
        left = f"what it left was ended: {', '.join(result.leftover)}" if result.leftover else ""
        return Outcome(State.SUCCEEDED, phase=Phase.READ_RESPONSE, observation=left, value=result.value, has_value=True)
    if result.status is Status.REFUSED or result.environment == NOTHING_STARTED:
        return Outcome(State.PREPARED, phase=Phase.PREPARE, observation=_message(result))
    problem = result.exception
    own = isinstance(problem, EffectError) and problem.operation in (None, op_id)
    if result.status is Status.ERROR and isinstance(problem, EffectError) and own:
        to = State.PREPARED if isinstance(problem, NotSent) else State.UNKNOWN
        to = State.FAILED if isinstance(problem, Rejected) else to
        phase = problem.phase or (Phase.CONNECT if to is State.PREPARED else Phase.AWAIT_RESPONSE)
        return Outcome(to, phase=phase, certain=isinstance(problem, NotSent | Rejected | Accepted), receipt=receipt,
                       observation=problem.observation or str(problem), reference=problem.reference,
                       retry_after_s=problem.retry_after)  # fmt: skip
    return Outcome(State.UNKNOWN, phase=Phase.REMOTE_EXEC, certain=False, observation=_message(result), receipt=receipt)


def _message(result: ToolResult) -> str:
    return f"{result.status.value}: {(result.error or {}).get('message', '')}"
