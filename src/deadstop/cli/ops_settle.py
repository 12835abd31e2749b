# SPDX-License-Identifier: Apache-2.0
"""`deadstop ops reconcile`, `resolve`, `cancel` and `shred`: what settles an operation, and what is deleted after."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from ..errors import DeadstopError, LedgerError, StaleClaim, UsageError
from ..ledger.documents import DECISIONS, record_document
from ..ledger.ledger import Ledger
from ..ledger.queries import FunctionQuery
from ..ledger.records import Record
from ..ledger.states import State
from . import common
from .operations import EVERY, line, login_name, opened, own_folder_too
from .tables import shown

DONE, NOT_SETTLED, FAILED = 0, 1, 125
NOT_KNOWN = (State.UNKNOWN, State.RECONCILING, State.NEEDS_HUMAN, State.DISPATCHING)


def settle(arguments: argparse.Namespace) -> int:
    work = {"reconcile": _reconcile, "resolve": _resolve, "cancel": _cancel, "shred": _shred}[arguments.what]
    _check(arguments)
    with opened(arguments) as ledger:
        return work(ledger, arguments)


def _check(arguments: argparse.Namespace) -> None:
    if arguments.what == "reconcile" and bool(arguments.operations) == arguments.all:
        raise UsageError("reconcile: name operations, or give --all")
    reason = getattr(arguments, "reason", None)
    if reason is not None and not reason.strip():
        raise UsageError("--reason: it is empty: say what was seen, and where")
    if arguments.operator is not None and not arguments.operator.strip():
        raise UsageError("--operator: the name is empty")


def _operator(arguments: argparse.Namespace) -> str:
    return arguments.operator or login_name()


# -- asking --------------------------------------------------------------------------------------------------------


def _reconcile(ledger: Ledger, arguments: argparse.Namespace) -> int:
    names = arguments.operations
    if arguments.all:
        names = [record.op_id for record in ledger.list((State.UNKNOWN, State.NEEDS_HUMAN), limit=EVERY)]
        if not names and not arguments.json:
            common.say("nothing is unknown")
    status, found = DONE, []
    for name in names:
        try:
            record = _asked(ledger, name, _operator(arguments))
        except DeadstopError as problem:
            common.say(f"{name}: {problem}")
            status = FAILED
            continue
        finding = _finding(ledger, record)
        found.append({**record_document(record), "finding": finding})
        if not arguments.json:
            print(line(record))
            if finding is not None:
                print(f"  {shown(_words(finding))}")
        if record.state in NOT_KNOWN:
            status = max(status, NOT_SETTLED)
            _say_what_is_left(ledger, record)
    if arguments.json:
        common.print_json(found)
    return status


def _asked(ledger: Ledger, name: str, operator: str) -> Record:
    from ..effects.settlement import reconcile

    record = ledger.get(name)
    if isinstance(ledger.definition(record.tool, record.definition).query, FunctionQuery):
        own_folder_too()
    return reconcile(ledger, record.op_id, force=True, operator=operator)


def _finding(ledger: Ledger, record: Record) -> dict[str, Any] | None:
    """What was found last: who says so, and why it counts for no more."""
    for entry in reversed(ledger.trail(record.op_id)):
        if entry.kind in ("reconcile.finding", "place.seen"):
            body = json.loads(entry.body)
            return {name: body.get(name) for name in ("verdict", "counts_as", "source", "detail", "why", "at")}
    return None


def _words(finding: Mapping[str, Any]) -> str:
    said = ": ".join(str(finding[name]) for name in ("source", "detail") if finding[name])
    return f"{said}; {finding['why']}" if finding["why"] else said


def _say_what_is_left(ledger: Ledger, record: Record) -> None:
    from ..effects.settlement import place_of

    if record.state is State.DISPATCHING:
        common.say(f"{record.op_id} is being sent: its outcome is its sender's to tell, until its lease is over")
    elif ledger.definition(record.tool, record.definition).query is None and place_of(ledger, record.op_id) is None:
        common.say(f"{record.op_id} can be looked up nowhere: a person decides, with deadstop ops resolve")


# -- deciding ------------------------------------------------------------------------------------------------------


def _resolve(ledger: Ledger, arguments: argparse.Namespace) -> int:
    before = ledger.get(arguments.operation)
    decision = DECISIONS[arguments.decision]
    try:
        record = ledger.resolve(before.op_id, decision, _operator(arguments), arguments.reason.strip(),
                                ver=arguments.ver, authorised_by=arguments.authorised_by)  # fmt: skip
    except StaleClaim:
        now = ledger.get(before.op_id)
        raise LedgerError(f"{now.op_id} has changed since version {arguments.ver}: it is {now.state}, version "
                          f"{now.ver}; look again") from None  # fmt: skip
    _print(arguments, record)
    return DONE


def _cancel(ledger: Ledger, arguments: argparse.Namespace) -> int:
    before = ledger.get(arguments.operation)
    if before.state is not State.PREPARED:
        raise LedgerError(f"{before.op_id} is {before.state}: only what was never sent can be cancelled")
    reason = (arguments.reason or "cancelled").strip()
    _print(arguments, ledger.cancel(before.op_id, f"{reason} (by {_operator(arguments)})"))
    return DONE


def _print(arguments: argparse.Namespace, record: Record) -> None:
    if arguments.json:
        common.print_json(record_document(record))
    else:
        print(line(record))


# -- deleting ------------------------------------------------------------------------------------------------------


def _shred(ledger: Ledger, arguments: argparse.Namespace) -> int:
    op_id = ledger.get(arguments.operation).op_id
    gone = ledger.shred(op_id, arguments.name, _operator(arguments))
    missing, scrubbed = sorted(set(arguments.name or ()) - set(gone)), not gone or ledger.scrub()
    if arguments.json:
        common.print_json({"id": op_id, "shredded": gone, "missing": missing, "scrubbed": scrubbed})
    elif gone:
        print(f"{op_id} shredded: {', '.join(gone)}")
    if not scrubbed:
        common.say(f"{op_id}: it is deleted, but may still be found in the files of {ledger.store.where}: with SQLite "
                   "until who reads it now has done; with PostgreSQL until VACUUM, and in its own log")  # fmt: skip
    for name in missing:
        common.say(f"{op_id}: nothing is kept sealed as {name}")
    if not gone and not missing:
        common.say(f"{op_id}: nothing is kept sealed")
    return NOT_SETTLED if missing else DONE
