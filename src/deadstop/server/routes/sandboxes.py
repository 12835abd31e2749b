# SPDX-License-Identifier: Apache-2.0
"""Sandboxes: made, found, listed, extended, paused, ended."""

from __future__ import annotations

from asyncio import BaseTransport

from .. import documents as doc
from ..access import peer_uid
from ..bodies import CreateSandbox, Extend, ListQuery, NoQuery, PatchLifecycle
from ..front import Call
from ..replies import Reply
from ..route import Answer, Route

TAG = "sandboxes"
ROOT = "/v1/sandboxes"
ONE = f"{ROOT}/{{ref}}"
_SANDBOX = {200: Answer(doc.Sandbox, "the sandbox")}


async def create_sandbox(call: Call[CreateSandbox, NoQuery]) -> Reply:
    body = call.body
    wish = body.wish(call.settings.defaults_for(body.template if isinstance(body.template, str) else None))
    sandbox = await call.host.create(wish, key=call.key, owner=_owner(call.request.transport))
    if call.gone and call.key is None:  # nobody knows of it, and nobody can ask
        await sandbox.kill("owner_gone", "its creator went away before it was told of it")
    return Reply(sandbox.document(), 201, {"Location": f"{ROOT}/{sandbox.id}"})


def _owner(transport: BaseTransport | None) -> dict[str, int | str]:
    """Who asked, as far as the connection says."""
    uid = peer_uid(transport)
    if uid is not None:
        return {"uid": uid}
    peer = None if transport is None else transport.get_extra_info("peername")
    return {"address": str(peer[0])} if peer else {}


async def list_sandboxes(call: Call[None, ListQuery]) -> Reply:
    found = call.host.sandboxes(call.query.state, metadata=call.query.metadata)
    return Reply({"items": [sandbox.document() for sandbox in found]})


async def get_sandbox(call: Call[None, NoQuery]) -> Reply:
    return Reply(call.sandbox.document())


async def kill_sandbox(call: Call[None, NoQuery]) -> Reply:
    sandbox = call.sandbox
    await sandbox.kill("killed", "by request")
    return Reply(sandbox.document())


async def pause_sandbox(call: Call[None, NoQuery]) -> Reply:
    sandbox = call.sandbox
    await sandbox.pause()
    return Reply(sandbox.document())


async def resume_sandbox(call: Call[None, NoQuery]) -> Reply:
    sandbox = call.sandbox
    await sandbox.resume()
    return Reply(sandbox.document())


async def extend_sandbox(call: Call[Extend, NoQuery]) -> Reply:
    return Reply(await call.sandbox.extend(call.body.seconds, key=call.key))


async def get_lifecycle(call: Call[None, NoQuery]) -> Reply:
    return Reply(call.sandbox.lifecycle())


async def patch_lifecycle(call: Call[PatchLifecycle, NoQuery]) -> Reply:
    sandbox, body = call.sandbox, call.body
    if isinstance(body.ttl_seconds, float):
        await sandbox.set_ttl(body.ttl_seconds)
    if isinstance(body.persistent, bool):
        await sandbox.set_persistent(body.persistent)
    return Reply(call.sandbox.lifecycle())


async def list_ports(call: Call[None, NoQuery]) -> Reply:
    call.host.find(call.path["ref"])
    return Reply({"ports": []})


ROUTES = (
    Route(
        method="POST", path=ROOT, handler=create_sandbox, tag=TAG, keyed=True, waits=True, body=CreateSandbox,
        summary="Make a sandbox", errors=(404, 409, 410, 429, 501, 507),
        answers={201: Answer(doc.Sandbox, "made", headers={"Location": "the sandbox"})},
        example={"template": "python", "ttl_seconds": 900, "metadata": {"task": "42"}},
    ),
    Route(
        method="GET", path=ROOT, handler=list_sandboxes, tag=TAG, query=ListQuery, while_stopping=True,
        summary="List sandboxes; metadata.KEY=VALUE keeps those that carry it",
        answers={200: Answer(doc.Sandboxes, "those there are, and those that ended without being asked to")},
    ),
    Route(
        method="GET", path=ONE, handler=get_sandbox, tag=TAG, answers=_SANDBOX, while_stopping=True,
        summary="One sandbox, also after its end",
    ),
    Route(
        method="DELETE", path=ONE, handler=kill_sandbox, tag=TAG, answers=_SANDBOX, waits=True, while_stopping=True,
        errors=(409,),
        summary="End it; again and again is the same. The answer comes when nothing of it is left, with the receipt",
    ),
    Route(
        method="POST", path=f"{ONE}/pause", handler=pause_sandbox, tag=TAG, answers=_SANDBOX, errors=(409, 410),
        summary="Stop all its processes; the time of its life goes on",
    ),
    Route(
        method="POST", path=f"{ONE}/resume", handler=resume_sandbox, tag=TAG, answers=_SANDBOX, errors=(409, 410),
        summary="Let its processes go on",
    ),
    Route(
        method="POST", path=f"{ONE}/extend", handler=extend_sandbox, tag=TAG, keyed=True, body=Extend,
        summary="Give it more life, up to the server's maximum", errors=(409, 410),
        answers={200: Answer(doc.Extended, "its new end")}, example={"seconds": 300},
    ),
    Route(
        method="GET", path=f"{ONE}/lifecycle", handler=get_lifecycle, tag=TAG, summary="How long it has",
        answers={200: Answer(doc.Lifecycle, "its life")},
    ),
    Route(
        method="PATCH", path=f"{ONE}/lifecycle", handler=patch_lifecycle, tag=TAG, body=PatchLifecycle,
        summary="Another life, from now on", errors=(409, 410), answers={200: Answer(doc.Lifecycle, "its life")},
        example={"ttl_seconds": 600},
    ),
    Route(
        method="GET", path=f"{ONE}/ports", handler=list_ports, tag=TAG, summary="Ports that lead into it: none",
        answers={200: Answer(doc.Ports, "no ports")},
    ),
)  # fmt: skip
