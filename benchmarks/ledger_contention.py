# SPDX-License-Identifier: Apache-2.0
"""The longest that one of four processes waits that all write operations into one SQLite file, ours and as it is done
without a thought: a busy_timeout. `python -m benchmarks.ledger_contention WHO FILE SECONDS` is one of the four."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from deadstop.boundary.syscalls import die_with_parent

from .harness import Bench, Figure, Series
from .ledger_disk import folder

HOSTS = ("root", "user")
ONCE = True  # the host decides nothing here

PROCESSES, ROUNDS = 4, 2
MOST_MS = 500.0
NAIVE = "busy_timeout"
SLACK_S = 60.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS operation (id TEXT PRIMARY KEY, state TEXT, fence INTEGER, body TEXT);
CREATE TABLE IF NOT EXISTS evidence (id TEXT, n INTEGER, body TEXT, PRIMARY KEY (id, n));
"""


def measure(bench: Bench) -> Iterator[Figure]:
    seconds = 2.0 if bench.quick else 8.0
    found: dict[str, list[float]] = {"ours": [], NAIVE: []}
    with folder() as place:
        for turn in range(ROUNDS):
            for who, values in found.items():
                values += contend(who, f"{place}/{who}-{turn}.db", seconds)
    worst = {who: Series((max(values),)) for who, values in found.items()}
    mine, naive = Series(tuple(found["ours"])), Series(tuple(found[NAIVE]))
    note = f"{len(naive.values)} of its operations, {naive.text()} ms"
    name, beside = f"{PROCESSES} processes on one file: longest", {NAIVE: worst[NAIVE]}
    yield Figure(name, worst["ours"], (MOST_MS,), beside=beside, note=note)
    yield Figure("  each", mine, beside={NAIVE: naive})


def contend(who: str, path: str, seconds: float) -> list[float]:
    """What every operation of every process took, in milliseconds."""
    with contextlib.closing(prepare(who, path)):
        command = [sys.executable, "-m", "benchmarks.ledger_contention", who, path, str(seconds)]
        started = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, preexec_fn=die_with_parent)
            for _ in range(PROCESSES)
        ]
        try:
            for process in started:
                assert process.stdout
                process.stdout.readline()  # it has opened the file
            for process in started:
                assert process.stdin
                process.stdin.close()  # go
                process.stdin = None
            answers = [process.communicate(timeout=seconds + SLACK_S)[0] for process in started]
            return [value for answer in answers for value in json.loads(answer)]
        finally:
            for process in started:
                process.kill()
                process.wait()


def prepare(who: str, path: str) -> Any:
    if who == "ours":
        from .ledger_ours import Operations

        return Operations(path)
    return Naive(path)


class Naive:
    """Two transactions per operation, as ours, with nothing but sqlite3's own waiting between the processes."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, timeout=30.0, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.executescript(_SCHEMA)
        self._turn, self._body = 0, "x" * 300

    def whole(self) -> None:
        self._turn += 1
        name = f"{id(self)}-{time.monotonic_ns()}-{self._turn}"
        self._transaction(
            ("INSERT INTO operation VALUES (?, 'DISPATCHING', 1, ?)", (name, self._body)),
            ("INSERT INTO evidence VALUES (?, 1, ?)", (name, self._body)),
        )
        self._transaction(
            ("UPDATE operation SET state = 'SUCCEEDED' WHERE id = ? AND fence = 1", (name,)),
            ("INSERT INTO evidence VALUES (?, 2, ?)", (name, self._body)),
        )

    def _transaction(self, *statements: tuple[str, tuple[str, ...]]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        for text, values in statements:
            self._connection.execute(text, values)
        self._connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()


def _contender(who: str, path: str, seconds: float) -> None:
    with contextlib.closing(prepare(who, path)) as one:
        print("ready", flush=True)
        sys.stdin.read()
        print(json.dumps(_until(time.monotonic() + seconds, one.whole)), flush=True)


def _until(end: float, work: Callable[[], None]) -> list[float]:
    values = []
    while (start := time.monotonic()) < end:
        work()
        values.append((time.monotonic() - start) * 1000)
    return values


if __name__ == "__main__":
    _contender(sys.argv[1], sys.argv[2], float(sys.argv[3]))
