# SPDX-License-Identifier: Apache-2.0
"""One sandbox of a server: its life, and what can be asked of it.

The supervisor has the last word on its end: an extension counts when the supervisor has taken it, and it is dead when
the supervisor has shown it. Every method asks anew what it is after each wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import clock, wire
from ..clock import boottime
from ..errors import NotAllowed, SandboxEnded, SandboxPaused
from ..results import Status
from . import commands
from .execs import Exec
from .files import Files
from .hooks import Hooked
from .keys import Keys
from .link import Link, SupervisorLost, extend_text, holder_of, shown_gone
from .records import Record
from .sessions import Sessions
from .states import DETAILS, End, State
from .wishes import ExecWish, Wish, check_seconds

if TYPE_CHECKING:
    from .host import Host
    from .layers import Layer

EXECS_KEPT = 200
GONE_S = 10.0
ENDING_S = 1.0  # how long an end that has begun is waited for, to say which it is


class Sandbox:
    """Made by `Host`. `record` is what is on disk of it; `link` its boundary at the supervisor, while there is one."""

    def __init__(self, host: Host, record: Record, wish: Wish) -> None:
        self.host, self.record, self.wish = host, record, wish
        self.id = record.id
        self.link: Link | None = None
        self.layer: Layer | None = None
        self.files: Files | None = None
        self.sessions = Sessions(self)
        self.env: dict[str, str] = {}
        self.execs: dict[str, Exec] = {}
        self.doomed: tuple[End, str] | None = None  # the end that was asked for first, and why
        self.gone = asyncio.Event()  # its record is closed
        self.hooks = Hooked(self)
        self._keys, self._extensions = Keys(EXECS_KEPT), Keys()
        self.starting = asyncio.Lock()  # held while nothing may be started in it
        self._order = asyncio.Lock()  # one at a time: pause, resume, capture
        self._moving = asyncio.Lock()  # one at a time: extensions, which do not wait for a capture
        self._paused = False
        self._attached = 0

    @property
    def status(self) -> State:
        return self.record.state

    def check_live(self) -> Link:
        """Its boundary, or SandboxEnded."""
        if self.record.state is State.CREATING:
            raise NotAllowed(f"sandbox {self.id} is still being made")
        if not self.record.live or self.link is None or self.link.closed:
            end = self.record.end or {"reason": "failed", "detail": "it was never made"}
            raise SandboxEnded(self.id, end["reason"], end["detail"])
        return self.link

    # -- its life ----------------------------------------------------------------------------------------------------

    async def extend(self, seconds: float, key: str | None = None) -> dict[str, Any]:
        """Add to its life, up to the server's maximum. Raises SandboxEnded: what is over stays over."""
        check_seconds("seconds", seconds)
        move = partial(self._move_end, lambda: self.record.expires_boot + seconds)
        return await self._extensions.once(key, ["extend", seconds], move)

    async def set_ttl(self, seconds: float) -> dict[str, Any]:
        """Let it live for this long from now on: the one other thing that moves the end, and it can shorten it."""
        check_seconds("ttl_seconds", seconds)
        return await self._move_end(lambda: boottime() + seconds)

    async def _move_end(self, to: Callable[[], float]) -> dict[str, Any]:
        record = self.record
        added, clamped = await self._tell_life(to)
        if record.state is State.EXPIRING:
            record.move(State.PAUSED if self._paused else State.RUNNING)
        self.host.save(record)
        self.hooks.schedule()
        self.host.events.tell("extended", self.id, added_s=round(added, 3), time_left_s=record.time_left())
        self.hooks.extended()
        return {**self.lifecycle(), "added_s": round(added, 3), "clamped": clamped}

    async def _tell_life(self, to: Callable[[], float]) -> tuple[float, bool]:
        """Have the supervisor keep this end, and the idle time as it is now. Seconds added; fewer than asked for?"""
        async with self._moving:
            link, record, wanted = self.check_live(), self.record, to()
            latest = record.created_boot + self.host.settings.max_ttl_s
            end, before = min(wanted, max(latest, record.expires_boot)), record.expires_boot
            text = extend_text(end, end - record.created_boot, self.hooks.supervised_idle())
            body = await self.ask(link, wire.EXTEND, text, wire.LIFE)
            if not json.loads(body)["done"]:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.gone.wait(), ENDING_S)
                self.check_live()  # as which end it was
                raise SandboxEnded(self.id, "ttl", "its life was over before it could be extended")
            self.check_live()
            return end - before, end < wanted

    def _lives_until(self, expires_boot: float) -> None:
        """What the supervisor says of its life: known before an end that came right after it, and to whoever waits."""
        self.record.expires_boot, self.record.ttl_s = expires_boot, expires_boot - self.record.created_boot
        if self.record.state is not State.CREATING:
            self.host.save(self.record)
            self.hooks.schedule()

    async def set_persistent(self, persistent: bool) -> dict[str, Any]:
        """Whether a snapshot is taken before its life ends, from which it can be resumed."""
        self.check_live()
        self.record.persistent = persistent
        if self.wish.idle_s is not None:  # the supervisor leaves the time for a snapshot, or no longer
            await self._tell_life(lambda: self.record.expires_boot)
        self.host.save(self.record)
        self.hooks.schedule()
        return self.lifecycle()

    def lifecycle(self) -> dict[str, Any]:
        record = self.record
        return {
            "status": str(record.state), "ttl_seconds": round(record.ttl_s, 3), "persistent": record.persistent,
            "idle_seconds": self.wish.idle_s, "expires_at": clock.iso(record.expires_at()),
            "time_left_s": round(record.time_left(), 3),
        }  # fmt: skip

    @property
    def snapshots_at_end(self) -> bool:
        return self.record.persistent or self.record.on_expiry == "snapshot"

    # -- pause -------------------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Stop every process. The time of its life, and the limits of its commands, go on."""
        async with self._order:
            link = self.check_live()
            if self._paused:
                return
            if self.record.state is State.EXPIRING:
                raise NotAllowed(f"sandbox {self.id} is about to end: extend it before it is paused")
            await self._stop_all(link)
            self.check_live()
            self._paused = True
            self.record.move(State.PAUSED)
            self.host.save(self.record)
        self.host.events.tell("paused", self.id)

    async def resume(self) -> None:
        """Let every process go on."""
        async with self._order:
            link = self.check_live()
            if not self._paused:
                return
            await self.ask(link, wire.FREEZE, "0", wire.FROZEN)
            self.check_live()
            self._paused = False
            if self.record.state is State.PAUSED:
                self.record.move(State.RUNNING)
            self.host.save(self.record)
        self.host.events.tell("resumed", self.id)

    @contextlib.asynccontextmanager
    async def frozen(self) -> AsyncIterator[None]:
        """Everything inside is stopped within this block. Held with `capturing`."""
        link = self.check_live()
        if self._paused:
            yield
            return
        await self._stop_all(link)
        try:
            yield
        finally:
            self._let_go(link)

    async def _stop_all(self, link: Link) -> None:
        try:
            if await self.ask(link, wire.FREEZE, "1", wire.FROZEN) == b"1":
                return
        except BaseException:
            self._let_go(link)  # it may have been stopped for one who waits no longer
            raise
        raise NotAllowed(f"sandbox {self.id} could not be stopped within two seconds")

    @staticmethod
    def _let_go(link: Link) -> None:
        """Without an answer, which the next to ask could take for its own."""
        if not link.closed:
            link.channel.order(wire.FREEZE, "-")

    def capturing(self) -> asyncio.Lock:
        return self._order

    async def ask(self, link: Link, kind: bytes, text: str, answer: bytes) -> bytes:
        """SandboxEnded if its end comes instead of the answer."""
        asked = asyncio.ensure_future(link.ask(kind, text, answer))
        over = asyncio.ensure_future(self.gone.wait())
        try:
            await asyncio.wait({asked, over}, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
        except SupervisorLost:
            await self.gone.wait()
        finally:
            asked.cancel()
            over.cancel()
        self.check_live()
        raise NotAllowed(f"the supervisor did not answer for sandbox {self.id}")

    # -- commands ----------------------------------------------------------------------------------------------------

    async def exec(self, wish: ExecWish, key: str | None = None) -> Exec:
        """Start a command. The same key with the same wish gives the command that was started then."""

        async def start() -> Exec:
            async with self.starting:
                await self.check_live().writable()
                return self._start(wish)

        return await self._keys.once(key, repr(wish), start)

    def _start(self, wish: ExecWish) -> Exec:
        link = self.check_live()
        if self._paused:
            raise SandboxPaused(self.id)
        started = commands.start(self, link, wish)
        started.on_end = self._exec_ended
        self.execs[started.id] = started
        ended = (each.id for each in self.execs.values() if each.result)
        for old in list(itertools.islice(ended, max(0, len(self.execs) - EXECS_KEPT))):
            del self.execs[old]
        if started.result is not None:
            self._exec_ended(started)
        else:
            self.hooks.touched()
            self.host.events.tell("exec_started", self.id, exec_id=started.id)
        return started

    def _exec_ended(self, ended: Exec) -> None:
        result = ended.result
        assert result is not None
        self.hooks.touched()
        self.host.exec_ended(self, ended)
        unproven = result.receipt is not None and result.receipt.proof == "none" and self.record.live
        if unproven:
            self.host.spawn(self.kill(End.FAILED, f"exec {ended.id} could not be shown to be dead"))
        elif ended.wish_on_timeout == "snapshot_destroy" and result.status is Status.TIMEOUT and self.record.live:
            self.host.spawn(self._snapshot_then_kill(f"exec {ended.id} met its time limit"))

    async def _snapshot_then_kill(self, detail: str) -> None:
        try:
            await self.host.snapshots.take(self, name=None)
        except Exception as problem:
            self.host.log("snapshot_failed", sandbox=self.id, problem=str(problem))
        await self.kill(End.KILLED, detail)

    def running(self) -> list[Exec]:
        return [each for each in self.execs.values() if each.result is None]

    def touch(self) -> None:
        """It is in use (files): for the idle clock only."""
        if self.link and not self.link.closed:
            self.link.channel.order(wire.TOUCH)
        self.hooks.touched()

    # -- the owner ---------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def attachment(self) -> AsyncIterator[None]:
        """While one of these is held an attached sandbox has its owner. With the last it ends. TTL is not touched."""
        self.check_live()
        self._attached += 1
        try:
            yield
        finally:
            self._attached -= 1
            if self._attached == 0 and self.record.attached and self.record.live:
                self.host.spawn(self.kill(End.OWNER_GONE, "its owner's connection ended"))

    def unclaimed(self) -> None:
        """Nobody has attached in time to one that was made to be attached."""
        if self._attached == 0 and self.record.attached and self.record.live:
            self.host.spawn(self.kill(End.OWNER_GONE, "its owner never attached to it"))

    # -- the end -----------------------------------------------------------------------------------------------------

    async def kill(self, reason: str = End.KILLED, detail: str = "") -> dict[str, Any] | None:
        """End it; the receipt when that is shown. Idempotent: of one that has ended, the receipt of then."""
        if self.record.live and self.doomed is None:
            self.doomed = (End(reason), detail)  # of one that is being made its maker finds that out
        if self.record.live and self.link is not None and not self.link.closed:
            await self.hooks.before_stop()
        if self.record.live and self.link is not None and not self.link.closed:
            self.link.channel.order(wire.KILL, str(reason))
        if self.record.live:
            try:
                await asyncio.wait_for(self.gone.wait(), GONE_S)
            except TimeoutError:
                raise NotAllowed(f"sandbox {self.id} could not be shown to be dead in {GONE_S:.0f} s") from None
        receipt: dict[str, Any] | None = (self.record.end or {}).get("receipt")
        return receipt

    def take(self, link: Link) -> None:
        """Its boundary is there."""
        self.link = link
        link.on_frame, link.on_lost = self._frame, self._lost

    def ready(self) -> None:
        """It runs: what can be done with it from now on."""
        assert self.layer is not None
        if self.layer.mount:  # an overlay is seen whole only from within
            root = f"/proc/{holder_of(self.record.pid)}/root"
            self.files = Files({"/home/agent": f"{root}/home/agent", "/tmp": f"{root}/tmp"}, (-1, -1))
        else:
            owner = self.host.store.owner
            self.files = Files.for_layer(self.layer.folder, (owner, owner))
        self.hooks.schedule()

    def _frame(self, kind: bytes, body: bytes) -> None:
        if kind == wire.GONE:
            document = json.loads(body)
            self._over(End(document.pop("reason")), document)
        elif kind == wire.LIFE and self.record.live and (said := json.loads(body))["done"]:
            self._lives_until(said["expires_at"])

    def _lost(self) -> None:
        """The supervisor is gone, and with it, by its lifeline, the boundary."""
        if self.record.live and self.link:
            self.host.spawn(self._see_lost(shown_gone(self.link.channel)))

    async def _see_lost(self, shown: Awaitable[bool]) -> None:
        proof = "pid_namespace_reaped" if await shown else "none"
        receipt = {"boundary": "sandbox", "method": ["lifeline"], "proof": proof, "survivors": None, "unkillable": []}
        self.doomed = (End.HOST_LOST, "its supervisor ended")
        self._over(End.HOST_LOST, receipt)

    def _over(self, reason: End, receipt: dict[str, Any] | None) -> None:
        if not self.record.live:
            return
        expired = self.record.expires_at()
        asked = self.doomed[1] if self.doomed and self.doomed[0] is reason else ""  # its life can have been over first
        self.record.finish(reason, asked or self._took_it_along(reason) or DETAILS.get(reason, ""), receipt)
        assert self.record.end is not None
        self.record.end["expires_at"] = expired
        self.hooks.cancel()
        self.gone.set()
        for each in self.running():
            self.host.loop.call_later(GONE_S, each.cancel)  # its result comes by its own link, or never
        if self.link:
            self.link.close()
        self.host.ended(self)

    def _took_it_along(self, reason: End) -> str:
        """A command whose limit was to end all of it."""
        late = [each for each in self.execs.values() if each.wish_on_timeout == "destroy" and each.overdue()]
        late = late if reason is End.KILLED else []
        return f"exec {late[0].id} met its time limit" if late else ""

    # -- for people --------------------------------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        """As the HTTP API gives it."""
        record, wish, end = self.record, self.wish, self.record.end
        return {
            "id": record.id, "name": record.name, "template": record.template, "status": str(record.state),
            "end": None if end is None else _end_shown(end),
            "created_at": clock.iso(record.created_at), "expires_at": clock.iso(record.expires_at()),
            "ttl_seconds": round(record.ttl_s, 3), "ttl_clamped": record.clamped,
            "time_left_s": round(record.time_left(), 3), "idle_timeout_s": wish.idle_s,
            "persistent": record.persistent, "on_expiry": record.on_expiry,
            "attached": record.attached, "owner": dict(record.owner),
            "metadata": dict(record.metadata), "cpu": math.ceil(wish.cpus or 1),
            "memory_mb": wish.memory >> 20,
            "limits": {"memory": wish.memory, "pids": wish.pids, "cpus": wish.cpus, "disk": wish.disk},
            "network": "host" if wish.net else "off", "from_snapshot": record.from_snapshot,
            "parent": record.parent, "tree_id": record.tree_id, "last_snapshot": record.last_snapshot,
            "resumed_as": record.resumed_as, "resumed_from": record.resumed_from, "boot_ms": record.boot_ms,
            "boot_mode": record.boot_mode, "guest_ip": "", "layer": record.layer_kind,
            "execs_running": len(self.running()), "buffer_s": round(self.hooks.buffer_s, 3),
        }  # fmt: skip


def _end_shown(end: dict[str, Any]) -> dict[str, Any]:
    return {name: end[name] for name in ("reason", "detail", "receipt")} | {"at": clock.iso(end["at"])}
