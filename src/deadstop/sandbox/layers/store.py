# SPDX-License-Identifier: Apache-2.0
"""What the three kinds of store have in common: layers, images, and the records that survive a crash."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from ...boundary.overlay import OverlayMount
from ...errors import CapacityError, NotAllowed, NotFound
from .copying import Copied, allocated, copy_tree, remove_tree
from .removing import unhurried

__all__ = ["OWNER_UID", "Capture", "Image", "Layer", "Store", "Swap"]

OWNER_UID = 1_879_048_191
"""Who owns the files of every layer on disk, where the server is root; a sandbox sees them as its own user's."""

FOLDERS = {"home": 0o755, "tmp": 0o1777}
REMOVALS = 2  # at a time
LEAST_FREE = 128 << 20  # below this a write of the server's own could fail half-way

Swap = Callable[[OverlayMount, str], Awaitable[None]]
"""Gives a live idle sandbox another overlay; the second argument is an empty folder to mount on (overlay.swap)."""
Frozen = Callable[[], AbstractAsyncContextManager[None]]


@dataclass(slots=True, eq=False)
class Layer:
    """The writable files of one sandbox.

    `folder` is where the server may put files while no sandbox has the layer: it has `home` and `tmp` in it (in an
    overlay, only what differs from below). `limited`: the bytes are bounded by `disk`.
    `mount` is set for an overlay: the boundary mounts it and binds its `home` and `tmp`; else it binds `binds()`.
    """

    id: str
    kind: str
    folder: str
    limited: bool = False
    disk: int | None = None
    mount: OverlayMount | None = None
    view: str = ""
    measure: Callable[[], int | None] = field(default=lambda: None, repr=False)

    def binds(self) -> tuple[tuple[str, str, bool], ...]:
        """(source, target, writable) of each part; nothing for an overlay."""
        if self.mount:
            return ()
        return ((f"{self.folder}/home", "/home/agent", True), (f"{self.folder}/tmp", "/tmp", True))

    def usage(self) -> int | None:
        """Bytes that count against the bound, where the file system counts them; else None."""
        return self.measure()


@dataclass(frozen=True, slots=True)
class Image:
    """Immutable files from which layers are made. `size_bytes` is what its own files take, None if never measured.

    `lowers` are the images below it, the uppermost first (overlay only).
    """

    id: str
    kind: str
    size_bytes: int | None
    created_at: float
    lowers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Capture:
    """How an image was taken, and for how many milliseconds the sandbox stood still (0 if nothing ran).

    `skipped` counts what cannot be in an image: sockets, pipes, devices, paths longer than the system takes.
    """

    how: str
    pause_ms: float
    skipped: int = 0


