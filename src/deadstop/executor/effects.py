# SPDX-License-Identifier: Apache-2.0
"""Calls of tools with effects: the intent is durable before the call can start, and its end before anybody hears of it.

One place below every way to call a tool, so that no loop above it can send anything twice. A call that is killed, lost
or raised something leaves its operation unknown; only the ledger says that it may be sent again.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .. import clock, deadlines
from ..contract import receipt_to_dict
from ..errors import (
    Accepted,
    BoundaryUnavailable,
    EffectError,
    LedgerError,
    LedgerUnavailable,
    NotSent,
    OperationConflict,
    Rejected,
    SandboxError,
    StaleClaim,
    UsageError,
)
from ..ledger.answers import key_conflict, not_sent_now, not_written_down, with_operation
from ..ledger.canonical import canonical, digest, fingerprint, selected
from ..ledger.ledger import Ledger, default
from ..ledger.records import Claim, Intent, Outcome, Record
from ..ledger.states import Phase, State
from ..operation import Acting, Operation, acting_now
from ..results import Status, ToolResult
from .heartbeat import beating
from .refusals import NOTHING_STARTED

if TYPE_CHECKING:
    from .tool import Call

__all__ = ["Effected", "outcome_of", "run_effect", "run_effect_async"]

MARGIN_S = 10.0  # what a lease has beyond the last moment at which the call may still run
POLL_S = (0.005, 0.1)  # how often the one who waits for another run's answer looks
_BEFORE_ANYTHING_RAN = (UsageError, BoundaryUnavailable, SandboxError)


def run_effect(asked: Call, go: Callable[[Call], ToolResult]) -> ToolResult:
    """Run a call whose tool has effects. Raises LedgerUnavailable, and what `go` raises, before anything was sent."""
    effected = Effected(asked)
    found = effected.open()
    if isinstance(found, ToolResult):
        return found
    try:
        with beating(effected.ledger, effected.claim):
            result = go(found)
    except BaseException as problem:
        effected.broken_off(problem)
        raise
    return effected.close(result)


async def run_effect_async(asked: Call, go: Callable[[Call], Awaitable[ToolResult]]) -> ToolResult:
    """The async twin: the ledger is written to in threads."""
    effected = Effected(asked)
    loop = asyncio.get_running_loop()
    opening = loop.run_in_executor(None, effected.open)
    try:
        found = await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(lambda _: loop.run_in_executor(None, effected.never_started))
        raise
    if isinstance(found, ToolResult):
        return found
    try:
        with beating(effected.ledger, effected.claim):
            result = await go(found)
    except BaseException as problem:
        await asyncio.shield(loop.run_in_executor(None, effected.broken_off, problem))
        raise
    return await asyncio.shield(loop.run_in_executor(None, effected.close, result))


class Effected:
    """One such call, from its intent to its end in the ledger."""

    def __init__(self, asked: Call) -> None:
        declared = asked.tool.declared
        assert declared is not None
        self.asked, self.declared, self.tool = asked, declared, asked.tool.name
        self.ledger: Ledger = default()
        self.definition = self.ledger.define(declared.effect.define(self.tool))
        end, _ = asked.resolve()
        if end == float("inf"):
            raise UsageError(f"{self.tool} has effects, and so it needs a limit: give it a timeout")
        self.seconds = max(0.001, end - clock.monotonic())
        self.intent = self._intent()
        self.claim: Claim | None = None

    def _intent(self) -> Intent:
        effect, asked = self.declared.effect, self.asked
        arguments = self.declared.arguments(asked.args, asked.kwargs)
        told = {name: value for name, value in arguments.items() if name not in effect.redact}
        fields = selected(told if effect.fingerprint is None else arguments, effect.fingerprint)
        print_of = fingerprint(self.tool, fields)
        acting: Acting = asked.acting or acting_now()
        correlation = acting.correlation or _task_id()
        binding, holds = binding_of(asked.key, correlation, print_of)
        return Intent(
            scope=f"{effect.scope}/{self.tool}", binding=binding, fingerprint=print_of, tool=self.tool,
            definition=self.definition.version, correlation=correlation or asked.call_id, target=_target(effect, told),
            holds=holds, digest=_digest(told), sealed={"request": fields} if effect.fingerprint is not None else {},
            asked_by=acting.asked_by, authorised_by=acting.authorised_by, request_s=self.seconds + MARGIN_S,
            recovery_s=self.definition.recovery_s,
        )  # fmt: skip

    def open(self) -> ToolResult | Call:
        """The call with its operation, to be run now; or the result of one that must not be."""
        until = clock.monotonic() + self.seconds
        while True:
            try:
                # As long as the call itself can live, whatever becomes of this process: nobody else sends it meanwhile.
                begun = self.ledger.begin(self.intent, self.seconds + MARGIN_S)
            except OperationConflict as problem:
                record = self.ledger.get(problem.op_id)
                return key_conflict(self.tool, self.asked.call_id, record, self._definition(record))
            if begun.claim is not None:
                self.claim = begun.claim
                return self._with_operation(begun.claim)
            record = self._settled(begun.record, until)
            if record.state is not State.PREPARED:
                return self._found(record)

    def _settled(self, record: Record, until: float) -> Record:
        """The operation when the one who is sending it has his answer, which is ours too; or when our time is over."""
        pause, longest = POLL_S
        while record.state is State.DISPATCHING and clock.monotonic() < until:
            time.sleep(min(pause, max(0.0, until - clock.monotonic())))
            pause = min(pause * 2, longest)
            self.ledger.sweep_one(record.op_id)
            record = self.ledger.get(record.op_id)
        return record

    def _with_operation(self, claim: Claim) -> Call:
        operation = replace(Operation.of(claim.record), deadline=time.time() + self.seconds)
        return self.asked.with_arguments(*self.declared.given(self.asked.args, self.asked.kwargs, operation))

    def _found(self, record: Record) -> ToolResult:
        value = self.ledger.value(record.op_id) if record.state is State.SUCCEEDED else (False, None)
        return not_sent_now(self.tool, self.asked.call_id, record, self._definition(record), value=value)

    def _definition(self, record: Record) -> Any:
        return self.ledger.definition(record.tool, record.definition)

    def close(self, result: ToolResult) -> ToolResult:
        """The result as the ledger has taken it."""
        assert self.claim is not None
        outcome = outcome_of(result)
        try:
            record = self.ledger.finish(self.claim, outcome)
        except StaleClaim as problem:
            record = self.ledger.get(self.claim.op_id)
            return not_written_down(result, record, self.definition, problem)
        except LedgerError as problem:
            record = replace(self.claim.record, state=State.UNKNOWN, owner=None, lease_ms=None)
            return not_written_down(result, record, self.definition, problem)
        return with_operation(result, record, self.definition, outcome)

    def broken_off(self, problem: BaseException) -> None:
        """No result came: the caller was interrupted, or nothing could be started."""
        if isinstance(problem, _BEFORE_ANYTHING_RAN):
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
        except (LedgerUnavailable, StaleClaim):
            pass  # its lease runs out, and then it is unknown, which is what it is


def binding_of(key: str | None, correlation: str | None, print_of: str) -> tuple[str, str]:
    """What binds retries to one operation, and for how long (`Intent.holds`)."""
    if key is not None:
        if not isinstance(key, str) or not key:
            raise UsageError(f"key: {key!r:.60} is not a text")
        return digest(f"key\0{key}".encode("utf-8", "surrogatepass")), "always"
    if correlation is not None:
        return digest(f"run\0{correlation}\0{print_of}".encode("utf-8", "surrogatepass")), "success"
    return digest(f"open\0{print_of}".encode()), "open"


def outcome_of(result: ToolResult) -> Outcome:
    """What the end of a call says about its effect. What says nothing is UNKNOWN."""
    receipt = None if result.receipt is None else receipt_to_dict(result.receipt)
    if result.status is Status.COMPLETED:
        return Outcome(State.SUCCEEDED, phase=Phase.READ_RESPONSE, value=result.value, has_value=True)
    if result.status is Status.REFUSED or result.environment == NOTHING_STARTED:
        return Outcome(State.PREPARED, phase=Phase.PREPARE, observation=_message(result))
    problem = result.exception
    if result.status is Status.ERROR and isinstance(problem, EffectError):
        to = State.PREPARED if isinstance(problem, NotSent) else State.UNKNOWN
        to = State.FAILED if isinstance(problem, Rejected) else to
        phase = problem.phase or (Phase.CONNECT if to is State.PREPARED else Phase.AWAIT_RESPONSE)
        return Outcome(to, phase=phase, certain=isinstance(problem, NotSent | Rejected | Accepted), receipt=receipt,
                       observation=problem.observation or str(problem), reference=problem.reference,
                       retry_after_s=problem.retry_after)  # fmt: skip
    return Outcome(State.UNKNOWN, phase=Phase.REMOTE_EXEC, certain=False, observation=_message(result), receipt=receipt)


def _message(result: ToolResult) -> str:
    return f"{result.status.value}: {(result.error or {}).get('message', '')}"


def _digest(arguments: dict[str, Any]) -> str | None:
    """Of the whole request; None for arguments that are no JSON (only the fingerprint's have to be)."""
    try:
        return hashlib.sha256(canonical(arguments)).hexdigest()
    except UsageError:
        return None


def _target(effect: Any, arguments: dict[str, Any]) -> str | None:
    if effect.target is None:
        return None
    try:
        return str(effect.target.format(**arguments))[:200]
    except Exception as problem:  # a format and any values: it names things for people, and must stop nothing
        return f"{effect.target} ({type(problem).__name__})"


def _task_id() -> str | None:
    tasks = deadlines.entered.get()
    return tasks[-1].task_id if tasks else None
