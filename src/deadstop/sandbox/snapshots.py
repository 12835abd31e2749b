# SPDX-License-Identifier: Apache-2.0
"""Snapshots that are kept: what a sandbox's files were at one moment, to make others from."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import clock, wire
from ..errors import CapacityError, NotFound
from .layers.store import Capture, Image, write_record

if TYPE_CHECKING:
    from ..boundary.overlay import OverlayMount
    from .host import Host
    from .sandbox import Sandbox


@dataclass(frozen=True, slots=True)
class Snapshot:
    id: str
    image_id: str
    sandbox_id: str
    template: str
    created_at: float
    how: str
    pause_ms: float
    name: str | None = None
    size_bytes: int | None = None

    def document(self) -> dict[str, Any]:
        return {
            "id": self.id, "snapshot_id": self.id, "sandbox_id": self.sandbox_id, "template": self.template,
            "name": self.name, "created_at": clock.iso(self.created_at), "size_bytes": self.size_bytes or 0,
            "how": self.how, "pause_ms": round(self.pause_ms, 2),
        }  # fmt: skip


async def capture(sandbox: Sandbox, *, measure: bool) -> tuple[Image, Capture]:
    """An image of its files, by the best way there is for what it is doing now. Raises SandboxEnded, CapacityError."""
    async with sandbox.capturing():
        sandbox.check_live()
        assert sandbox.layer is not None
        store = sandbox.host.store
        if store.kind == "overlay":
            async with sandbox.starting:
                try:
                    swap = partial(_swap, sandbox)
                    return await store.capture(sandbox.layer, frozen=_unfrozen, idle=True, swap=swap, measure=measure)
                except _Busy:
                    pass
        return await store.capture(sandbox.layer, frozen=sandbox.frozen, idle=False, measure=measure)


@asynccontextmanager
async def _unfrozen() -> AsyncIterator[None]:
    """Nothing runs in it, which the supervisor has seen, and nothing is started meanwhile."""
    yield


class _Busy(Exception):
    """Something runs inside: its files cannot be exchanged."""


async def _swap(sandbox: Sandbox, mount: OverlayMount, view: str) -> None:
    link = sandbox.check_live()
    order = {"overlay": [mount.root, mount.lowers, mount.upper, mount.work], "view": view}
    said = (await sandbox.ask(link, wire.SWAP, json.dumps(order), wire.SWAPPED)).decode()
    if said == "busy":
        raise _Busy
    if "half-way: " in said:
        await sandbox.kill("failed", f"its files could not be exchanged: {said}")
    if said:
        raise _Busy


class Snapshots:
    """Those of one server, each with its record on disk."""

    def __init__(self, host: Host, folder: str) -> None:
        self.host, self.folder = host, folder
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self._known: dict[str, Snapshot] = {}
        for name in sorted(os.listdir(folder)):
            if name.endswith(".json"):
                try:
                    with open(os.path.join(folder, name), encoding="utf-8") as file:
                        found = Snapshot(**json.load(file))
                    self._known[found.id] = found
                except (OSError, ValueError, TypeError, RecursionError) as problem:
                    host.log("snapshot_unreadable", file=name, problem=str(problem))

    def images(self) -> set[str]:
        return {each.image_id for each in self._known.values()}

    def items(self, sandbox_id: str | None = None) -> list[Snapshot]:
        found = [each for each in self._known.values() if sandbox_id in (None, each.sandbox_id)]
        return sorted(found, key=lambda each: each.created_at)

    def get(self, snapshot_id: str) -> Snapshot:
        """By its id or its name. Raises NotFound."""
        if snapshot_id in self._known:
            return self._known[snapshot_id]
        for each in reversed(self.items()):
            if each.name == snapshot_id:
                return each
        raise NotFound("snapshot", snapshot_id)

    async def take(self, sandbox: Sandbox, name: str | None) -> Snapshot:
        """Of a live sandbox, running or not. It is its last one from now on."""
        image, how = await capture(sandbox, measure=True)
        found = Snapshot(
            f"snap_{os.urandom(10).hex()}", image.id, sandbox.id, sandbox.record.template, time.time(), how.how,
            how.pause_ms, name, image.size_bytes,
        )  # fmt: skip
        try:
            write_record(os.path.join(self.folder, f"{found.id}.json"), asdict(found))
        except OSError as problem:
            await self.host.store.discard(image.id)
            raise CapacityError(f"disk: no record can be written in {self.folder}: {problem}", "disk") from None
        self._known[found.id] = found
        sandbox.record.last_snapshot = found.id
        self.host.save(sandbox.record)
        self.host.events.tell("snapshot", sandbox.id, snapshot_id=found.id)
        return found

    async def delete(self, snapshot_id: str) -> None:
        """Sandboxes made from it live on."""
        found = self.get(snapshot_id)
        del self._known[found.id]
        os.unlink(os.path.join(self.folder, f"{found.id}.json"))
        await self.host.store.discard(found.image_id)
