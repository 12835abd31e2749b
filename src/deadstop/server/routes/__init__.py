# SPDX-License-Identifier: Apache-2.0
"""The table of all routes: what the server serves and what the OpenAPI document says are both made from it."""

from __future__ import annotations

from ..route import Route
from . import events, execs, files, ledger, operations, sandboxes, sessions, snapshots, streams, templates

__all__ = ["ROUTES"]

ROUTES: tuple[Route, ...] = (
    *sandboxes.ROUTES,
    *execs.ROUTES,
    *streams.ROUTES,
    *files.ROUTES,
    *sessions.ROUTES,
    *snapshots.ROUTES,
    *templates.ROUTES,
    *events.ROUTES,
    *ledger.ROUTES,
    *operations.ROUTES,
)
