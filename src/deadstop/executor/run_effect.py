# SPDX-License-Identifier: Apache-2.0
"""`deadstop.run(effect=...)`: a command whose intent is durable before it can start, and its end before anybody hears
of it. The way of a function with effects (effects.py), with what `deadstop run --effect once` makes of a command."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .. import clock
from ..cancel import CancelToken
from ..errors import BoundaryUnavailable, LedgerError, UsageError
from ..ledger.canonical import selected
from ..ledger.definition import Definition, Effect
from ..ledger.records import Intent, Outcome, Record
from ..ledger.states import State
from ..operation import Operation, acting_now
from ..results import Status, ToolResult
from . import client, command_effect
from .admission import Admission, command_key
from .declared import tell_unanswered
from .effects import MARGIN_S, Effected, perform, perform_async
from .given import Given, Stdin, command_of
from .intents import binding_of, target_of, task_id
from .prepare import Options, over_before_start, prepare_place
from .refusals import NOTHING_STARTED
from .waiting import wait, wait_async

if TYPE_CHECKING:
    from .client import Call, OnOutput
    from .heartbeat import Lease

__all__ = ["run_effect", "run_effect_async"]

NAMES = ("argv", "cwd", "env", "stdin")  # what `fingerprint` and `redact` can name; also env.NAME
MOST_CODES = 256
_BEFORE_IT_RAN = (UsageError, BoundaryUnavailable, LedgerError)


def run_effect(asked: Asked) -> ToolResult:
    """Run it once. Raises LedgerUnavailable, and what `run` raises, before anything was started."""
    with asked:
        if (refusal := asked.refusal()) is not None:
            return refusal
        try:
            return asked.admission.settled(perform(EffectOfCommand(asked), asked.go))
        except _BEFORE_IT_RAN:
            asked.admission.withdrawn()
            raise


async def run_effect_async(asked: Asked) -> ToolResult:
    """The async twin: the ledger is opened, read and written to in threads."""
    from .effects import in_thread

    with asked:
        if (refusal := asked.refusal()) is not None:
            return refusal
        try:
            effected = await in_thread(EffectOfCommand, asked)
            return asked.admission.settled(await perform_async(effected, asked.go_async))
        except _BEFORE_IT_RAN:
            asked.admission.withdrawn()
            raise


@dataclass(slots=True)
class Under:
    """What a command is started under."""

    effected: EffectOfCommand
    operation: Operation
    lease: Lease | None = None


class Asked:
    """A command with an effect, as it was asked for, and checked: as a block in which its descriptors are open.

    Raises UsageError for what could not be run, or bound to an operation; nothing has been written down then.
    """

    def __init__(
        self, argv: Sequence[str], options: Options, stdin: Stdin, on_output: OnOutput | None,
        cancel: CancelToken | None, effect: Any, key: str | None, failed_exit: Collection[int],
    ) -> None:  # fmt: skip
        if not isinstance(effect, Effect):
            raise UsageError(f"effect: {effect!r:.60} is neither 'none' nor 'undeclared' nor an Effect")
        self._argv, self._options, self.stdin = argv, options, stdin
        self._on_output, self._cancel = on_output, cancel
        self.effect, self.failed = effect, _codes(failed_exit)
        self._place, self._python = prepare_place(options)
        self.command = command_of(argv, options, self._place, self._python, stdin, on_output)
        self.folder = self.command.cwd or os.path.realpath(os.fspath(options.cwd or "."))
        self.material, self.same = self._materials()
        self.binding, self.holds, self.correlation = self._binding(key)
        self.definition = effect.define_named(options.tool, self.command.tool)
        tell_unanswered(self.definition.tool, effect.unanswered(whole=True))
        self.admission = Admission()
        self._given = Given(options, stdin)
        self._cwd: int | None = None
        self._source: int | None = None

    def __enter__(self) -> Asked:
        self._cwd, self._source = self._given.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._given.__exit__()

    def _materials(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """All of the request that may be written down, as digests; and what has to be the same under one key."""
        effect, given = self.effect, self._options.env or {}
        for name in (*(effect.fingerprint or ()), *effect.redact):
            if name not in NAMES and not name.startswith("env."):
                raise UsageError(f"effect: a command has no argument {name!r}; it has {', '.join(NAMES)} and env.NAME")
        env = {name: None if value is None else _digest(os.fsencode(value)) for name, value in given.items()}
        whole = {**command_effect.material_of(self.command.argv, self.folder), "env": env, "stdin": None}
        if isinstance(self.stdin, bytes | str):
            whole["stdin"] = _digest(self.stdin.encode() if isinstance(self.stdin, str) else self.stdin)
        elif isinstance(self.stdin, int) and "stdin" in (effect.fingerprint or set(NAMES) - set(effect.redact)):
            raise UsageError("stdin: what a descriptor will give is not known before, and so it cannot make two "
                             "requests the same: give bytes, or say with fingerprint= what does")  # fmt: skip
        told = {name: value for name, value in whole.items() if name not in effect.redact}
        # What was not given is no part of it: it is the same operation from the command line, where there is none.
        told = {name: value for name, value in told.items() if name in ("argv", "cwd") or value}
        return told, dict(told) if effect.fingerprint is None else selected(whole, effect.fingerprint)

    def _binding(self, key: str | None) -> tuple[str, str, str | None]:
        correlation = acting_now().correlation or task_id()
        if correlation is not None and "\0" in correlation:
            raise UsageError("correlation: it has a NUL byte in it, and no command can be given that")
        if key is None and correlation is None:
            raise UsageError("effect=Effect(...) needs key=: what binds retries of this command to one operation? "
                             "(or a Task, or deadstop.acting(correlation=...))")  # fmt: skip
        if key is None:
            return *binding_of(None, correlation, command_effect.print_of(self.same)), correlation
        if not isinstance(key, str):
            raise UsageError(f"key: {key!r:.60} is not a text")
        try:
            return command_effect.key_digest(os.fsencode(key)), "always", correlation
        except UnicodeEncodeError:
            raise UsageError(f"key: {key!r:.60} has characters that cannot be written down") from None

    def refusal(self) -> ToolResult | None:
        """The result of one that must not even be written down."""
        command = self.command
        return (
            self._cancelled() or over_before_start(command)
            or self.admission.refusal(
                command.tool, command.call_id, lambda: command_key(command, self._options, self.stdin)
            )
        )  # fmt: skip

    def is_cancelled(self) -> bool:
        return self._cancel is not None and self._cancel.is_set()

    def _cancelled(self) -> ToolResult | None:
        if not self.is_cancelled():
            return None
        command = self.command
        return ToolResult(
            tool=command.tool, status=Status.CANCELLED, reason="caller", call_id=command.call_id,
            task_id=command.task_id, started_at=clock.now_iso(), environment=NOTHING_STARTED,
        )  # fmt: skip

    def go(self, under: Under) -> ToolResult:
        started = self._start(under)
        return started if isinstance(started, ToolResult) else wait(started, self._cancel)

    async def go_async(self, under: Under) -> ToolResult:
        started = self._start(under)
        if isinstance(started, ToolResult):
            return started
        try:
            return await wait_async(started, self._cancel)
        except BaseException:
            under.effected.seen = started.result  # of one that was cancelled: how it has ended, with its receipt
            raise

    def _start(self, under: Under) -> Call | ToolResult:
        """Hand it over. Its time begins now: what the ledger took is not the command's."""
        told = None if self._on_output is None else under.effected.noting(self._on_output)
        command = command_of(self._argv, self._options, self._place, self._python, self.stdin, told)
        command = replace(command, call_id=self.command.call_id)
        command = command_effect.with_operation_in_env(command, under.operation)
        if (refusal := self._cancelled() or over_before_start(command)) is not None:
            return refusal
        if under.lease is not None and under.lease.is_over():  # asked last of all
            return command_effect.lease_was_over(command)
        return client.start_run(self._place, command, self._cwd, self._source, told)


