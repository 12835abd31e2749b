# SPDX-License-Identifier: Apache-2.0
"""A sandbox as async code sees it. The blocking face (synchronous.py) is this one, waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from .. import clock
from ..clock import boottime
from ..errors import DeadstopError, NotFound, SandboxEnded
from ..executor.prepare import DEFAULT, Default
from ..results import Receipt, ToolResult
from . import bodies, execs
from .asks import LONG_S, Ask, new_key, sandbox_path
from .connection import Server
from .execs import Command, Wish
from .files import AsyncFiles
from .holding import Holding
from .hooks import STOP_MOST_S, Hooks
from .process import AsyncProcess, AsyncSession
from .running import Budgeted, Piece, Running, whole
from .view import Known, View

if TYPE_CHECKING:
    from ..executor.tool import Call

OnOutput = Callable[[str, bytes], object]


class AsyncSandbox(Known):
    """The async twin of `Sandbox`: the same methods with the same promises, awaited.

    It belongs to the event loop that it was made on; connections are closed when that loop ends.
    """

    def __init__(self, server: Server, view: View, hooks: Hooks | None = None) -> None:
        """Use `create`, `connect` or `list`."""
        self._server, self._view, self._hooks = server, view, hooks
        self._holding: Holding | None = None
        self._owned = False  # made attached, or forked from one that was
        self._face: Any = self  # what hooks are given
        self.files = AsyncFiles(server, self._ref)

    # -- making and finding --------------------------------------------------------------------------------------

    @classmethod
    async def create(
        cls, template: str = "base", ttl: float = 3600.0, *, server: str | None = None, token: str | None = None,
        detached: bool = False, **options: Any,
    ) -> Self:  # fmt: skip
        """See `Sandbox.create`."""
        body, hooks = bodies.create(template, ttl, detached=detached, **options)
        place = Server(server, token)
        ask = Ask("POST", "/sandboxes", body=body, key=new_key(), seconds=LONG_S)
        return await cls._made(place, ask, hooks)

    @classmethod
    async def connect(
        cls, ref: str, *, resume: bool = False, server: str | None = None, token: str | None = None
    ) -> Self:
        """See `Sandbox.connect`."""
        found = cls(Server(server, token), View())
        await found.refresh(ref)
        if resume and found.status == "paused":
            await found.resume()
        elif resume and found.status == "ended":
            await found._take(Ask("POST", sandbox_path(found.id, "wake"), key=new_key(), seconds=LONG_S))
        return found

    @classmethod
    async def list(
        cls, state: str = "present", metadata: Mapping[str, str] | None = None, *, server: str | None = None,
        token: str | None = None,
    ) -> Sequence[Self]:  # fmt: skip
        """See `Sandbox.list`."""
        place = Server(server, token)
        query = {"state": state, **{f"metadata.{name}": value for name, value in (metadata or {}).items()}}
        asked_at = boottime()
        found = (await place.document(Ask("GET", "/sandboxes", query)))["items"]
        return [cls._seen(place, document, asked_at) for document in found]

    @classmethod
    def _seen(cls, server: Server, document: Mapping[str, Any], asked_at: float) -> Self:
        view = View()
        view.take(document, asked_at)
        return cls(server, view)

    @classmethod
    async def _made(cls, server: Server, ask: Ask, hooks: Hooks | None) -> Self:
        asked_at = boottime()
        made = cls._seen(server, await server.document(ask), asked_at)
        made._hooks, made._owned = hooks, bool(made.document.get("attached"))
        try:
            await made._hold()
        except BaseException:
            await asyncio.shield(made._deleted())
            raise
        return made

    async def _hold(self) -> None:
        """Open the stream that an attached sandbox lives by, or that hooks are called from."""
        attach = bool(self.document.get("attached"))
        if attach or (self._hooks is not None and self._hooks.watching):
            self._holding = Holding(self, self._server, attach=attach)
            await self._holding.opened()

    def _heard(self, kind: str, document: dict[str, Any]) -> None:
        """An event of its stream."""
        if kind == "extended":
            self._view.extended(float(document.get("added_s") or 0.0), float(document.get("time_left_s") or 0.0))
        elif kind in ("paused", "resumed", "running", "expiring", "ended"):
            self._view.changed(status="running" if kind == "resumed" else kind)
        if kind == "ended" and isinstance(document.get("end"), dict):
            self._view.changed(end=document["end"])
        if self._hooks is not None:
            self._hooks.heard(kind, document, self._face)

    async def refresh(self, ref: str | None = None) -> Self:
        """Ask for the state as it is now."""
        return await self._take(Ask("GET", sandbox_path(ref or self.id)))

    async def _take(self, ask: Ask) -> Self:
        asked_at = boottime()
        self._view.take(await self._server.document(ask), asked_at)
        return self

    def _ref(self) -> str:
        return self.id

    def _path(self, *rest: str) -> str:
        return sandbox_path(self.id, *rest)

    # -- commands ------------------------------------------------------------------------------------------------

    async def exec(
        self, cmd: Command, timeout: float | Default | None = DEFAULT, *, on_output: OnOutput | None = None,
        cancel: Any = None, check: bool = False, **options: Any,
    ) -> ToolResult:  # fmt: skip
        """See `Sandbox.exec`. Cancelling the awaiting task ends the command."""
        wish = self._wish(cmd, timeout, **options)
        result = None
        async with aclosing(self._run(wish, cancel, stream=on_output is not None)) as found:
            async for item in found:
                if isinstance(item, ToolResult):
                    result = item
                elif on_output is not None:
                    on_output(*item)
        assert result is not None
        if check:
            result.unwrap()
        return result

    async def exec_stream(
        self, cmd: Command, timeout: float | Default | None = DEFAULT, *, cancel: Any = None, **options: Any
    ) -> AsyncGenerator[Piece | ToolResult, None]:
        """See `Sandbox.exec_stream`."""
        wish = self._wish(cmd, timeout, **options)
        async with aclosing(self._run(wish, cancel, stream=True)) as found:
            async for item in found:
                yield item

    def _wish(self, cmd: Command, timeout: float | Default | None, **options: Any) -> Wish:
        if timeout is None:
            timeout = max(self.time_left, 1.0)
        return execs.wish_of(cmd, timeout, **options)

    async def _run(self, wish: Wish, cancel: Any, *, stream: bool) -> AsyncGenerator[Piece | ToolResult, None]:
        """The output if it is wanted as it comes, then the result."""
        budget = Budgeted(wish, cancel)
        if (refused := budget.refused()) is not None:
            yield refused
            return
        try:
            if wish.stdin is not None and len(wish.stdin) > execs.STDIN_BYTES:
                result = await self._with_much_input(wish)
            elif stream or budget.token is not None:
                running = Running(self._server, self.id, wish, budget.token)
                async with aclosing(running.pieces()) as pieces:
                    async for piece in pieces:
                        yield piece
                assert running.result is not None
                result = running.result
            else:
                result = await whole(self._server, self.id, wish)
        except DeadstopError as problem:  # no answer with a result in it: it did not start
            budget.withdrawn()
            self._learned(problem)
            raise
        yield budget.settled(result)

    def _learned(self, problem: DeadstopError) -> None:
        if isinstance(problem, SandboxEnded):
            self._view.changed(status="ended")

    async def _with_much_input(self, wish: Wish) -> ToolResult:
        """More than fits into a request: written while the command runs."""
        process = await self._started(wish, keep_stdin=True)
        try:
            await process._feed(wish.stdin or b"")
            result = await process.wait()
        except BaseException:
            await asyncio.shield(process.kill())
            raise
        assert result is not None
        return result

    async def start(
        self, cmd: Command, timeout: float | Default | None = DEFAULT, *, keep_stdin: bool = False, **options: Any
    ) -> AsyncProcess:
        """See `Sandbox.start`."""
        wish = self._wish(cmd, timeout, **options)
        budget = Budgeted(wish, None)
        if (refused := budget.refused()) is not None:
            refused.unwrap()
        try:
            process = await self._started(wish, keep_stdin=keep_stdin)
        except DeadstopError:
            budget.withdrawn()
            raise
        process._budget = budget
        return process

    async def _started(self, wish: Wish, *, keep_stdin: bool) -> AsyncProcess:
        more = {"keep_stdin": True} if keep_stdin else {}
        small = wish.stdin if wish.stdin is None or len(wish.stdin) <= execs.STDIN_BYTES else None
        body = execs.with_stdin(wish, small).body(background=True, **more)
        answer = await self._server.document(Ask("POST", self._path("exec"), body=body, key=wish.key))
        return AsyncProcess(self._server, self.id, str(answer["exec_id"]), wish)

    async def run_function_async(self, asked: Call) -> ToolResult:
        """What `await deadstop.call_async(..., sandbox=self)` does."""
        from .function import run_in_async

        return await run_in_async(self, asked)

    async def processes(self) -> Sequence[AsyncProcess]:
        """See `Sandbox.processes`."""
        found = (await self._server.document(Ask("GET", self._path("execs"))))["items"]
        return [AsyncProcess.seen(self._server, self.id, document) for document in found]

    async def session(self, language: str = "python") -> AsyncSession:
        """See `Sandbox.session`."""
        ask = Ask("POST", self._path("repl", "sessions"), body={"language": language}, seconds=60.0)
        answer = await self._server.document(ask)
        return AsyncSession(self._server, self.id, str(answer["id"]), language)

    # -- life ----------------------------------------------------------------------------------------------------

    async def extend(self, seconds: float) -> dict[str, Any]:
        """See `Sandbox.extend`."""
        body = {"seconds": execs.check_seconds("seconds", seconds)}
        return await self._life(Ask("POST", self._path("extend"), body=body, key=new_key()))

    async def set_ttl(self, seconds: float) -> dict[str, Any]:
        """See `Sandbox.set_ttl`."""
        body = {"ttl_seconds": execs.check_seconds("seconds", seconds)}
        return await self._life(Ask("PATCH", self._path("lifecycle"), body=body))

    async def _life(self, ask: Ask) -> dict[str, Any]:
        asked_at = boottime()
        answer = await self._server.document(ask)
        self._view.take_life(answer, asked_at)
        return answer

    async def pause(self) -> Self:
        """See `Sandbox.pause`."""
        return await self._take(Ask("POST", self._path("pause")))

    async def resume(self) -> Self:
        """See `Sandbox.resume`."""
        return await self._take(Ask("POST", self._path("resume")))

    async def snapshot(self, name: str | None = None) -> dict[str, Any]:
        """See `Sandbox.snapshot`."""
        body = {"name": name} if name else {}
        made = await self._server.document(Ask("POST", self._path("snapshots"), body=body, seconds=LONG_S))
        self._view.changed(last_snapshot=made["id"])
        return made

    async def fork(
        self, *, name: str | None = None, metadata: Mapping[str, str] | None = None, detached: bool = False
    ) -> Self:
        """See `Sandbox.fork`."""
        body = {**({"name": name} if name else {}), **bodies.of_fork(metadata, detached)}
        return (await self._children("fork", body))[0]

    async def fork_tree(
        self, count: int, *, metadata: Mapping[str, str] | None = None, detached: bool = False
    ) -> Sequence[Self]:
        """See `Sandbox.fork_tree`."""
        body = {"count": clock.check_count("count", count), **bodies.of_fork(metadata, detached)}
        return await self._children("fork-tree", body)

    async def _children(self, route: str, body: Mapping[str, Any]) -> Sequence[Self]:
        asked_at = boottime()
        ask = Ask("POST", self._path(route), body=body, key=new_key(), seconds=LONG_S)
        answer = await self._server.document(ask)
        found = [answer["sandbox"]] if "sandbox" in answer else answer["children"]
        children = [self._seen(self._server, document, asked_at) for document in found]
        for child in children:
            child._owned = bool(child.document.get("attached"))
            await child._hold()
        return children

    async def promote(self, *, cleanup_siblings: bool = False, tree_id: str | None = None) -> dict[str, Any]:
        """See `Sandbox.promote`."""
        body = {"cleanup_siblings": cleanup_siblings, **({"tree_id": tree_id} if tree_id else {})}
        return await self._server.document(Ask("POST", self._path("promote"), body=body, seconds=LONG_S))

    async def kill(self) -> Receipt | None:
        """See `Sandbox.kill`."""
        if self._hooks is not None and self.status != "ended":
            done = self._hooks.stopping(self._face)
            if done is not None:
                try:
                    await asyncio.wait_for(done.wait(), min(self._hooks.seconds, STOP_MOST_S))
                except TimeoutError:
                    pass
        await self._deleted()
        return self.receipt

    async def _deleted(self) -> None:
        try:
            await self._take(Ask("DELETE", self._path(), seconds=60.0))
        finally:
            await self._let_go()

    async def _let_go(self) -> None:
        holding, self._holding = self._holding, None
        if holding is not None:
            await holding.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Ends an attached sandbox, and a fork of one; a detached one lives on."""
        if not self._owned:
            await self._let_go()
            return
        try:
            await self.kill()
        except NotFound:  # long gone, and forgotten
            await self._let_go()

    # -- what it said and did --------------------------------------------------------------------------------------

    async def logs(self, stream: str = "both") -> str:
        """See `Sandbox.logs`."""
        return (await self._server.ask(Ask("GET", self._path("logs"), {"stream": stream}))).data.decode(
            "utf-8", "replace"
        )

    async def follow_logs(self, stream: str = "both") -> AsyncGenerator[str, None]:
        """See `Sandbox.follow_logs`."""
        ask = Ask("GET", self._path("logs"), {"stream": stream, "follow": "true"})
        async with aclosing(self._server.events(ask)) as events:
            async for _, document in events:
                yield document["line"] if isinstance(document, dict) else str(document)

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """See `Sandbox.events`."""
        async with aclosing(self._server.events(Ask("GET", self._path("events")))) as events:
            async for name, document in events:
                if isinstance(document, dict):
                    yield {"type": name, **document}

    @classmethod
    async def delete_snapshot(cls, snapshot_id: str, *, server: str | None = None, token: str | None = None) -> None:
        """See `Sandbox.delete_snapshot`."""
        await Server(server, token).ask(Ask("DELETE", f"/snapshots/{quote(snapshot_id, safe='')}"))

    @classmethod
    async def snapshots(
        cls, sandbox_id: str | None = None, *, server: str | None = None, token: str | None = None
    ) -> Sequence[dict[str, Any]]:
        """See `Sandbox.snapshots`."""
        query = {"sandbox_id": sandbox_id} if sandbox_id else {}
        found = await Server(server, token).document(Ask("GET", "/snapshots", query))
        items: Sequence[dict[str, Any]] = found["snapshots"]
        return items
