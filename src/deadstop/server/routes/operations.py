# SPDX-License-Identifier: Apache-2.0
"""For whoever runs the server: health, figures, and the description of all this."""

from __future__ import annotations

from ..._version import __version__
from .. import documents as doc
from ..bodies import NoQuery
from ..front import Call
from ..metrics import CONTENT_TYPE
from ..replies import Reply
from ..route import Answer, Route

TAG = "operations"


async def get_health(call: Call[None, NoQuery]) -> Reply:
    stopping = call.front.stopping.is_set()
    operations = call.front.operations
    away = None if operations is None else operations.problem
    problem = call.host.problem or (away and f"ledger: {away}")
    document = {
        "status": "stopping" if stopping else "degraded" if problem else "ok",
        "version": __version__,
        "sandboxes": len(call.host.sandboxes("live")),
        "problem": problem,
        "ledger": "off" if operations is None or operations.off else "away" if away else "ok",
    }
    return Reply(document, 503 if stopping else 200)


async def get_metrics(call: Call[None, NoQuery]) -> Reply:
    return Reply(call.front.metrics.text(), media=CONTENT_TYPE)


async def get_openapi(call: Call[None, NoQuery]) -> Reply:
    return Reply(call.front.document)


ROUTES = (
    Route(
        method="GET", path="/healthz", handler=get_health, tag=TAG, public=True, while_stopping=True,
        summary="Whether it serves", answers={200: Answer(doc.Health, "it does"), 503: Answer(doc.Health, "it stops")},
    ),
    Route(
        method="GET", path="/metrics", handler=get_metrics, tag=TAG, while_stopping=True,
        summary="Figures for Prometheus", answers={200: Answer(None, "the figures", "text/plain")},
    ),
    Route(
        method="GET", path="/v1/openapi.json", handler=get_openapi, tag=TAG, summary="This document",
        answers={200: Answer(doc.Anything, "OpenAPI 3.1")},
    ),
)  # fmt: skip
