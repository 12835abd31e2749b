# SPDX-License-Identifier: Apache-2.0
"""Many calls of every kind from many threads, and calls that end within a hair of their limit."""

from __future__ import annotations

import os
import random
import threading
import time

import tools
from telling import main, own_processes, pool, section, started_and_joined, threads_of_ours, until, workers_alive

import deadstop
from deadstop import Call, call, deadlines

FULL = bool(os.environ["IN_FULL"])  # elsewhere fewer of everything, beside other tests
THREADS = 20 if FULL else 8
HAIRS = 200 if FULL else 40
HAIR_S = 0.002
LIMIT_S = 0.1


def _kinds(number):
    """(call, what its result must be)."""
    value = number * 7
    table = {
        "plain": (Call(tools.plus, value), ("completed", value + 1)),
        "closure": (Call(lambda: value), ("completed", value)),
        "async": (Call(tools.async_plus, value), ("completed", value + 1)),
        "large": (Call(tools.echo, b"z" * (70_000 + number)), ("completed", b"z" * (70_000 + number))),
        "prints": (Call(tools.writes_and_returns, f"<{number}>"), ("completed", f"<{number}>")),
        "raises": (Call(tools.raises, ValueError(str(value))), ("error", str(value))),
        "crash": (Call(tools.leave, number % 200), ("crashed", number % 200)),
        "hang": (Call(tools.hang).options(timeout=0.12), ("timeout", None)),
        "bound": (Call(tools.Shelf(value).room, 2), ("completed", value - 2)),
    }  # fmt: skip
    order = (
        ["plain"] * 22
        + ["closure"] * 6
        + ["async"] * 5
        + ["large"] * 4
        + ["prints"] * 4
        + ["raises"] * 4
        + ["crash"] * 2
    )
    order += ["hang"] * 2 + ["bound"]
    return table[order[number % 50]]


def _right(result, expected, asked):
    status, value = expected
    if result.status != status or result.call_id != asked.call_id:
        return False
    if status == "completed" and asked.tool.name == "writes_and_returns" and result.stdout.tail != f"{value}\n":
        return False
    if status == "error":
        return str(result.exception) == value
    if status == "crashed":
        return result.exit_code == value
    if status == "timeout":
        return result.receipt.survivors == 0 and result.value is None
    return result.value == value


@section
def mixed():
    wrong, gate = [], threading.Barrier(THREADS)

    def body(seed):
        numbers = [seed * 50 + number for number in range(50 if FULL else 25)]
        random.Random(seed).shuffle(numbers)
        gate.wait(20)
        for number in numbers:
            asked, expected = _kinds(number)
            result = call(asked)
            if not _right(result, expected, asked):
                wrong.append([number, repr(expected)[:80], result.to_json()[:900]])

    call(tools.plus, 1)
    begun = time.monotonic()
    threads = [threading.Thread(target=body, args=(seed,)) for seed in range(THREADS)]
    started_and_joined(threads, 60)
    elapsed = time.monotonic() - begun
    alive = sum(thread.is_alive() for thread in threads)
    until(lambda: not pool().queue and own_processes().count("deadstop-worker") == workers_alive() <= 16)
    return {
        "wrong": wrong[:5], "count": len(wrong), "elapsed": elapsed, "still": alive, "threads": threads_of_ours(),
        "names": own_processes(), "workers": workers_alive(), "after": [call(tools.plus,
        number).value for number in range(10)],
    }  # fmt: skip


def _until(offset):
    """End so long after the limit: asleep until shortly before that, then awake."""
    end = deadlines.inherited() + offset
    left = end - time.monotonic() - 0.004
    if left > 0:
        time.sleep(left)
    while time.monotonic() < end:
        pass
    return "in time"


@section
def hair():
    """Four at a time, each due within two milliseconds of its limit on either side."""
    told, lock = [], threading.Lock()
    call(Call(_until, -LIMIT_S / 2).options(timeout=LIMIT_S))

    def body(numbers):
        for number in numbers:
            offset = (number / (HAIRS - 1) * 2 - 1) * HAIR_S
            begun = time.monotonic()
            result = call(Call(_until, offset).options(timeout=LIMIT_S))
            with lock:
                told.append({
                    "offset": offset, "status": result.status, "value": result.value, "duration_s": result.duration_s,
                    "ok": result.ok,
                    "receipt": None if result.receipt is None else [result.receipt.proof, result.receipt.survivors],
                    "late": None if result.late is None else result.late.value, "elapsed": time.monotonic() - begun,
                })  # fmt: skip

    threads = [
        threading.Thread(target=body, args=(range(first, HAIRS, THREADS // 2),)) for first in range(THREADS // 2)
    ]
    started_and_joined(threads, 60)
    return told


@section
def new_closures():
    """Each first called by many threads in the same moment."""
    wrong = []
    for number in range(60 if FULL else 15):
        gate = threading.Barrier(16)

        def closure(one, number=number):
            return one, number

        def body(one, number=number, closure=closure, gate=gate):
            gate.wait(20)
            result = call(closure, one)
            if result.value != (one, number):
                wrong.append([number, one, result.status, repr(result.value), result.error_message])

        threads = [threading.Thread(target=body, args=(one,)) for one in range(16)]
        started_and_joined(threads, 20)
    return wrong


@section
def crashes():
    """The exit code of each, from many threads."""
    wrong = []

    def body(seed):
        for number in range(15 if FULL else 6):
            result = call(tools.leave, seed * 10 + number % 10)
            if (result.status, result.exit_code, result.stdout.tail) != (
                "crashed",
                seed * 10 + number % 10,
                "half done\n",
            ):
                wrong.append([seed, number, result.status, result.exit_code, result.signal, result.stdout.tail])

    threads = [threading.Thread(target=body, args=(seed,)) for seed in range(THREADS)]
    started_and_joined(threads, 30)
    return wrong


@section
def many_timeouts():
    """As many as leave a crowd of threads elsewhere: none here, and the end is at once."""
    before = threading.active_count()
    begun = time.monotonic()
    results = deadstop.batch([Call(tools.hang).options(timeout=0.01) for _ in range(HAIRS // 2)], parallel=20)
    return {
        "statuses": sorted({one.status for one in results}), "elapsed": time.monotonic() - begun,
        "threads": threading.active_count() - before,
        "survivors": sum(one.receipt.survivors for one in results),
    }  # fmt: skip


if __name__ == "__main__":
    main()
