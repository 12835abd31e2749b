# SPDX-License-Identifier: Apache-2.0
"""Connections: how many there may be, how long a request's head may take, and what is said to what is no request."""

from __future__ import annotations

import asyncio
import logging
import resource
from http import HTTPStatus

import msgspec
from aiohttp import web

from .app import problem_response
from .front import Front
from .logs import LOG
from .problems import Problem

__all__ = ["Acceptor", "runner_for"]

LINE_BYTES = 8190
_NO_LOG = logging.Logger("deadstop.none", logging.CRITICAL)  # requests are logged in app.py, cancelled ones too
HEADERS = 128
KEPT_FREE = 64  # connections that only the unix socket can have


def runner_for(app: web.Application) -> web.AppRunner:
    """A handler is cancelled when its client goes. Bodies come as they were sent: none is unpacked."""
    return web.AppRunner(app, handle_signals=False, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)


def room_for(wanted: int) -> int:
    """How many connections there may be: at most half of the descriptors that this process may come to have.

    The rest is for sandboxes and their commands. A server without a free one could not even say that it is full.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the usual soft limit is for programs that use select
    return min(wanted, hard // 2)


class Acceptor:
    """Makes the protocol of each new connection: it is the protocol factory of the listening sockets."""

    def __init__(self, front: Front, runner: web.AppRunner) -> None:
        assert runner.server is not None  # it has been set up
        self._front, self._server = front, runner.server
        self._loop = asyncio.get_running_loop()
        self._most = room_for(front.settings.connections)
        self._coming = 0

    @property
    def count(self) -> int:
        return len(self._server.connections) + self._coming

    def __call__(self) -> asyncio.Protocol:
        return self._accept(self._most)

    def of_same_user(self) -> asyncio.Protocol:
        """For the unix socket: whoever fills the server from the network, without a token even, leaves some for it."""
        return self._accept(self._most + KEPT_FREE)

    def _accept(self, most: int) -> asyncio.Protocol:
        if self.count >= most:
            self._front.metrics.refused.labels("connections").inc()
            return _OneTooMany()
        # It is among the server's from the next turn of the loop on, and in this one many may be accepted.
        self._coming += 1
        self._loop.call_soon(self._has_come)
        return Connection(self._front, self._server, self._loop)

    def _has_come(self) -> None:
        self._coming -= 1


class Connection(web.RequestHandler):
    """One connection. An unfinished head is given `keepalive_s`, as is silence between requests."""

    __slots__ = ("_front",)

    def __init__(self, front: Front, server: web.Server, loop: asyncio.AbstractEventLoop) -> None:
        self._front = front
        super().__init__(
            server, loop=loop, logger=LOG, access_log=_NO_LOG, keepalive_timeout=front.settings.keepalive_s,
            max_line_size=LINE_BYTES, max_field_size=LINE_BYTES, max_headers=HEADERS, auto_decompress=False,
            lingering_time=2.0,
        )  # fmt: skip

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """What is no HTTP, or a head that is too large, for whoever sent it: a problem document, and the end."""
        if isinstance(exc, ConnectionError):  # its client went while the answer was written
            raise exc
        if status < 500:
            self._front.metrics.refused.labels("malformed").inc()
            problem = Problem(status, "malformed", f"this is no HTTP request: {HTTPStatus(status).phrase}")
        else:
            LOG.error("connection failed", exc_info=exc)
            problem = Problem(500, "internal", "a defect in deadstop: the server's log has more")
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already")
        response = problem_response(problem)
        response.force_close()
        return response

    def log_exception(self, *args: object, **more: object) -> None:
        """Of a connection that broke while nobody could be told."""
        self._front.metrics.refused.labels("broken").inc()


class _OneTooMany(asyncio.Protocol):
    """Says so, and closes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        problem = Problem(503, "capacity", "too many connections")
        body = msgspec.json.encode(problem.document())
        head = (
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\n"
            f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        transport.write(head.encode("ascii") + body)
        transport.close()
