# SPDX-License-Identifier: Apache-2.0
"""The server's own life: it listens, serves, and on SIGTERM ends everything it holds before it goes."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ..errors import UsageError
from ..sandbox.host import Host
from .app import application
from .bodies import CreateSandbox
from .connections import Acceptor, runner_for
from .front import Front
from .logs import LOG
from .metrics import Metrics
from .notify import notify
from .operations import Operations
from .settings import Settings
from .sockets import UnixListener, tcp_listener

__all__ = ["Listening", "Server", "serve"]

HURRIED_S = 0.5
SETTLE_S = 2.0  # for handlers to write their last answers


@dataclass(frozen=True, slots=True)
class Listening:
    """Where clients find it. `made_token` is one that nobody gave, to be shown once and nowhere kept."""

    socket: str | None
    address: tuple[str, int] | None
    made_token: str | None = field(default=None, repr=False)

    @property
    def urls(self) -> list[str]:
        """As DEADSTOP_SERVER takes them."""
        found = [f"unix://{self.socket}"] if self.socket else []
        if self.address is not None:
            host, port = self.address
            found.append(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
        return found


async def serve(settings: Settings, ready: Callable[[Listening], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT; return when nothing is left. A second signal hurries the end.

    `ready` is called once, when clients are taken. Raises UsageError and whatever keeps the host from its start.
    """
    server = Server(settings)
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def stopped() -> None:
        if stop.is_set():
            server.hurry.set()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped)
    try:
        listening = await server.start()
        if ready is not None:
            ready(listening)
        notify("READY=1")
        LOG.info("ready", extra={"facts": {"urls": listening.urls}})
        await stop.wait()
    finally:
        notify("STOPPING=1")
        LOG.info("stopping")
        await server.stop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


class Server:
    """A host behind its sockets, in this process and loop."""

    def __init__(self, settings: Settings) -> None:
        _check(settings)
        self.settings = settings
        self.host: Host | None = None
        self.hurry = asyncio.Event()
        self.front: Front | None = None
        self.operations = None if settings.ledger is None else Operations(settings.ledger)
        self._closing = contextlib.AsyncExitStack()

    async def start(self) -> Listening:
        """Take clients. Nothing stays behind if this fails."""
        try:
            return await self._start()
        except BaseException:
            await self._closing.aclose()
            raise

    async def _start(self) -> Listening:
        settings, closing = self.settings, self._closing
        unix = tcp = None
        if settings.socket is not None:  # first of all: a second server must not touch what the first one has
            unix = UnixListener(settings.socket)
            closing.callback(unix.close)
        made = None
        if settings.listen is not None:
            tcp = tcp_listener(*settings.listen)
            closing.callback(tcp.close)
            made = secrets.token_urlsafe(32) if settings.token is None else None
        self.host = host = await Host.start(settings.host, _log)
        closing.push_async_callback(self._close_host)
        self.front = Front(host, settings, Metrics(), token=settings.token or made, operations=self.operations)
        if self.operations is not None:
            closing.push_async_callback(self.operations.close)
            self.operations.start()
        sockets = [unix.socket] if unix else []
        await self._serve(self.front, [*sockets, tcp] if tcp else sockets)
        address = tcp.getsockname()[:2] if tcp else None
        return Listening(unix.path if unix else None, address, made)

    async def _serve(self, front: Front, sockets: list[socket.socket]) -> None:
        loop, closing, host = asyncio.get_running_loop(), self._closing, front.host
        front.metrics.follow(host)
        runner = runner_for(application(front))
        await runner.setup()
        closing.push_async_callback(runner.cleanup)
        acceptor = Acceptor(front, runner)
        front.metrics.watch(lambda: [str(each.status) for each in host.sandboxes("live")], lambda: acceptor.count)
        if front.operations is not None and not front.operations.off:
            front.metrics.watch_ledger(front.operations)
        for listener in sockets:
            unix = listener.family == socket.AF_UNIX
            listen = loop.create_unix_server if unix else loop.create_server
            accept = acceptor.of_same_user if unix and len(sockets) > 1 else acceptor
            server = await listen(accept, sock=listener)
            closing.callback(server.close)

    async def stop(self) -> None:
        """Refuse what is new, end what there is so that every answer and stream ends as it should, and go."""
        if self.front is not None:
            self.front.stopping.set()
            await self._close_host()
            await self._let_handlers_end(self.front)
        await self._closing.aclose()

    async def _close_host(self) -> None:
        host, self.host = self.host, None
        if host is None:
            return
        closing = asyncio.ensure_future(host.close(self.settings.shutdown_s))
        hurry = asyncio.ensure_future(self.hurry.wait())
        bound = self.settings.shutdown_s + SETTLE_S
        await asyncio.wait({closing, hurry}, timeout=bound, return_when=asyncio.FIRST_COMPLETED)
        if not closing.done():  # what it still holds dies with the supervisor, and that with us
            await asyncio.wait({closing}, timeout=HURRIED_S)
        hurry.cancel()
        closing.cancel()
        if closing.done() and not closing.cancelled() and (problem := closing.exception()) is not None:
            LOG.error("the host did not close", exc_info=problem)

    async def _let_handlers_end(self, front: Front) -> None:
        """The handlers have what they waited for: give them the moment to write it."""
        end = asyncio.get_running_loop().time() + (HURRIED_S if self.hurry.is_set() else SETTLE_S)
        while (front.busy or front.background) and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.01)


def _log(event: str, **facts: Any) -> None:
    LOG.info(event, extra={"facts": facts})


def _check(settings: Settings) -> None:
    """Raises UsageError for settings that no request could be served with."""
    if settings.socket is None and settings.listen is None:
        raise UsageError("neither a socket nor an address to listen on")
    if settings.token is not None and not (
        settings.token.isascii() and settings.token.isprintable() and settings.token.strip()
    ):
        raise UsageError("token: it is empty, or has characters that no header can carry")
    for name in ("", *settings.templates):
        try:
            msgspec.convert(settings.defaults_for(name or None), CreateSandbox).wish({})
        except msgspec.ValidationError as problem:
            raise UsageError(f"template {name or 'defaults'}: {problem}") from None
