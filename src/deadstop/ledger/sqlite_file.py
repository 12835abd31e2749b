# SPDX-License-Identifier: Apache-2.0
"""Where an SQLite ledger may lie, and whether it still lies there."""

from __future__ import annotations

import os
import sqlite3

from ..errors import LedgerUnavailable

__all__ = ["check_place", "check_version", "fix_of", "identity"]

OLDEST = (3, 37, 0)  # STRICT tables
_FAR = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "fuse.sshfs", "lustre")


def identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def check_version(where: str) -> None:
    if sqlite3.sqlite_version_info < OLDEST:
        old = f"SQLite {sqlite3.sqlite_version} is too old"
        raise LedgerUnavailable(where, old, "use a Python with SQLite 3.37 or later")


def check_place(path: str) -> None:
    """SQLite's log needs shared memory and locks that hold: not on a file system of another machine."""
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    kind = _file_system(folder)
    if kind in _FAR:
        raise LedgerUnavailable(path, f"it is on a network file system ({kind})", "use a local disk, or postgresql://")
    if os.path.exists(path) and os.stat(path).st_nlink > 1:
        raise LedgerUnavailable(path, "its file has several names (hard links), each with a log of its own", "copy it")
    if any(words[4] == _as_in_mountinfo(path) for words in _mounts()):
        raise LedgerUnavailable(path, "it is mounted here without its folder, where its log is", "mount the folder")


def _file_system(folder: str) -> str:
    """The type of the file system that a folder is on; "" if that cannot be told."""
    device = os.stat(folder).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    return next((words[words.index("-") + 1] for words in _mounts() if words[2] == wanted), "")


def _mounts() -> list[list[str]]:
    try:
        with open("/proc/self/mountinfo", errors="surrogateescape") as file:
            return [words for words in (line.split(" ") for line in file) if len(words) > 4 and "-" in words[:-1]]
    except OSError:
        return []


def _as_in_mountinfo(path: str) -> str:
    for each in "\\ \t\n":
        path = path.replace(each, f"\\{ord(each):03o}")
    return path


def fix_of(problem: OSError) -> str:
    return "name another place with --ledger or DEADSTOP_LEDGER" if problem.errno in (1, 13, 30) else ""
