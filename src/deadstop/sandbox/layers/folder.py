# SPDX-License-Identifier: Apache-2.0
"""The store that copies: works on every file system, for every user."""

from __future__ import annotations

import asyncio
import os

from .copying import Copied, copy_tree
from .store import Capture, Frozen, Image, Layer, Stopwatch, Store, Swap, forget_record, new_id

__all__ = ["FolderStore"]


class FolderStore(Store):
    """A running sandbox stands still while its files are copied (a quarter of a second for 500 MB in memory).

    Where the file system shares blocks between files, that is quick, and takes no space.
    """

    kind = "folder"

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._open()
        self.remarks.append("the bytes of a sandbox are not bounded: its files lie in a plain folder")

    def _create(self, image: Image | None, disk: int | None, consume: bool) -> Layer:
        layer_id = new_id("lay")
        folder = f"{self.place}/layers/{layer_id}"
        try:
            if image and consume:
                self._images.pop(image.id, None)
                forget_record(f"{self.place}/images/{image.id}.json")
                os.rename(f"{self.place}/images/{image.id}", folder)
            elif image:
                os.mkdir(folder, 0o711)
                copy_tree(f"{self.place}/images/{image.id}", folder, self._owner_to_set)
            else:
                self._make_folders(folder)
        except BaseException:
            self._discard(layer_id)
            raise
        return Layer(layer_id, self.kind, folder)

    async def _capture(
        self, layer: Layer, image_id: str, frozen: Frozen, idle: bool, swap: Swap | None
    ) -> tuple[str, tuple[str, ...], Capture]:
        async with Stopwatch(frozen, idle) as watch:
            copied = await asyncio.to_thread(self._copy, layer, image_id)
        how = "copied" if idle else "copied while stopped"
        return image_id, (), Capture(how, watch.ms, copied.skipped)

    def _copy(self, layer: Layer, image_id: str) -> Copied:
        target = f"{self.place}/images/{image_id}"
        os.mkdir(target, 0o711)
        return copy_tree(layer.folder, target, self._owner_to_set)
