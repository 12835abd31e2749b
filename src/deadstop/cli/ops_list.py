# SPDX-License-Identifier: Apache-2.0
"""`deadstop ops list`."""

from __future__ import annotations

import argparse
import os

from ..errors import UsageError
from ..ledger.documents import record_document
from ..ledger.ledger import Ledger
from ..ledger.records import Record
from ..ledger.states import TERMINAL, State
from . import common
from .operations import EVERY, ago, ledger_file, now_ms, opened, waits_for
from .tables import print_table

UNKNOWN = (State.NEEDS_HUMAN, State.UNKNOWN, State.RECONCILING)
FIRST = (*UNKNOWN, State.DISPATCHING, State.PREPARED)  # what needs somebody most stands first
COLUMNS = ("ID", "STATE", "TOOL", "TARGET", "ATTEMPTS", "CREATED", "WAITS FOR")
NONE = "no operations"


def list_operations(arguments: argparse.Namespace) -> int:
    wanted = _states(arguments)
    path = ledger_file(arguments)
    if arguments.ledger is None and path is not None and not os.path.exists(path):
        print("[]" if arguments.json else f"{NONE}: {path} is made by the first one")
        return 0
    with opened(arguments) as ledger:
        limit = EVERY if arguments.all else arguments.limit
        found, now = _found(ledger, wanted, arguments.tool, limit), now_ms(ledger)
    if arguments.json:
        common.print_json([record_document(record) for record in found])
        return 0
    rows = [
        [record.op_id, record.state.value, record.tool, record.target or "", str(record.attempts),
         ago((now - record.created_ms) / 1000), waits_for(record, now)]
        for record in found
    ]  # fmt: skip
    print_table(COLUMNS, rows, empty=NONE)
    return 0


def _states(arguments: argparse.Namespace) -> frozenset[State]:
    try:
        named = {State(word) for word in arguments.state}
    except ValueError:
        wrong = next(word for word in arguments.state if word not in set(State))
        raise UsageError(f"--state: {wrong!r:.40} is not one of {', '.join(State)}") from None
    if arguments.unknown:
        named |= set(UNKNOWN)
    if arguments.needs_human:
        named.add(State.NEEDS_HUMAN)
    return frozenset(named) or frozenset(State)


def _found(ledger: Ledger, wanted: frozenset[State], tool: str | None, limit: int) -> list[Record]:
    """The open ones by what they need, then the newest of those that have ended."""
    found: list[Record] = []
    for states in (*({state} for state in FIRST), TERMINAL):
        if len(found) < limit and wanted & states:
            found += ledger.list(wanted & states, tool, limit - len(found))
    return found
