# SPDX-License-Identifier: Apache-2.0
"""What a ledger of a million operations costs beside one with a single one, and what verifying its log takes."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator

from deadstop.ledger.ledger import Ledger

from .harness import Bench, Compared, Figure, in_turn, milliseconds
from .ledger_audit import audited
from .ledger_disk import folder
from .ledger_filled import enlarge, fill
from .ledger_ours import LEASE_S, Operations

HOSTS = ("root", "user")
ONCE = True  # the host decides nothing here

MANY, FEW = 1_000_000, 100_000
LEAVES_EACH = 3
MOST_TIMES = 1.5
SMALL = "with 1"


def measure(bench: Bench) -> Iterator[Figure]:
    count = FEW if bench.quick else MANY
    with folder() as place:
        paths = {SMALL: f"{place}/small.db", "ours": f"{place}/large.db"}
        ids = {SMALL: fill(paths[SMALL], 1), "ours": fill(paths["ours"], count // LEAVES_EACH)}
        yield from audited(bench, paths["ours"], ids["ours"])
        ids["ours"] = enlarge(paths["ours"], count)
        yield from _sizes(bench, f"{count:,} operations", paths, ids)


def _sizes(bench: Bench, title: str, paths: dict[str, str], ids: dict[str, list[str]]) -> Iterator[Figure]:
    yield _figure(f"{title}: open", bench, {who: _opening(path) for who, path in paths.items()})
    with contextlib.ExitStack() as stack:
        open_ones = {who: stack.enter_context(contextlib.closing(Operations(path))) for who, path in paths.items()}
        looks = {who: _look_up(one.ledger, ids[who]) for who, one in open_ones.items()}
        yield _figure("  look up", bench, looks)
        yield _figure("  claim", bench, {who: _claim(one) for who, one in open_ones.items()})
        yield _figure("  begin and finish", bench, {who: _timed(one.whole) for who, one in open_ones.items()})
        yield _figure("  sweep", bench, {who: _timed(one.ledger.sweep) for who, one in open_ones.items()})
        yield _figure("  newest 20", bench, {who: _timed(_newest(one.ledger)) for who, one in open_ones.items()})


def _figure(name: str, bench: Bench, candidates: dict[str, Callable[[], float]]) -> Figure:
    in_turn(candidates, rounds=5, seconds=0)  # thrown away
    results = in_turn(candidates, rounds=60 if bench.quick else 300, seconds=4)
    got = results.pop("ours")
    return Compared(name, got, beside=results, most_times=(SMALL, MOST_TIMES))


def _timed(work: Callable[[], object]) -> Callable[[], float]:
    def once() -> float:
        start = time.monotonic()
        work()
        return milliseconds(start)

    return once


def _opening(path: str) -> Callable[[], float]:
    def once() -> float:
        start = time.monotonic()
        ledger = Ledger.open(path)
        took = milliseconds(start)
        ledger.close()
        return took

    return once


def _look_up(ledger: Ledger, ids: list[str]) -> Callable[[], float]:
    turn = itertools.cycle(ids)
    return _timed(lambda: ledger.get(next(turn)))


def _newest(ledger: Ledger) -> Callable[[], object]:
    return lambda: ledger.list(limit=20)


def _claim(one: Operations) -> Callable[[], float]:
    def once() -> float:
        record = one.ledger.submit(one.intent()).record
        return _timed(lambda: one.ledger.claim(record.op_id, LEASE_S))()

    return once
