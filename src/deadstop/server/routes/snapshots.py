# SPDX-License-Identifier: Apache-2.0
"""Snapshots and forks: a sandbox's writable layer, kept or doubled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import documents as doc
from ..bodies import Fork, ForkTree, NoQuery, OfSandbox, Promote, TakeSnapshot
from ..front import Call
from ..replies import Reply
from ..route import Answer, Route
from .sandboxes import ONE

if TYPE_CHECKING:
    from ...sandbox.forks import Forked

TAG = "snapshots"
ALL = "/v1/snapshots"
SNAPSHOT = f"{ALL}/{{id}}"
FULL = (409, 410, 429, 507)


async def take_snapshot(call: Call[TakeSnapshot, NoQuery]) -> Reply:
    snapshot = await call.host.snapshots.take(call.sandbox, call.body.name)
    return Reply(snapshot.document(), 201)


async def list_snapshots(call: Call[None, OfSandbox]) -> Reply:
    found = call.host.snapshots.items(call.query.sandbox_id)
    return Reply({"snapshots": [each.document() for each in found]})


async def get_snapshot(call: Call[None, NoQuery]) -> Reply:
    return Reply(call.host.snapshots.get(call.path["id"]).document())


async def delete_snapshot(call: Call[None, NoQuery]) -> Reply:
    await call.host.snapshots.delete(call.path["id"])
    return Reply(None, 204)


async def fork_sandbox(call: Call[Fork, NoQuery]) -> Reply:
    body = call.body
    made = await call.host.forks.fork(
        call.sandbox, 1, metadata=body.metadata, name=body.name, key=call.key, attached=body.attached
    )
    await _undo_if_unknown(call, made)
    return Reply({"sandbox": made.children[0].document(), **_how(made)}, 201)


async def fork_tree(call: Call[ForkTree, NoQuery]) -> Reply:
    body = call.body
    made = await call.host.forks.fork(
        call.sandbox, int(body.count), metadata=body.metadata, key=call.key, attached=body.attached
    )
    await _undo_if_unknown(call, made)
    return Reply({"children": [child.document() for child in made.children], **_how(made)}, 201)


async def promote_sandbox(call: Call[Promote, NoQuery]) -> Reply:
    body = call.body
    return Reply(await call.host.forks.promote(call.sandbox, body.tree_id, cleanup_siblings=body.cleanup_siblings))


async def hibernate_sandbox(call: Call[None, NoQuery]) -> Reply:
    sandbox = call.sandbox
    await call.host.snapshots.take(sandbox, None)
    await sandbox.kill("killed", "hibernated: wake resumes it from its snapshot")
    return Reply(sandbox.document())


async def wake_sandbox(call: Call[None, NoQuery]) -> Reply:
    woken = await call.host.resume(call.sandbox, key=call.key)
    return Reply(woken.document())


async def _undo_if_unknown(call: Call[Any, Any], made: Forked) -> None:
    """Their client went away before it was told of them, and cannot ask."""
    if call.gone and call.key is None:
        for child in made.children:
            await child.kill("owner_gone", "its creator went away before it was told of it")


def _how(made: Forked) -> dict[str, Any]:
    return {"tree_id": made.tree_id, "how": made.how, "pause_ms": round(made.pause_ms, 2)}


ROUTES = (
    Route(
        method="POST", path=f"{ONE}/snapshots", handler=take_snapshot, tag=TAG, body=TakeSnapshot, waits=True,
        summary="Take a snapshot; a running sandbox is stopped for as long as pause_ms says", errors=FULL,
        answers={201: Answer(doc.Snapshot, "taken")},
    ),
    Route(
        method="GET", path=ALL, handler=list_snapshots, tag=TAG, query=OfSandbox, summary="All snapshots",
        answers={200: Answer(doc.Snapshots, "the snapshots")},
    ),
    Route(
        method="GET", path=SNAPSHOT, handler=get_snapshot, tag=TAG, summary="One snapshot",
        answers={200: Answer(doc.Snapshot, "the snapshot")},
    ),
    Route(
        method="DELETE", path=SNAPSHOT, handler=delete_snapshot, tag=TAG, summary="Delete it", errors=(409,),
        answers={204: Answer(None, "deleted")},
    ),
    Route(
        method="POST", path=f"{ONE}/fork", handler=fork_sandbox, tag=TAG, body=Fork, keyed=True, waits=True,
        summary="Another sandbox with the same files, and the same end", errors=FULL,
        answers={201: Answer(doc.Forked, "forked")},
    ),
    Route(
        method="POST", path=f"{ONE}/fork-tree", handler=fork_tree, tag=TAG, body=ForkTree, keyed=True, waits=True,
        summary="Up to 16 of them at once", errors=FULL, answers={201: Answer(doc.ForkedTree, "forked")},
        example={"count": 3},
    ),
    Route(
        method="POST", path=f"{ONE}/promote", handler=promote_sandbox, tag=TAG, body=Promote, waits=True,
        summary="Keep this one; with cleanup_siblings the others of its tree end, with receipts", errors=(409, 410),
        answers={200: Answer(doc.Promoted, "promoted")},
    ),
    Route(
        method="POST", path=f"{ONE}/hibernate", handler=hibernate_sandbox, tag=TAG, waits=True, errors=FULL,
        summary="Take a snapshot, then end it", answers={200: Answer(doc.Sandbox, "it has ended")},
    ),
    Route(
        method="POST", path=f"{ONE}/wake", handler=wake_sandbox, tag=TAG, keyed=True, waits=True, errors=FULL,
        summary="A new sandbox from its last snapshot; the old id leads to it",
        answers={200: Answer(doc.Sandbox, "the new sandbox")},
    ),
)  # fmt: skip
