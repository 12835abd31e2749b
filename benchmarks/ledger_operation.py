# SPDX-License-Identifier: Apache-2.0
"""What it costs to know what happened: whole operations on SQLite, one at a time and 32 at once, beside the disk's own
time for a flush and beside DBOS's workflow of one step."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

from .functions_rivals import in_blocks
from .functions_served import Block
from .harness import Bench, Compared, Figure, Series
from .ledger_disk import Flushes, each, folder
from .ledger_ours import Operations
from .ledger_rivals import NAME, NOT_INSTALLED, Dbos, installed, shared

HOSTS = ("root", "user")
ONCE = True  # the host decides nothing here

CLIENTS = 32
FLUSHES, BATCH = 2.5, 40
MOST_ABOVE_MS, MOST_SHARED_MS = 2.0, 1.0
OVER, APPEND = "fdatasync over 4 KiB", "append"


def measure(bench: Bench) -> Iterator[Figure]:
    with folder() as place:
        disk, ours = Flushes(place), Operations(f"{place}/ledger.db")
        rival = Dbos(f"sqlite:///{place}/dbos.sqlite") if installed() else None
        try:
            yield from _alone(bench, disk, ours, rival)
            yield from _at_once(bench, disk, ours)
        finally:
            ours.close()
            disk.close()
            if rival:
                rival.close()


def _alone(bench: Bench, disk: Flushes, ours: Operations, rival: Dbos | None) -> Iterator[Figure]:
    candidates: dict[str, Block] = {
        OVER: disk.overwrite, APPEND: disk.append, "ours": lambda count: each(ours.whole, count),
        **({NAME: rival.alone()} if rival else {}),
    }  # fmt: skip
    results = in_blocks(bench, candidates, rounds=30, calls=BATCH)
    got = results.pop("ours")
    yield from against_disk("whole operation, one at a time", got, results)
    note = "at least 3 times its rate" if rival else NOT_INSTALLED
    most = (NAME, 1 / 3)
    yield Compared("  each", got, beside=results, most_times=most, note=note)


def against_disk(name: str, got: Series, beside: Mapping[str, Series]) -> Iterator[Figure]:
    """The mean, which is to be at most 2.5 flushes and 2 ms."""
    flush = statistics.mean(beside[OVER].values)
    mean, target = statistics.mean(got.values), FLUSHES * flush + MOST_ABOVE_MS
    means = {each: Series((statistics.mean(series.values),)) for each, series in beside.items()}
    note = f"means; target {FLUSHES}/fd + {MOST_ABOVE_MS:g} ms, fd {1000 / flush:.0f}/s"
    yield Figure(f"{name}, mean", Series((mean,)), (target,), beside=means, note=note)


def _at_once(bench: Bench, disk: Flushes, ours: Operations) -> Iterator[Figure]:
    candidates: dict[str, Block] = {
        OVER: disk.overwrite, APPEND: disk.append,
        "ours": lambda count: [shared(ours.whole, CLIENTS, count * CLIENTS)],
    }  # fmt: skip
    results = in_blocks(bench, candidates, rounds=10, calls=BATCH)
    got = results.pop("ours")
    mean = statistics.mean(got.values)
    note = f"= {1000 / mean:.0f} operations/s; wanted {1000 / MOST_SHARED_MS:.0f}"
    name = f"{CLIENTS} clients at once, time per operation"
    yield Figure(name, Series((mean,)), (MOST_SHARED_MS,), beside=results, note=note)
