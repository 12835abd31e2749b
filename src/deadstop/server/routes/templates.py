# SPDX-License-Identifier: Apache-2.0
"""Templates: what a sandbox begins with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from ...errors import DeadstopError
from .. import documents as doc
from ..bodies import Build, NoQuery
from ..front import Call
from ..problems import Problem, problem_of
from ..replies import EVENTS, Event, Events, Reply
from ..route import Answer, Route

TAG = "templates"
ALL = "/v1/templates"
TEMPLATE = f"{ALL}/{{name}}"


async def list_templates(call: Call[None, NoQuery]) -> Reply:
    return Reply({"items": [template.document() for template in call.host.templates.items()]})


async def get_template(call: Call[None, NoQuery]) -> Reply:
    return Reply(call.host.templates.resolve(call.path["name"]).document())


async def delete_template(call: Call[None, NoQuery]) -> Reply:
    await call.host.templates.delete(call.path["name"])
    return Reply(None, 204)


async def build_template(call: Call[Build, NoQuery]) -> Events:
    if call.body.folder is not None and not call.same_user:
        raise Problem(403, "denied", "folder: only over the unix socket, for the server's own user")
    return Events(_built(call))


async def _built(call: Call[Build, NoQuery]) -> AsyncGenerator[Event, None]:
    """A line for each step, and how it ended. If its reader goes, so does the build."""
    body = call.body
    lines: asyncio.Queue[str | None] = asyncio.Queue()
    task = asyncio.ensure_future(
        call.host.build_template(
            body.name, base=body.base, folder=body.folder, pypi=body.pypi, debian=body.debian, log=lines.put_nowait
        )
    )
    task.add_done_callback(lambda done: lines.put_nowait(None))
    try:
        while (line := await lines.get()) is not None:
            yield Event("line", {"line": line})
        yield Event("done", {"template": task.result().document()})
    except DeadstopError as failure:
        problem = problem_of(failure)
        yield Event("error", {"error": problem.detail, "kind": problem.kind, "status": problem.status})
    finally:
        task.cancel()
        await asyncio.wait([task])


ROUTES = (
    Route(
        method="GET", path=ALL, handler=list_templates, tag=TAG, summary="All templates",
        answers={200: Answer(doc.Templates, "the templates")},
    ),
    Route(
        method="POST", path=f"{ALL}/build", handler=build_template, tag=TAG, body=Build, follows_client=True,
        errors=(404, 409, 507), summary="Build one: events line {line}, then done {template} or error {error}",
        answers={200: Answer(None, "the events", EVENTS)}, example={"name": "data", "pypi": ["six"]},
    ),
    Route(
        method="GET", path=TEMPLATE, handler=get_template, tag=TAG, summary="One template",
        answers={200: Answer(doc.Template, "the template")},
    ),
    Route(
        method="DELETE", path=TEMPLATE, handler=delete_template, tag=TAG, summary="Delete it", errors=(409,),
        answers={204: Answer(None, "deleted")},
    ),
)  # fmt: skip
