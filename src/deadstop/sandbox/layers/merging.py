# SPDX-License-Identifier: Apache-2.0
"""A chain of overlay folders made into one: a chain that grew with every image costs at each name that is missing."""

from __future__ import annotations

import os
from contextlib import ExitStack

from .copying import Copied, Copier, Tree, below, folder_entries, is_whiteout

__all__ = ["flatten"]

OPAQUE = "user.overlay.opaque"


def flatten(trees: list[str], target: str) -> Copied:
    """Copy into `target` what an overlay of `trees` (the uppermost first) would show. Nothing may write to them."""
    with ExitStack() as stack:
        opened = [stack.enter_context(Tree(tree)) for tree in trees]
        copier = stack.enter_context(Copier(target))
        waiting = [("", opened)]
        while waiting:
            path, here = waiting.pop()
            waiting += _merge_folder(copier, path, here)
        return copier.copied


def _merge_folder(copier: Copier, path: str, trees: list[Tree]) -> list[tuple[str, list[Tree]]]:
    """Copy what is no folder; the folders in it, each with the trees that it is merged from."""
    opened = [tree.folder(path) for tree in trees]
    target = copier.folder(path, opened[0], trees[0].mode(path, opened[0]))
    settled: set[str] = set()
    folders: dict[str, list[Tree]] = {}
    try:
        for tree, source in zip(trees, opened, strict=True):
            for entry in folder_entries(source):
                name = entry.name
                if name in settled:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.setdefault(name, []).append(tree)
                    if _is_opaque(tree, below(path, name)):
                        settled.add(name)
                    continue
                settled.add(name)
                if name not in folders and not is_whiteout(entry.stat(follow_symlinks=False)):
                    copier.entry(name, below(path, name), source, target)
    finally:
        for fd in (*opened, target):
            os.close(fd)
    return [(below(path, name), trees) for name, trees in folders.items()]


def _is_opaque(tree: Tree, path: str) -> bool:
    fd = tree.folder(path)
    try:
        return os.getxattr(fd, OPAQUE) == b"y"
    except OSError:
        return False
    finally:
        os.close(fd)
