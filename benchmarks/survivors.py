# SPDX-License-Identifier: Apache-2.0
"""What is left after hostile runs, each killed at a moment of chance, often while it is still being set up or forking.

Counted on the host, by a mark in the environment of every process of the payload, not asked of anybody.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator
from typing import Any

from deadstop.results import ToolResult

from . import processes
from .harness import Bench, Figure, Series
from .ours import FirstOutput, Ours, bare_bwrap, find_bwrap

HOSTS = ("root", "user", "no-userns", "no-userns-no-cgroup")
RUNS = 300
DESCENDANTS = "40"
LATEST_S = 0.04
SEED = 20_240


def measure(bench: Bench) -> Iterator[Figure]:
    runs = RUNS // 6 if bench.quick else RUNS if bench.namespaces else RUNS // 3
    ours, chance = Ours(), random.Random(SEED)
    sandbox = bench.namespaces and find_bwrap() is not None
    left = {"process": 0, "sandbox": 0, "bwrap": 0}
    for number in range(runs):
        delay = chance.random() * LATEST_S
        level = "sandbox" if sandbox and number % 2 else "process"
        left[level] += _ours(bench, ours, level, delay)
        if sandbox:
            left["bwrap"] += _killed_bwrap(bench, delay)
    beside = {"bwrap killed from outside": Series((float(left["bwrap"]),))} if sandbox else {}
    note = f"{runs} hostile runs" + (", half of them in a sandbox; runs of bwrap with survivors" if sandbox else "")
    survivors = Series((float(left["process"] + left["sandbox"]),))
    yield Figure("survivors (runs that left something)", survivors, (0.0,), unit="", beside=beside, note=note)


def _ours(bench: Bench, ours: Ours, level: str, delay: float) -> bool:
    """Whether anything was left."""
    mark = uuid.uuid4().hex
    inside = level == "sandbox"
    options: dict[str, Any] = {"isolation": level, "env": {processes.MARK: mark}, "pids": 200}
    if inside:
        options.update(bind_cwd=False, ro_bind=[bench.payload_bind])
    prepared = ours.prepared(bench.payload("crowd", DESCENDANTS, inside=inside), **options)
    ours.protect()
    room, results = ours.engine.open(prepared.place), list[ToolResult]()
    ours.engine.start(room, prepared.command, None, None, results.append, owns_room=True, sink=FirstOutput())
    ours.step_until(lambda: False, delay)
    ours.kill(room)
    return _left(mark)


def _killed_bwrap(bench: Bench, delay: float) -> bool:
    mark = uuid.uuid4().hex
    process = bare_bwrap(bench.payload("crowd", DESCENDANTS), env={processes.MARK: mark, "PATH": "/usr/bin:/bin"})
    time.sleep(delay)  # the moment of the kill is what is varied
    process.kill()
    process.wait()
    assert process.stdout
    process.stdout.close()
    time.sleep(0.01)  # what dies with its parent is given that long
    return _left(mark)


def _left(mark: str) -> bool:
    """Whether anything with this mark lives; it is ended then."""
    found = processes.marked(mark)
    if found:
        processes.end(found)
    return bool(found)
