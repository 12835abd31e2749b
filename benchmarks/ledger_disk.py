# SPDX-License-Identifier: Apache-2.0
"""A folder on a real disk, and what that disk takes to keep 4 KiB for good: the floor under every durable commit."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PAGE = b"\x5a" * 4096
PAGES = 256
_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


@contextmanager
def folder() -> Iterator[str]:
    """A new folder that is no memory, for the time of the block. Others may pass through it, not read it."""
    for parent in (tempfile.gettempdir(), "/var/tmp", os.path.expanduser("~")):
        if file_system(parent) not in _IN_MEMORY and os.access(parent, os.W_OK | os.X_OK):
            break
    else:
        raise RuntimeError("no folder on a real disk: set TMPDIR to one")
    path = tempfile.mkdtemp(prefix="deadstop-bench-ledger-", dir=parent)
    os.chmod(path, 0o711)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def file_system(path: str) -> str:
    """The type of the file system below this path."""
    path, found = os.path.realpath(path), ("", "")
    with open("/proc/self/mounts") as mounts:
        for line in mounts:
            _, point, kind, *_ = line.split(" ")
            if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(found[0]):
                found = point, kind
    return found[1]


def each(work: Callable[[], object], count: int) -> list[float]:
    """So many times, one after another: what each took, in milliseconds."""
    values = []
    for _ in range(count):
        start = time.perf_counter()
        work()
        values.append((time.perf_counter() - start) * 1000)
    return values


class Flushes:
    """4 KiB written and flushed with fdatasync: over what is there, and at the end of a growing file. Milliseconds."""

    def __init__(self, place: str) -> None:
        self._over = os.open(f"{place}/overwritten", os.O_RDWR | os.O_CREAT)
        self._end = os.open(f"{place}/appended", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(self._over, PAGE * PAGES)
        os.fsync(self._over)
        self._turn = 0

    def overwrite(self, count: int) -> list[float]:
        return each(self._overwrite_one, count)

    def append(self, count: int) -> list[float]:
        return each(self._append_one, count)

    def _overwrite_one(self) -> None:
        self._turn = (self._turn + 1) % PAGES
        os.pwrite(self._over, PAGE, self._turn * len(PAGE))
        os.fdatasync(self._over)

    def _append_one(self) -> None:
        os.write(self._end, PAGE)
        os.fdatasync(self._end)

    def close(self) -> None:
        os.close(self._over)
        os.close(self._end)
