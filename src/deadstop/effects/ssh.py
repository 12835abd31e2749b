# SPDX-License-Identifier: Apache-2.0
"""Commands on other hosts as operations: sent once, and what became of them is read from the host's own markers.

    production = SshEffects("deploy@production")
    production.install()
    result = production.run(["./migrate", "--to", "42"], key="migration-42", lock="database", timeout=60)

A connection that drops says nothing about the command, which goes on without it. Unless ssh itself shows that nothing
was sent, or the host reports the end, the operation is UNKNOWN until the markers have been read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from typing import Any, Literal

from .. import clock, deadlines
from ..cancel import CancelToken
from ..errors import (
    BoundaryUnavailable,
    DeadstopError,
    LedgerError,
    LedgerUnavailable,
    OperationConflict,
    StaleClaim,
    UsageError,
)
from ..executor.declared import tell_unanswered
from ..executor.effects import in_other_hands
from ..executor.heartbeat import beating
from ..executor.prepare import check_argv
from ..executor.tool import new_call_id
from ..ledger.answers import key_conflict, not_written_down, with_operation
from ..ledger.definition import Definition, Effect
from ..ledger.ledger import Ledger, default
from ..ledger.queries import SshQuery
from ..ledger.records import Claim, Finding, Outcome, Record
from ..ledger.states import Phase, State
from ..operation import Operation
from ..results import ToolResult
from .settlement import may_have_arrived_before, reconcile
from .ssh_client import Host, OnOutput, talk
from .ssh_command import RemoteCommand, seconds
from .ssh_outcome import attached, outcome_of, over_before, seen_result
from .ssh_status import status

__all__ = ["SshEffects"]

SPARE_S = 10.0  # of a lease, beyond the time for which the command is watched

# Whole, or not at all: the size is compared before the new file takes the old one's name.
_COPY = (
    'n=$1; d=$3; if [ -z "$d" ]; then if [ "$(id -u)" = 0 ]; then d=/usr/local/bin; else d=$HOME/.local/bin; fi; fi; '
    'umask 022; mkdir -p "$d" && t="$d/.$4.$$" && cat >"$t" && [ "$(wc -c <"$t")" -eq "$5" ] && chmod 755 "$t" '
    '&& mv -f "$t" "$d/$4"'
)


class SshEffects:
    """Runs commands on one host through `deadstop-remote`, each as an operation of the ledger.

    `effect` says how the operation is bound, retried and looked up; by default it is looked up on the host, whose
    absence counts, and sent again only after the host has shown that it never started. `helper` is the helper's name
    or path there, `options` are words for ssh (such as "-p", "2222"). Credentials are ssh's own matter (agent,
    ssh_config); nothing is ever asked for. Safe for many threads.
    """

    def __init__(
        self,
        host: str,
        *,
        ledger: Ledger | None = None,
        effect: Effect | None = None,
        options: Sequence[str] = (),
        helper: str = "deadstop-remote",
        timeout: float = 60.0,
        connect_timeout: float = 10.0,
        nonzero: Literal["unknown", "failed"] = "unknown",
        tool: str | None = None,
    ) -> None:
        """`nonzero`: what a command that ends with another code than 0 is. "unknown", because it may have done half of
        its work: a person decides. "failed" for commands that then have done nothing. One that could not be started at
        all has failed in any case, one that a signal ended is unknown in any case. `tool`: the name in the ledger; if
        None, the host and, where more than nothing is declared, a digest of `effect`, so that other declarations for
        this host do not tighten it. Keys hold for the host, whatever is declared.
        """
        if nonzero not in ("unknown", "failed"):
            raise UsageError(f"nonzero={nonzero!r} is neither 'unknown' nor 'failed'")
        self.host = Host(host, helper, tuple(options), seconds("connect_timeout", connect_timeout))
        self.timeout = seconds("timeout", timeout)
        self.nonzero = nonzero
        self.query = SshQuery(host=host, helper=helper, options=tuple(options))
        self.effect = effect or Effect(
            retry="if_not_accepted", fingerprint=("host", "argv", "cwd"), reconcile=self.query, consistent=True
        )
        self._ledger = ledger
        self._name = tool or f"ssh {host}"
        self._declared = self.effect.define_named(tool, self._name)
        self.tool = self._declared.tool
        tell_unanswered(self.tool, self.effect.unanswered(whole=True))

    @property
    def ledger(self) -> Ledger:
        """The one that was given, else this process's own."""
        return self._ledger or default()

    def install(self, state: str | None = None, timeout: float = 30.0) -> dict[str, Any]:
        """Copy the helper there (for root to /usr/local/bin, for others to ~/.local/bin, unless `helper` is a path) and
        make its folder. Doing it again is harmless. Gives the helper's report.

        Raises DeadstopError: no connection, no Python there, or a folder on a file system that a restart empties.
        """
        code = resources.files("deadstop.effects.remote").joinpath("deadstop_remote.py").read_bytes()
        folder, name = os.path.split(self.host.helper)
        words = [self.host.helper, folder, name, str(len(code))]
        copied = talk(self.host, words, timeout=timeout, tool="ssh install", script=_COPY, stdin=code)
        if not copied.result.ok:
            raise DeadstopError(f"the helper could not be copied to {self.host.name}: {copied.problem}")
        more = [] if state is None else ["--state", state]
        made = talk(self.host, [self.host.helper, "install", *more, "--json"], timeout=timeout, tool="ssh install")
        if not made.result.ok:
            raise DeadstopError(f"the helper could not be installed on {self.host.name}: {made.problem}")
        report: dict[str, Any] = json.loads(made.result.stdout.tail)
        return report

    def run(
        self, argv: Sequence[str], *, key: str | None = None, lock: str | None = None, lock_ttl: float = 3600.0,
        timeout: float | None = None, limit: float | None = None, cwd: str | None = None, target: str | None = None,
        fields: Mapping[str, Any] | None = None, correlation: str | None = None, asked_by: str | None = None,
        authorised_by: str | None = None, on_output: OnOutput | None = None, cancel: CancelToken | None = None,
    ) -> ToolResult:  # fmt: skip
        """Run a command there, at most once, and say what is known of it. Its stdin is empty.

        key: what binds all retries to one operation, for ever, such as the id of the release. It comes from the host
            program, never from a model. Without it the same command is the same operation as long as that one is open.
        timeout: seconds for which it is watched. The command goes on after it: only `limit` ends it, there.
        lock: a lock on that host, held until the command has ended, refused while another has it. `lock_ttl` seconds
            after which it is called expired; nothing takes it away.
        fields: further values for the fingerprint, which has host, argv and cwd by default.

        `operation` in the result has the state, `effect` is applied, not_applied or unknown. Raises UsageError before
        anything is recorded, LedgerError if the operation could not be made durable: then nothing was sent.
        """
        command = RemoteCommand(
            host=self.host.name, argv=check_argv(argv), key=key, lock=lock,
            lock_ttl=lock_ttl, limit=limit, cwd=cwd, target=target, fields=fields or {}, correlation=correlation,
            asked_by=asked_by, authorised_by=authorised_by,
        )  # fmt: skip
        end, _, fired = deadlines.resolve(self.timeout if timeout is None else seconds("timeout", timeout), "given")
        call_id = new_call_id()
        while True:
            if end is None or (watch := end - clock.monotonic()) <= 0:
                return over_before(self.tool, call_id, fired)
            definition = self.ledger.define(self._declared)
            try:
                intent = command.intent(definition, watch + SPARE_S, call_id, self._name)
                begun = self.ledger.begin(intent, watch + SPARE_S)
            except OperationConflict as conflict:
                record = self.ledger.get(conflict.op_id)
                return key_conflict(self.tool, call_id, record, self._definition(record))
            if begun.claim is not None:
                if begun.record.tool != definition.tool:  # it was made under another declaration, and keeps that
                    definition = self._definition(begun.record)
                return self._sent(begun.claim, definition, command, watch, on_output, cancel)
            record = in_other_hands(self.ledger, begun.record, end)
            if begun.why == "waiting" or record.state is not State.PREPARED:
                return attached(self.tool, call_id, self.ledger, record, self._definition(record))

    def status(self, op_id: str, timeout: float = 10.0) -> Finding:
        """What the host's markers say now. It only looks: not finding it is no proof that it cannot start any more."""
        return status(self.query, replace(Operation.of(self.ledger.get(op_id)), fence=0), timeout)

    def settle(self, op_id: str) -> Record:
        """Ask now about an operation that is unknown (see `deadstop.reconcile`), and record what was found."""
        return reconcile(self.ledger, op_id, force=True)

    def _sent(
        self, claim: Claim, definition: Definition, command: RemoteCommand, watch: float, on_output: OnOutput | None,
        cancel: CancelToken | None,
    ) -> ToolResult:  # fmt: skip
        words = [self.host.helper, *command.words(claim.record, self.nonzero)]
        try:
            with beating(self.ledger, claim):
                heard = talk(
                    self.host, words, timeout=watch, tool=self.tool, on_output=on_output, cancel=cancel, effect=True
                )
        except BaseException as problem:
            self._broken_off(claim, problem)
            raise
        outcome = outcome_of(heard, self.nonzero)
        if outcome.to is State.PREPARED and may_have_arrived_before(self.ledger, claim):
            words_ = f"{outcome.observation}; an earlier attempt may have arrived"
            outcome = replace(outcome, to=State.UNKNOWN, certain=False, observation=words_)
        result = seen_result(heard, outcome, self.host.name)
        try:
            record = self.ledger.finish(claim, outcome)
        except StaleClaim as problem:
            return not_written_down(result, self.ledger.get(claim.op_id), definition, problem)
        except LedgerError as problem:
            record = replace(claim.record, state=State.UNKNOWN, owner=None, lease_ms=None)
            return not_written_down(result, record, definition, problem)
        return with_operation(result, record, definition, outcome)

    def _broken_off(self, claim: Claim, problem: BaseException) -> None:
        nothing = isinstance(problem, UsageError | BoundaryUnavailable)
        to, phase = (State.PREPARED, Phase.PREPARE) if nothing else (State.UNKNOWN, Phase.REMOTE_EXEC)
        try:
            self.ledger.finish(claim, Outcome(to, phase, nothing, f"broken off: {type(problem).__name__}"))
        except (LedgerUnavailable, StaleClaim):
            pass  # its lease runs out, and then it is unknown, which is what it is

    def _definition(self, record: Record) -> Definition:
        return self.ledger.definition(record.tool, record.definition)
