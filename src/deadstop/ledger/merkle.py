# SPDX-License-Identifier: Apache-2.0
"""The tree of RFC 9162, section 2.1: roots, proofs that a leaf is in it, proofs that a tree only grew.

Leaves are hashes already. Levels count from them: level 0 is the leaves, a node of level k stands for 2**k of them.
What computes over a tree asks for `Rows`, a function that gives stored hashes; only levels 0, 8, 16, ... are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256

__all__ = [
    "EMPTY",
    "SPAN",
    "Frontier",
    "Node",
    "Tiles",
    "consistency_proof",
    "follows",
    "included",
    "inclusion_proof",
    "root_of",
]

EMPTY = sha256(b"").digest()
SPAN = 8  # levels from one stored level to the next
Rows = Callable[[int, int, int], Sequence[bytes]]  # (level, first, end) -> the stored hashes from first to before end
Node = tuple[int, int, bytes]  # level, place, hash


class Frontier:
    """The right edge of a growing tree: the roots of its whole subtrees, largest first."""

    __slots__ = ("roots", "size")

    def __init__(self, size: int = 0, roots: Iterable[bytes] = ()) -> None:
        self.size, self.roots = size, list(roots)
        if size < 0 or len(self.roots) != size.bit_count() or any(len(each) != 32 for each in self.roots):
            raise ValueError(f"a tree of {size} leaves does not have {len(self.roots)} whole subtrees")

    @classmethod
    def parse(cls, size: int, text: str) -> Frontier:
        """From what `text` gave. Raises ValueError for what it cannot have given."""
        return cls(size, map(bytes.fromhex, text.split(",") if text else ()))

    @property
    def text(self) -> str:
        return ",".join([each.hex() for each in self.roots])

    def append(self, leaf: bytes, stored: list[Node] | None = None) -> None:
        """Add a leaf. The nodes of stored levels that it completes are added to `stored`."""
        node, place, level, roots = leaf, self.size, 0, self.roots
        while place & 1:
            node = sha256(b"\1" + roots.pop() + node).digest()
            place >>= 1
            level += 1
            if stored is not None and not level % SPAN:
                stored.append((level, place, node))
        roots.append(node)
        self.size += 1

    def extend(self, leaves: Sequence[bytes], stored: list[Node] | None = None) -> None:
        """Append all of them, many at once where they are whole subtrees."""
        done, width = 0, 1 << SPAN
        while done < len(leaves):
            if self.size % width == 0 and len(leaves) - done >= width:
                self._append_tile(leaves[done : done + width], stored)
                done += width
            else:
                self.append(leaves[done], stored)
                done += 1

    def _append_tile(self, leaves: Sequence[bytes], stored: list[Node] | None) -> None:
        above = Frontier(self.size >> SPAN, self.roots)
        node, higher = _fold(leaves), [] if stored is None else stored
        if stored is not None:
            stored.append((SPAN, above.size, node))
        begin = len(higher)
        above.append(node, higher)
        higher[begin:] = [(level + SPAN, place, each) for level, place, each in higher[begin:]]
        self.size, self.roots = above.size << SPAN, above.roots

    def root(self) -> bytes:
        if not self.roots:
            return EMPTY
        node = self.roots[-1]
        for each in self.roots[-2::-1]:
            node = sha256(b"\1" + each + node).digest()
        return node

    def copy(self) -> Frontier:
        return Frontier(self.size, self.roots)


class Tiles:
    """A tree of `size` leaves over its stored rows. Reads at most 256 rows of each stored level for one node."""

    def __init__(self, size: int, rows: Rows) -> None:
        self.size, self._rows = size, rows
        self._read: dict[tuple[int, int], list[Sequence[bytes]]] = {}

    def node(self, level: int, place: int) -> bytes:
        """A whole subtree's root. Raises KeyError if the stored rows do not reach so far."""
        base, up = level - level % SPAN, level % SPAN
        tile = place >> (SPAN - up)
        folded = self._read.get((base, tile))
        if folded is None:
            first = tile << SPAN
            folded = [self._rows(base, first, min(first + (1 << SPAN), self.size >> base))]
            self._read[base, tile] = folded
        while len(folded) <= up:
            folded.append(_pairs(folded[-1]))
        try:
            return folded[up][place - (tile << (SPAN - up))]
        except IndexError:
            raise KeyError((level, place)) from None

    def range(self, begin: int, end: int) -> bytes:
        """The root over leaves `begin` to before `end`, where `begin` is one at which a subtree of that size begins."""
        return Frontier(end - begin, self.whole(begin, end)).root()

    def whole(self, begin: int, end: int) -> list[bytes]:
        """The roots of the whole subtrees of that range, largest first."""
        found = []
        for level in range((end - begin).bit_length() - 1, -1, -1):
            if (end - begin) >> level & 1:
                found.append(self.node(level, begin >> level))
                begin += 1 << level
        return found

    def frontier(self, size: int) -> Frontier:
        """As the tree was when it had `size` leaves."""
        return Frontier(size, self.whole(0, size))


