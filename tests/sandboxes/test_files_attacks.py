# SPDX-License-Identifier: Apache-2.0
"""A payload that swaps directories for links and moves them about, against everything done from outside.

Every test has a canary: what is outside of the layer must be as before, to the nanosecond (the fixture looks).
"""

from __future__ import annotations

import collections
import os
import time
from collections.abc import Callable, Iterator

import pytest
from layerbox import CANARY, LayerBox, exchange, kind_of

from deadstop.errors import FileProblem

ROUNDS = 200


def rounds(least: int, most: int, seconds: float = 2.0) -> Iterator[int]:
    """As many as a busy machine does in that time, and never too few to show anything."""
    end = time.monotonic() + seconds
    for number in range(most):
        if number >= least and time.monotonic() > end:
            return
        yield number


def set_stage(box: LayerBox) -> Callable[[], None]:
    """`swap` is now a directory, now a link to the outside, of three kinds; as is `d/swap`."""
    for folder in ("swap", "d/swap"):
        box.write(f"{folder}/f", b"inside")
        box.write(f"{folder}/sub/deep/f", b"inside")
    targets = {"up": "../../outside", "real": f"/proc/self/root{box.outside}", "host": str(box.outside)}
    box.inside(lambda: [os.symlink(target, name) for name, target in targets.items()])

    def swap() -> None:
        for name in targets:
            exchange("swap", name)
            exchange("d/swap", "swap")
            exchange("d/swap", "swap")
            exchange("swap", name)

    return swap


def tar_in(box: LayerBox, data: bytes) -> None:
    untar = box.files.tar_in("swap")
    try:
        untar.feed(data)
        untar.close()
    finally:
        untar.abort()


def test_the_attack_works_on_plain_paths(box: LayerBox) -> None:
    """Or the test below would show nothing."""
    until = time.monotonic() + 20
    with box.attack(set_stage(box)):
        while time.monotonic() < until:
            try:
                with open(box.home / "swap/f", "rb") as file:
                    if file.read() == CANARY:
                        return
            except OSError:
                continue
    pytest.fail("the attacker never won")


def test_nothing_outside_is_touched_while_names_are_swapped(box: LayerBox) -> None:
    box.write("up/f", b"from a tar stream")
    box.write("up/sub/g", b"x")
    packed = b"".join(box.files.tar_out("up"))
    box.files.remove("up", recursive=True)
    files = box.files
    seen: list[bytes] = []
    acts: dict[str, Callable[[], object]] = {
        "read": lambda: seen.append(box.read("swap/f")),
        "deep read": lambda: seen.append(box.read("d/swap/sub/deep/f")),
        "write": lambda: box.write("swap/f", b"inside"),
        "write below": lambda: box.write("swap/sub/new/g", b"inside"),
        "mkdir": lambda: files.mkdir("swap/made/below"),
        "remove": lambda: files.remove("swap/made", recursive=True),
        "remove file": lambda: files.remove("swap/sub/new/g"),
        "remove swapped": lambda: files.remove("swap/sub", recursive=True),
        "move in": lambda: files.move("d/swap/f", "swap/f"),
        "move out": lambda: files.move("swap/f", "taken"),
        "again": lambda: box.write("d/swap/sub/deep/f", b"inside"),
        "list": lambda: files.listdir("swap", recursive=True),
        "stat": lambda: files.stat("swap/f"),
        "tar out": lambda: seen.append(b"".join(files.tar_out("d"))),
        "tar in": lambda: tar_in(box, packed),
    }
    good, bad = collections.Counter[str](), collections.Counter[str]()
    with box.attack(set_stage(box)):
        for _ in rounds(50, ROUNDS):
            for name, act in acts.items():
                try:
                    act()
                    good[name] += 1
                except FileProblem as problem:
                    bad[f"{name} {problem.kind}"] += 1
    assert seen
    assert not any(CANARY in data for data in seen)
    assert set(good) == set(acts), (good, bad)
    assert sum(bad.values()) > 20, bad  # it was swapped while we were at it


