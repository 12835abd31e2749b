# SPDX-License-Identifier: Apache-2.0
"""Whole operations on PostgreSQL, eight at once, beside a row inserted by pgbench and DBOS's workflow of one step."""

from __future__ import annotations

from collections.abc import Iterator

from .functions_rivals import in_blocks
from .functions_served import Block
from .harness import Bench, Compared, Figure, Series
from .ledger_disk import Flushes, each, folder
from .ledger_operation import APPEND, OVER
from .ledger_ours import Operations
from .ledger_rivals import NAME, NOT_INSTALLED, Dbos, installed, shared
from .ledger_server import Missing, Server, running

HOSTS = ("root", "user")
ONCE = True  # the host decides nothing here

CLIENTS = 8
TITLE = f"PostgreSQL, {CLIENTS} clients, time per operation"


def measure(bench: Bench) -> Iterator[Figure]:
    try:
        with folder() as place, running(place) as server:
            yield from _figures(bench, place, server)
    except Missing as missing:
        yield Figure(TITLE, Series(()), note=str(missing))


def _figures(bench: Bench, place: str, server: Server) -> Iterator[Figure]:
    server.prepare_pgbench()
    disk, ours = Flushes(place), Operations(server.make("ledger"))
    rival = Dbos(server.make("dbos")) if installed() else None
    try:
        candidates: dict[str, Block] = {
            OVER: disk.overwrite, APPEND: disk.append, "pgbench insert": lambda _: [server.pgbench(CLIENTS, 1)],
            "ours": lambda count: [shared(ours.whole, CLIENTS, count * CLIENTS)],
            **({NAME: rival.at_once(CLIENTS)} if rival else {}),
        }  # fmt: skip
        results = in_blocks(bench, candidates, rounds=10, calls=40)
        got = results.pop("ours")
        note = f"= {1000 / got.p50:.0f} operations/s; at least 3 times its rate" if rival else NOT_INSTALLED
        yield Compared(TITLE, got, beside=results, most_times=(NAME, 1 / 3), note=note)
        yield Figure("  one client, each", Series(tuple(each(ours.whole, 40 if bench.quick else 200))))
    finally:
        ours.close()
        disk.close()
        if rival:
            rival.close()
