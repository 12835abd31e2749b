# SPDX-License-Identifier: Apache-2.0
"""The ends of files that a caller named as evidence, read in a process of its own: a dead mount blocks only that."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import Any

from ..boundary.syscalls import open_without_links

TAIL_BYTES = 4096


def read_tails(paths: tuple[str, ...], emit: Callable[[dict[str, Any]], None]) -> None:
    """One report for each file, in order."""
    for path in paths:
        emit(_tail(path))


def _tail(path: str) -> dict[str, Any]:
    """The end of a regular file. No link is followed: a payload could point one at what only we may read."""
    try:
        fd = open_without_links(path)
    except OSError as problem:
        return {"path": path, "error": problem.strerror}
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            return {"path": path, "error": "not a regular file"}
        start = max(0, facts.st_size - TAIL_BYTES)
        text = os.pread(fd, TAIL_BYTES, start).decode("utf-8", "replace")
        return {"path": path, "tail": text, "bytes_total": facts.st_size, "truncated": start > 0}
    except OSError as problem:
        return {"path": path, "error": problem.strerror}
    finally:
        os.close(fd)
