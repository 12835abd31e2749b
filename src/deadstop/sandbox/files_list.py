# SPDX-License-Identifier: Apache-2.0
"""What is said of the files of a sandbox: entries and listings."""

from __future__ import annotations

import os
import stat
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote_from_bytes

from .files_tree import Descent, walk
from .files_view import shown

__all__ = ["Entry", "Listing", "list_folder", "make_entry"]

_PATH_BYTES = 4 << 20
_TYPES = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink", stat.S_IFIFO: "fifo"}

Entry = dict[str, Any]


@dataclass
class Listing:
    """Entries of a directory; `truncated` says that there are more than these."""

    entries: list[Entry] = field(default_factory=list)
    truncated: bool = False


def list_folder(fd: int, base: bytes, recursive: bool, limit: int) -> Listing:
    """The entries of a directory (descriptor, taken over) as if its path were `base`."""
    listing, room = Listing(), _PATH_BYTES
    base = base.rstrip(b"/")
    with closing(Descent(fd)) as descent:
        for folder_path, folder, entry in walk(descent, recursive):
            path = b"/".join(
                [base, folder_path, os.fsencode(entry.name)] if folder_path else [base, os.fsencode(entry.name)]
            )
            room -= len(path)
            if len(listing.entries) >= limit or room < 0:
                listing.truncated = True
                break
            try:
                found = entry.stat(follow_symlinks=False)
                target = os.readlink(entry.name, dir_fd=folder) if stat.S_ISLNK(found.st_mode) else b""
            except OSError:
                continue  # gone meanwhile
            listing.entries.append(make_entry(path, found, os.fsencode(target)))
    listing.entries.sort(key=lambda entry: entry["path"])
    return listing


def make_entry(path: bytes, found: os.stat_result | None, target: bytes = b"") -> Entry:
    """An entry as `Files.stat` says; `found` None is a directory, or a link, of the view's own."""
    mode = found.st_mode if found else stat.S_IFLNK | 0o777 if target else stat.S_IFDIR | 0o755
    entry = {
        "name": shown(path.rpartition(b"/")[2] or b"/"),
        "path": shown(path),
        "is_dir": stat.S_ISDIR(mode),
        "size": found.st_size if found else 0,
        "mode": f"{stat.S_IMODE(mode):04o}",
        "mtime": int(found.st_mtime) if found else 0,
        "type": _TYPES.get(stat.S_IFMT(mode), "other"),
    }
    if target:
        entry["target"] = shown(target)
    if not _is_text(path):
        entry["encoded"] = quote_from_bytes(path)
    return entry


def _is_text(path: bytes) -> bool:
    try:
        path.decode()
    except UnicodeDecodeError:
        return False
    return True
