# SPDX-License-Identifier: Apache-2.0
"""Operations with effects, as the server's ledger has them: seen, asked about, decided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from .asks import Ask, given
from .connection import Server
from .portal import portal

__all__ = [
    "acknowledge_alert", "audit", "get_operation", "list_alerts", "list_operations", "reconcile_operation",
    "resolve_operation",
]  # fmt: skip

ASKING_S = 340.0  # an authority has as long as its definition says


def list_operations(
    state: str | None = None, tool: str | None = None, limit: int = 100, before: int | None = None, *,
    server: str | None = None, token: str | None = None,
) -> Sequence[dict[str, Any]]:  # fmt: skip
    """The newest first. `state` is one of the eight, or `open`; `before` is a `created_ms`."""
    query = {name: str(value) for name, value in given(state=state, tool=tool, limit=limit, before=before).items()}
    found: Sequence[dict[str, Any]] = _document(Ask("GET", "/operations", query), server, token)["items"]
    return found


def get_operation(op_id: str, *, server: str | None = None, token: str | None = None) -> dict[str, Any]:
    """One with its attempts, its trail, its findings and how it can be settled. The beginning of an id is enough.

    Raises OperationNotFound.
    """
    return _document(Ask("GET", _path(op_id)), server, token)


def reconcile_operation(op_id: str, *, server: str | None = None, token: str | None = None) -> dict[str, Any]:
    """Have its authority asked now, once; the operation as it is then. Raises OperationNotFound."""
    return _document(Ask("POST", _path(op_id, "/reconcile"), seconds=ASKING_S), server, token)


def resolve_operation(
    op_id: str, decision: str, reason: str, *, operator: str | None = None, ver: int | None = None,
    server: str | None = None, token: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """A person's decision: succeeded, failed, abandoned or retry. `ver` is the version that they saw.

    Raises NotAllowed if it has changed since, is being sent, or has ended.
    """
    body = given(decision=decision, reason=reason, operator=operator, ver=ver)
    return _document(Ask("POST", _path(op_id, "/resolve"), body=body), server, token)


def list_alerts(
    every: bool = False, limit: int = 100, *, server: str | None = None, token: str | None = None
) -> Sequence[dict[str, Any]]:
    """What waits for a person, or every alert there was; the newest first."""
    query = {"all": str(every).lower(), "limit": str(limit)}
    found: Sequence[dict[str, Any]] = _document(Ask("GET", "/alerts", query), server, token)["items"]
    return found


def acknowledge_alert(
    kind: str, op_id: str, by: str | None = None, *, server: str | None = None, token: str | None = None
) -> dict[str, Any]:
    """Say that somebody has seen it; the alert."""
    return _document(Ask("POST", "/alerts/ack", body=given(kind=kind, op_id=op_id, by=by)), server, token)


def audit(*, server: str | None = None, token: str | None = None) -> dict[str, Any]:
    """The sum: everything that was started has ended, or is open with a deadline."""
    return _document(Ask("GET", "/audit", seconds=ASKING_S), server, token)


def _path(op_id: str, rest: str = "") -> str:
    return f"/operations/{quote(op_id, safe='')}{rest}"


def _document(ask: Ask, server: str | None, token: str | None) -> dict[str, Any]:
    return portal.run(Server(server, token).document(ask))
