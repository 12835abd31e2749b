# SPDX-License-Identifier: Apache-2.0
"""`deadstop run --effect once --check`: what the ledger would say to this run. It writes nothing there."""

from __future__ import annotations

import argparse
import os
import sqlite3

from ..errors import LedgerError
from ..executor.prepare import Prepared
from ..ledger import reader, reading
from ..ledger.answers import key_conflict, not_sent_now
from ..ledger.definition import Definition
from ..ledger.definitions import definition_of
from ..ledger.handle import retry_allowed
from ..ledger.operations import key_of
from ..ledger.records import Intent, Record
from ..ledger.states import State
from ..ledger.store import Tx, default_place
from .declared import declared, intent_of, lost_outcome
from .operations import ledger_file

__all__ = ["foreseen"]


def foreseen(arguments: argparse.Namespace, prepared: Prepared) -> tuple[dict[str, str], list[str]]:
    """What to show, by name, and why the command would not run."""
    definition = declared(arguments, prepared.command.tool)
    intent = intent_of(arguments, prepared, definition)
    told = {"effect": f"once; key from {arguments.key_from.partition(':')[0]}; retry {definition.retry}",
            "lost outcome": lost_outcome(definition)}  # fmt: skip
    path = ledger_file(arguments)
    if path is not None and not os.path.exists(path):
        return told | {"ledger": f"{path} (the first operation makes it)", "operation": _NONE}, []
    try:
        with reader.opened(path or arguments.ledger or default_place()) as ledger:
            found = ledger.read(lambda tx: _found(tx, intent))
            where = ledger.where
    except (LedgerError, sqlite3.Error) as problem:
        return told, [f"the ledger cannot be used: {problem}"]
    told["ledger"] = where
    if found is None:
        return told | {"operation": _NONE}, []
    record, known = found
    told["operation"] = f"{record.op_id} {record.state}"
    command = prepared.command
    if record.fingerprint != intent.fingerprint:
        answer = key_conflict(command.tool, command.call_id, record, known)
    elif retry_allowed(record, known):
        return told | {"operation": f"{record.op_id} {record.state}: it would be sent again, under the same key"}, []
    elif record.state is State.SUCCEEDED:
        return told | {"operation": f"{record.op_id} {record.state}: it would not run again, and exit with 0"}, []
    else:
        answer = not_sent_now(command.tool, command.call_id, record, known)
    return told, [str((answer.error or {}).get("message"))]


_NONE = "none under this key yet: it would run"


def _found(tx: Tx, intent: Intent) -> tuple[Record, Definition] | None:
    record = reading.find(tx, intent.scope, key_of(intent.scope, intent.binding, 0))
    return None if record is None else (record, definition_of(tx, record.tool, record.definition))
