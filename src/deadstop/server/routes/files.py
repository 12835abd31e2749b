# SPDX-License-Identifier: Apache-2.0
"""Files of a sandbox, read and written from outside in bounded memory. They are gone when it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .. import documents as doc
from ..bodies import Move, NeededPath, NoQuery, PathQuery, RecursivePath, RemoveQuery, WriteQuery
from ..front import Call
from ..problems import encodable
from ..replies import Download, Reply
from ..route import Answer, Route
from ..threads import into_thread, opened
from .sandboxes import ONE

if TYPE_CHECKING:
    from typing import Any

    from ...sandbox.files import Files

TAG = "files"
FS = f"{ONE}/fs"
BYTES = "application/octet-stream"
TAR = "application/x-tar"
FILE_ERRORS = (403, 409, 410, 413, 507)


async def read_file(call: Call[None, NeededPath]) -> Download:
    files, sizes = _files(call), []

    def read() -> Iterator[bytes]:
        descriptor, size = files.read(call.query.path)
        sizes.append(size)
        return files.pieces(descriptor, size)

    return Download(await opened(call.front, read), sizes[0])


async def write_file(call: Call[None, WriteQuery]) -> Reply:
    files, query = _files(call), call.query
    limit = call.settings.file_bytes
    writer = await asyncio.to_thread(files.writer, query.path, query.bits, limit)
    size = await into_thread(call.uploaded(limit), writer.write, writer.commit, writer.abort)
    return Reply({"path": encodable(query.path), "bytes": size})


async def remove_file(call: Call[None, RemoveQuery]) -> Reply:
    await asyncio.to_thread(_files(call).remove, call.query.path, call.query.recursive)
    return Reply(None, 204)


async def list_directory(call: Call[None, RecursivePath]) -> Reply:
    listing = await asyncio.to_thread(_files(call).listdir, call.query.path, call.query.recursive)
    return Reply({"entries": listing.entries, "truncated": listing.truncated})


async def stat_file(call: Call[None, NeededPath]) -> Reply:
    return Reply(await asyncio.to_thread(_files(call).stat, call.query.path))


async def make_directory(call: Call[None, NeededPath]) -> Reply:
    files = _files(call)
    await asyncio.to_thread(files.mkdir, call.query.path)
    return Reply(await asyncio.to_thread(files.stat, call.query.path), 201)


async def move_file(call: Call[Move, NoQuery]) -> Reply:
    files = _files(call)
    await asyncio.to_thread(files.move, call.body.source, call.body.target)
    return Reply(await asyncio.to_thread(files.stat, call.body.target, False))


async def download_tree(call: Call[None, PathQuery]) -> Download:
    files = _files(call)
    return Download(await opened(call.front, lambda: files.tar_out(call.query.path)), media=TAR)


async def upload_tree(call: Call[None, PathQuery]) -> Reply:
    files, limit = _files(call), call.settings.tree_bytes
    untar = await asyncio.to_thread(files.tar_in, call.query.path, limit)
    size = await into_thread(call.uploaded(limit), untar.feed, untar.close, untar.abort)
    return Reply({"path": encodable(call.query.path), "bytes": size})


def _files(call: Call[Any, Any]) -> Files:
    """The files of the sandbox, which is in use by that. Raises SandboxEnded."""
    sandbox = call.sandbox
    sandbox.check_live()
    sandbox.touch()
    assert sandbox.files is not None  # a live one has them
    return sandbox.files


_ENTRY = {200: Answer(doc.Entry, "the entry")}

ROUTES = (
    Route(
        method="GET", path=FS, handler=read_file, tag=TAG, query=NeededPath, errors=FILE_ERRORS,
        summary="A file's content", answers={200: Answer(None, "the content", BYTES)},
    ),
    Route(
        method="PUT", path=FS, handler=write_file, tag=TAG, query=WriteQuery, errors=FILE_ERRORS, upload=BYTES,
        summary="Write a file: whole, or not at all", answers={200: Answer(doc.FileWritten, "written")},
    ),
    Route(
        method="DELETE", path=FS, handler=remove_file, tag=TAG, query=RemoveQuery, errors=FILE_ERRORS,
        summary="Remove a file, a link, an empty directory, or with recursive=true a tree",
        answers={204: Answer(None, "removed")},
    ),
    Route(
        method="GET", path=f"{FS}/dir", handler=list_directory, tag=TAG, query=RecursivePath, errors=FILE_ERRORS,
        summary="The entries of a directory", answers={200: Answer(doc.Entries, "the entries")},
    ),
    Route(
        method="GET", path=f"{FS}/stat", handler=stat_file, tag=TAG, query=NeededPath, errors=FILE_ERRORS,
        summary="What a path is", answers=_ENTRY,
    ),
    Route(
        method="POST", path=f"{FS}/mkdir", handler=make_directory, tag=TAG, query=NeededPath, errors=FILE_ERRORS,
        summary="Make a directory and its parents", answers={201: Answer(doc.Entry, "it is there")},
    ),
    Route(
        method="POST", path=f"{FS}/move", handler=move_file, tag=TAG, body=Move, errors=FILE_ERRORS,
        summary="Give a file or tree another name", answers=_ENTRY,
        example={"from": "/home/agent/a", "to": "/home/agent/b"},
    ),
    Route(
        method="GET", path=f"{FS}/tree", handler=download_tree, tag=TAG, query=PathQuery, errors=FILE_ERRORS,
        summary="A tree as a tar stream", answers={200: Answer(None, "the tree", TAR)},
    ),
    Route(
        method="PUT", path=f"{FS}/tree", handler=upload_tree, tag=TAG, query=PathQuery, errors=FILE_ERRORS, upload=TAR,
        summary="Unpack a tar stream into a directory", answers={200: Answer(doc.FileWritten, "unpacked")},
    ),
)  # fmt: skip
