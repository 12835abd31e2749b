# SPDX-License-Identifier: Apache-2.0
"""From a record to a sandbox that runs: its files, its boundary, its life."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import wire
from ..boundary.policy import BASE_ENVIRONMENT
from ..boundary.reaper import pid_of
from ..errors import SandboxEnded
from ..model import Files, Limits, Place
from .layers import Image, Layer
from .link import Link, extend_text, life, open_boundary
from .records import start_time
from .states import End, State

if TYPE_CHECKING:
    from .host import Host
    from .sandbox import Sandbox
    from .templates import Template
    from .wishes import Wish


@dataclass(slots=True)
class Made:
    """Files and a boundary that shows them. `key` says for whose wish it will do."""

    layer: Layer
    link: Link
    key: tuple[Any, ...] = ()
    gone: bool = False

    def watch(self) -> None:
        """While nobody has it: remember if it ends."""

        def ended(kind: bytes, body: bytes) -> None:
            self.gone = self.gone or kind == wire.GONE

        self.link.on_frame = ended


def kind_of(wish: Wish, template: Template | None) -> tuple[Any, ...]:
    """What a boundary is made with: two wishes of the same kind can have each other's. First of all, of which files."""
    files = (template.image_id, template.name) if template else (None, "")
    return *files, wish.memory, wish.pids, wish.cpus, wish.disk, wish.net


async def make(sandbox: Sandbox, taken: Made | None = None, image: Image | None = None, consume: bool = False) -> None:
    """Give it what it needs and let it run; if that fails its record says so. `taken` is one that was held ready."""
    host, record = sandbox.host, sandbox.record
    began = time.monotonic()
    try:
        template = host.templates.resolve(record.template) if record.template else None
        source = image or _source(sandbox, template)
        record.boot_mode = "warm" if taken else ("fork" if image else "snapshot" if record.from_snapshot else "cold")
        made = taken or await prepare(host, sandbox.wish, source, template, consume=consume, record_life=_life(sandbox))
        sandbox.layer, sandbox.env = made.layer, environment_of(template)
        record.layer_id, record.layer_kind = made.layer.id, made.layer.kind
        sandbox.take(made.link)
        if taken:
            await made.link.ask(wire.EXTEND, extend_text(*_life(sandbox).values()), wire.LIFE)
        if sandbox.doomed or not record.live:
            raise SandboxEnded(record.id, *(sandbox.doomed or (End.TTL, "its life was over before it was made")))
    except BaseException as problem:
        failed(sandbox, problem)
        raise
    record.pid = pid_of(made.link.channel.root)
    record.pid_start = start_time(record.pid)
    record.boot_ms = round((time.monotonic() - began) * 1000)
    record.move(State.RUNNING)
    host.save(record)  # its deadline is on disk already
    sandbox.ready()
    if record.attached:
        host.loop.call_later(host.settings.attach_grace_s, sandbox.unclaimed)
    host.events.tell("created", sandbox.id, boot_mode=record.boot_mode)


def environment_of(template: Template | None) -> dict[str, str]:
    return template.environment({"PATH": BASE_ENVIRONMENT["PATH"]}) if template else {}


def failed(sandbox: Sandbox, problem: BaseException) -> None:
    """It could not be made: what there is of it goes, and its record says why."""
    if sandbox.link:
        sandbox.link.close()
    if sandbox.record.live:
        reason, detail = sandbox.doomed or (End.FAILED, str(problem) or type(problem).__name__)
        if sandbox.doomed is None and sandbox.record.time_left() == 0:
            reason, detail = End.TTL, "its life was over before it was made"
        sandbox.record.finish(reason, detail, None)
        sandbox.gone.set()
        sandbox.host.ended(sandbox)


def _life(sandbox: Sandbox) -> dict[str, Any]:
    return life(sandbox.record.expires_boot, sandbox.record.ttl_s, sandbox.hooks.supervised_idle())


def _source(sandbox: Sandbox, template: Template | None) -> Image | None:
    if sandbox.record.from_snapshot:
        return sandbox.host.store.image(sandbox.host.snapshots.get(sandbox.record.from_snapshot).image_id)
    return sandbox.host.templates.image_of(template) if template else None


async def prepare(
    host: Host, wish: Wish, image: Image | None, template: Template | None,
    *, record_life: dict[str, Any] | None, consume: bool = False,
) -> Made:  # fmt: skip
    """A layer and a boundary for this kind of wish. What was made goes again if a later step fails."""
    layer = await host.store.create(image, disk=wish.disk, consume=consume)
    try:
        link = await open_boundary(place_of(wish, layer, template), record_life)
    except BaseException:
        await host.store.discard(layer.id)
        raise
    return Made(layer, link, kind_of(wish, template))


def place_of(wish: Wish, layer: Layer, template: Template | None) -> Place:
    mount = layer.mount
    files = Files(
        binds=tuple((source, target) for source, target, _ in layer.binds()),
        overlay=(mount.root, mount.lowers, mount.upper, mount.work) if mount else None,
        system=template.system if template else None, bounded=layer.limited,
    )  # fmt: skip
    limits = Limits(wish.memory, wish.pids, wish.cpus, wish.disk, frozenset(wish.defaulted))
    return Place("sandbox", limits, wish.net, (), files)
