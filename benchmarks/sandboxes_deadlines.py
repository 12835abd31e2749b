# SPDX-License-Identifier: Apache-2.0
"""How late the limits of commands are kept while the server is stopped or flooded: 100 of them, timed from outside.

25 of them fire in a second, in four sandboxes. Beside it stands what 100 in one second are like, which is mostly what
reading the evidence of so many at once costs.

A command's limit is counted from the moment its request was sent, so its overshoot includes the request. Dead is a
process whose pidfd says so.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from . import processes
from .harness import Bench, Figure, Series
from .sandboxes_ends import Watch, boottime
from .sandboxes_flood import flooding
from .sandboxes_served import Client, Served, Unavailable, in_parallel, inside, serving

HOSTS = ("root", "user")
COUNT, QUICK_COUNT, LATE_S = 100, 25, 15.0
EVERY_S, CLOSE_S = 0.04, 0.01  # between one limit and the next
TARGET = (25.0,)


def measure(bench: Bench) -> Iterator[Figure]:
    try:
        with serving(bench) as served:
            count = QUICK_COUNT if bench.quick else COUNT
            homes = [served.client.create(ttl_seconds=600)["id"] for _ in range(4)]
            yield from troubled("command", lambda trouble: _commands(served, homes, trouble, count, EVERY_S), served)
            close = Series(tuple(_commands(served, homes, nothing, count, CLOSE_S)))
            yield Figure(f"command: limit to dead, {count} within {count * CLOSE_S:g} s, undisturbed", close)
            for home in homes:
                served.client.delete(home)
    except Unavailable as reason:
        yield Figure("sandboxes: limits", Series(()), note=str(reason))


Trouble = Callable[[Served], AbstractContextManager[None]]


def nothing(served: Served) -> AbstractContextManager[None]:
    return nullcontext()


def troubled(what: str, one: Callable[[Trouble], list[float]], served: Served) -> Iterator[Figure]:
    """The figures of one kind of limit: while the front is stopped, and while it is flooded."""
    beside = {"undisturbed": Series(tuple(one(nothing)))}
    for name, trouble in (("front stopped", _stopped), ("front flooded", _flooded)):
        series = Series(tuple(one(trouble)))
        note = f"largest {max(series.values):.1f}"
        yield Figure(f"{what}: limit to dead, {name}", series, TARGET, beside=beside, note=note)


@contextmanager
def _stopped(served: Served) -> Iterator[None]:
    os.kill(served.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(served.process.pid, signal.SIGCONT)


@contextmanager
def _flooded(served: Served) -> Iterator[None]:
    target = served.client.create(ttl_seconds=120)["id"]
    with flooding(served, target):
        yield
    served.client.delete(target)


def _commands(served: Served, homes: list[str], trouble: Trouble, count: int, every: float) -> list[float]:
    """Background commands of a few sandboxes, their limits spread over a second."""
    mark = uuid.uuid4().hex
    begin = boottime() + _lead(served, homes[0], count)

    def start(client: Client, number: int) -> tuple[str, float]:
        due = begin + every * number
        sent = boottime()
        wish = {"background": True, "env": {processes.MARK: mark, "NUMBER": str(number)}}
        client.run(homes[number % len(homes)], ["sleep", "600"], timeout_seconds=due - sent, **wish)
        return str(number), due

    due = dict(in_parallel(served, count, 4, start))
    leaders = {pid: _number(pid) for pid in inside(mark, count)}
    watch = Watch(leaders)
    with trouble(served):
        in_time(begin)
        ended = watch.ends(begin + every * count + LATE_S)
    return [(at - due[leaders[pid]]) * 1000 for pid, at in ended.items()]


def _lead(served: Served, home: str, count: int) -> float:
    start = time.monotonic()
    for _ in range(5):
        served.client.run(home, ["true"])
    return 1.5 + 1.5 * count * (time.monotonic() - start) / 5


def _number(pid: int) -> str:
    with open(f"/proc/{pid}/environ", "rb") as file:
        return next(entry[7:].decode() for entry in file.read().split(b"\0") if entry.startswith(b"NUMBER="))


def in_time(begin: float) -> None:
    if boottime() >= begin:
        raise RuntimeError("the machine is too busy: the first limit was over before the measurement began")
