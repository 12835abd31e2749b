# SPDX-License-Identifier: Apache-2.0
"""A command whose effect is on record: written down before it can start, and what became of it before anybody is told.

The process is single-threaded while a command runs: the ledger is open before and after, never meanwhile. Where there
is no limit a child of ours keeps the lease.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import time
from dataclasses import replace
from typing import Any

from .. import clock
from ..boundary import syscalls
from ..errors import LedgerError, OperationConflict, StaleClaim
from ..executor import command_effect
from ..executor.prepare import Prepared, refused
from ..executor.refusals import NOTHING_STARTED
from ..ledger.answers import key_conflict, not_sent_now, not_written_down, with_operation
from ..ledger.ledger import LEASE_S, Ledger
from ..ledger.records import Begun, Claim, Intent, Outcome
from ..ledger.states import State
from ..ledger.store import open_store
from ..model import Command
from ..operation import Operation
from ..results import ToolResult
from .declared import declared, intent_of
from .operations import ago

SPARE_S = 10.0  # of the lease, beyond the limit and the grace: for the kill, and for writing down how it ended
LONGEST_LEASE_S = 3600.0  # beyond it, a machine that is lost would not be noticed for too long
BEAT_S = 10.0


class Recorded:
    """One run under one operation. `refusal` is there if it must not start; else run what is `given_to`, tell `ended`.

    With the operation in the ledger nothing else than its outcome frees its key: not this process's end either.
    Raises UsageError for a key or a file that cannot be read; nothing has been written down then.
    """

    def __init__(self, arguments: argparse.Namespace, prepared: Prepared) -> None:
        self.place, self.failed = arguments.ledger, arguments.failed_exit or frozenset()
        self.prepared = prepared
        self.refusal: ToolResult | None = None
        self._claim: Claim | None = None
        self._heart: Heart | None = None
        self.definition = declared(arguments, prepared.command.tool)
        intent = intent_of(arguments, prepared, self.definition)
        lease_s, beats = self._lease()
        try:
            with _open_quietly(self.place) as ledger:
                self._claim = self._begin(ledger, intent, lease_s)
        except LedgerError as problem:  # an effect that is not on record must not happen
            self._claim, self.refusal = None, self._not_started(problem)
        if beats and self._claim is not None:
            self._heart = Heart(self.place, self._claim)

    def _not_started(self, problem: LedgerError) -> ToolResult:
        result = refused(self.prepared.command, "policy", f"{NOTHING_STARTED}: {problem}")
        return replace(result, effect="unknown")  # of this key: an earlier run may have done it

    def _begin(self, ledger: Ledger, intent: Intent, lease_s: float) -> Claim | None:
        command = self.prepared.command
        self.definition = ledger.define(self.definition)
        try:
            begun = ledger.begin(replace(intent, definition=self.definition.version), lease_s)
        except OperationConflict as conflict:
            record = ledger.get(conflict.op_id)
            definition = ledger.definition(record.tool, record.definition)
            self.refusal = key_conflict(command.tool, command.call_id, record, definition)
            return None
        self.definition = ledger.definition(begun.record.tool, begun.record.definition)
        if begun.claim is None:
            self.refusal = self._made_before(begun)
        return begun.claim

    def _lease(self) -> tuple[float, bool]:
        """How long the claim holds, in seconds, and whether it has to be made longer while the command runs."""
        command = self.prepared.command
        if command.deadline is None:
            return LEASE_S, True
        lease_s = max(0.0, command.deadline - clock.monotonic()) + command.grace + SPARE_S
        return (LEASE_S, True) if lease_s > LONGEST_LEASE_S else (lease_s, False)

    def _made_before(self, begun: Begun) -> ToolResult:
        """What is known of it. Only a success is a good end for whoever comes again: exit status 0."""
        command, record = self.prepared.command, begun.record
        result = not_sent_now(command.tool, command.call_id, record, self.definition)
        if record.state is not State.SUCCEEDED:
            return self._with_place(result)
        return command_effect.done_before(result, record, ago(time.time() - record.updated_ms / 1000))

    def given_to(self, prepared: Prepared) -> Prepared:
        """The command with its operation in its environment."""
        assert self._claim is not None
        operation = Operation.of(self._claim.record)
        return replace(prepared, command=command_effect.with_operation_in_env(prepared.command, operation))

    def lapsed(self, command: Command) -> ToolResult | None:
        """A refusal if its lease is over already, because this process was stopped: others may have settled it."""
        if self._claim is None or not self._claim.is_over():
            return None
        return command_effect.lease_was_over(command)

    # -- after it --------------------------------------------------------------------------------------------------

    def ended(self, result: ToolResult) -> ToolResult:
        """The result with what the ledger has made of it. A success is one only when it is written down."""
        if self._claim is None:
            return result
        if self._heart is not None:
            self._heart.stop()
        outcome = command_effect.outcome_of(result, self.failed)
        try:
            told = self._finish(self._claim, result, outcome)
        except LedgerError as problem:
            record = replace(self._claim.record, state=State.UNKNOWN, owner=None, lease_ms=None)
            told = not_written_down(result, record, self.definition, problem)
        return self._with_place(told)

    def _finish(self, claim: Claim, result: ToolResult, outcome: Outcome) -> ToolResult:
        ledger = Ledger.open(self.place)
        try:
            record = ledger.finish(claim, outcome)
        except StaleClaim as problem:
            return not_written_down(result, ledger.get(claim.op_id), self.definition, problem)
        finally:
            with contextlib.suppress(LedgerError):  # what was asked of it is durable, or has failed already
                ledger.close()
        return command_effect.with_own_end(with_operation(result, record, self.definition, outcome), result)

    def _with_place(self, result: ToolResult) -> ToolResult:
        """What the hint says can be typed as it is."""
        if result.hint is None or "deadstop ops" not in result.hint or self.place is None or "://" in self.place:
            return result
        return replace(result, hint=f"{result.hint} --ledger {shlex.quote(self.place)}")


@contextlib.contextmanager
def _open_quietly(place: str | None) -> Any:
    """Without the thread that signs checkpoints: what is written now is covered by the next one."""
    store = open_store(place)
    try:
        yield Ledger(store, notary=False)
    finally:
        store.close()


class Heart:
    """A child of ours that keeps the lease as long as we live. It is no thread: this process forks."""

    def __init__(self, place: str | None, claim: Claim) -> None:
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _beat(parent, place, claim)
            finally:
                os._exit(0)

    def stop(self) -> None:
        """Whatever it is at: a transaction that is broken off leaves nothing."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def _beat(parent: int, place: str | None, claim: Claim) -> None:
    syscalls.die_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # meant for the command, and handled by our parent
        signal.signal(number, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):  # whoever reads what the command prints does not wait for us
        os.dup2(nothing, fd)
    while os.getppid() == parent:
        time.sleep(BEAT_S)
        try:
            with _open_quietly(place) as ledger:
                ledger.heartbeat(claim, LEASE_S)
        except StaleClaim:
            return
        except LedgerError:
            pass  # tried again; without it the lease runs out, and that is the truth
