# SPDX-License-Identifier: Apache-2.0
"""The supervisor killed with -9 while it holds 200 hostile descendants: how long until none of them is left.

Timed by pidfds on every one of them that were opened before, then looked for once more on the whole host.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator

import deadstop
from deadstop.boundary.cgroup import Hierarchies
from deadstop.executor import private

from . import processes
from .harness import Bench, Figure, Series

HOSTS = ("root", "user", "no-userns")
DESCENDANTS = 200
TARGET = (15.0, 40.0)
GONE_S = 10.0


def measure(bench: Bench) -> Iterator[Figure]:
    count = 10 if bench.quick else 50
    if not bench.namespaces:
        count = count // 5
    folders = Hierarchies()
    for title, one in (("`deadstop run` killed", _cli), ("  private supervisor killed", _private)):
        values = [one(bench, lambda pid: _forget(folders, pid)) for _ in range(count)]
        shown = [value for value in values if value is not None]
        note = f"empty in {len(shown)} of {count}"
        target = TARGET if len(shown) == count else (0.0, 0.0)
        yield Figure(f"{title} with -9 to empty", Series(tuple(shown)), target, note=note)


Forget = Callable[[int], None]


def _cli(bench: Bench, forget: Forget) -> float | None:
    mark = uuid.uuid4().hex
    words = [sys.executable, "-m", "deadstop", "run", "--pids", "512", "--", *bench.payload("crowd", str(DESCENDANTS))]
    process = subprocess.Popen(
        words, env={**os.environ, processes.MARK: mark}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    assert process.stdout
    try:
        if process.stdout.readline() != b"READY\n":
            raise RuntimeError("the payload did not start")
        return _kill_and_time(mark, process.pid)
    finally:
        process.kill()
        process.wait()
        forget(process.pid)
        process.stdout.close()


def _private(bench: Bench, forget: Forget) -> float | None:
    mark = uuid.uuid4().hex
    kept = deadstop.Boundary(pids=512)
    kept.run(bench.payload("crowd", str(DESCENDANTS), "leave"), env={processes.MARK: mark}, timeout=30)
    process = private.supervisor._process
    assert process
    took = _kill_and_time(mark, process.pid)
    process.wait()
    forget(process.pid)
    kept._channel.close()  # its supervisor is gone: there is nobody to ask for a receipt
    return took


def _kill_and_time(mark: str, supervisor: int) -> float | None:
    """Milliseconds until nothing with this mark is left but the supervisor itself; None if something was."""
    found = processes.marked(mark)
    victims = [pid for pid in found if pid != supervisor]
    if len(victims) < DESCENDANTS:
        raise RuntimeError(f"only {len(victims)} descendants were there")
    watched = processes.open_all(victims)
    os.kill(supervisor, 9)
    took = processes.all_ended(watched, GONE_S)
    left = [pid for pid in processes.marked(mark) if pid != supervisor]
    if left:
        processes.end(left)
    return None if took is None or left else took * 1000


def _forget(folders: Hierarchies, supervisor: int) -> None:
    """Remove the empty groups that a killed supervisor could not; the next one would, after a minute."""
    for folder in {*folders.v1.values(), *([folders.v2] if folders.v2 else [])}:
        for name in os.listdir(folder):
            if name.startswith(f"deadstop-{supervisor}-"):
                try:
                    os.rmdir(f"{folder}/{name}")
                except OSError:
                    pass
