# SPDX-License-Identifier: Apache-2.0
"""What happens to sandboxes, as it happens; and the connection that an attached one lives by."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from ..bodies import NoQuery
from ..front import Call
from ..replies import EVENTS, Event, Events
from ..route import Answer, Route
from .sandboxes import ONE

if TYPE_CHECKING:
    from ...sandbox.host import Host
    from ...sandbox.sandbox import Sandbox

TAG = "events"
_EVENTS = {200: Answer(None, "the events: the name is the event's type", EVENTS)}


async def all_events(call: Call[None, NoQuery]) -> Events:
    return Events(_told(call.host, None))


async def sandbox_events(call: Call[None, NoQuery]) -> Events:
    sandbox = call.sandbox
    sandbox.check_live()
    return Events(_told(call.host, sandbox.id))


async def attach_to_sandbox(call: Call[None, NoQuery]) -> Events:
    sandbox = call.sandbox
    sandbox.check_live()
    return Events(_attached(call.host, sandbox), ends_on_stop=False)


async def _told(host: Host, sandbox_id: str | None) -> AsyncGenerator[Event, None]:
    source = host.events.listen(sandbox_id)
    try:
        async for event in source:
            if event["type"] == "ended":
                event = {**event, "end": host.find(event["sandbox_id"]).document()["end"]}
            yield Event(str(event["type"]), event)
    finally:
        await source.aclose()


async def _attached(host: Host, sandbox: Sandbox) -> AsyncGenerator[Event, None]:
    """The same, and while it is read the sandbox has its owner."""
    told = _told(host, sandbox.id)
    async with sandbox.attachment():
        try:
            yield Event("attached", {"type": "attached", "sandbox_id": sandbox.id})
            async for event in told:
                yield event
        finally:
            await told.aclose()


ROUTES = (
    Route(
        method="GET", path="/v1/events", handler=all_events, tag=TAG, answers=_EVENTS,
        summary="Events of all sandboxes from now on",
    ),
    Route(
        method="GET", path=f"{ONE}/events", handler=sandbox_events, tag=TAG, answers=_EVENTS, errors=(410,),
        summary="Events of one sandbox, from now until it has ended",
    ),
    Route(
        method="GET", path=f"{ONE}/attach", handler=attach_to_sandbox, tag=TAG, answers=_EVENTS, errors=(410,),
        summary="The same; an attached sandbox ends with the last connection of this kind",
    ),
)  # fmt: skip
