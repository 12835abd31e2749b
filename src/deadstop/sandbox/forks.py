# SPDX-License-Identifier: Apache-2.0
"""Copies of a live sandbox's files into new sandboxes, and the choice of one among them."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from typing import TYPE_CHECKING, Any

from ..clock import boottime
from ..errors import InvalidLimit, NotAllowed
from . import admission
from .keys import Keys
from .making import make
from .snapshots import capture
from .states import End

if TYPE_CHECKING:
    from .host import Host
    from .sandbox import Sandbox

MOST = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Forked:
    children: list[Sandbox]
    tree_id: str
    how: str
    pause_ms: float


class Forks:
    def __init__(self, host: Host) -> None:
        self.host = host
        self._keys = Keys()

    async def fork(
        self, parent: Sandbox, count: int = 1, *, metadata: dict[str, str] | None = None, name: str | None = None,
        key: str | None = None, attached: bool | None = None,
    ) -> Forked:  # fmt: skip
        """`count` new sandboxes with the parent's files as they are at one moment. Files only: no process goes along.

        They inherit its deadline, not its length of life, and unless `attached` says otherwise whether they need an
        owner, each one of its own. All are made, or none. Raises CapacityError.
        """
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST:
            raise InvalidLimit(f"count: {count!r:.40} is not a number from 1 to {MOST}")
        request = ["fork", parent.id, count, metadata, name, attached]
        kept = parent.wish.attached if attached is None else attached
        return await self._keys.once(key, request, lambda: self._fork(parent, count, metadata or {}, name, kept))

    async def _fork(
        self, parent: Sandbox, count: int, metadata: dict[str, str], name: str | None, attached: bool
    ) -> Forked:
        host = self.host
        host.check_open()
        parent.check_live()
        admission.admit(host.settings, parent.wish, len(host.live()), count, host.memory_promised())
        if name and any(each.record.name == name for each in host.live()):
            raise NotAllowed(f"a sandbox named {name} is there already")
        tree_id = parent.record.tree_id or f"tree_{os.urandom(8).hex()}"
        image, how = await capture(parent, measure=False)
        children: list[Sandbox] = []
        try:
            # Again: others were made while the files were copied.
            admission.admit(host.settings, parent.wish, len(host.live()), count, host.memory_promised())
            for index in range(count):
                children.append(self._register(parent, index, count, tree_id, metadata, name, attached))
            alone = count == 1
            results = await asyncio.gather(
                *(make(child, image=image, consume=alone) for child in children), return_exceptions=True
            )
            problem = next((each for each in results if isinstance(each, BaseException)), None)
            if problem is not None:
                raise problem
        except BaseException:
            for child in children:
                if child.record.live:
                    host.spawn(child.kill(End.FAILED, "another of its fork could not be made"))
            raise
        finally:
            host.spawn(host.store.discard(image.id))
        if parent.record.live and parent.record.tree_id is None:
            parent.record.tree_id = tree_id
            host.save(parent.record)
        host.events.tell("forked", parent.id, children=[child.id for child in children], how=how.how)
        return Forked(children, tree_id, how.how, how.pause_ms)

    def _register(
        self, parent: Sandbox, index: int, count: int, tree_id: str, metadata: dict[str, str], name: str | None,
        attached: bool,
    ) -> Sandbox:  # fmt: skip
        lineage = {"fork_parent_id": parent.id, "fork_tree_id": tree_id, "fork_index": str(index)}
        left = parent.record.expires_boot - boottime()
        wish = dataclasses.replace(
            parent.wish, name=name if count == 1 else None, metadata={**parent.record.metadata, **metadata, **lineage},
            from_snapshot=None, ttl_s=max(left, 0.001), attached=attached,
        )  # fmt: skip
        return self.host.register(
            wish, expires_boot=parent.record.expires_boot, parent=parent.id, owner=parent.record.owner, tree_id=tree_id,
        )  # fmt: skip

    async def promote(
        self, winner: Sandbox, tree_id: str | None = None, *, cleanup_siblings: bool = False
    ) -> dict[str, Any]:
        """Keep this one of its tree. With `cleanup_siblings` its other forks are killed, each with its receipt."""
        winner.check_live()
        tree = tree_id or winner.record.tree_id
        if tree is None:
            raise NotAllowed(f"sandbox {winner.id} is not part of a tree")
        others = [each for each in self.host.live() if each.record.tree_id == tree and each is not winner]
        others = [each for each in others if each.record.parent is not None]
        answer: dict[str, Any] = {"winner": winner.id, "tree_id": tree, "deleted": [], "failures": {}, "receipts": {}}
        if cleanup_siblings:
            detail = f"{winner.id} was promoted"
            ends = await asyncio.gather(*(each.kill(End.KILLED, detail) for each in others), return_exceptions=True)
            for each, end in zip(others, ends, strict=True):
                if isinstance(end, BaseException):
                    answer["failures"][each.id] = str(end)
                else:
                    answer["deleted"].append(each.id)
                    answer["receipts"][each.id] = end
        return answer
