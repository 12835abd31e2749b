# SPDX-License-Identifier: Apache-2.0
"""The store that stacks: an ordinary user's idle sandbox branches without a byte being copied.

A layer is a chain of frozen folders with one of its own on top. To branch, that one is frozen and becomes the image,
and the sandbox goes on with a new one above it: any folder of `images` is an image as soon as it has a record. While a
sandbox runs, its folder is copied instead: see boundary/overlay.py for why it cannot be exchanged then.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

from ...boundary.overlay import OverlayMount
from .copying import Copied, copy_tree, remove_tree
from .merging import flatten
from .store import (
    Capture,
    Frozen,
    Image,
    Layer,
    Stopwatch,
    Store,
    Swap,
    forget_record,
    new_id,
    read_record,
    write_record,
)

__all__ = ["OverlayStore"]

DEEPEST = 16
GROUND = "ground"  # the folders of an empty layer, below every chain


class OverlayStore(Store):
    """Folders are kept for as long as a chain of any layer or image has them."""

    kind = "overlay"

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._layers: dict[str, dict[str, Any]] = {}
        self._going: set[str] = set()  # trees that a thread is removing
        self._choosing = threading.Lock()
        self._open()
        for name in os.listdir(f"{self.place}/layers"):
            if name.endswith(".json") and (record := read_record(f"{self.place}/layers/{name}")):
                self._layers[name.removesuffix(".json")] = record
        self._make_folders(f"{self.place}/images/{GROUND}")
        self.remarks.append("the bytes of a sandbox are not bounded: an overlay's folder has no limit of its own")

    def _create(self, image: Image | None, disk: int | None, consume: bool) -> Layer:
        layer_id, upper = new_id("lay"), new_id("img")
        lowers = [image.id, *image.lowers] if image else [GROUND]
        here = f"{self.place}/layers/{layer_id}"
        with self._using([upper]):
            try:
                os.makedirs(f"{here}/view", mode=0o700)
                self._make_upper(layer_id, upper)
                self._write(layer_id, lowers, upper, held=[])
            except BaseException:
                remove_tree(f"{self.place}/images/{upper}")
                remove_tree(here)
                raise
        layer = Layer(layer_id, self.kind, "", view=f"{here}/view")
        self._show(layer)
        return layer

    # -- capture -------------------------------------------------------------------------------------------------------

    async def _capture(
        self, layer: Layer, image_id: str, frozen: Frozen, idle: bool, swap: Swap | None
    ) -> tuple[str, tuple[str, ...], Capture]:
        lowers: list[str] = self._layers[layer.id]["lowers"]
        if not idle:
            async with Stopwatch(frozen, idle) as watch:
                copied = await asyncio.to_thread(self._copy_upper, layer, image_id)
            return image_id, tuple(lowers), Capture("copied while stopped", watch.ms, copied.skipped)
        below = await asyncio.shield(asyncio.ensure_future(self._exchange(layer, swap)))
        if len(lowers) < DEEPEST:
            return below, tuple(lowers), Capture("layered", 0.0)
        copied = await asyncio.to_thread(self._flatten, layer, image_id)
        return image_id, (), Capture("layered, then made one", 0.0, copied.skipped)

    async def _exchange(self, layer: Layer, swap: Swap | None) -> str:
        """Put a new folder on top of the layer; the id of the one that was there, which nobody writes to any more."""
        record = self._layers[layer.id]
        below, upper = record["upper"], new_id("img")
        with self._using([upper]):
            try:
                work = await asyncio.to_thread(self._make_upper, layer.id, upper)
                if swap:
                    await swap(self._mount([below, *record["lowers"]], upper, work), layer.view)
            except BaseException:
                await asyncio.to_thread(remove_tree, f"{self.place}/images/{upper}")
                raise
            await asyncio.to_thread(self._write, layer.id, [below, *record["lowers"]], upper, [])
        self._show(layer)
        return str(below)

    def _copy_upper(self, layer: Layer, image_id: str) -> Copied:
        self._make_empty(image_id)
        upper = self._layers[layer.id]["upper"]
        return copy_tree(f"{self.place}/images/{upper}", f"{self.place}/images/{image_id}", raw=True)

    def _flatten(self, layer: Layer, image_id: str) -> Copied:
        """The layer's next mount takes the one folder, too; what it has mounted now is held until then."""
        self._make_empty(image_id)
        record = self._layers[layer.id]
        trees = [f"{self.place}/images/{tree}" for tree in record["lowers"]]
        copied = flatten(trees, f"{self.place}/images/{image_id}")
        self._write(layer.id, [image_id], record["upper"], held=record["lowers"])
        self._show(layer)
        return copied

    # -- folders and records -------------------------------------------------------------------------------------------

    def _make_empty(self, tree: str) -> None:
        os.mkdir(f"{self.place}/images/{tree}", 0o711)

    def _make_upper(self, layer_id: str, upper: str) -> str:
        """A new folder to write to, and one for the kernel to work in, whose name is given back."""
        self._make_empty(upper)
        work = f"layers/{layer_id}/work-{upper}"
        os.mkdir(f"{self.place}/{work}", 0o700)
        return work

    def _write(self, layer_id: str, lowers: list[str], upper: str, held: list[str]) -> None:
        record = {"lowers": lowers, "upper": upper, "held": held}
        write_record(f"{self.place}/layers/{layer_id}.json", record)
        self._layers[layer_id] = record

    def _mount(self, lowers: list[str], upper: str, work: str) -> OverlayMount:
        return OverlayMount(self.place, tuple(f"images/{tree}" for tree in lowers), f"images/{upper}", work)

    def _show(self, layer: Layer) -> None:
        record = self._layers[layer.id]
        upper = record["upper"]
        layer.folder = f"{self.place}/images/{upper}"
        layer.mount = self._mount(record["lowers"], upper, f"layers/{layer.id}/work-{upper}")

    async def discard(self, item_id: str) -> None:
        self._forget(item_id)
        await self._remove(self._remove_unneeded, item_id)

    async def sweep(self, keep: set[str]) -> list[str]:
        gone = sorted({*self._images, *self._layers, *await asyncio.to_thread(self._folders_of_layers)} - keep)
        for item_id in gone:
            self._forget(item_id)
        await self._remove(self._remove_unneeded, *gone)
        return gone

    def _forget(self, item_id: str) -> None:
        self._images.pop(item_id, None)
        self._layers.pop(item_id, None)

    def _folders_of_layers(self) -> list[str]:
        return [name.removesuffix(".new").removesuffix(".json") for name in os.listdir(f"{self.place}/layers")]

    def _remove_unneeded(self, *gone: str) -> None:
        for item_id in gone:
            forget_record(f"{self.place}/images/{item_id}.json")
            forget_record(f"{self.place}/layers/{item_id}.json")
            remove_tree(f"{self.place}/layers/{item_id}")
        with self._choosing:  # two that remove one tree would stumble over each other
            trees = {name for name in os.listdir(f"{self.place}/images") if not name.endswith((".json", ".new"))}
            trees -= self._needed() | self._going
            self._going |= trees
        try:
            for tree in trees:
                remove_tree(f"{self.place}/images/{tree}")
        finally:
            self._going -= trees

    def _remove_image_files(self, image_id: str) -> None:
        if image_id not in self._needed():
            super()._remove_image_files(image_id)

    def _needed(self) -> set[str]:
        needed = {GROUND, *self._in_use}
        for image in list(self._images.values()):
            needed.update((image.id, *image.lowers))
        for record in list(self._layers.values()):
            needed.update((record["upper"], *record["lowers"], *record["held"]))
        return needed
