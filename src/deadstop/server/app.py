# SPDX-License-Identifier: Apache-2.0
"""The application: what every request goes through before and after its handler."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from .access import admit, check_source, is_same_user, peer_uid
from .front import Call, Front
from .incoming import check_head, read_body, read_key, read_query, uploaded
from .interim import with_interim
from .logs import LOG
from .openapi import openapi
from .problems import Problem, problem_of, problem_reply
from .replies import Download, Events, Reply, Text
from .route import Route
from .routes import ROUTES
from .sse import send_download, send_events

__all__ = ["application", "problem_response"]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

GONE = 499  # in the log: the client went away first
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_NOWHERE = Problem(404, "not_found", "no such path")
_encode = msgspec.json.Encoder().encode


def application(front: Front) -> web.Application:
    """The aiohttp application of `front`."""
    app = web.Application(middlewares=[_middleware(front)])
    app.on_response_prepare.append(_mark)
    front.document = _encode(openapi(ROUTES))
    for route in ROUTES:
        handler = _handler(front, route)
        if route.method == "GET" and not route.streams:
            app.router.add_get(route.path, handler, allow_head=True)
        else:
            app.router.add_route(route.method, route.path, handler)
    return app


def _handler(front: Front, route: Route) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        if front.stopping.is_set() and not route.while_stopping:
            raise Problem(503, "stopping", "the server is about to stop", retry_after=2)
        reply = await _reply(front, route, request)
        return await _send(front, request, reply)

    handle.route = route  # type: ignore[attr-defined]
    return handle


async def _reply(front: Front, route: Route, request: web.Request) -> Any:
    settings = front.settings
    call: Call[Any, Any] = Call(
        front=front,
        path=request.match_info,
        query=read_query(route, request.rel_url.raw_query_string),
        key=read_key(request),
        body=await read_body(settings, route, request),
        request=request,
        uploaded=lambda most: uploaded(settings, request, most, settings.upload_s),
        same_user=is_same_user(request.transport),
    )
    work = route.handler(call)
    if request.method not in ("GET", "HEAD") and not route.follows_client:
        work = _settled(front, call, work)
    return await (with_interim(request, work, settings.interim_s) if route.waits else work)


async def _settled(front: Front, call: Call[Any, Any], work: Awaitable[Any]) -> Any:
    """Bring `work` to its end even if the client goes: half a change is worse than one that nobody heard of."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        call.gone = True
        front.finish(task)
        raise


async def _send(front: Front, request: web.Request, reply: Any) -> web.StreamResponse:
    match reply:
        case Reply():
            return _response(reply)
        case Text():
            return web.Response(text=reply.text, content_type=reply.media, charset="utf-8")
        case Events():
            return await send_events(front, request, reply)
        case Download():
            return await send_download(request, reply)
        case web.StreamResponse():
            return reply
    raise TypeError(f"a handler gave {type(reply).__name__}")


def _response(reply: Reply) -> web.Response:
    if reply.document is None:
        return web.Response(status=reply.status, headers=reply.headers)
    body = reply.document if isinstance(reply.document, bytes) else _encode(reply.document)
    return web.Response(body=body, status=reply.status, headers={**reply.headers, "Content-Type": reply.media})


def problem_response(problem: Problem) -> web.Response:
    response = _response(problem_reply(problem))
    if problem.headers.get("Connection") == "close":
        response.force_close()
    return response


def _middleware(front: Front) -> Any:
    @web.middleware
    async def through(request: web.Request, handler: Handler) -> web.StreamResponse:
        seen = _Seen(front, request)
        front.busy += 1
        try:
            response = await _answered(front, request, handler, seen)
        except (asyncio.CancelledError, ConnectionError):
            seen.log(GONE)
            raise
        finally:
            front.busy -= 1
        seen.log(response.status, response)
        return response

    return through


async def _answered(front: Front, request: web.Request, handler: Handler, seen: _Seen) -> web.StreamResponse:
    """The response, or the problem document of whatever went wrong before a head was sent."""
    try:
        check_head(front.settings, request)
        check_source(front, request.transport, request.headers)
        if seen.route is None or not seen.route.public:
            admit(front, request.transport, request.headers)
        response = await handler(request)
    except web.HTTPException as refusal:
        response = problem_response(_of_aiohttp(refusal))
    except ConnectionError:
        raise
    except Exception as error:
        problem = problem_of(error)
        if problem.status == 500 and not isinstance(error, Problem):
            LOG.exception("handler failed", extra={"facts": {"id": seen.id}})
        if request.writer.output_size > 0:  # half an answer is out: its end must not look like a whole one
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the answer broke off") from None
        response = problem_response(problem)
    return response


async def _mark(request: web.Request, response: web.StreamResponse) -> None:
    """What every answer carries, streams too."""
    response.headers["X-Request-Id"] = request.get("id", "")
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Cache-Control"] = "no-store"


def _of_aiohttp(refusal: web.HTTPException) -> Problem:
    if isinstance(refusal, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(refusal.allowed_methods))
        return Problem(405, "method", f"allowed: {allowed}", headers={"Allow": allowed})
    if refusal.status == 404:
        return _NOWHERE
    return Problem(refusal.status, "refused", refusal.reason or "refused")


class _Seen:
    """One request for the log and the figures. Of its path only what the table of routes knows, and who asked."""

    def __init__(self, front: Front, request: web.Request) -> None:
        given = request.headers.get("X-Request-Id", "")
        self.id = request["id"] = given if _REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex[:20]}"
        self.route: Route | None = getattr(request.match_info.handler, "route", None)
        self._front, self._request, self._began = front, request, time.perf_counter()

    def log(self, status: int, response: web.StreamResponse | None = None) -> None:
        request, route = self._request, self.route
        path = "none" if route is None else route.path
        seconds = time.perf_counter() - self._began
        method = request.method if route is not None else "other"
        self._front.metrics.requests.labels(method, path, str(status)).inc()
        if route is not None and not route.streams:
            self._front.metrics.request_seconds.labels(path).observe(seconds)
        uid = peer_uid(request.transport)
        facts = {
            "id": self.id,
            "method": request.method[:16],
            "route": path,
            **{name: value[:128] for name, value in request.match_info.items()},
            "status": status,
            "ms": round(seconds * 1000, 1),
            "bytes": getattr(response, "body_length", 0) or getattr(response, "content_length", 0) or 0,
            "peer": request.remote if uid is None else f"uid {uid}",
        }
        LOG.info("request", extra={"facts": facts})