class Store:
    """All layers and images of one server, below `root`/`kind`. Methods are for one event loop; they block nothing.

    One store at a time may have a root: the lock is held until `close`, or the end of the process.
    """

    kind = ""

    def __init__(self, root: str) -> None:
        self.root = root
        self.remarks: list[str] = []
        self.owner = OWNER_UID if os.geteuid() == 0 else os.geteuid()
        self.place = f"{root}/{self.kind}"
        self._images: dict[str, Image] = {}
        self._in_use: list[str] = []  # ids that are being made, or made from
        self._removals = asyncio.Semaphore(REMOVALS)
        self._lock = _locked(root)

    def _open(self) -> None:
        """Make the folders and read the records. Blocks."""
        for name in ("layers", "images"):
            os.makedirs(f"{self.place}/{name}", mode=0o711, exist_ok=True)
        for name in os.listdir(f"{self.place}/images"):
            if name.endswith(".json") and (record := read_record(f"{self.place}/images/{name}")):
                record["lowers"] = tuple(record["lowers"])
                self._images[record["id"]] = Image(**record)

    # -- the public verbs ----------------------------------------------------------------------------------------------

    async def create(self, image: Image | None, *, disk: int | None = None, consume: bool = False) -> Layer:
        """A new layer, empty or from an image. `disk` bounds what it writes, in bytes, where `limited` comes out true.

        With `consume` the image is not needed afterwards, which saves a copy in some stores. Raises CapacityError.
        """
        self._check_space()
        ids = [image.id, *image.lowers] if image else []
        with self._clean_errors(), self._using(ids):
            try:
                return await asyncio.to_thread(self._create, image, disk, consume)
            except FileNotFoundError as problem:
                if image and image.id not in self._images:
                    raise NotFound("snapshot", image.id) from problem
                raise

    async def capture(
        self, layer: Layer, *, frozen: Frozen, idle: bool, swap: Swap | None = None, measure: bool = True
    ) -> tuple[Image, Capture]:
        """An image of the layer as it is at one moment, and how it was taken.

        `frozen()` stops every process of the sandbox for as long as it is entered. `idle`: there is none until this
        returns, and no descriptor open for writing anywhere; then `frozen` is not used. `swap` is for overlays whose
        sandbox is live; without it an idle layer must not be mounted. `measure=False` leaves out the size, which takes
        a walk over all files. Raises CapacityError; the layer stays usable.
        """
        self._check_space()
        image_id = new_id("img")
        with self._clean_errors(), self._using([image_id]):
            try:
                final_id, lowers, capture = await self._capture(layer, image_id, frozen, idle, swap)
                return await asyncio.to_thread(self._record_image, final_id, lowers, measure), capture
            except BaseException:
                await asyncio.shield(asyncio.to_thread(self._remove_image_files, image_id))
                raise

    async def discard(self, item_id: str) -> None:
        """Remove a layer that no sandbox has, or an image; layers made from it live on. Not an error if it is gone."""
        self._images.pop(item_id, None)
        await self._remove(self._discard, item_id)

    async def _remove(self, work: Callable[..., None], *arguments: str) -> None:
        """How long this takes is up to a payload: it has threads of its own, and few of them."""
        async with self._removals:
            await unhurried(work, *arguments)

    async def put_folder(self, layer: Layer, source: str, into: str = "home") -> Copied:
        """Copy a folder of the host into a layer that no sandbox has. Links are copied, never followed."""
        self._check_space()
        target = f"{layer.folder}/{into}"
        with self._clean_errors():
            await asyncio.to_thread(self._make_folders, layer.folder)
            return await asyncio.to_thread(copy_tree, source, target, self._owner_to_set)

    async def sweep(self, keep: set[str]) -> list[str]:
        """Remove every layer and image that is neither in `keep` nor needed by one that is; the ids removed."""
        found = await asyncio.to_thread(self._ids_on_disk)
        gone = sorted(found - keep)
        for item_id in gone:
            await self.discard(item_id)
        return gone

    def image(self, image_id: str) -> Image:
        """Raises NotFound("snapshot", id)."""
        try:
            return self._images[image_id]
        except KeyError:
            raise NotFound("snapshot", image_id) from None

    def images(self) -> list[Image]:
        return sorted(self._images.values(), key=lambda image: image.created_at)

    def close(self) -> None:
        """Let go of the root. No sandbox may have a layer any more."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # -- for each kind; these block, except _capture -----------------------------------------------------------------

    def _create(self, image: Image | None, disk: int | None, consume: bool) -> Layer:
        raise NotImplementedError

    async def _capture(
        self, layer: Layer, image_id: str, frozen: Frozen, idle: bool, swap: Swap | None
    ) -> tuple[str, tuple[str, ...], Capture]:
        """Also says the id of the image, `image_id` or another, and those below it."""
        raise NotImplementedError

    def _discard(self, item_id: str) -> None:
        forget_record(f"{self.place}/images/{item_id}.json")
        remove_tree(f"{self.place}/images/{item_id}")
        remove_tree(f"{self.place}/layers/{item_id}")

    def _remove_image_files(self, image_id: str) -> None:
        remove_tree(f"{self.place}/images/{image_id}")

    def _ids_on_disk(self) -> set[str]:
        names = {*os.listdir(f"{self.place}/layers"), *os.listdir(f"{self.place}/images")}
        return {name.removesuffix(".json").removesuffix(".new") for name in names}

    # -- parts they share ----------------------------------------------------------------------------------------------

    @property
    def _owner_to_set(self) -> int | None:
        return self.owner if os.geteuid() == 0 else None

    def _make_folders(self, folder: str) -> None:
        os.makedirs(folder, mode=0o711, exist_ok=True)
        for name, mode in FOLDERS.items():
            path = f"{folder}/{name}"
            if not os.path.isdir(path):
                os.mkdir(path)
                os.chmod(path, mode)
                if self._owner_to_set is not None:
                    os.chown(path, self.owner, self.owner)

    def _record_image(self, image_id: str, lowers: tuple[str, ...], measure: bool) -> Image:
        size = allocated(f"{self.place}/images/{image_id}") if measure else None
        image = Image(image_id, self.kind, size, time.time(), lowers)
        write_record(f"{self.place}/images/{image_id}.json", asdict(image))
        self._images[image_id] = image
        return image

    def _check_space(self) -> None:
        for path in (self.place, self.root):  # a volume, and the disk that it grows on
            space = os.statvfs(path)
            if space.f_bavail * space.f_frsize < LEAST_FREE:
                raise CapacityError(f"the disk with {path} is full", "disk")

    @contextmanager
    def _using(self, ids: list[str]) -> Iterator[None]:
        self._in_use += ids
        try:
            yield
        finally:
            for each in ids:
                self._in_use.remove(each)

    @contextmanager
    def _clean_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            if problem.errno in (errno.ENOSPC, errno.EDQUOT):
                raise CapacityError(f"the disk with {self.place} is full", "disk") from problem
            raise


class Stopwatch:
    """Enters `frozen()`, unless the sandbox is idle, and tells how long that was, its own work counted."""

    def __init__(self, frozen: Frozen, idle: bool) -> None:
        self._entered = None if idle else frozen()
        self.ms = 0.0

    async def __aenter__(self) -> Stopwatch:
        self._begin = time.monotonic()
        if self._entered:
            await self._entered.__aenter__()
        return self

    async def __aexit__(self, *problem: Any) -> None:
        if self._entered:
            try:
                await self._entered.__aexit__(*problem)
            finally:
                self.ms = round((time.monotonic() - self._begin) * 1000, 3)


def new_id(prefix: str) -> str:
    return f"{prefix}_{os.urandom(10).hex()}"


def write_record(path: str, record: dict[str, Any]) -> None:
    """Complete or not at all."""
    with open(f"{path}.new", "w") as file:
        file.write(json.dumps(record))
    os.replace(f"{path}.new", path)


def read_record(path: str) -> dict[str, Any] | None:
    try:
        with open(path) as file:
            record = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def forget_record(path: str) -> None:
    for name in (path, f"{path}.new"):
        try:
            os.unlink(name)
        except FileNotFoundError:
            pass


def _locked(root: str) -> int:
    os.makedirs(root, mode=0o700, exist_ok=True)
    fd = os.open(f"{root}/layers.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise NotAllowed(f"{root} is in use by another server") from None
    return fd
