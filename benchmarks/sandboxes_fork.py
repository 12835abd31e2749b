# SPDX-License-Identifier: Apache-2.0
"""A sandbox with 500 MB in its files is forked while a process in it writes: how long it stands still, and until the
child has run a command. For an ordinary user also while nothing runs in it, which is the cheaper way there.

The pause is the server's own measurement; beside it is the largest gap that a clock inside the parent saw.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator

from .harness import Bench, Figure, Series, milliseconds
from .sandboxes_served import Served, Unavailable, serving, timed, until

HOSTS = ("root", "user")
FILES, FILE_MB = 50, 10
WRITER = "while :; do date >> log; head -c 65536 /dev/urandom > scratch; sleep 0.005; done"
CLOCK = """
import time
last = time.monotonic()
while True:
    time.sleep(0.0005)
    now = time.monotonic()
    print(f"{now - last:.6f} {now:.6f}", flush=True) if now - last > 0.003 else None
    last = now
"""
FILL = f"mkdir -p data && for n in $(seq {FILES}); do head -c {FILE_MB}M /dev/urandom > data/$n; done"
ROUNDS, SECONDS = {"root": 40, "user": 12}, {"root": 20.0, "user": 40.0}


def measure(bench: Bench) -> Iterator[Figure]:
    try:
        with serving(bench) as served:
            yield from _all(bench, served)
    except Unavailable as reason:
        yield Figure("fork", Series(()), note=str(reason))


def _all(bench: Bench, served: Served) -> Iterator[Figure]:
    beside = {"cp -a": _copies(bench)}
    root = bench.host == "root"
    size = f"{FILES * FILE_MB} MB"
    if not root:
        parent = _parent(served)
        pauses, firsts, how, _ = _forks(bench, served, parent)
        yield Figure(f"fork, {size}, idle: pause", pauses, (10.0, 50.0), beside=beside, note=how)
        yield Figure("  until the child's first command ended", firsts, beside=beside)
        served.client.delete(parent)
    parent = _parent(served)  # never forked while it was idle: then most of its files would be in a layer below
    for command in (WRITER, ["python3", "-c", CLOCK]):
        served.client.run(parent, command, cwd="/home/agent", background=True, timeout_seconds=500)
    time.sleep(0.5)
    pauses, firsts, how, gaps = _forks(bench, served, parent, watched=True)
    note = f"{how}; largest gap seen inside {gaps.text()} ms"
    target = (10.0, 25.0) if root else (500.0, 2000.0)
    yield Figure(f"fork, {size}, running: pause", pauses, target, beside=beside, note=note)
    yield Figure("  until the child's first command ended", firsts, (60.0, 200.0) if root else (), beside=beside)
    served.client.delete(parent)


def _parent(served: Served) -> str:
    sandbox = str(served.client.create(ttl_seconds=600, disk_mb=4096, memory_mb=2048)["id"])
    served.client.run(sandbox, FILL, cwd="/home/agent", timeout_seconds=60)
    return sandbox


def _copies(bench: Bench) -> Series:
    """The rival: the same tree, copied on the disk that the server's state is on."""
    source = f"{bench.folder}/home/tree"
    os.mkdir(source)
    try:
        subprocess.run(["sh", "-c", FILL], cwd=source, check=True)
        return Series(tuple(_copy(source, f"{source}.copy") for _ in range(1 if bench.quick else 3)))
    finally:
        shutil.rmtree(source)


def _copy(source: str, target: str) -> float:
    took = timed(lambda: subprocess.run(["cp", "-a", "--reflink=never", source, target], check=True))
    shutil.rmtree(target)
    return took


def _forks(
    bench: Bench, served: Served, parent: str, *, watched: bool = False
) -> tuple[Series, Series, str, Series]:  # fmt: skip
    """Pauses, times until a child's first command ended, how it was done, and the gaps seen inside."""
    pauses, firsts, gaps, ways = list[float](), list[float](), list[float](), set[str]()
    rounds = ROUNDS[bench.host] // (4 if bench.quick else 1)
    end = time.monotonic() + SECONDS[bench.host] / (5 if bench.quick else 1)
    for number in range(rounds + 1):
        if number > 3 and time.monotonic() > end:
            break
        start = time.monotonic()
        forked = served.client.ask("POST", f"/sandboxes/{parent}/fork", {})
        made = time.monotonic()
        served.client.run(forked["sandbox"]["id"], ["true"])
        took = milliseconds(start)
        served.client.delete(forked["sandbox"]["id"])
        if number:  # the first is not counted
            pauses.append(float(forked["pause_ms"]))
            firsts.append(took)
            ways.add(forked["how"])
            if watched:
                gaps.append(_gap(served, parent, start, made))
    return Series(tuple(pauses)), Series(tuple(firsts)), ", ".join(sorted(ways)), Series(tuple(gaps))


def _gap(served: Served, parent: str, start: float, end: float) -> float:
    """The largest gap, in milliseconds, that the clock inside printed between these times; 3 if none was larger."""
    clock = next(each for each in _execs(served, parent) if "monotonic" in each["cmd"])
    document = served.client.ask("GET", f"/sandboxes/{parent}/execs/{clock['exec_id']}")
    pairs = [line.split() for line in document["stdout_tail"].split("\n")[1:] if line.count(" ") == 1]
    found = [float(gap) * 1000 for gap, at in pairs if start <= float(at) <= end + 0.1]
    return max([3.0, *found])


def _execs(served: Served, sandbox: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = until(
        lambda: served.client.ask("GET", f"/sandboxes/{sandbox}/execs")["items"], 5, "its commands"
    )
    return found
