# SPDX-License-Identifier: Apache-2.0
"""DBOS in a process of its own: workflows of one step that does nothing, on SQLite or PostgreSQL.

`python -m benchmarks.ledger_rivals NAME URL` reads lines (what, how many) and answers each with a line of JSON: what
every workflow took, in milliseconds. `alone` runs them one after another; `N threads` in so many threads at once, and
gives one number, the time of all divided by their count.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from .functions_served import Block, Served
from .ledger_disk import each

NAME = "DBOS workflow"
NOT_INSTALLED = "not installed: dbos"


def installed() -> bool:
    return importlib.util.find_spec("dbos") is not None


class Dbos(Served):
    """The side of the one who asks."""

    def __init__(self, url: str) -> None:
        super().__init__(NAME, url, module="ledger_rivals")

    def alone(self) -> Block:
        return self.block("alone")

    def at_once(self, threads: int) -> Block:
        return self.block(f"{threads} threads")


def at_once(work: Callable[[], Any], threads: int, count: int) -> list[float]:
    """`count` times in all by so many threads; what each time took, in milliseconds. Raises if one of them failed."""
    values: list[float] = []
    ready = threading.Barrier(threads)

    def some() -> None:
        ready.wait()
        values.extend(each(work, count // threads))

    crowd = [threading.Thread(target=some) for _ in range(threads)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    if len(values) != count // threads * threads:
        raise RuntimeError("a thread failed")
    return values


def shared(work: Callable[[], Any], threads: int, count: int) -> float:
    """The time of all of them divided by their count, in milliseconds."""
    start = time.perf_counter()
    done = len(at_once(work, threads, count))
    return (time.perf_counter() - start) * 1000 / done


def _workflow(url: str) -> Callable[[], Any]:
    from dbos import DBOS

    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})

    @DBOS.step()
    def nothing(number: int) -> int:
        return number

    @DBOS.workflow()
    def workflow(number: int) -> int:
        result: int = nothing(number)
        return result

    DBOS.launch()
    return lambda: workflow(7)


def _serve(url: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what it prints at its start is no answer
    workflow = _workflow(url)
    for line in sys.stdin:
        what, _, count = line.rpartition(" ")
        if what == "alone":
            values = each(workflow, int(count))
        else:
            values = [shared(workflow, int(what.split()[0]), int(count))]
        print(json.dumps(values), file=answers, flush=True)
    os._exit(0)  # threads of its own would take their time


if __name__ == "__main__":
    _serve(sys.argv[2])
