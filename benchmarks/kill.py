# SPDX-License-Identifier: Apache-2.0
"""From the kill to the proof that nothing is left: an idle command, 200 hostile descendants, a spinning fork bomb."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from typing import Any

import deadstop
from deadstop import clock
from deadstop.boundary.cgroup import read

from .harness import Bench, Candidate, Figure, Series, figures, milliseconds
from .ours import Ours, RawNamespace, find_bwrap

HOSTS = ("root", "user", "no-userns", "no-userns-no-cgroup")
MEMORY = 512 << 20
BOMB_PIDS = {"root": 500, "user": 500}  # without a namespace a bomb may escape: a small one there
FEW_PIDS = 60
FULL_S = 2.0  # how long the bomb may take to fill its limit


def measure(bench: Bench) -> Iterator[Figure]:
    ours = Ours()
    for name, payload, arguments, target, rounds in (
        ("idle", "hello", (), (2.0, 5.0), 150),
        ("200 hostile", "crowd", ("200",), (10.0, 30.0), 60),
    ):
        results = bench.measure(_candidates(bench, ours, payload, *arguments), rounds=rounds, seconds=4)
        yield from figures(results, _titles(bench, name, target))
    yield from _bomb(bench, ours)


def _titles(bench: Bench, name: str, target: tuple[float, float]) -> dict[str, tuple[str, tuple[float, ...]]]:
    titles: dict[str, tuple[str, tuple[float, ...]]] = {
        "engine": (f"kill to proved empty: {name}", target),
        "boundary": ("  through Boundary.kill", target),
    }
    if bench.namespaces and find_bwrap():
        titles["sandbox"] = ("  in a sandbox", target)
    return titles


def _candidates(bench: Bench, ours: Ours, payload: str, *arguments: str) -> dict[str, Candidate]:
    argv = bench.payload(payload, *arguments)
    leaving = bench.payload(payload, *arguments, "leave")
    candidates: dict[str, Candidate] = {
        "engine": lambda: _engine(ours, argv, pids=512, memory=MEMORY),
        "boundary": lambda: _boundary(leaving),
    }
    if bench.namespaces:
        if find_bwrap():
            inside = bench.payload(payload, *arguments, inside=True)
            options: dict[str, Any] = {"isolation": "sandbox", "bind_cwd": False, "ro_bind": [bench.payload_bind]}
            candidates["sandbox"] = lambda: _engine(ours, inside, pids=512, memory=MEMORY, **options)
        candidates["raw pid namespace"] = lambda: _raw(argv)
    return candidates


def _engine(ours: Ours, argv: Sequence[str], **options: Any) -> float:
    room, _ = ours.create(ours.prepared(argv, **options))
    return ours.kill(room)


def _boundary(leaving: Sequence[str]) -> float:
    """What a user sees: the time of `Boundary.kill`."""
    with deadstop.Boundary(pids=512, memory=MEMORY) as kept:
        result = kept.run(leaving, timeout=30)
        if result.stdout.raw != b"READY\n":
            raise RuntimeError(f"the payload did not start: {result}")
        start = clock.monotonic()
        receipt = kept.kill()
        took = milliseconds(start)
    if receipt.survivors != 0:
        raise RuntimeError(f"no proof of the end: {receipt}")
    return took


def _raw(argv: Sequence[str]) -> float:
    namespace = RawNamespace(argv)
    namespace.first_output()
    return namespace.kill()


def _bomb(bench: Bench, ours: Ours) -> Iterator[Figure]:
    """Run by hand, because how many processes really lived at the kill belongs to the result."""
    argv, lived, pids = bench.payload("bomb"), [], BOMB_PIDS.get(bench.host, FEW_PIDS)

    def engine() -> float:
        prepared = ours.prepared(argv, pids=pids, memory=MEMORY)
        room, _ = ours.create(prepared)
        _fill(ours, room, pids)
        lived.append(float(_alive(room)))
        return ours.kill(room)

    candidates: dict[str, Candidate] = {"engine": engine}
    if bench.host == "user":  # root is not bound by RLIMIT_NPROC, and a bomb without a limit is not for this machine
        limit = (resource.RLIMIT_NPROC, pids)
        candidates["raw pid namespace"] = lambda: _raw_bomb(ours, argv, limit)
    results = bench.measure(candidates, rounds=30 if bench.namespaces else 8, seconds=12)
    beside = {name: series for name, series in results.items() if name != "engine"}
    note = f"processes at the kill {Series(tuple(lived)).text()}"
    name = f"kill to proved empty: spinning bomb, {pids} processes"
    yield Figure(name, results["engine"], (50.0, 100.0), beside=beside, note=note)


def _fill(ours: Ours, room: Any, pids: int) -> None:
    """Let the bomb fill its limit, and then spin for a moment."""
    end = clock.monotonic() + FULL_S
    while clock.monotonic() < end and _alive(room) < pids - 5:
        ours.step_until(lambda: False, 0.02)
    ours.step_until(lambda: False, 0.2)


def _alive(room: Any) -> int:
    group = room.boundary.group
    if group and (path := group.files().get("pids")):
        return int(read(path))
    return len(room.boundary.members())


def _raw_bomb(ours: Ours, argv: Sequence[str], limit: tuple[int, int]) -> float:
    namespace = RawNamespace(argv, limit)
    namespace.first_output()
    ours.step_until(lambda: False, 0.5)
    return namespace.kill()
