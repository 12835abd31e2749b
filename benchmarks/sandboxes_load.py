# SPDX-License-Identifier: Apache-2.0
"""100 commands at any moment for a minute: whether every one succeeds, and whether anything stays or grows."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from .harness import Bench, Figure, Series, milliseconds
from .sandboxes_served import Served, Unavailable, serving, until

HOSTS = ("root", "user")
CLIENTS, SANDBOXES = 100, 5
SECONDS, QUICK_S = 60.0, 5.0
WARM_UP = 2500  # commands, until the results that are kept and what waits for the garbage collector are at their most
WARM_UP_S = 60.0
COMMAND = "echo $$; sleep 0.2"
GROWTH_MB = 2.0
SETTLE_S = 10.0


@dataclass
class Load:
    """What the clients saw, and what the two processes held meanwhile."""

    took: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    resident: dict[str, list[float]] = field(default_factory=lambda: {"supervisor": [], "front": []})

    def growth(self, name: str) -> float:
        """MB between the median of the first third and of the last."""
        samples = self.resident[name]
        third = max(1, len(samples) // 3)
        return Series(tuple(samples[-third:])).p50 - Series(tuple(samples[:third])).p50


def measure(bench: Bench) -> Iterator[Figure]:
    try:
        with serving(bench) as served:
            yield from _all(served, bench.quick)
    except Unavailable as reason:
        yield Figure("concurrent commands", Series(()), note=str(reason))


def _all(served: Served, quick: bool) -> Iterator[Figure]:
    seconds = QUICK_S if quick else SECONDS
    sandboxes = [str(served.client.create(ttl_seconds=600, pids=1024)["id"]) for _ in range(SANDBOXES)]
    for sandbox in sandboxes:
        served.client.run(sandbox, COMMAND)
    before = _held(served)
    load = _run(served, sandboxes, seconds, WARM_UP // 10 if quick else WARM_UP)
    held = _settled(served, before)
    left = {name: float(held[name] - before[name]) for name in held}
    for sandbox in sandboxes:
        served.client.delete(sandbox)
    name = f"{CLIENTS} commands at once for {seconds:g} s"
    rate = f"{len(load.took) / seconds:.0f} a second; {'; '.join(load.problems[:2])}"
    yield Figure(f"{name}: errors", Series((float(len(load.problems)),)), (0.0,), unit="", note=rate)
    yield Figure("  each (200 ms of it asleep)", Series(tuple(load.took)))
    for what, count in left.items():
        yield Figure(f"  {what} left", Series((count,)), (0.0,), unit="")
    for process in ("supervisor", "front"):
        samples = Series(tuple(load.resident[process]))
        note = f"RSS {min(samples.values):.1f} to {max(samples.values):.1f}"
        target = (GROWTH_MB,) if process == "supervisor" and not quick else ()  # a quick run is all warming up
        growth = Series((load.growth(process),))
        yield Figure(f"  {process}: last third over first", growth, target, unit="MB", note=note)


def _run(served: Served, sandboxes: list[str], seconds: float, warm_up: int) -> Load:
    load, over = Load(), threading.Event()
    clients = [
        threading.Thread(target=_client, args=(served, sandboxes[number % SANDBOXES], over, load))
        for number in range(CLIENTS)
    ]
    for client in clients:
        client.start()
    pids = {"supervisor": served.supervisor, "front": served.process.pid}
    until(lambda: len(load.took) >= warm_up, WARM_UP_S, "the warming up")
    load.took.clear()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, pid in pids.items():
            load.resident[name].append(_resident_mb(pid))
        time.sleep(seconds / 60)
    over.set()
    for client in clients:
        client.join(30)
    return load


def _client(served: Served, sandbox: str, over: threading.Event, load: Load) -> None:
    client = served.connect()
    while not over.is_set():
        start = time.monotonic()
        try:
            answer = client.run(sandbox, COMMAND)
            if answer["exit_code"] != 0 or not answer["stdout"].strip().isdigit():
                load.problems.append(f"exit {answer['exit_code']}, {answer['stdout']!r:.40} {answer['stderr']!r:.80}")
        except Exception as problem:
            load.problems.append(repr(problem)[:160])
            client.close()
            time.sleep(0.2)
        load.took.append(milliseconds(start))
    client.close()


def _held(served: Served) -> dict[str, int]:
    pids = {"supervisor": served.supervisor, "front": served.process.pid}
    descriptors = {f"descriptors of the {name}": len(os.listdir(f"/proc/{pid}/fd")) for name, pid in pids.items()}
    return {"processes": len(served.ours()), "groups": served.groups(), **descriptors}


def _settled(served: Served, before: dict[str, int]) -> dict[str, int]:
    """What is held when no more than before is, or after a while: closed connections are noticed a little later."""
    end = time.monotonic() + SETTLE_S
    while True:
        held = _held(served)
        if time.monotonic() > end or all(value <= before[name] for name, value in held.items()):
            return held
        time.sleep(0.05)


def _resident_mb(pid: int) -> float:
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:")) / 1024