def test_a_tree_that_is_moved_about_while_it_is_removed(swift_box: LayerBox) -> None:
    """Going up again by `..` would lead out of the layer: every level outside has a directory of the same name."""
    for folder in (swift_box.home, swift_box.tmp):
        (folder / "d").mkdir(exist_ok=True)
    deep = "/".join(["d"] * 120)
    lower = "/".join(["t", *["d"] * 60])

    def move() -> None:
        for target in ("moved", "../home/x"):
            try:
                os.rename(f"{lower}/d", target)
                os.rename(target, f"{lower}/d")
            except OSError:
                pass

    said = collections.Counter[str]()
    with swift_box.attack(move):
        for _ in rounds(5, 25):
            for act in (
                lambda: swift_box.files.mkdir(f"t/{deep}"),
                lambda: swift_box.files.remove("t", recursive=True),
                lambda: sum(map(len, swift_box.files.tar_out("t"))),
                lambda: swift_box.files.listdir("t", recursive=True),
            ):
                said[kind_of(act)] += 1
            for name in ("moved", "x"):
                kind_of(swift_box.files.remove, name, recursive=True)
    assert said[""] > 0
    assert set(said) <= {"", "changed", "not_found", "not_empty"}, said


def make_chain(box: LayerBox) -> str:
    """120 times `e`, with an `outside` beside each; the path of one in the middle."""
    at = os.open(box.home, os.O_PATH)
    for _ in range(120):
        for name in ("e", "outside"):
            os.mkdir(name, dir_fd=at)
        below = os.open("e", os.O_PATH, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    return "/".join(["e"] * 60)


def test_a_walk_does_not_go_up_where_it_did_not_come_from(swift_box: LayerBox) -> None:
    middle = make_chain(swift_box)
    stream = swift_box.files.tar_out("e")
    read = b""
    while b"/".join([b"e"] * 119) not in read:
        read = next(stream)
    os.rename(swift_box.home / middle, swift_box.home / "moved")
    pieces: list[bytes] = []
    assert kind_of(lambda: pieces.extend(stream)) == "changed"
    assert CANARY not in b"".join(pieces)


def test_a_removal_does_not_go_up_where_it_did_not_come_from(
    swift_box: LayerBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    middle = make_chain(swift_box)
    calls = 0

    def strip(fd: int) -> list[bytes]:
        nonlocal calls
        calls += 1
        if not os.listdir(fd):
            try:
                os.rename(swift_box.home / middle, swift_box.home / "moved")
            except OSError:
                pass
        return [b"e"] if os.listdir(fd) else []

    monkeypatch.setattr("deadstop.sandbox.files_tree._strip", strip)
    assert kind_of(swift_box.files.remove, "e", recursive=True) == "changed"
    assert calls >= 119


def test_a_directory_that_is_filled_all_the_while_is_given_up(
    swift_box: LayerBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deadstop.sandbox.files_tree._PASSES", 20)
    swift_box.files.mkdir("full")

    def fill() -> None:
        for number in range(50):
            try:
                os.mkdir(f"full/{number}")
                os.close(os.open(f"full/{number}/f", os.O_CREAT, 0o644))
            except OSError:
                pass
        try:
            os.mkdir("full")
        except OSError:
            pass

    begin = time.monotonic()
    with swift_box.attack(fill):
        for _ in rounds(5, 20):
            assert kind_of(swift_box.files.remove, "full", recursive=True) in ("", "changed", "not_empty", "not_found")
    assert time.monotonic() - begin < 20


def test_writers_from_outside_and_inside_at_once(box: LayerBox) -> None:
    """Each reads one of the two whole contents, never a mixture."""
    one, other = b"1" * 100_000, b"2" * 100_000
    box.write("f", one)

    def replace() -> None:
        with open("mine", "wb") as file:
            file.write(other)
        os.rename("mine", "f")

    seen = set()
    with box.attack(replace):
        for _ in rounds(20, 150):
            box.write("f", one)
            seen.add(box.read("f"))
    assert seen <= {one, other}
    assert one in seen
