# SPDX-License-Identifier: Apache-2.0
"""`deadstop ops show`: everything that is known of one operation, and what would settle it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..contract import receipt_from_dict
from ..effects.settlement import PLACE
from ..ledger import alerts
from ..ledger.definition import Definition
from ..ledger.documents import alert_document, operation_seen
from ..ledger.handle import settled_by, url_parts
from ..ledger.ledger import Ledger
from ..ledger.records import Alert, Attempt, Evidence, Record
from ..ledger.states import TERMINAL, State
from ..ledger.store import Tx
from ..operation import Operation
from . import common
from .operations import last_confirmed, now_ms, opened, waits_for, when
from .tables import shown
from .verdict import killed

# Of an entry: what every one has, and what is shown above.
_SHOWN = frozenset(
    "op n kind at prev ver fence attempts from to attempt receipt scope key fingerprint digest tool definition "
    "correlation target".split()
)
_MOST_VALUE = 200
NOT_SENT = ": nothing had been sent"
SECRET = "(kept from sight)"


@dataclass(frozen=True, slots=True)
class Found:
    """What the ledger has about one operation. `kept` are its sealed parts that have not been shredded."""

    record: Record
    definition: Definition
    attempts: list[Attempt]
    trail: list[Evidence]
    alerts: list[Alert]
    kept: dict[str, Any]
    now: int

    @property
    def place(self) -> str | None:
        """Where its service said that its end can be seen, when it accepted it (202)."""
        places = [name for name in self.kept if name.startswith(PLACE)]
        last = max(places, key=lambda name: int(name.removeprefix(PLACE)), default=None)
        return None if last is None else str(self.kept[last].get("url"))

    @property
    def query(self) -> dict[str, Any] | None:
        """What would settle it; None for what is settled, and where nobody can be asked."""
        if self.record.state in TERMINAL:
            return None
        return settled_by(self.definition, Operation.of(self.record))


def show(arguments: argparse.Namespace) -> int:
    with opened(arguments) as ledger:
        found = _found(ledger, arguments.operation)
        if arguments.json:
            common.print_json(_document(found, operation_seen(ledger, found.record.op_id)))
            return 0
    for text in _lines(found):
        print(shown(text))
    return 0


def _found(ledger: Ledger, op_id: str) -> Found:
    record = ledger.get(op_id)

    def more(tx: Tx) -> tuple[list[Alert], dict[str, Any]]:
        every = [each for each in (alerts.get(tx, kind, record.op_id) for kind in alerts.KINDS) if each is not None]
        names = [row[0] for row in tx.all("payload_names", op_id=record.op_id)]
        rows = {name: tx.one("payload", op_id=record.op_id, name=name) for name in names}
        return every, {name: json.loads(row[1]) for name, row in rows.items() if row is not None}

    raised, kept = ledger.read(more)
    return Found(record, ledger.definition(record.tool, record.definition), ledger.attempts(record.op_id),
                 ledger.trail(record.op_id), raised, kept, now_ms(ledger))  # fmt: skip


# -- for programs --------------------------------------------------------------------------------------------------


def _document(found: Found, seen: dict[str, Any]) -> dict[str, Any]:
    """As the server's API shows it, and what only whoever has the ledger itself may see."""
    return {
        **seen,
        "declared": _declared(found.definition),
        "last_confirmed": last_confirmed(found.trail),
        "waits_for": waits_for(found.record, found.now) or None,
        "alerts": [alert_document(each) for each in found.alerts],
        "kept": found.kept,
    }


def _declared(definition: Definition) -> dict[str, Any]:
    """The values of headers may open doors, unless they only say where the real ones are; so may who logs in."""
    declared = definition.to_dict()
    query = declared.get("query") or {}
    for name, value in (query.get("headers") or {}).items():
        query["headers"][name] = value if str(value).startswith("env:") else SECRET
    for name in ("url", "database"):
        if name in query:
            place, _, rest = url_parts(query[name])
            query[name] = place + rest
    return {**declared, "version": definition.version}


# -- for people ----------------------------------------------------------------------------------------------------


