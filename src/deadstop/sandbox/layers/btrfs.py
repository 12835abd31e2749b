# SPDX-License-Identifier: Apache-2.0
"""The store that snapshots: every layer and every image is a subvolume."""

from __future__ import annotations

import asyncio
import os

from . import subvolumes
from .copying import remove_tree
from .store import Capture, Frozen, Image, Layer, Stopwatch, Store, Swap, new_id
from .volume import Volume, open_volume

__all__ = ["BtrfsStore"]

TIDY_AFTER = 256  # discarded: the kernel keeps a count for each subvolume there ever was


class BtrfsStore(Store):
    """A running sandbox stands still for one snapshot; all that is dirty was written out just before, while it ran."""

    kind = "btrfs"

    def __init__(self, root: str, size: int | None) -> None:
        super().__init__(root)
        self._volume: Volume | None = None
        self._discarded = 0
        try:
            if not subvolumes.is_btrfs(root):
                self._volume = open_volume(f"{root}/layers.img", self.place, size)
            self._open()
            reason = subvolumes.enable_quota(self.place)
        except BaseException:
            self.close()
            raise
        self._limits = not reason
        if reason:
            self.remarks.append(f"the bytes of a sandbox are not bounded: its btrfs keeps no quotas ({reason})")

    def close(self) -> None:
        if self._volume:
            self._volume.close()
        super().close()

    async def sweep(self, keep: set[str]) -> list[str]:
        gone = await super().sweep(keep)
        await asyncio.to_thread(self._tidy)
        return gone

    async def discard(self, item_id: str) -> None:
        await super().discard(item_id)
        self._discarded += 1
        if self._discarded % TIDY_AFTER == 0:
            await asyncio.to_thread(self._tidy)

    def _tidy(self) -> None:
        folders = [f"{self.place}/{part}" for part in ("layers", "images")]
        live = [entry.path for folder in folders for entry in os.scandir(folder) if entry.is_dir()]
        try:
            subvolumes.remove_stale_groups(self.place, live)
        except FileNotFoundError:
            pass  # another was discarded meanwhile; the next time will do

    def _create(self, image: Image | None, disk: int | None, consume: bool) -> Layer:
        layer_id = new_id("lay")
        folder = f"{self.place}/layers/{layer_id}"
        try:
            if image:
                subvolumes.snapshot(
                    f"{self.place}/images/{image.id}", f"{self.place}/layers", layer_id, read_only=False
                )
            else:
                subvolumes.create(f"{self.place}/layers", layer_id)
                self._make_folders(folder)
            limited = self._limit(folder, disk)
        except BaseException:
            subvolumes.destroy(f"{self.place}/layers", layer_id)
            raise
        return Layer(layer_id, self.kind, folder, limited, disk, measure=lambda: subvolumes.usage(folder))

    def _limit(self, folder: str, disk: int | None) -> bool:
        if disk is None or not self._limits:
            return False
        subvolumes.limit(folder, disk)
        return True

    async def _capture(
        self, layer: Layer, image_id: str, frozen: Frozen, idle: bool, swap: Swap | None
    ) -> tuple[str, tuple[str, ...], Capture]:
        images = f"{self.place}/images"
        if not idle:
            await asyncio.to_thread(self._flush, layer)
        async with Stopwatch(frozen, idle) as watch:
            await asyncio.to_thread(subvolumes.snapshot, layer.folder, images, image_id, read_only=True)
        await asyncio.to_thread(self._make_room, layer)
        return image_id, (), Capture("snapshot", watch.ms)

    def _make_room(self, layer: Layer) -> None:
        """What the image has counts for the layer even when the layer has it no more: once over, that is free.

        Else a sandbox could not write its files anew after a fork. So it may come to have twice its bytes, never more.
        """
        if layer.limited and layer.disk is not None:
            subvolumes.change_limit(layer.folder, layer.disk + min(layer.disk, layer.usage() or 0))

    def _flush(self, layer: Layer) -> None:
        """A snapshot writes out what is dirty: this one does it for the one to come, and is thrown away."""
        name = new_id("flush")
        try:
            subvolumes.snapshot(layer.folder, f"{self.place}/images", name, read_only=True)
        finally:
            subvolumes.destroy(f"{self.place}/images", name)

    def _discard(self, item_id: str) -> None:
        for part in ("layers", "images"):
            if os.path.isdir(f"{self.place}/{part}/{item_id}"):
                subvolumes.destroy(f"{self.place}/{part}", item_id)
        super()._discard(item_id)

    def _remove_image_files(self, image_id: str) -> None:
        path = f"{self.place}/images/{image_id}"
        if os.path.isdir(path):
            subvolumes.destroy(f"{self.place}/images", image_id)
        remove_tree(path)
