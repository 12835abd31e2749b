# SPDX-License-Identifier: Apache-2.0
"""What the executor costs, and what is left of it: threads, processes, and the time an interpreter takes to end."""

from __future__ import annotations

import json
import time
import timeit
from typing import Any

import pytest

from deadstop.compat.praisonai import SequentialToolCallExecutor, ToolCall
from hosts import Host

TIMED_OUT = """
import collections, json, os, sys, threading, time
from deadstop.compat.praisonai import ToolCall, SequentialToolCallExecutor

def execute(name, arguments, tool_call_id):
    time.sleep(6)


def main():
    got = SequentialToolCallExecutor().execute_batch(
        [ToolCall("t", {}, str(n)) for n in range(100)], execute, timeout_ms=5)
    print(json.dumps({
        "kinds": collections.Counter(each.error_kind for each in got),
        "survivors": sum(each.outcome.receipt.survivors or 0 for each in got),
        "continue": sum(each.error.background_work_may_continue for each in got),
        "threads": threading.active_count() - 1,
        "ended": time.monotonic(),
    }), flush=True)

main()
"""


@pytest.mark.alone
def test_100_timed_out_calls_leave_nothing_and_the_interpreter_ends_at_once(one_host: Host) -> None:
    told = json.loads(one_host.script(TIMED_OUT))
    exit_lag = time.monotonic() - told.pop("ended")
    assert told == {"kinds": {"timeout": 100}, "survivors": 0, "continue": 0, "threads": 0}
    assert exit_lag < 0.2
    one_host.no_survivors()


@pytest.mark.alone
def test_a_call_without_a_limit_costs_at_most_two_and_a_half_microseconds() -> None:
    def execute(name: str, arguments: dict[str, Any], tool_call_id: str) -> int:
        return 1

    executor, calls = SequentialToolCallExecutor(), [ToolCall("t", {}, "id")]
    best = min(timeit.repeat(lambda: executor.execute_batch(calls, execute), number=5000, repeat=7)) / 5000
    assert best < 2.5e-6
