# SPDX-License-Identifier: Apache-2.0
"""One server, asked over HTTP. The only file that knows httpx2, which it loads when the first connection is made."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from .. import clock
from ..errors import ServerUnreachable, UsageError
from ..places import SERVER_VARIABLE, TOKEN_VARIABLE, server_url
from .asks import Ask, Events, Reply, problem_of

if TYPE_CHECKING:
    import httpx2

CONNECT_S = 5.0
AGAIN_S = (0.05, 0.2, 0.6)  # pauses before a request whose connection broke is sent again
KEPT_S = 5.0  # an idle connection; the server closes its end after 15 s


class Broken(Exception):
    """The connection ended, or the time was over, before the answer was there. `sent`: the server may have it."""

    def __init__(self, problem: BaseException, *, sent: bool, late: bool = False) -> None:
        super().__init__(str(problem) or type(problem).__name__)
        self.sent, self.late = sent, late


class Connection:
    """Requests to one server, all on one event loop. Connections are kept and shared."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url, self._httpx2 = url, _load()
        headers = {"Accept": "application/json", "User-Agent": "deadstop"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        base, path = _place(self.url)
        limits = self._httpx2.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=KEPT_S)
        transport = self._httpx2.AsyncHTTPTransport(uds=path, limits=limits, trust_env=False)
        self._client = self._httpx2.AsyncClient(
            base_url=base, headers=headers, transport=transport, trust_env=False, follow_redirects=False
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def answer(self, ask: Ask) -> Reply:
        """Whatever the server answers. A broken connection is tried again, in bounds, where that does no harm.

        Raises ServerUnreachable if the request surely had no effect, Broken if it may have had one.
        """
        end = clock.monotonic() + ask.seconds
        sent = False
        for pause in (*AGAIN_S, None):
            try:
                return await self._once(ask, end)
            except Broken as problem:
                sent = sent or problem.sent
                if not sent:
                    raise self.unreachable(problem) from None
                if problem.late or not ask.repeatable or pause is None:
                    raise Broken(problem, sent=True, late=problem.late) from None
                await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    async def ask(self, ask: Ask) -> Reply:
        """The answer if it is a success; raises what it stands for otherwise (errors.py)."""
        try:
            reply = await self.answer(ask)
        except Broken as problem:
            raise self.unreachable(problem) from None
        if not reply.ok:
            raise problem_of(reply)
        return reply

    async def _once(self, ask: Ask, end: float) -> Reply:
        try:
            async with asyncio.timeout(max(0.0, end - clock.monotonic())):
                response = await self._client.send(self._request(ask))
        except TimeoutError as problem:
            raise Broken(problem, sent=True, late=True) from None
        except self._httpx2.TransportError as problem:
            raise self._broken(problem) from None
        return Reply(response.status_code, response.headers, response.content)

    @asynccontextmanager
    async def opened(self, ask: Ask) -> AsyncGenerator[httpx2.Response, None]:
        """The head of a streamed answer, within `ask.seconds`; leaving the block closes its connection.

        Raises what an answer that is no success stands for, and Broken.
        """
        try:
            async with asyncio.timeout(ask.seconds):
                response = await self._client.send(self._request(ask), stream=True)
        except TimeoutError as problem:
            raise Broken(problem, sent=True, late=True) from None
        except self._httpx2.TransportError as problem:
            raise self._broken(problem) from None
        try:
            if not 200 <= response.status_code < 300:
                await response.aread()
                raise problem_of(Reply(response.status_code, response.headers, response.content))
            yield response
        except self._httpx2.TransportError as problem:
            raise Broken(problem, sent=True) from None
        finally:
            await response.aclose()

    async def pieces(self, ask: Ask) -> AsyncGenerator[bytes, None]:
        """A body as it comes."""
        try:
            async with self.opened(ask) as response:
                async for data in response.aiter_bytes():
                    yield data
        except Broken as problem:
            raise self.unreachable(problem) from None

    async def events(self, ask: Ask) -> AsyncGenerator[tuple[str, Any], None]:
        """Server-sent events as they come; ends when the server ends them."""
        parser = Events()
        async for data in self.pieces(ask):
            for event in parser.feed(data):
                yield event

    def _request(self, ask: Ask) -> httpx2.Request:
        # Reading is bounded by `seconds` over all: a limit on each read would end a quiet command.
        timeout = self._httpx2.Timeout(connect=CONNECT_S, read=None, write=60.0, pool=None)
        request: httpx2.Request = self._client.build_request(
            ask.method, "/v1" + ask.path, params=dict(ask.query) or None, content=ask.data, headers=ask.headers,
            timeout=timeout,
        )  # fmt: skip
        return request

    def _broken(self, problem: Exception) -> Broken:
        return Broken(problem, sent=not isinstance(problem, self._httpx2.ConnectError | self._httpx2.ConnectTimeout))

    def unreachable(self, problem: Broken) -> ServerUnreachable:
        """The error for people, with what to do."""
        if problem.late:
            return ServerUnreachable(f"the server at {self.url} did not answer in time: is it stopped or overloaded?")
        if problem.sent:
            return ServerUnreachable(f"the server at {self.url} closed the connection: {problem}")
        return ServerUnreachable(
            f"no server at {self.url} ({problem}): start one with `deadstop serve` or set {SERVER_VARIABLE} to another"
        )


class Server:
    """A server by its place: its connection is that of whichever loop asks, in whichever process."""

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        self.url = url or server_url()
        self.token = token or os.environ.get(TOKEN_VARIABLE)

    async def answer(self, ask: Ask) -> Reply:
        return await self._here.answer(ask)

    async def ask(self, ask: Ask) -> Reply:
        return await self._here.ask(ask)

    async def document(self, ask: Ask) -> dict[str, Any]:
        return (await self.ask(ask)).document()

    def opened(self, ask: Ask) -> AbstractAsyncContextManager[httpx2.Response]:
        return self._here.opened(ask)

    def pieces(self, ask: Ask) -> AsyncGenerator[bytes, None]:
        return self._here.pieces(ask)

    def events(self, ask: Ask) -> AsyncGenerator[tuple[str, Any], None]:
        return self._here.events(ask)

    def unreachable(self, problem: Broken) -> ServerUnreachable:
        return self._here.unreachable(problem)

    @property
    def _here(self) -> Connection:
        return _connection(self.url, self.token)


def _load() -> Any:
    try:
        import httpx2
    except ImportError:
        raise UsageError("the client needs the package httpx2: install deadstop[client]") from None
    return httpx2


def _place(url: str) -> tuple[str, str | None]:
    """(base URL, path of a unix socket)"""
    if url.startswith("unix:"):
        path = url.removeprefix("unix:").removeprefix("//")
        if not path.startswith("/"):
            raise UsageError(f"server: {url!r:.120} does not name an absolute path: unix:///run/deadstop/deadstop.sock")
        return "http://localhost", path
    if url.startswith(("http://", "https://")):
        return url.rstrip("/").removesuffix("/v1"), None
    raise UsageError(f"server: {url!r:.120} is neither unix:///path nor http://host:port")


_connections: dict[tuple[int, str, str | None], tuple[asyncio.AbstractEventLoop, Connection]] = {}
_keepers: set[asyncio.Task[None]] = set()
_left_behind: list[object] = []


def _connection(url: str, token: str | None) -> Connection:
    """The running loop's connection to this server: made once, closed when the loop ends its tasks."""
    loop = asyncio.get_running_loop()
    place = (id(loop), url, token)
    known = _connections.get(place)
    if known is not None and known[0] is loop:
        return known[1]
    made = Connection(url, token)
    _connections[place] = loop, made
    keeper = loop.create_task(_keep(place, made), name="deadstop-connection")
    _keepers.add(keeper)
    keeper.add_done_callback(_keepers.discard)
    return made


async def _keep(place: tuple[int, str, str | None], made: Connection) -> None:
    """`asyncio.run` cancels what is left at its end: then nothing stays open."""
    try:
        await asyncio.Event().wait()
    finally:
        _connections.pop(place, None)
        await made.close()


def forget_all() -> None:
    """In a forked child: what was opened belongs to the parent, and is not even closed here."""
    _left_behind.extend((dict(_connections), set(_keepers)))
    _connections.clear()
    _keepers.clear()