class EffectOfCommand(Effected[Under]):
    """Of a command."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.seen: ToolResult | None = None  # of one that is not waited for any more
        end, grace = asked.command.deadline, asked.command.grace
        super().__init__(asked.command.tool, asked.command.call_id, asked.definition,
                         float("inf") if end is None else end + grace)  # fmt: skip

    def is_given_up(self) -> bool:
        return self.asked.is_cancelled()

    def noting(self, tell: OnOutput) -> OnOutput:
        """What has written something has begun, whatever the one who is told of it raises."""

        def noted(stream: str, data: bytes) -> None:
            self._progress = True
            tell(stream, data)

        return noted

    def _intent(self) -> Intent:
        asked, acting, effect = self.asked, acting_now(), self.asked.effect
        argv = asked.command.argv
        people = {name: value for name, value in command_effect.shown(argv, asked.folder).items()
                  if name not in effect.redact}  # fmt: skip
        return command_effect.intent_of(
            effect.scope, asked.binding, asked.same, holds=asked.holds, tool=self.definition.tool,
            definition=self.definition.version, correlation=asked.correlation, target=target_of(effect, people),
            digest=command_effect.print_of(asked.material), sealed={"command": people}, asked_by=acting.asked_by,
            authorised_by=acting.authorised_by, request_s=self.seconds + MARGIN_S,
            recovery_s=self.definition.recovery_s,
        )  # fmt: skip

    def _started_with(self, operation: Operation) -> Under:
        return Under(self, operation)

    def outcome_of(self, result: ToolResult) -> Outcome:
        return command_effect.outcome_of(result, self.asked.failed)

    def broken_off(self, problem: BaseException) -> None:
        if self.seen is None:
            super().broken_off(problem)
        else:
            self._tell(self.outcome_of(self.seen))

    def _found(self, record: Record) -> ToolResult:
        found = super()._found(record)
        return command_effect.done_before(found, record) if record.state is State.SUCCEEDED else found

    def _told(self, result: ToolResult, record: Record, definition: Definition, outcome: Outcome) -> ToolResult:
        told = super()._told(result, record, definition, outcome)
        return command_effect.with_own_end(told, result)


def _codes(given: Collection[int]) -> frozenset[int]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Collection):
        raise UsageError(f"failed_exit: give a list of exit codes, not {given!r:.60}")
    for code in given:
        if not isinstance(code, int) or isinstance(code, bool) or not 0 < code < MOST_CODES:
            raise UsageError(f"failed_exit: {code!r:.60} is no exit code from 1 to 255")
    return frozenset(given)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
