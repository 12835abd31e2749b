# SPDX-License-Identifier: Apache-2.0
"""Where a service that has accepted a write (202) said that its end can be seen: kept, so that it outlives whoever was
told. Sealed apart from the log, because such a URL may open doors."""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING

from .. import clock
from ..client.portal import portal
from ..ledger.canonical import canonical, digest
from ..ledger.entries import locked, note, write_head
from ..ledger.states import State
from .http_exchange import Wire
from .http_follow import look
from .settlement import PLACE

if TYPE_CHECKING:
    from ..ledger.definition import Definition
    from ..ledger.ledger import Ledger
    from ..ledger.records import Claim, Finding, Record
    from ..ledger.store import Tx

__all__ = ["keep", "seen_there"]

MOST = 8192


def keep(ledger: Ledger, claim: Claim, place: str) -> None:
    """Durable when this returns, as long as the claim is held, and for what can be a URL: the service's words may be
    anything. Raises LedgerUnavailable."""
    if len(place) > MOST or not (place.isascii() and place.isprintable()):
        return
    ledger.write(partial(_keep, claim=claim, place=place))


def _keep(tx: Tx, claim: Claim, place: str) -> None:
    record = locked(tx, claim.op_id)
    if record.state is not State.DISPATCHING or record.fence != claim.fence:
        return
    name, salt, body = f"{PLACE}{claim.attempt}", secrets.token_hex(16), canonical({"url": place}).decode()
    tx.run("add_payload", op_id=record.op_id, name=name, salt=salt, value=body)
    told = {"attempt": claim.attempt, f"sealed.{name}": digest(f"{salt}\0{body}".encode())}
    write_head(tx, note(tx, record, "attempt.accepted", told))


def seen_there(record: Record, definition: Definition, place: str) -> Finding:
    """What is seen there now, by somebody who has none of the headers that the write had: they were never kept."""
    headers = {"accept": "application/json", "user-agent": "deadstop", "accept-encoding": "identity",
               "x-correlation-id": record.correlation or record.op_id}  # fmt: skip
    end = clock.monotonic() + definition.reconcile_s
    return portal.run(look(Wire("GET", place, headers), place, definition, end, None))
