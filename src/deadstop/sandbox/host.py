# SPDX-License-Identifier: Apache-2.0
"""All sandboxes of one server: makes them, finds them, ends them, and remembers every one that there was.

A record with its deadline is on disk before anything is made. If this process dies its supervisor ends, and with it
every sandbox; `start` then closes what is open in the records, and looks that it is true.
"""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import os
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from ..clock import boottime
from ..errors import CapacityError, DeadstopError, KeyConflict, NotAllowed, NotFound
from . import admission
from .building import run_step
from .events import Events
from .execs import Exec
from .forks import Forks
from .keys import Keys, fingerprint
from .layers import Layer, Store, open_store
from .making import make, prepare
from .outputs import Outputs
from .records import Record, Registry, boot_id, start_time, wish_document, wish_of
from .sandbox import Sandbox
from .settings import Settings
from .snapshots import Snapshots
from .states import End
from .template_build import build
from .templates import Template, Templates
from .warm import Warm
from .watchdog import watch
from .wishes import Wish

Log = Callable[..., None]
SWEEP_S = 5.0
TIDY_EVERY_S = 30.0
IN_MEMORY_S = 60.0
AT_ONCE = 256 << 10  # bytes of output that are written by the event loop itself: it takes a millisecond


def _silent(event: str, **facts: Any) -> None:
    pass


