# SPDX-License-Identifier: Apache-2.0
"""Sessions: a shell or a Python interpreter that keeps its state between runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...results import Status
from .. import documents as doc
from ..answers import Ended, exit_code_of, exit_reply
from ..bodies import ExecCommand, NoQuery, OpenSession, RunCode
from ..front import Call
from ..problems import Problem
from ..replies import Reply
from ..route import Answer, Route
from .sandboxes import ONE

if TYPE_CHECKING:
    from ...sandbox.sessions import SessionAnswer

TAG = "sessions"
SESSIONS = f"{ONE}/repl/sessions"
SESSION = f"{SESSIONS}/{{sid}}"
DEFAULT_RUN_S = 300.0


async def open_session(call: Call[OpenSession, NoQuery]) -> Reply:
    session = await call.sandbox.sessions.open(call.body.kind)
    if call.gone:
        await call.sandbox.sessions.close(session.id)
    return Reply(session.document(), 201)


async def list_sessions(call: Call[None, NoQuery]) -> Reply:
    return Reply({"items": [session.document() for session in call.sandbox.sessions.all()]})


async def run_code(call: Call[RunCode, NoQuery]) -> Reply:
    """A run that ends by itself is 200 whatever the code raised; one that met its limit is told as a command is."""
    body = call.body
    seconds = 30.0 if body.timeout_ms is None else body.timeout_ms / 1000
    answer = await call.sandbox.sessions.get(call.path["sid"]).run(body.code, seconds)
    if answer.result.status in (Status.TIMEOUT, Status.REFUSED) or exit_code_of(answer.result) is None:
        reply = exit_reply(_ended(answer))
        told = answer.document()
        reply.document.update({name: told[name] for name in ("session_ended", "generation", "notes", "results")})
        return reply
    return Reply(answer.document())


async def close_session(call: Call[None, NoQuery]) -> Reply:
    await call.sandbox.sessions.close(call.path["sid"])
    return Reply(None, 204)


async def run_in_session(call: Call[ExecCommand, NoQuery], session_id: str) -> Reply:
    """A command of /exec that a shell session runs, so that its state stays."""
    body = call.body
    if not isinstance(body.cmd, str) or body.background or body.stdin is not None or body.stdin_base64 is not None:
        raise Problem(422, "usage", "session: takes cmd as text, in the foreground and without stdin")
    session = call.sandbox.sessions.get(session_id)
    if session.language != "bash":
        raise Problem(422, "usage", f"session: {session_id} is one of {session.language}, not of bash")
    seconds = DEFAULT_RUN_S if body.timeout_seconds is None else body.timeout_seconds
    answer = await session.run(body.cmd, seconds, tail=int(body.tail_bytes))
    reply = exit_reply(_ended(answer))
    if reply.status == 200:
        reply.document.update(exit_code=answer.exit)
    reply.document.update(session_ended=answer.session_ended)
    return reply


def _ended(answer: SessionAnswer) -> Ended:
    result = answer.result
    truncated = result.stdout.truncated or result.stderr.truncated
    return Ended(result.call_id, result, answer.stdout, answer.stderr, truncated)


ROUTES = (
    Route(
        method="POST", path=SESSIONS, handler=open_session, tag=TAG, body=OpenSession, errors=(409, 410, 429),
        summary="Open a session of python or bash", answers={201: Answer(doc.Session, "open")},
        example={"language": "python"},
    ),
    Route(
        method="GET", path=SESSIONS, handler=list_sessions, tag=TAG, summary="Its open sessions",
        answers={200: Answer(doc.Sessions, "the sessions")},
    ),
    Route(
        method="POST", path=f"{SESSION}/run", handler=run_code, tag=TAG, body=RunCode, waits=True, follows_client=True,
        errors=(409, 410, 504), summary="Run code in it; session_ended says that its state is lost",
        answers={200: Answer(doc.SessionRun, "it ran")}, example={"code": "1 + 1", "timeout_ms": 5000},
    ),
    Route(
        method="DELETE", path=SESSION, handler=close_session, tag=TAG, summary="Close it; also one that is gone",
        answers={204: Answer(None, "closed")},
    ),
)  # fmt: skip

__all__ = ["ROUTES", "run_in_session"]
