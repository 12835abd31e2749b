# SPDX-License-Identifier: Apache-2.0
"""The ledger as programs use it: every method is durable when it returns."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from .. import clock
from ..errors import LedgerUnavailable, OperationConflict, StaleClaim
from . import alerts, crash, definitions, operations, outbox, owners, reading, settling
from .definition import Definition
from .notary import Notary
from .records import Alert, Attempt, Begun, Claim, Evidence, Finding, Intent, Message, Outcome, Record
from .states import TERMINAL, State
from .store import MEMORY, Store, Tx, default_place, open_store

__all__ = ["Ledger", "default"]

T = TypeVar("T")
Records: TypeAlias = list[Record]  # `list` is a method below
Trail: TypeAlias = list[Evidence]
Attempts: TypeAlias = list[Attempt]
Names: TypeAlias = list[str]
Alerts: TypeAlias = list[Alert]

LEASE_S = 30.0
WAIT_S = 60.0  # for one transaction, whatever happens: every store's own bounds are shorter


class Ledger:
    """The record of operations. Open it once per process; safe for many threads, and for many processes at once.

    Opened before a fork it is of no use in the child, which has to open its own (`default()` does).
    """

    def __init__(self, store: Store, *, notary: bool = True) -> None:
        self.notary: Notary | None = None
        self.store = store
        self.where = store.where
        self.owner = owners.of_this_process()
        self._defined: dict[str, tuple[str, int]] = {}  # of each tool: what this process declared last, and its version
        self._digests: dict[tuple[str, int], str] = {}
        self.id = self._own_id()
        # What has no outside has nothing that could be anchored there.
        if notary and store.lasting:
            self.notary = Notary(self)

    @classmethod
    def open(cls, where: str | None = None) -> Ledger:
        """`where` is a path, a postgresql:// URL or ":memory:"; None is DEADSTOP_LEDGER, else a file in the user's
        state folder. What is not there is made. Raises LedgerUnavailable with what would mend it, LedgerBroken.
        """
        store = open_store(where)
        try:
            return cls(store)
        except BaseException:
            store.close()
            raise

    @classmethod
    def in_memory(cls) -> Ledger:
        """A ledger for tests: the same tables and triggers, gone with the process. It survives nothing."""
        return cls.open(MEMORY)

    def close(self) -> None:
        """The last checkpoint is written first. Safe to call twice."""
        if self.notary is not None:
            self.notary.close()
        self.store.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<deadstop.Ledger {self.where}>"

    def _own_id(self) -> str:
        known = self.store.read(lambda tx: tx.one("meta", name="ledger_id"))
        if known is None:
            made = secrets.token_hex(8)
            self.write(lambda tx: tx.run("set_meta", name="ledger_id", value=made))
            known = self.store.read(lambda tx: tx.one("meta", name="ledger_id"))
        assert known is not None
        return str(known[0])

    def write(self, work: Callable[[Tx], T]) -> T:
        """One transaction, durable when this returns."""
        result = self.store.write(work).result(WAIT_S)
        if self.notary is not None:
            self.notary.notice()
        return result

    def read(self, work: Callable[[Tx], T]) -> T:
        return self.store.read(work)

    # -- definitions -------------------------------------------------------------------------------------------------

    def define(self, definition: Definition) -> Definition:
        """Register what a tool declares; with its version. None is ever changed or removed; the one declared last is
        the current one, which is what older operations are never treated laxer than."""
        stated = definition.digest
        declared, version = self._defined.get(definition.tool, ("", 0))
        if declared != stated:
            version = self.write(partial(definitions.define, definition=definition))
            self._defined[definition.tool] = stated, version
            self._digests[definition.tool, version] = stated
        return replace(definition, version=version)

    def _declared(self, intent: Intent) -> Intent:
        """With the digest of its definition, where this process has registered it: one question less."""
        known = self._digests.get((intent.tool, intent.definition))
        return intent if known is None else replace(intent, declared=known)

    def definition(self, tool: str, version: int) -> Definition:
        """What was declared when an operation was made, never laxer than what is declared now."""
        return self.read(partial(definitions.definition_of, tool=tool, version=version))

    # -- operations --------------------------------------------------------------------------------------------------

    def submit(self, intent: Intent) -> Begun:
        """The operation of this intent, PREPARED or as it was found. Raises OperationConflict."""
        begun = _checked(self.write(partial(operations.submit, intent=self._declared(intent))))
        crash.at("submit.committed")
        return begun

    def begin(self, intent: Intent, lease_s: float = LEASE_S) -> Begun:
        """The operation and, unless something stands against it, the right to send it now, in one transaction.

        With `claim` there, its first attempt is durable: only now may a byte leave, and none after `claim.until`.
        Raises OperationConflict (nothing is sent; it is on record), LedgerUnavailable (nothing may be sent).
        """
        asked = clock.boottime()
        intent = self._declared(intent)
        work = partial(operations.begin, intent=intent, owner=self.owner, lease_ms=round(lease_s * 1000))
        begun = _checked(self.write(work))
        if begun.why in ("busy", "reconciling") and self.sweep_one(begun.record.op_id):
            begun = _checked(self.write(work))
        if begun.why != "begun":
            return begun
        crash.at("claim.committed")
        claim = Claim(begun.record, begun.record.attempts, lease_s, asked + lease_s)
        return Begun(begun.record, claim, "begun", begun.fresh)

    def claim(self, op_id: str, lease_s: float = LEASE_S) -> Claim:
        """The right to send what is PREPARED. Raises IllegalTransition if it is not (any more)."""
        asked = clock.boottime()
        record = self.write(partial(operations.claim, op_id=op_id, owner=self.owner, lease_ms=round(lease_s * 1000)))
        crash.at("claim.committed")
        return Claim(record, record.attempts, lease_s, asked + lease_s)

    def heartbeat(self, claim: Claim, lease_s: float = LEASE_S) -> Claim:
        """A later end for the lease. Raises StaleClaim if it is held no longer."""
        asked = clock.boottime()
        lease_ms = round(lease_s * 1000)
        if not self.write(partial(operations.heartbeat, op_id=claim.op_id, fence=claim.fence, lease_ms=lease_ms)):
            raise StaleClaim(claim.op_id, self.get(claim.op_id).state.value)
        return Claim(claim.record, claim.attempt, lease_s, asked + lease_s)

    def finish(self, claim: Claim, outcome: Outcome) -> Record:
        """How the attempt ended. Nobody may be told of a success before this has returned.

        Raises StaleClaim where somebody else has settled it or the lease had run out: what was brought is kept as
        evidence, and decides nothing.
        """
        work = partial(operations.finish, op_id=claim.op_id, fence=claim.fence, outcome=outcome)
        record, held = self.write(work)
        if not held:
            raise StaleClaim(record.op_id, record.state.value)
        crash.at("finish.committed")
        return record

    def cancel(self, op_id: str, reason: str = "cancelled by its caller") -> Record:
        """Give up what was never sent. Raises IllegalTransition for anything else."""
        return self.write(partial(operations.cancel, op_id=op_id, reason=reason))

    # -- settling ----------------------------------------------------------------------------------------------------

    def sweep(self, limit: int = 100) -> Records:
        """Do what deadlines ask for: leases that ran out, recovery that took too long. What was changed."""
        return self.write(partial(settling.sweep, limit=limit))

    def sweep_one(self, op_id: str) -> Record | None:
        """As `sweep`, of one; costs only a look as long as its time has not come. The operation, if it was changed."""
        record = self.get(op_id)
        if record.state in TERMINAL or not (record.owner and owners.is_gone(record.owner, record.updated_ms)):
            times = {State.PREPARED: record.request_ms, State.UNKNOWN: record.recovery_ms}
            due_ms = times.get(record.state, record.lease_ms)
            if due_ms is None or due_ms > self.read(lambda tx: tx.now):
                return None
        return self.write(partial(settling.sweep_one, op_id=record.op_id))

    def due(self, limit: int = 32) -> Names:
        """Ids of operations whose authority may be asked now."""
        return self.read(partial(settling.due, limit=limit))

    def take(self, op_id: str, lease_s: float = LEASE_S, *, force: bool = False) -> Claim | None:
        """The right to settle an operation that is unknown; None if it is not, or it is too early (unless `force`)."""
        asked = clock.boottime()
        lease_ms = round(lease_s * 1000)
        record = self.write(partial(settling.take, op_id=op_id, owner=self.owner, lease_ms=lease_ms, force=force))
        return None if record is None else Claim(record, record.attempts, lease_s, asked + lease_s)

    def settle(self, claim: Claim, finding: Finding) -> Record:
        """Apply a finding. Raises StaleClaim if somebody else has settled it: the finding is kept as evidence."""
        record, held = self.write(partial(settling.settle, op_id=claim.op_id, fence=claim.fence, finding=finding))
        if not held:
            raise StaleClaim(record.op_id, record.state.value)
        crash.at("settle.committed")
        return record

    def resolve(
        self, op_id: str, decision: State, operator: str, reason: str, *, ver: int | None = None,
        authorised_by: str | None = None,
    ) -> Record:  # fmt: skip
        """A person's decision: SUCCEEDED, FAILED, ABANDONED, or PREPARED (may be sent again).

        `ver` is the version that the person saw: if it has changed since, StaleClaim. Raises IllegalTransition while it
        is being sent and after its end.
        """
        record = self.write(
            partial(settling.resolve, op_id=op_id, decision=decision, operator=operator, reason=reason, ver=ver,
                    authorised_by=authorised_by)
        )  # fmt: skip
        crash.at("resolve.committed")
        return record

    # -- reading -----------------------------------------------------------------------------------------------------

    def get(self, op_id: str) -> Record:
        """By its id, or a beginning of it that is enough. Raises OperationNotFound."""
        return self.read(partial(reading.matching, op_id=op_id))

    def find(self, scope: str, key: str) -> Record | None:
        return self.read(partial(reading.find, scope=scope, key=key))

    def list(
        self,
        states: Iterable[State] | None = None,
        tool: str | None = None,
        limit: int = 100,
        before: int | None = None,
    ) -> Records:
        """The newest first; `before` is a `created_ms`."""
        return self.read(partial(reading.listed, states=states, tool=tool, limit=limit, before=before))

    def trail(self, op_id: str) -> Trail:
        """Everything that was written down about it, in order."""
        return self.read(partial(reading.trail, op_id=op_id))

    def attempts(self, op_id: str) -> Attempts:
        return self.read(partial(reading.attempts, op_id=op_id))

    def value(self, op_id: str) -> tuple[bool, Any]:
        """Whether its result was kept, and the result."""
        return self.read(partial(reading.value, op_id=op_id))

    def shred(self, op_id: str, names: Iterable[str] | None = None, by: str | None = None) -> Names:
        """Make what was kept sealed of it unreadable; every proof goes on to hold."""
        gone = self.write(partial(reading.shred, op_id=op_id, names=names, by=by))
        if gone:
            with contextlib.suppress(LedgerUnavailable):  # it is deleted, whatever becomes of this
                self.scrub()
        return gone

    def scrub(self) -> bool:
        """Remove what was shredded from the files of an SQLite database, too. False where another process was reading
        it, so that its log (`-wal`) may still have it: ask again. False for PostgreSQL: VACUUM, and the keeping of its
        own log, are its operator's."""
        return self.store.scrub()

    def counts(self) -> dict[str, int]:
        """Operations by state."""
        return self.read(reading.counts)

    def conservation(self) -> dict[str, Any]:
        """started = ended + open, and every open one has a deadline."""
        return self.read(reading.conservation)

    # -- telling -----------------------------------------------------------------------------------------------------

    def publish(self, message: Message) -> str:
        """Put an event into the outbox, for `deadstop serve` to deliver; its id. The same `dedup` is the same event."""
        return self.write(partial(outbox.publish, message=message))

    def alerts(self, *, every: bool = False, limit: int = 100) -> Alerts:
        """What waits for a person; with `every` also what was acknowledged."""
        return self.read(partial(alerts.list_alerts, every=every, limit=limit))

    def acknowledge(self, kind: str, op_id: str, by: str) -> bool:
        """Somebody has seen to it: it is told no more. False if there is no such alert."""
        return self.write(partial(alerts.acknowledge, kind=kind, op_id=op_id, by=by))

    def publish_ends(self) -> None:
        """From now on what is settled is an event in the outbox."""
        self.write(lambda tx: tx.run("set_meta", name=operations.EVENTS, value="on"))


def _checked(begun: Begun) -> Begun:
    if begun.why == "conflict":
        raise OperationConflict(begun.record.op_id, begun.record.key)
    return begun


_defaults: dict[str, Ledger] = {}
_opening = threading.Lock()
_of_parents: list[dict[str, Ledger]] = []


def default() -> Ledger:
    """This process's own ledger (DEADSTOP_LEDGER, else a file in the user's state folder), opened when first used.

    Where the variable says something else since, that one: as the processes do that are started from now on.
    """
    place = default_place()
    with _opening:
        if place not in _defaults:
            import atexit

            _defaults[place] = Ledger.open(place)
            atexit.register(_close_default, place, os.getpid())
        return _defaults[place]


def _close_default(place: str, pid: int) -> None:
    if os.getpid() == pid and place in _defaults:
        with contextlib.suppress(LedgerUnavailable):
            _defaults[place].close()


def _forget() -> None:
    global _defaults, _opening
    _of_parents.append(_defaults)  # closing them here would touch the parent's files
    _defaults, _opening = {}, threading.Lock()


os.register_at_fork(after_in_child=_forget)