class Host:
    """Made by `await Host.start(settings)`; everything on one event loop."""

    watchdog: asyncio.Task[None]
    store: Store
    snapshots: Snapshots
    templates: Templates

    def __init__(self, settings: Settings, log: Log = _silent) -> None:
        self.settings, self.log = settings, log
        self.loop = asyncio.get_running_loop()
        self.events = Events()
        self.closing = False
        self.problem: str | None = None  # why no sandbox can be made here
        self.by_id: dict[str, Sandbox] = {}
        self.on_exec_end: Callable[[Sandbox, Exec], None] = lambda sandbox, ended: None
        self.on_end: Callable[[Sandbox], None] = lambda sandbox: None
        self.on_create: Callable[[Sandbox, float], None] = lambda sandbox, seconds: None
        self._keys = Keys()
        self._tasks: set[asyncio.Task[Any]] = set()
        os.makedirs(settings.state, mode=0o700, exist_ok=True)
        self._lock = _only_server(settings.state)
        self.registry = Registry(settings.path("sandboxes"))
        self.outputs = Outputs(settings.path("outputs"))
        self.forks = Forks(self)
        self.warm = Warm(self)

    @classmethod
    async def start(cls, settings: Settings, log: Log = _silent) -> Host:
        """Open the state folder, close what a predecessor left open. Raises NotAllowed if another server has it."""
        host = cls(settings, log)
        host.registry.load()
        for problem in host.registry.unreadable:
            log("record_unreadable", problem=problem)
        await host._sweep()
        host.store = await open_store(settings.path("files"), size=settings.image_size, kind=settings.layers)
        host.snapshots = Snapshots(host, settings.path("snapshots"))
        host.templates = Templates(host.store, settings.path("templates"))
        await host.store.sweep(host.snapshots.images() | host.templates.image_ids())
        for record in host.registry.records.values():
            host.by_id[record.id] = Sandbox(host, record, wish_of(record.wish))
            host.by_id[record.id].gone.set()
        for remark in (*host.store.remarks, *host.templates.remarks):
            log("remark", text=remark)
        await host._try_out()
        await host._tidy()
        host.warm.fill()
        host.watchdog = host.loop.create_task(watch(host))
        return host

    async def _try_out(self) -> None:
        """Make a sandbox and drop it: what keeps this host from it is known at once, and the supervisor is warm."""
        try:
            made = await prepare(self, Wish(), None, None, record_life=None)
        except DeadstopError as problem:
            self.problem = str(problem)
            self.log("no_sandboxes", problem=self.problem)
            return
        made.link.close()
        await self.store.discard(made.layer.id)

    async def _sweep(self) -> None:
        """Every open record gets its end. What it speaks of ended with the predecessor; see that it did."""
        for record in self.registry.records.values():
            if record.live:
                proof = await asyncio.to_thread(_end_leftover, record)
                receipt = {"boundary": "sandbox", "method": ["lifeline"], "proof": proof, "survivors": None}
                expired = record.expires_at()
                late = record.boot_id == boot_id() and record.expires_boot <= boottime()
                detail = "its server ended" + (", after the end of its life" if late else "")
                record.finish(End.HOST_LOST, detail, {**receipt, "unkillable": []})
                assert record.end is not None
                record.end["expires_at"] = expired
                self.save(record)

    # -- finding -----------------------------------------------------------------------------------------------------

    def sandboxes(self, state: str = "present", metadata: dict[str, str] | None = None) -> list[Sandbox]:
        """Oldest first. `present`: those that live, and those that ended without being asked to; live, ended, all."""
        chosen = [each for each in self.by_id.values() if _is_in(each.record, state)]
        wanted = (metadata or {}).items()
        chosen = [each for each in chosen if all(each.record.metadata.get(key) == value for key, value in wanted)]
        return sorted(chosen, key=lambda each: each.record.created_at)

    def find(self, reference: str) -> Sandbox:
        """By id or name, the newest of a name; one that was resumed is found under its old id. Raises NotFound."""
        found = self.by_id.get(reference)
        if found is None:
            named = [each for each in self.by_id.values() if each.record.name == reference]
            named.sort(key=lambda each: (each.record.live, each.record.created_at))
            if not named:
                raise NotFound("sandbox", reference)
            found = named[-1]
        while found.record.resumed_as and (later := self.by_id.get(found.record.resumed_as)):
            found = later
        return found

    def live(self) -> list[Sandbox]:
        return [each for each in self.by_id.values() if each.record.live]

    # -- making ------------------------------------------------------------------------------------------------------

    async def create(self, wish: Wish, key: str | None = None, owner: dict[str, Any] | None = None) -> Sandbox:
        """A new sandbox, running; `owner` says for whom, and is in its record.

        Raises CapacityError before anything is made, BoundaryUnavailable, NotFound.
        """
        document = wish_document(wish)
        mark = None if key is None else f"{key} {fingerprint(document)}"
        if key is not None and not self._keys.knows(key):
            for each in self.by_id.values():  # of before a restart; what was never made is made now
                if each.record.key == mark and each.record.pid:
                    return each
                if each.record.key and each.record.key.startswith(f"{key} ") and each.record.pid:
                    raise KeyConflict(key)
        return await self._keys.once(key, document, lambda: self._create(wish, mark, owner))

    async def _create(self, wish: Wish, mark: str | None, owner: dict[str, Any] | None = None) -> Sandbox:
        """`mark` is the key of the request with its fingerprint."""
        self.check_open()
        began = time.monotonic()
        asked, wish = wish, self._settled(wish)
        admission.admit(self.settings, wish, len(self.live()), 1, self.memory_promised())
        taken = None if wish.from_snapshot else self.warm.take(wish)
        sandbox = self.register(wish, key=mark, clamped=wish.ttl_s < asked.ttl_s, owner=owner or {})
        await make(sandbox, taken)
        self.on_create(sandbox, time.monotonic() - began)
        return sandbox

    def check_open(self) -> None:
        if self.closing:
            raise NotAllowed("the server is shutting down")

    def _settled(self, wish: Wish) -> Wish:
        """As this server gives it. Raises NotFound for a template or snapshot that is not there."""
        if wish.net and not self.settings.net_allowed:
            raise NotAllowed("this server gives no sandbox a network")
        if not wish.from_snapshot and self._is_snapshot(wish.template):
            wish = dataclasses.replace(wish, from_snapshot=wish.template, template=self.settings.template)
        if wish.from_snapshot:
            wish = dataclasses.replace(wish, template=self._template_of(wish))
        else:
            self.templates.resolve(wish.template)
        if wish.name and any(each.record.name == wish.name for each in self.live()):
            raise NotAllowed(f"a sandbox named {wish.name} is there already")
        return dataclasses.replace(wish, ttl_s=min(wish.ttl_s, self.settings.max_ttl_s))

    def _is_snapshot(self, template: str) -> bool:
        """A snapshot, by id or name, can stand in a template's place; a template of that name comes first."""
        try:
            self.templates.resolve(template)
        except NotFound:
            return any(template in (each.id, each.name) for each in self.snapshots.items())
        return False

    def _template_of(self, wish: Wish) -> str:
        """A snapshot's files need what they were made with: the programs and variables of its template."""
        found = self.snapshots.get(wish.from_snapshot or "").template
        try:
            return self.templates.resolve(found).name
        except DeadstopError:  # it was deleted; what was asked for will have to do
            return self.templates.resolve(wish.template).name

    def register(
        self, wish: Wish, *, key: str | None = None, expires_boot: float | None = None, **facts: Any
    ) -> Sandbox:
        """Its record, with its deadline, on disk. From here on it is known, whatever happens."""
        now, document = boottime(), wish_document(wish)
        end = now + wish.ttl_s if expires_boot is None else expires_boot
        record = Record(
            id=f"sbx_{os.urandom(10).hex()}", wish=document, template=wish.template, created_at=time.time(),
            created_boot=now, expires_boot=end, boot_id=boot_id(), ttl_s=end - now, name=wish.name,
            metadata=dict(wish.metadata), persistent=wish.persistent, on_expiry=wish.on_expiry, attached=wish.attached,
            key=key, from_snapshot=wish.from_snapshot, **facts,
        )  # fmt: skip
        sandbox = Sandbox(self, record, wish)
        self.by_id[record.id] = sandbox
        try:
            self.registry.save(record)
        except OSError as problem:
            del self.by_id[record.id]
            self.registry.forget(record)
            raise CapacityError(f"disk: no record can be written in {self.settings.state}: {problem}", "disk") from None
        return sandbox

    async def resume(self, old: Sandbox, key: str | None = None) -> Sandbox:
        """A new life for one that has ended, from its last snapshot. It takes over the name; the old id leads to it."""
        record = old.record
        if record.live:
            return old
        if record.last_snapshot is None:
            raise NotAllowed(f"sandbox {old.id} has no snapshot to be resumed from")
        self.snapshots.get(record.last_snapshot)
        wish = dataclasses.replace(
            old.wish, from_snapshot=record.last_snapshot, name=record.name, attached=False, persistent=record.persistent
        )

        async def again() -> Sandbox:
            made = await self._create(wish, None, record.owner)
            made.record.resumed_from, record.resumed_as = old.id, made.id
            made.record.last_snapshot = record.last_snapshot
            self.save(made.record)
            self.save(record)
            return made

        return await self._keys.once(key or f"resume {old.id}", ["resume", old.id], again)

    async def build_template(
        self, name: str, *, base: str = "base", folder: str | None = None, pypi: Sequence[str] = (),
        debian: Sequence[str] = (), log: Callable[[str], None],
    ) -> Template:  # fmt: skip
        """Make a template of a folder and packages; `log` gets what is done, line by line. Raises NotAllowed."""
        self.check_open()
        run = partial(run_step, self, log)
        return await build(self.templates, name, base=base, folder=folder, pypi=pypi, debian=debian, run=run, log=log)

    def memory_promised(self) -> int:
        return sum(each.wish.memory for each in self.live())

    # -- endings -----------------------------------------------------------------------------------------------------

    def exec_ended(self, sandbox: Sandbox, ended: Exec) -> None:
        assert ended.result is not None
        self.events.tell("exec_ended", sandbox.id, exec_id=ended.id, status=str(ended.result.status))
        path = self.outputs.next_file(sandbox.id)
        if ended.stdout.kept + ended.stderr.kept > AT_ONCE:
            self.spawn(asyncio.to_thread(self.outputs.keep, ended, path))
        else:  # on disk before anybody is told of its end
            self.outputs.keep(ended, path)
        self.on_exec_end(sandbox, ended)

    def ended(self, sandbox: Sandbox) -> None:
        """Its record has its end. What it had is given back; what it printed stays for the retention."""
        self.save(sandbox.record)
        end = sandbox.record.end or {}
        self.log("sandbox_ended", sandbox=sandbox.id, reason=end.get("reason"), detail=end.get("detail"))
        self.events.tell("ended", sandbox.id, reason=end.get("reason"), detail=end.get("detail"))
        if sandbox.layer is not None:
            self.spawn(self._give_back(sandbox, sandbox.layer))
        self.on_end(sandbox)
        self.loop.call_later(IN_MEMORY_S, sandbox.execs.clear)  # from then on its outputs are read from disk

    async def _give_back(self, sandbox: Sandbox, layer: Layer) -> None:
        """Its files, unless they are just being copied: then when that is done."""
        async with sandbox.capturing():
            await self.store.discard(layer.id)

    def save(self, record: Record) -> None:
        """A full disk must not keep a sandbox alive, or end one: it is said, and memory has the truth meanwhile."""
        try:
            self.registry.save(record)
        except OSError as problem:
            self.log("record_not_saved", sandbox=record.id, problem=str(problem))

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """In the background; what goes wrong is logged."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            known = isinstance(problem, DeadstopError)
            self.log("background_problem", problem=str(problem) if known else repr(problem))

    async def _tidy(self) -> None:
        """Forget what ended longer ago than the retention, but not what can still be resumed."""
        edge, kept = time.time() - self.settings.retention_s, {each.id for each in self.snapshots.items()}
        old = [each for each in self.by_id.values() if each.record.end is not None and each.record.end["at"] < edge]
        old = [each for each in old if each.record.last_snapshot not in kept or each.record.resumed_as]
        for each in old:
            self.registry.forget(each.record)
            del self.by_id[each.id]
        await asyncio.to_thread(self._forget_outputs, [each.id for each in old])
        if not self.closing:
            self.loop.call_later(TIDY_EVERY_S, lambda: self.spawn(self._tidy()))

    def _forget_outputs(self, sandbox_ids: list[str]) -> None:
        """Blocks: they are many files."""
        for sandbox_id in sandbox_ids:
            self.outputs.forget(sandbox_id)

    async def close(self, seconds: float = 10.0) -> None:
        """End everything, bounded. What is not shown to be gone by then ends with the supervisor."""
        self.closing = True
        self.watchdog.cancel()
        self.warm.close()
        ending = [self.loop.create_task(each.kill(End.KILLED, "the server was stopped")) for each in self.live()]
        if ending:
            await asyncio.wait(ending, timeout=seconds)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2.0)
        self.store.close()
        os.close(self._lock)


def _is_in(record: Record, state: str) -> bool:
    if state == "all":
        return True
    if state == "present":
        return record.end is None or record.end["reason"] != End.KILLED
    if state in ("live", "ended"):
        return record.live == (state == "live")
    return record.state == state


def _only_server(state: str) -> int:
    found = os.stat(state)
    if found.st_uid != os.geteuid() or found.st_mode & 0o002:  # whoever can rename in there would be obeyed
        raise NotAllowed(f"the state folder {state} is not this user's alone: another one owns it, or may write to it")
    lock = os.open(os.path.join(state, "server.lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise NotAllowed(f"another server has the state folder {state}") from None
    return lock


def _end_leftover(record: Record) -> str:
    """The proof that its boundary is gone. It ends with its supervisor; wait for that, and see to it."""
    if record.boot_id != boot_id() or not record.pid or start_time(record.pid) != record.pid_start:
        return "pid_namespace_reaped" if record.pid else "none"
    try:
        pidfd = os.pidfd_open(record.pid)
    except OSError:
        return "pid_namespace_reaped"
    try:
        if start_time(record.pid) == record.pid_start:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            from ..executor.private import wait_readable

            return "pid_namespace_reaped" if wait_readable([pidfd], SWEEP_S) else "none"
        return "pid_namespace_reaped"
    finally:
        os.close(pidfd)
