# SPDX-License-Identifier: Apache-2.0
"""Which leaves have changed places, when all that is known is the root over them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .merkle import Frontier

__all__ = ["swapped"]

_EVERY_PAIR, _NEIGHBOURS = 48, 512  # as many leaves at most: what is tried grows with the square or the cube of it


def swapped(start: Frontier, leaves: Sequence[bytes], roots: Collection[bytes]) -> list[tuple[int, int]]:
    """The two places whose exchange gives one of the roots, if any does. Empty if not, or if there are too many."""
    count = len(leaves)
    if count > _NEIGHBOURS:
        return []
    reach = count if count <= _EVERY_PAIR else 2
    tried = list(leaves)
    before = start.copy()
    for a in range(count):
        for b in range(a + 1, min(count, a + reach)):
            if leaves[a] == leaves[b]:
                continue
            tried[a], tried[b] = leaves[b], leaves[a]
            tree = before.copy()
            for leaf in tried[a:]:
                tree.append(leaf)
            tried[a], tried[b] = leaves[a], leaves[b]
            if tree.root() in roots:
                return [(start.size + a, start.size + b)]
        before.append(leaves[a])
    return []
