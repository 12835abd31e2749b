# SPDX-License-Identifier: Apache-2.0
"""`deadstop ops alerts` and `deadstop ops outbox`: what needs a person, and what waits to be delivered."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from .. import clock
from ..ledger import alerts, outbox
from ..ledger.documents import alert_document
from ..ledger.ledger import Ledger
from ..ledger.records import Alert
from . import common
from .operations import ago, login_name, now_ms, opened
from .tables import print_table

DONE, NOT_THERE = 0, 1
MOST = 1000


def alerts_verb(arguments: argparse.Namespace) -> int:
    with opened(arguments) as ledger:
        if arguments.ack or arguments.ack_all:
            return _acknowledge(ledger, arguments)
        found = ledger.read(partial(alerts.list_alerts, every=arguments.all, limit=MOST))
        now = now_ms(ledger)
    if arguments.json:
        common.print_json([alert_document(alert) for alert in found])
        return DONE
    rows = [[alert.kind, alert.op_id, str(alert.count), ago((now - alert.last_ms) / 1000), _seen(alert), alert.detail]
            for alert in found]  # fmt: skip
    print_table(("KIND", "OPERATION", "TIMES", "LAST", "SEEN BY", "DETAIL"), rows, empty="no alerts")
    return DONE


def _seen(alert: Alert) -> str:
    return alert.ack_by or ""


def _acknowledge(ledger: Ledger, arguments: argparse.Namespace) -> int:
    wanted = [(kind, op_id if op_id == alerts.LEDGER else _id(ledger, op_id)) for kind, op_id in arguments.ack]
    if arguments.ack_all:
        wanted += [(each.kind, each.op_id) for each in ledger.read(partial(alerts.list_alerts, limit=MOST))]
    by, done = arguments.operator or login_name(), []
    for kind, op_id in dict.fromkeys(wanted):
        if ledger.write(partial(alerts.acknowledge, kind=kind, op_id=op_id, by=by)):
            done.append({"kind": kind, "operation": op_id})
            if not arguments.json:
                print(f"{kind} {op_id}: seen by {by}")
        else:
            common.say(f"{kind} {op_id}: there is no such alert, or it was seen before")
    if arguments.json:
        common.print_json(done)
    return DONE if len(done) == len(dict.fromkeys(wanted)) else NOT_THERE


def _id(ledger: Ledger, op_id: str) -> str:
    return ledger.get(op_id).op_id if op_id.startswith("op_") else op_id


def outbox_verb(arguments: argparse.Namespace) -> int:
    with opened(arguments) as ledger:
        missing = [name for name in arguments.retry if not ledger.write(partial(outbox.retry, name=name))]
        counts, dead = ledger.read(outbox.counts), ledger.read(partial(outbox.dead, limit=MOST))
        now = now_ms(ledger)
    for name in missing:
        common.say(f"{name}: there is no such event that was given up")
    status = NOT_THERE if missing else DONE
    if arguments.json:
        given_up = [_event_document(each) for each in dead]
        common.print_json({**counts, "given_up": given_up})
        return status
    print(f"waiting {counts['waiting']}, being sent {counts['sending']}, given up {counts['dead']}")
    if dead:
        rows = [[str(each["id"]), str(each["op_id"] or ""), outbox.shown(each["url"]), str(each["tries"]),
                 ago((now - int(each["created_ms"])) / 1000), str(each["problem"] or "")] for each in dead]  # fmt: skip
        print_table(("ID", "OPERATION", "TO", "TRIES", "CREATED", "PROBLEM"), rows, empty="")
    return status


def _event_document(event: dict[str, Any]) -> dict[str, Any]:
    """Without the path of its receiver, which often is a password."""
    document = {**event, "url": outbox.shown(event["url"]), "created_at": clock.iso(event["created_ms"] / 1000)}
    del document["created_ms"]
    return document