def _lines(found: Found) -> Iterator[str]:
    record = found.record
    yield f"{record.op_id} {record.state}"
    for name, text in _facts(found):
        if text:
            yield f"  {name:<15} {text}"
    yield "attempts"
    for attempt in found.attempts:
        yield from _attempt_lines(attempt, found.now)
    if not found.attempts:
        yield "  none: nothing was ever sent"
    yield "trail"
    for entry in found.trail:
        yield f"  {entry.n:>2}  {when(entry.at_ms, found.now)}  {_entry_text(entry)}"
    if found.alerts:
        yield "alerts"
        for alert in found.alerts:
            yield f"  {_alert_text(alert, found.now)}"
    yield from _next_lines(found)


def _facts(found: Found) -> Iterator[tuple[str, str]]:
    record, now = found.record, found.now
    confirmed = last_confirmed(found.trail)
    yield "tool", f"{record.tool} (definition {record.definition}: retry {found.definition.retry})"
    yield "target", record.target or ""
    yield "command", " ".join((found.kept.get("command") or {}).get("argv", ()))
    yield "key", record.key
    yield "scope", record.scope
    yield "correlation", record.correlation or ""
    yield "reference", record.reference or ""
    yield "to be seen at", found.place or ""
    yield "fingerprint", record.fingerprint
    yield "version", f"{record.ver} (fence {record.fence})"
    yield "owner", record.owner or ""
    yield "created", when(record.created_ms, now)
    yield "changed", when(record.updated_ms, now)
    if record.state in TERMINAL:
        return
    yield "sent", "" if record.last_sent_ms is None else when(record.last_sent_ms, now)
    yield "last confirmed", "" if confirmed is None else f"{confirmed['state']} at {confirmed['at']}{NOT_SENT}"
    yield "last finding", "" if record.verdict is None else f"{record.verdict} ({record.queries} queries)"
    yield "lease", "" if record.lease_ms is None else when(record.lease_ms, now)
    if record.state is State.PREPARED:
        yield "to be sent by", when(record.request_ms, now)
    elif record.state in (State.UNKNOWN, State.RECONCILING):
        yield "recovery until", when(record.recovery_ms, now)
    yield "waits for", waits_for(record, now)


def _attempt_lines(attempt: Attempt, now: int) -> Iterator[str]:
    yield f"  {attempt.n:>2}  fence {attempt.fence}, by {attempt.owner}"
    yield f"      started {when(attempt.started_ms, now)}"
    if attempt.ended_ms is None:
        return
    phase = f", phase {attempt.phase}{'' if attempt.certain else ' (not certain)'}" if attempt.phase else ""
    yield f"      ended {when(attempt.ended_ms, now)}: {attempt.outcome}{phase}"
    if attempt.observation:
        yield f"      seen: {attempt.observation}"
    receipt = receipt_from_dict(attempt.receipt)
    if receipt is not None:
        yield f"      receipt: {killed(receipt)}"


def _entry_text(entry: Evidence) -> str:
    body: Mapping[str, Any] = json.loads(entry.body)
    step = f" {body['from'] or 'new'} -> {body['to']}" if body.get("to") else ""
    told = [f"{name}={_short(value)}" for name, value in body.items() if name not in _SHOWN and value not in (None, "")]
    return f"{entry.kind}{step}{'  ' if told else ''}{'  '.join(told)}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _MOST_VALUE else f"{text[:_MOST_VALUE]}..."


def _alert_text(alert: Alert, now: int) -> str:
    seen = "" if alert.ack_ms is None else f"; acknowledged by {alert.ack_by} {when(alert.ack_ms, now)}"
    many = "" if alert.count == 1 else f", {alert.count} times"
    return f"{alert.kind}: {alert.detail}; {when(alert.last_ms, now)}{many}{seen}"


def _next_lines(found: Found) -> Iterator[str]:
    record, query = found.record, found.query
    if query is not None:
        yield "settled by"
        for name, value in query.items():
            yield f"  {name:<15} {value if isinstance(value, str) else json.dumps(value)}"
    if record.state in (State.UNKNOWN, State.NEEDS_HUMAN):
        yield "to settle it"
        if query is not None or found.place is not None:
            yield f"  deadstop ops reconcile {record.op_id}"
        yield f"  deadstop ops resolve {record.op_id} --ver {record.ver} --succeeded|--failed --reason TEXT"
