# SPDX-License-Identifier: Apache-2.0
"""Operations with effects: what happened, what nobody knows yet, and a person's decision about it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import OperationNotFound
from .. import documents as doc
from ..access import peer_uid
from ..bodies import AcknowledgeAlert, AlertsQuery, NoQuery, OperationsQuery, Resolve
from ..front import Call
from ..operations import ANSWER_S
from ..problems import Problem
from ..replies import Reply
from ..route import Answer, Route

if TYPE_CHECKING:
    from ...ledger.ledger import Ledger

TAG = "ledger"
ROOT = "/v1/operations"
ONE = f"{ROOT}/{{id}}"
_OPERATION = {200: Answer(doc.Operation, "the operation as it is now")}
_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")
ASKING_S = 330.0  # for an authority, and for sums over all there is


async def list_operations(call: Call[None, OperationsQuery]) -> Reply:
    query = call.query
    tool = None if query.tool is None else _text("tool", query.tool)
    before = None if query.before is None else int(query.before)
    return await _reply(call, lambda ledger: _views().operations(ledger, query.state, tool, int(query.limit), before))


async def get_operation(call: Call[None, NoQuery]) -> Reply:
    op_id = _op_id(call)
    return await _reply(call, lambda ledger: _views().operation_seen(ledger, op_id))


async def reconcile_operation(call: Call[None, NoQuery]) -> Reply:
    op_id, operator = _op_id(call), _asker(call)
    return await _reply(call, lambda ledger: _views().reconcile(ledger, op_id, operator), ASKING_S)


async def resolve_operation(call: Call[Resolve, NoQuery]) -> Reply:
    op_id, body, asker = _op_id(call), call.body, _asker(call)
    more: dict[str, Any] = {
        "operator": body.operator or asker, "reason": body.reason, "ver": None if body.ver is None else int(body.ver),
        "authorised_by": asker,
    }  # fmt: skip
    return await _reply(call, lambda ledger: _views().resolve(ledger, op_id, body.decision, **more))


async def list_alerts(call: Call[None, AlertsQuery]) -> Reply:
    query = call.query
    return await _reply(call, lambda ledger: _views().alerts_of(ledger, query.all, int(query.limit)))


async def acknowledge_alert(call: Call[AcknowledgeAlert, NoQuery]) -> Reply:
    body, by = call.body, call.body.by or _asker(call)
    return await _reply(call, lambda ledger: _views().acknowledge(ledger, body.kind, body.op_id, by))


async def get_audit(call: Call[None, NoQuery]) -> Reply:
    return await _reply(call, lambda ledger: _views().audit(ledger), ASKING_S)


async def _reply(call: Call[Any, Any], work: Callable[[Ledger], dict[str, Any]], seconds: float = ANSWER_S) -> Reply:
    operations = call.front.operations
    if operations is None or operations.off:
        raise Problem(501, "no_ledger", "this server keeps no ledger")
    return Reply(await operations.ask(work, seconds))


def _views() -> Any:
    """Loaded once a ledger is open: its packages are another extra."""
    from .. import operation_views

    return operation_views


def _op_id(call: Call[Any, Any]) -> str:
    """An id, or the beginning of one."""
    found = call.path["id"]
    if not _ID.fullmatch(found):
        raise OperationNotFound(ascii(found[:128]))
    return found


def _text(name: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Problem(422, "usage", f"{name}: it is no UTF-8") from None
    return value


def _asker(call: Call[Any, Any]) -> str:
    """Who asks, as far as the connection says: the kernel's word on a unix socket, the token's over TCP."""
    transport: asyncio.BaseTransport | None = call.request.transport
    uid = peer_uid(transport)
    if uid is not None:
        return f"uid {uid}"
    peer = None if transport is None else transport.get_extra_info("peername")
    return f"token from {peer[0]}" if peer else "token"


ROUTES = (
    Route(
        method="GET", path=ROOT, handler=list_operations, tag=TAG, query=OperationsQuery, errors=(501,),
        summary="List operations, the newest first", answers={200: Answer(doc.Operations, "the operations")},
    ),
    Route(
        method="GET", path=ONE, handler=get_operation, tag=TAG, errors=(501,),
        summary="One operation, its attempts, its trail and how it can be settled; the beginning of its id is enough",
        answers={200: Answer(doc.OperationSeen, "all that is known of it")},
    ),
    Route(
        method="POST", path=f"{ONE}/reconcile", handler=reconcile_operation, tag=TAG, answers=_OPERATION, waits=True,
        errors=(409, 501), summary="Ask its authority now, once, if it is unknown or waits for a person",
    ),
    Route(
        method="POST", path=f"{ONE}/resolve", handler=resolve_operation, tag=TAG, body=Resolve, answers=_OPERATION,
        errors=(409, 501), summary="A person's decision about what nobody else can say",
        example={"decision": "succeeded", "reason": "seen in the provider's dashboard", "ver": 4},
    ),
    Route(
        method="GET", path="/v1/alerts", handler=list_alerts, tag=TAG, query=AlertsQuery, errors=(501,),
        summary="What needs a person", answers={200: Answer(doc.Alerts, "the alerts, the newest first")},
    ),
    Route(
        method="POST", path="/v1/alerts/ack", handler=acknowledge_alert, tag=TAG, body=AcknowledgeAlert,
        errors=(404, 501), summary="Say that somebody has seen it; again and again is the same",
        answers={200: Answer(doc.Alert, "the alert")}, example={"kind": "outbox_dead", "op_id": "op_0123456789"},
    ),
    Route(
        method="GET", path="/v1/audit", handler=get_audit, tag=TAG, errors=(501,), waits=True,
        summary="The sum: everything that was started has ended, or is open with a deadline",
        answers={200: Answer(doc.Audit, "the sum")},
    ),
)  # fmt: skip
