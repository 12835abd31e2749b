# SPDX-License-Identifier: Apache-2.0
"""The files of a sandbox, from outside. Bodies are streamed: a large file costs no large memory."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import IO, Any

from ..errors import FileProblem, NotFound
from . import trees
from .asks import LONG_S, Ask, sandbox_path
from .connection import Server
from .portal import portal

CHUNK = 256 << 10
SPOOLED = 8 << 20  # a tree in transit is kept in memory up to this, then on disk
LARGEST = 4 << 30  # of what is downloaded: the sandbox decides how much it sends

Path = str | os.PathLike[str]


class AsyncFiles:
    """The async twin of `Files`."""

    def __init__(self, server: Server, ref: Callable[[], str]) -> None:
        self._server, self._ref = server, ref

    def _ask(self, method: str, path: str, route: str = "", **options: Any) -> Ask:
        query = {"path": path, **options.pop("query", {})}
        where = ["fs", route] if route else ["fs"]
        return Ask(method, sandbox_path(self._ref(), *where), query, **options)

    async def read(self, path: str) -> bytes:
        """See `Files.read`."""
        return (await self._server.ask(self._ask("GET", path, seconds=LONG_S))).data

    async def read_text(self, path: str) -> str:
        """See `Files.read_text`."""
        return (await self.read(path)).decode("utf-8", "replace")

    async def write(self, path: str, data: bytes | str, *, mode: int | None = None) -> None:
        """See `Files.write`."""
        raw = data.encode() if isinstance(data, str) else bytes(data)
        await self._server.ask(self._ask("PUT", path, content=raw, query=_mode(mode), seconds=LONG_S))

    async def list(self, path: str = "/home/agent", *, recursive: bool = False) -> Sequence[dict[str, Any]]:
        """See `Files.list`."""
        query = {"recursive": "true"} if recursive else {}
        found = await self._server.document(self._ask("GET", path, "dir", query=query, seconds=LONG_S))
        entries: Sequence[dict[str, Any]] = found.get("entries") or []
        return entries

    async def stat(self, path: str) -> dict[str, Any]:
        """See `Files.stat`."""
        return await self._server.document(self._ask("GET", path, "stat"))

    async def exists(self, path: str) -> bool:
        """See `Files.exists`."""
        try:
            await self.stat(path)
        except FileProblem as problem:
            if problem.kind in ("not_found", "not_a_directory"):
                return False
            raise
        except NotFound as problem:
            if problem.kind == "sandbox":
                raise
            return False
        return True

    async def mkdir(self, path: str) -> None:
        """See `Files.mkdir`."""
        await self._server.ask(self._ask("POST", path, "mkdir"))

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """See `Files.remove`."""
        query = {"recursive": "true"} if recursive else {}
        await self._server.ask(self._ask("DELETE", path, query=query, seconds=LONG_S))

    async def move(self, source: str, target: str) -> None:
        """See `Files.move`."""
        path = sandbox_path(self._ref(), "fs", "move")
        await self._server.ask(Ask("POST", path, body={"from": source, "to": target}))

    async def upload(self, local: Path, remote: str) -> None:
        """See `Files.upload`."""
        name = os.fspath(local)
        if os.path.isdir(name):
            with tempfile.SpooledTemporaryFile(SPOOLED) as packed:
                await asyncio.to_thread(trees.pack, name, packed)
                seconds = _transfer(packed.seek(0, os.SEEK_END))
                ask = self._ask("PUT", remote, "tree", content=lambda: _pieces(packed), seconds=seconds)
                await self._server.ask(ask)
            return
        with open(name, "rb") as file:
            found = os.fstat(file.fileno())
            query, seconds = _mode(found.st_mode & 0o777), _transfer(found.st_size)
            await self._server.ask(
                self._ask("PUT", remote, content=lambda: _pieces(file), query=query, seconds=seconds)
            )

    async def download(self, remote: str, local: Path, *, max_bytes: int = LARGEST) -> Sequence[str]:
        """See `Files.download`."""
        name = os.fspath(local)
        if not (await self.stat(remote)).get("is_dir"):
            await self._download_file(remote, name, max_bytes)
            return []
        with tempfile.SpooledTemporaryFile(SPOOLED) as packed:
            ask = self._ask("GET", remote, "tree")
            await self._into(packed, ask, remote, max_bytes)
            packed.seek(0)
            return await asyncio.to_thread(trees.unpack, packed, name, max_bytes)

    async def _download_file(self, remote: str, local: str, max_bytes: int) -> None:
        """Beside its place first, so that a broken download leaves no half file."""
        folder = os.path.dirname(os.path.abspath(local))
        target = os.path.join(local, os.path.basename(remote)) if os.path.isdir(local) else local
        if target is not local:
            folder = local
        descriptor, half = tempfile.mkstemp(prefix=".deadstop-", dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                await self._into(file, self._ask("GET", remote), remote, max_bytes)
            os.chmod(half, 0o666 & ~trees.umask())
            os.replace(half, target)
        except BaseException:
            os.unlink(half)
            raise

    async def _into(self, file: IO[bytes], ask: Ask, remote: str, max_bytes: int) -> None:
        left = max_bytes
        async with aclosing(self._server.pieces(ask)) as pieces:
            async for data in pieces:
                left -= len(data)
                if left < 0:
                    raise FileProblem("too_large", remote, f"more than {max_bytes} bytes (max_bytes)")
                await asyncio.to_thread(file.write, data)


def _transfer(size: int) -> float:
    """How long so many bytes may take: a slow line, not one that stands still."""
    return LONG_S + size / (256 << 10)


def _mode(mode: int | None) -> dict[str, str]:
    return {} if mode is None else {"mode": f"{mode & 0o777:03o}"}


async def _pieces(file: IO[bytes]) -> AsyncGenerator[bytes, None]:
    """From the beginning: a request that is sent again needs all of it."""
    file.seek(0)
    while data := await asyncio.to_thread(file.read, CHUNK):
        yield data


class Files:
    """The files of a sandbox. Paths are absolute and those inside; none leads outside, whatever the links say.

    Raises FileProblem (`kind` says what is wrong with the path).
    """

    def __init__(self, face: AsyncFiles) -> None:
        self._face = face

    def read(self, path: str) -> bytes:
        """All of a regular file."""
        return portal.run(self._face.read(path))

    def read_text(self, path: str) -> str:
        """The same as text; U+FFFD for what is not UTF-8."""
        return portal.run(self._face.read_text(path))

    def write(self, path: str, data: bytes | str, *, mode: int | None = None) -> None:
        """Write a file as a whole, never half; folders that are missing are made."""
        portal.run(self._face.write(path, data, mode=mode))

    def list(self, path: str = "/home/agent", *, recursive: bool = False) -> Sequence[dict[str, Any]]:
        """The entries of a folder: name, path, type, is_dir, size, mode, mtime."""
        return portal.run(self._face.list(path, recursive=recursive))

    def stat(self, path: str) -> dict[str, Any]:
        """One such entry."""
        return portal.run(self._face.stat(path))

    def exists(self, path: str) -> bool:
        """Whether there is anything under that name."""
        return portal.run(self._face.exists(path))

    def mkdir(self, path: str) -> None:
        """Make a folder, and those above it."""
        portal.run(self._face.mkdir(path))

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or an empty folder; a full one only if `recursive`."""
        portal.run(self._face.remove(path, recursive=recursive))

    def move(self, source: str, target: str) -> None:
        """Rename."""
        portal.run(self._face.move(source, target))

    def upload(self, local: Path, remote: str) -> None:
        """Copy a file, or the contents of a folder, into the sandbox. Links are copied as links."""
        portal.run(self._face.upload(local, remote))

    def download(self, remote: str, local: Path, *, max_bytes: int = LARGEST) -> Sequence[str]:
        """Copy a file, or the contents of a folder, out of the sandbox; the names of what was left out.

        What the sandbox sends is not trusted: nothing is written outside of `local`, through no link; devices,
        sockets, hard links and links that lead outside are left out; no file gets setuid. At most `max_bytes`.
        """
        return portal.run(self._face.download(remote, local, max_bytes=max_bytes))
