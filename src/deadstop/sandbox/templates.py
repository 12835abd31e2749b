# SPDX-License-Identifier: Apache-2.0
"""What a sandbox starts from: its first files, its environment, and packages that the host does not have."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from .. import clock
from ..errors import NotAllowed, NotFound, UsageError
from .layers.store import Image, Store, forget_record, new_id, read_record, write_record
from .wishes import check_variables

__all__ = ["Template", "Templates", "check_name", "no_processes"]

NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
ALIASES = {"code-interpreter": "python"}
PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")


@dataclass(frozen=True, slots=True)
class Template:
    """`env` is added to the sandbox's environment, with `paths` in front of its PATH.

    `image_id` None is an empty home. `system` is a folder laid over /usr, read-only (Debian packages), or None.
    """

    name: str
    description: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    base: str = ""
    image_id: str | None = None
    system: str | None = None
    created_at: float | None = None
    size_bytes: int | None = None
    builtin: bool = False

    def environment(self, before: Mapping[str, str]) -> dict[str, str]:
        """`before` with what this template adds."""
        merged = {**before, **self.env}
        if self.paths:
            merged["PATH"] = ":".join((*self.paths, *filter(None, [merged.get("PATH")])))
        return merged

    def document(self) -> dict[str, Any]:
        """As GET /v1/templates has it."""
        names = ("name", "description", "size_bytes", "builtin", "base")
        made = None if self.created_at is None else clock.iso(self.created_at)
        return {name: getattr(self, name) for name in names} | {
            "created_at": made, "env": dict(self.env), "packages": bool(self.system),
        }  # fmt: skip


class Templates:
    """The built-in templates, and those of this server, each a record in `folder` and an image in `store`."""

    def __init__(self, store: Store, folder: str) -> None:
        self.store, self.folder = store, os.path.abspath(folder)
        self.remarks: list[str] = []
        self._own: dict[str, Template] = {}
        os.makedirs(f"{self.folder}/system", mode=0o755, exist_ok=True)
        self._load()

    def resolve(self, name: str) -> Template:
        """Raises NotFound("template", name); NotAllowed for `python` where the host has none below /usr."""
        name = ALIASES.get(name, name)
        if name == "base":
            return Template("base", "an empty home, and the programs of the host's /usr", builtin=True)
        if name == "python":
            return _python()
        try:
            return self._own[name]
        except KeyError:
            raise NotFound("template", name[:80]) from None

    def image_of(self, template: Template) -> Image | None:
        """What its layers are made from; None for an empty home."""
        return self.store.image(template.image_id) if template.image_id else None

    def items(self) -> list[Template]:
        """All that can be used, the built-in ones first."""
        builtin = [self.resolve("base")]
        try:
            builtin.append(_python())
        except NotAllowed:
            pass
        return builtin + sorted(self._own.values(), key=lambda template: template.name)

    def image_ids(self) -> set[str]:
        """Images that templates are made of: to be kept by a sweep, and not to be deleted as snapshots."""
        return {template.image_id for template in self._own.values() if template.image_id}

    async def add_from_image(
        self,
        name: str,
        image: Image,
        *,
        description: str = "",
        env: Mapping[str, str] | None = None,
        paths: tuple[str, ...] = (),
        base: str = "base",
        system: str | None = None,
    ) -> Template:
        """Record a template; the image is the template's from then on. It replaces one of that name.

        `system` is a folder made by `new_system_folder`. Raises UsageError for a name that is none or is built in.
        """
        check_name(name)
        check_variables(env or {})
        made = Template(
            *(name, description, dict(env or {}), paths, base, image.id, system, time.time(), image.size_bytes)
        )
        await asyncio.to_thread(write_record, f"{self.folder}/{name}.json", asdict(made))
        before = self._own.get(name)
        self._own[name] = made
        if before and before.image_id != made.image_id:
            await self._remove_files(before)
        return made

    async def add_from_folder(self, name: str, path: str, *, description: str = "", **record: Any) -> Template:
        """A template whose home has a copy of a folder of the host. Its links are copied as links, never followed."""
        check_name(name)
        if not os.path.isdir(path):
            raise UsageError(f"folder: {path!r:.200} is not a folder of this host")
        layer = await self.store.create(None)
        try:
            await self.store.put_folder(layer, path)
            image, _ = await self.store.capture(layer, frozen=no_processes, idle=True)
        finally:
            await self.store.discard(layer.id)
        return await self.add_from_image(name, image, description=description or f"from {path}", **record)

    async def delete(self, name: str) -> None:
        """Sandboxes made from it live on. Raises NotFound; NotAllowed for one that is built in."""
        if ALIASES.get(name, name) in ("base", "python"):
            raise NotAllowed(f"template {name} is built in")
        template = self.resolve(name)
        del self._own[name]
        await asyncio.to_thread(forget_record, f"{self.folder}/{name}.json")
        await self._remove_files(template)

    def new_system_folder(self) -> str:
        """An empty folder for files to be laid over /usr."""
        path = f"{self.folder}/system/{new_id('sys')}"
        os.mkdir(path, 0o755)
        os.chmod(path, 0o755)
        return path

    async def _remove_files(self, template: Template) -> None:
        """The folder over /usr stays until the next start: live sandboxes may have it mounted."""
        if template.image_id and template.image_id not in self.image_ids():
            await self.store.discard(template.image_id)

    def _load(self) -> None:
        for file in sorted(os.listdir(self.folder)):
            record = read_record(f"{self.folder}/{file}") if file.endswith(".json") else None
            if record is None:
                continue
            try:
                template = Template(**{**record, "paths": tuple(record["paths"])})
            except (KeyError, TypeError) as problem:
                self.remarks.append(f"{self.folder}/{file} is not the record of a template: {problem!r}")
                continue
            try:
                self.image_of(template)
            except NotFound:
                self.remarks.append(f"template {template.name} cannot be used: its files are not in this store")
                continue
            self._own[template.name] = template
        wanted = {template.system for template in self._own.values()}
        for name in os.listdir(f"{self.folder}/system"):
            if f"{self.folder}/system/{name}" not in wanted:
                shutil.rmtree(f"{self.folder}/system/{name}", ignore_errors=True)


def check_name(name: str) -> str:
    """Raises UsageError unless a template of one's own may have that name."""
    if not NAME.fullmatch(name):
        raise UsageError(f"name: {name!r:.80} is not a template's: a-z, 0-9, '_', '.' and '-', at most 63")
    if name in ("base", "python", *ALIASES):
        raise UsageError(f"name: {name} is the name of a built-in template")
    return name


def _python() -> Template:
    for path in PYTHONS:
        if os.access(path, os.X_OK):
            return Template("python", f"an empty home, and Python ({os.path.realpath(path)})", builtin=True)
    raise NotAllowed(
        "template python: this host has no python3 below /usr; install one, or build a template of your own"
    )


@asynccontextmanager
async def no_processes() -> AsyncIterator[None]:
    """What stops a sandbox that nobody has started."""
    yield
