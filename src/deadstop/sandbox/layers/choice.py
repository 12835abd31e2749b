# SPDX-License-Identifier: Apache-2.0
"""Which kind of store this host and this user can have."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile

from ...boundary.cgroup import denied
from ...errors import NotAllowed
from .btrfs import BtrfsStore
from .copying import remove_tree
from .folder import FolderStore
from .overlay import OverlayStore
from .store import Store
from .volume import VolumeUnavailable

__all__ = ["open_store"]

KINDS = ("btrfs", "overlay", "folder")
_PROBE = "import sys; from deadstop.boundary.overlay import probe; sys.stdout.write(probe(sys.argv[1]))"


async def open_store(root: str, *, size: int | None = None, kind: str | None = None) -> Store:
    """The best store that can be had below `root`, which is made if need be; or the one of `kind`.

    `size` is that of the volume that root gets on a file system other than btrfs, in bytes, once: it takes space only
    as it fills. For that, call `private_mounts` at the start of the process. Images of one kind are of no use to
    another. Raises NotAllowed if that kind is impossible, if another server has `root`, or if its volume is broken.
    """
    if kind is not None and kind not in KINDS:
        raise NotAllowed(f"no such kind of store: {kind!r}; there are {', '.join(KINDS)}")
    return await asyncio.to_thread(_open, os.path.abspath(root), size, kind)


def _open(root: str, size: int | None, kind: str | None) -> Store:
    os.makedirs(root, mode=0o700, exist_ok=True)
    better = "btrfs" if os.geteuid() == 0 else "overlay"
    reason = ""
    if kind in (None, better):
        found, reason = _btrfs(root, size) if better == "btrfs" else _overlay(root)
        if found:
            return found
    elif kind != "folder":
        reason = "it needs root" if kind == "btrfs" else "root has the kind btrfs instead"
    if kind not in (None, "folder"):
        raise NotAllowed(f"files cannot be kept in a store of kind {kind} here: {reason}")
    store = FolderStore(root)
    if reason:
        store.remarks.insert(0, f"a snapshot copies every file: {better} cannot be had ({reason})")
    return store


def _btrfs(root: str, size: int | None) -> tuple[Store | None, str]:
    try:
        return BtrfsStore(root, size), ""
    except VolumeUnavailable as problem:
        return None, str(problem)


def _overlay(root: str) -> tuple[Store | None, str]:
    if "userns" in denied():
        return None, "namespaces are denied by DEADSTOP_DENY"
    trial = tempfile.mkdtemp(prefix="trial-", dir=root)
    try:
        # In a process of its own: this one may have threads, and must not change namespaces.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-c", _PROBE, trial]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
        if done.returncode or done.stdout:
            return None, done.stdout or done.stderr.strip()[-200:]
        return OverlayStore(root), ""
    finally:
        remove_tree(trial)
