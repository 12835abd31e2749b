# SPDX-License-Identifier: Apache-2.0
"""Calls that do not end by themselves: until they are dead, until the next one is served, and what is left of them."""

from __future__ import annotations

import json
import operator
import os
import select
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator

import deadstop
from deadstop.boundary.reaper import descendants
from deadstop.executor import private

from . import processes
from .functions_served import QUIET, installed
from .functions_work import hang, hang_stubborn
from .harness import Bench, Figure, Series, milliseconds

HOSTS = ("root", "user", "no-userns")
LIMIT_S = 0.03
HANG_S = 6.0
BOUND_S = 60.0
STUBBORN = "pebble, SIGTERM trapped"


def measure(bench: Bench) -> Iterator[Figure]:
    yield from _deadlines(bench)
    yield from _left_over(bench)
    yield from _memory()


# -- from the deadline on ----------------------------------------------------------------------------------------------


def _deadlines(bench: Bench) -> Iterator[Figure]:
    rounds = 20 if bench.quick else 120
    dead, served = _ours(rounds)
    beside_dead, beside_served, note = {}, {}, ""
    if not installed("pebble"):
        note = "not installed: pebble"
    else:
        for name, function, count in (("pebble", hang, 8), (STUBBORN, hang_stubborn, 2)):
            values = _pebble(function, count // 4 or 1 if bench.quick else count)
            beside_dead[name], beside_served[name] = values
    yield Figure("call: deadline to dead", dead, (2.0, 6.0), beside=beside_dead, note=note)
    yield Figure("  to the next call served, with a spare", served, (3.0, 10.0), beside=beside_served)


def _ours(rounds: int) -> tuple[Series, Series]:
    hanging, plain = deadstop.tool(hang, timeout=LIMIT_S), deadstop.tool(operator.index, timeout=5)
    dead, served = [], []
    for number in range(rounds + 3):
        for _ in range(2):
            plain.call(7)  # both functions are known to the workers that there are
        _await_spare()
        start = time.monotonic()
        result = hanging.call(HANG_S)
        after = plain.call(7)
        took = milliseconds(start)
        if (
            result.status is not deadstop.Status.TIMEOUT
            or after.value != 7
            or result.receipt.survivors not in (0, None)
        ):
            raise RuntimeError(f"not as it should end: {result} {after}")
        if number >= 3:  # the first ones load what they need
            dead.append(result.receipt.deadline_to_dead_ms)
            served.append(took - (result.queued_s + LIMIT_S) * 1000)
    return Series(tuple(dead)), Series(tuple(served))


def _await_spare() -> None:
    """Until the pool has two free workers: the one that will die, and the spare."""
    from deadstop.executor.workers import _pools

    (pool,) = _pools.values()
    end = time.monotonic() + BOUND_S
    while len(pool.free) < 2 and time.monotonic() < end:
        pool.harvest()
        if not pool.asked and len(pool.free) < 2:
            pool.ask()
        select.select([pool.orders], [], [], 0.05)


def _pebble(function: Callable[[float], None], rounds: int) -> tuple[Series, Series]:
    from concurrent.futures import TimeoutError as PebbleTimeout

    from pebble import ProcessPool

    dead, served = [], []
    with ProcessPool(max_workers=1) as pool:
        for _ in range(rounds):
            worker = os.pidfd_open(pool.schedule(os.getpid).result())
            start = time.monotonic()
            future = pool.schedule(function, args=(HANG_S,), timeout=LIMIT_S)
            following = pool.schedule(operator.index, args=(7,))
            select.select([worker], [], [], BOUND_S)
            dead.append(milliseconds(start) - LIMIT_S * 1000)
            try:
                future.result()
            except PebbleTimeout:
                pass
            following.result()
            served.append(milliseconds(start) - LIMIT_S * 1000)
            os.close(worker)
    return Series(tuple(dead)), Series(tuple(served))


# -- what is left ------------------------------------------------------------------------------------------------------


def _left_over(bench: Bench) -> Iterator[Figure]:
    """A program of its own: what it reports, when it ends, and what carries its mark afterwards."""
    count = 40 if bench.quick else 200
    ours = _program("ours", count)
    theirs = _program("praison", count) if installed("PraisonAI") else None
    note = "" if theirs else "not installed: PraisonAI"

    def beside(key: str) -> dict[str, Series]:
        return {"PraisonAI": Series((theirs[key],))} if theirs else {}

    def figure(title: str, key: str, target: tuple[float, ...], unit: str, note: str = "") -> Figure:
        return Figure(title, Series((ours[key],)), target, unit=unit, beside=beside(key), note=note)

    yield figure(f"{count} timed-out calls: threads left", "threads", (0.0,), "", note)
    yield figure("  of their processes left", "alive", (0.0,), "", f"{ours['begun']:.0f} had begun to hang")
    yield figure("  processes left after the program", "left", (0.0,), "")
    yield figure("  wall time of the calls", "wall_s", (), "s")
    yield figure("  exit lag of the program", "lag_s", (0.2,), "s")


def _program(who: str, count: int) -> dict[str, float]:
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="deadstop-bench-") as folder:
        words = [sys.executable, "-m", "benchmarks.functions_program", who, str(count), f"{folder}/marks"]
        process = subprocess.Popen(
            words, env={**os.environ, **QUIET, processes.MARK: mark}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        pidfd = os.pidfd_open(process.pid)
        assert process.stdout
        line = process.stdout.readline()
        start = time.monotonic()
        ended = select.select([pidfd], [], [], BOUND_S)[0]
        lag = time.monotonic() - start
        os.close(pidfd)
        left = processes.marked(mark)
        processes.end(left)
        process.kill()
        if process.wait() != 0 or not ended:
            raise RuntimeError(f"the program with {count} calls ended with {process.returncode}")
        process.stdout.close()
    return {**json.loads(line), "lag_s": lag, "left": float(len(left))}


# -- memory ------------------------------------------------------------------------------------------------------------


def _memory() -> Iterator[Figure]:
    """Private memory (nobody else's too), so what one more worker costs."""
    tool = deadstop.tool(operator.index, timeout=5)
    for _ in range(200):
        tool.call(7)
    supervisor = private.supervisor._process
    assert supervisor
    found: dict[str, list[float]] = {}
    for pid in descendants(supervisor.pid):
        size = _private_mib(pid)
        if size is not None:
            found.setdefault(_comm(pid), []).append(size)
    sizes = {name: Series(tuple(values)) for name, values in found.items()}
    workers = sizes.pop("deadstop-worker", Series(()))
    sizes["supervisor"] = Series((_private_mib(supervisor.pid) or 0.0,))
    yield Figure("idle worker, private memory", workers, (15.0, 15.0), unit="MiB", beside=sizes)


def _private_mib(pid: int) -> float | None:
    """None if it cannot be read, or has none: a kernel thread, a zombie."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            kib = sum(int(line.split()[1]) for line in file if line.startswith("Private_"))
    except OSError:
        return None
    return kib / 1024


def _comm(pid: int) -> str:
    with open(f"/proc/{pid}/comm") as file:
        return file.read().strip()
