# SPDX-License-Identifier: Apache-2.0
"""Commands: run, looked at, written to, signalled, ended. A foreground one ends with its client's connection."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...errors import NotFound
from .. import documents as doc
from ..answers import exit_reply
from ..bodies import ExecCommand, NoQuery, OutputQuery, Signal, StdinQuery, WaitQuery
from ..commands import command_events, ended, started, watched
from ..front import Call
from ..replies import EVENTS, Events, Reply, Text
from ..route import Answer, Route
from ..signals import signal_number
from .sandboxes import ONE
from .sessions import run_in_session

if TYPE_CHECKING:
    from ...sandbox.execs import Exec

TAG = "execs"
EXECS = f"{ONE}/execs"
EXEC = f"{EXECS}/{{eid}}"
COMMAND_ERRORS = (409, 410, 504)
_EXEC = {200: Answer(doc.Exec, "the command")}
STDIN_BYTES = 32 << 20


async def run_command(call: Call[ExecCommand, NoQuery]) -> Reply:
    if call.body.session is not None:
        return await run_in_session(call, call.body.session)
    background = call.body.background
    wish = call.body.wish(background=background, keep_stdin=background and call.body.keep_stdin)
    command = await started(call, wish)
    if command.background:
        return Reply({"exec_id": command.id, "status": command.status}, 202)
    result = await watched(command)
    return exit_reply(ended(command, result))


async def list_execs(call: Call[None, NoQuery]) -> Reply:
    known = [command.document(brief=True) for command in call.sandbox.execs.values()]
    return Reply({"items": known or [_brief(document) for document in await kept(call)]})


async def get_exec(call: Call[None, NoQuery]) -> Reply:
    return Reply(await _document(call))


async def get_exec_output(call: Call[None, OutputQuery]) -> Text | Events:
    query = call.query
    if query.follow:
        command = _exec(call)
        return Events(command_events(command, query.stream), {"X-Deadstop-Exec": command.id})
    return Text(tail_of(await _document(call), query.stream))


async def signal_exec(call: Call[Signal, NoQuery]) -> Reply:
    command = _exec(call)
    command.signal(signal_number(call.body.signal))
    return Reply(command.document())


async def write_stdin(call: Call[None, StdinQuery]) -> Reply:
    command = _exec(call)
    async for chunk in call.uploaded(STDIN_BYTES):
        await command.write(chunk)
    if call.query.close:
        command.close_stdin()
    return Reply(command.document())


async def wait_exec(call: Call[None, WaitQuery]) -> Reply:
    command = _exec(call)
    await command.wait(call.query.timeout_s)
    return Reply(command.document())


async def cancel_exec(call: Call[None, NoQuery]) -> Reply:
    command = _exec(call)
    command.cancel()
    await command.wait()
    return Reply(command.document())


async def kept(call: Call[Any, Any]) -> list[dict[str, Any]]:
    """The documents of the commands of a sandbox that an earlier server had."""
    sandbox = call.sandbox
    if sandbox.execs or sandbox.record.live:
        return []
    return await asyncio.to_thread(call.host.outputs.read, sandbox.id)


def tail_of(document: Mapping[str, Any], stream: str) -> str:
    """What is kept of its output."""
    return "".join(document[f"{name}_tail"] for name in ("stdout", "stderr") if stream in ("both", name))


def _brief(document: Mapping[str, Any]) -> dict[str, Any]:
    result = document["result"]
    names = ("exec_id", "id", "sandbox_id", "cmd", "status", "background", "started_at", "exit_code")
    return {**{name: document[name] for name in names}, "outcome": result["status"] if result else None}


async def _document(call: Call[Any, Any]) -> dict[str, Any]:
    name = call.path["eid"]
    if name not in call.sandbox.execs:
        for document in await kept(call):
            if document["exec_id"] == name:
                return document
    return _exec(call).document()


def _exec(call: Call[Any, Any]) -> Exec:
    name = call.path["eid"]
    found = call.sandbox.execs.get(name)
    if found is None:
        raise NotFound("exec", name)
    return found


ROUTES = (
    Route(
        method="POST", path=f"{ONE}/exec", handler=run_command, tag=TAG, body=ExecCommand, keyed=True, waits=True,
        follows_client=True, errors=COMMAND_ERRORS,
        summary="Run a command and wait for its end. Where its limit fires: 504, with its output and result",
        answers={
            200: Answer(doc.ExecDone, "it ended by itself, with whatever exit code"),
            202: Answer(doc.ExecStarted, "it runs in the background"),
        },
        example={"cmd": "echo hello", "timeout_seconds": 10},
    ),
    Route(
        method="GET", path=EXECS, handler=list_execs, tag=TAG, summary="Its commands, ended ones too",
        answers={200: Answer(doc.Execs, "the commands")},
    ),
    Route(method="GET", path=EXEC, handler=get_exec, tag=TAG, summary="One command", answers=_EXEC),
    Route(
        method="GET", path=f"{EXEC}/output", handler=get_exec_output, tag=TAG, query=OutputQuery,
        summary="What it printed, as far as it was kept; with follow=true as a stream of events until it ends",
        answers={200: Answer(None, "the output", "text/plain", also=EVENTS)},
    ),
    Route(
        method="POST", path=f"{EXEC}/signal", handler=signal_exec, tag=TAG, body=Signal, answers=_EXEC, errors=(409,),
        summary="Send it a signal", example={"signal": "SIGINT"},
    ),
    Route(
        method="POST", path=f"{EXEC}/stdin", handler=write_stdin, tag=TAG, query=StdinQuery, errors=(409,),
        upload="application/octet-stream", summary="Write to its stdin; close=true ends it", answers=_EXEC,
    ),
    Route(
        method="GET", path=f"{EXEC}/wait", handler=wait_exec, tag=TAG, query=WaitQuery, waits=True, answers=_EXEC,
        summary="Wait until it has ended, or for timeout_s",
    ),
    Route(
        method="DELETE", path=EXEC, handler=cancel_exec, tag=TAG, waits=True, answers=_EXEC, while_stopping=True,
        summary="Cancel it; the answer comes when nothing of it is left",
    ),
)  # fmt: skip
