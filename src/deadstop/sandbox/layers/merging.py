# SPDX-License-Identifier: Apache-2.0
"""A chain of overlay folders made into one: a chain that grew with every image costs at each name that is missing."""

from __future__ import annotations

import os

from .copying import Copied, Copier, folder_entries, is_whiteout, open_beneath

__all__ = ["flatten"]

OPAQUE = "user.overlay.opaque"


def flatten(trees: list[str], target: str) -> Copied:
    """Copy into `target` what an overlay of `trees` (the uppermost first) would show. Nothing may write to them."""
    roots = [os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for tree in trees]
    try:
        with Copier(target) as copier:
            waiting = [("", roots)]
            while waiting:
                path, here = waiting.pop()
                waiting += _merge_folder(copier, path, here)
            return copier.copied
    finally:
        for root in roots:
            os.close(root)


def _merge_folder(copier: Copier, path: str, roots: list[int]) -> list[tuple[str, list[int]]]:
    """Copy what is no folder; the folders in it, each with the trees that it is merged from."""
    opened = [open_beneath(root, path) for root in roots]
    target = copier.folder(path, opened[0])
    settled: set[str] = set()
    folders: dict[str, list[int]] = {}
    try:
        for root, source in zip(roots, opened, strict=True):
            for entry in folder_entries(source):
                name = entry.name
                if name in settled:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.setdefault(name, []).append(root)
                    if _is_opaque(source, name):
                        settled.add(name)
                    continue
                settled.add(name)
                if name not in folders and not is_whiteout(entry.stat(follow_symlinks=False)):
                    copier.entry(name, _below(path, name), source, target)
    finally:
        for fd in (*opened, target):
            os.close(fd)
    return [(_below(path, name), trees) for name, trees in folders.items()]


def _below(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _is_opaque(folder: int, name: str) -> bool:
    fd = open_beneath(folder, name)
    try:
        return os.getxattr(fd, OPAQUE) == b"y"
    except OSError:
        return False
    finally:
        os.close(fd)
