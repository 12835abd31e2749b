# SPDX-License-Identifier: Apache-2.0
"""The tree of RFC 9162: known roots, every proof of small trees, and proofs of a large one from what is stored."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence

import pytest

from deadstop.ledger.merkle import (
    EMPTY,
    Frontier,
    Node,
    Tiles,
    consistency_proof,
    follows,
    included,
    inclusion_proof,
    root_of,
)

# The leaves and roots that Certificate Transparency's implementations test with.
INPUTS = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def leaves(count: int) -> list[bytes]:
    return [hashlib.sha256(b"\0%d" % number).digest() for number in range(count)]


def by_definition(hashes: Sequence[bytes]) -> bytes:
    """MTH of RFC 9162, 2.1.1, word for word."""
    if len(hashes) < 2:
        return hashes[0] if hashes else hashlib.sha256().digest()
    k = 1
    while k * 2 < len(hashes):
        k *= 2
    return hashlib.sha256(b"\1" + by_definition(hashes[:k]) + by_definition(hashes[k:])).digest()


def tiles_over(hashes: Sequence[bytes]) -> Tiles:
    frontier, nodes = Frontier(), list[Node]()
    frontier.extend(hashes, nodes)
    stored = {(level, place): node for level, place, node in nodes}

    def rows(level: int, first: int, end: int) -> Sequence[bytes]:
        return hashes[first:end] if level == 0 else [stored[level, place] for place in range(first, end)]

    return Tiles(len(hashes), rows)


def test_roots_that_others_published() -> None:
    hashed = [hashlib.sha256(b"\0" + bytes.fromhex(each)).digest() for each in INPUTS]
    assert [root_of(hashed[:count]).hex() for count in range(9)] == ROOTS
    assert ROOTS[0] == EMPTY.hex()


@pytest.mark.parametrize("count", [*range(18), 255, 256, 257, 511, 512, 700])
def test_the_root_is_that_of_the_definition_however_the_leaves_came(count: int) -> None:
    one_by_one, all_at_once, stored, also = Frontier(), Frontier(), list[Node](), list[Node]()
    for leaf in leaves(count):
        one_by_one.append(leaf, stored)
    all_at_once.extend(leaves(count), also)
    again = Frontier.parse(count, one_by_one.text)
    assert one_by_one.root() == all_at_once.root() == again.root() == by_definition(leaves(count))
    assert sorted(stored) == sorted(also)
    assert len(stored) == count // 256


def test_stored_nodes_are_roots_of_whole_subtrees() -> None:
    hashes, nodes = leaves(600), list[Node]()
    Frontier().extend(hashes, nodes)
    assert nodes == [(8, 0, by_definition(hashes[:256])), (8, 1, by_definition(hashes[256:512]))]


def test_the_third_stored_level_comes_after_65536_leaves() -> None:
    one, nodes = leaves(1)[0], list[Node]()
    Frontier().extend([one] * (1 << 16), nodes)
    assert [(level, place) for level, place, _ in nodes[-2:]] == [(8, 255), (16, 0)]
    assert nodes[-1][2] == root_of([nodes[0][2]] * 256)


@pytest.mark.parametrize(("size", "text"), [(1, ""), (3, "aa,bb"), (2, "00" * 31), (0, "00" * 32), (1, "zz")])
def test_a_frontier_that_cannot_be_one_is_refused(size: int, text: str) -> None:
    with pytest.raises(ValueError):
        Frontier.parse(size, text)


def test_every_leaf_of_every_small_tree_is_proved_and_no_other() -> None:
    for size in range(1, 24):
        hashes = leaves(size)
        tiles, root = tiles_over(hashes), root_of(hashes)
        for index in range(size):
            proof = inclusion_proof(tiles, index, size)
            assert included(hashes[index], index, size, proof, root)
            assert not included(hashes[index - 1], index, size, proof, root) or size == 1
            assert not included(hashes[index], index, size, [*proof, root], root)
            assert not proof or not included(hashes[index], index, size, proof[:-1], root)
            assert not included(hashes[index], index, size, proof, EMPTY)
            assert not included(hashes[index], size, size, proof, root)


def test_every_pair_of_small_trees_is_proved_to_follow_and_no_other() -> None:
    whole = leaves(24)
    roots = [root_of(whole[:size]) for size in range(25)]
    for size in range(1, 25):
        tiles = tiles_over(whole[:size])
        for first in range(1, size + 1):
            proof = consistency_proof(tiles, first, size)
            assert follows(first, roots[first], size, roots[size], proof)
            assert not follows(first, roots[first - 1], size, roots[size], proof)
            assert not follows(first, roots[first], size, roots[size - 1], proof)
            assert not follows(first, roots[first], size, roots[size], [*proof, EMPTY])
            assert not proof or not follows(first, roots[first], size, roots[size], proof[:-1])


def subproof(first: int, hashes: Sequence[bytes], known: bool) -> list[bytes]:
    """SUBPROOF of RFC 9162, 2.1.4.1, word for word."""
    if first == len(hashes):
        return [] if known else [by_definition(hashes)]
    k = 1
    while k * 2 < len(hashes):
        k *= 2
    if first <= k:
        return [*subproof(first, hashes[:k], known), by_definition(hashes[k:])]
    return [*subproof(first - k, hashes[k:], False), by_definition(hashes[:k])]


def test_consistency_proofs_are_those_of_the_definition() -> None:
    for size in (*range(1, 20), 300):
        hashes = leaves(size)
        for first in range(1, size + 1, 1 if size < 20 else 37):
            assert consistency_proof(tiles_over(hashes), first, size) == subproof(first, hashes, True)


def test_root_and_inclusion_proofs_are_those_of_another_implementation() -> None:
    pymerkle = pytest.importorskip("pymerkle")
    theirs = pymerkle.InmemoryTree(algorithm="sha256")
    for number in range(300):
        theirs.append_entry(b"%d" % number)
    tiles = tiles_over(leaves(300))
    assert theirs.get_root() == root_of(leaves(300))
    for index in (0, 1, 127, 128, 254, 255, 256, 299):
        path = theirs.prove_inclusion(index + 1, 300).serialize()["path"]
        assert [bytes.fromhex(each) for each in path[1:]] == inclusion_proof(tiles, index, 300)  # theirs has the leaf


def test_a_proof_at_a_million_leaves_reads_a_few_hundred_rows() -> None:
    size, level_of = 1_000_000, [leaves(1)[0]]
    for _ in range(20):
        level_of.append(hashlib.sha256(b"\1" + level_of[-1] * 2).digest())
    read = 0

    def rows(level: int, first: int, end: int) -> Sequence[bytes]:
        nonlocal read
        read += end - first
        return [level_of[level]] * (end - first)

    root = Frontier(size, [level_of[bit] for bit in range(19, -1, -1) if size >> bit & 1]).root()
    took = []
    for index in (0, 65_535, 499_999, 983_040, 999_999):
        read, begun = 0, time.perf_counter()
        proof = inclusion_proof(Tiles(size, rows), index, size)
        took.append(time.perf_counter() - begun)
        assert len(proof) <= 20
        assert included(level_of[0], index, size, proof, root)
        assert read <= 5 * 256
    assert min(took) < 0.005
    proof = consistency_proof(Tiles(size, rows), 777_777, size)
    assert follows(777_777, Tiles(size, rows).frontier(777_777).root(), size, root, proof)