def root_of(leaves: Sequence[bytes]) -> bytes:
    frontier = Frontier()
    frontier.extend(leaves)
    return frontier.root()


def inclusion_proof(tiles: Tiles, index: int, size: int) -> list[bytes]:
    """RFC 9162, 2.1.3.1: what leads from leaf `index` to the root over `size` leaves."""
    if not 0 <= index < size <= tiles.size:
        raise ValueError(f"there is no leaf {index} in a tree of {size}")
    begin, end, path = 0, size, []
    while end - begin > 1:
        middle = begin + _split(end - begin)
        if index < middle:
            path.append(tiles.range(middle, end))
            end = middle
        else:
            path.append(tiles.range(begin, middle))
            begin = middle
    return path[::-1]


def included(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """RFC 9162, 2.1.3.2."""
    if not 0 <= index < size:
        return False
    node, place, last = leaf, index, size - 1
    for each in proof:
        if last == 0:
            return False
        if place & 1 or place == last:
            node = sha256(b"\1" + each + node).digest()
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            node = sha256(b"\1" + node + each).digest()
        place, last = place >> 1, last >> 1
    return last == 0 and node == root


def consistency_proof(tiles: Tiles, first: int, size: int) -> list[bytes]:
    """RFC 9162, 2.1.4.1: what shows that the tree of `size` leaves begins with the one of `first`."""
    if not 0 < first <= size <= tiles.size:
        raise ValueError(f"there is no proof from {first} to {size} leaves")
    begin, end, known, proof = 0, size, True, []
    while first != end:
        middle = begin + _split(end - begin)
        if first <= middle:
            proof.append(tiles.range(middle, end))
            end = middle
        else:
            proof.append(tiles.range(begin, middle))
            begin, known = middle, False
    if not known:
        proof.append(tiles.range(begin, end))
    return proof[::-1]


def follows(first: int, before: bytes, size: int, after: bytes, proof: Sequence[bytes]) -> bool:
    """RFC 9162, 2.1.4.2: whether the tree with root `after` begins with the one with root `before`."""
    if first == size or not 0 < first < size:
        return first == size and before == after and not proof
    path = [before, *proof] if first & (first - 1) == 0 else list(proof)
    if not path:
        return False
    place, last = first - 1, size - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    old = new = path[0]
    for each in path[1:]:
        if last == 0:
            return False
        if place & 1 or place == last:
            old, new = sha256(b"\1" + each + old).digest(), sha256(b"\1" + each + new).digest()
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            new = sha256(b"\1" + new + each).digest()
        place, last = place >> 1, last >> 1
    return last == 0 and old == before and new == after


def _split(count: int) -> int:
    """The largest power of two below `count`."""
    return 1 << (count - 1).bit_length() - 1


def _pairs(nodes: Sequence[bytes]) -> list[bytes]:
    each = iter(nodes)
    return [sha256(b"\1" + left + right).digest() for left, right in zip(each, each, strict=False)]


def _fold(leaves: Sequence[bytes]) -> bytes:
    while len(leaves) > 1:
        leaves = _pairs(leaves)
    return leaves[0]
