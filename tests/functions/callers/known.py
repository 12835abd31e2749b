# SPDX-License-Identifier: Apache-2.0
"""Runs the `tool` function of every case that it finds beside itself in cases/: from the main thread, from twenty
threads at once, and from inside a running loop, where it blocks and where it is awaited."""

from __future__ import annotations

import asyncio
import glob
import importlib
import os
import signal
import sys
import threading
import time

import known_tool
from telling import (
    Leash,
    last,
    main,
    own_processes,
    section,
    seen,
    started_and_joined,
    threads_of_ours,
    timed,
    until,
    waits,
    workers_alive,
)

from deadstop import Call, batch, call, call_async

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cases")
sys.path.insert(0, FOLDER)
HANGS = ("48", "49", "50", "51", "52", "53", "56", "57", "59", "60", "66", "72", "81", "84")
ENDS = ("54", "55", "61", "64", "67", "74", "76")
CASES = {os.path.basename(path)[5:7]: os.path.basename(path)[:-3] for path in glob.glob(f"{FOLDER}/case_*.py")}
ARGUMENTS = {"61": (0,)}
THREADS = 20


def module(case):
    return importlib.import_module(CASES[case])


def told(result, elapsed, leash, limit):
    state = leash.state()
    leash.close()
    name = result.stdout.tail.strip().lstrip("/")
    if name.startswith("psm_") and os.path.exists(f"/dev/shm/{name}"):
        os.unlink(f"/dev/shm/{name}")  # case 66; the one from the main thread is looked at by its test
    return seen(result, elapsed=elapsed, leash=state, limit_s=limit)


def limit_of(case):
    """Where all of them run at once."""
    return 0.6 if case in HANGS else 3.0


def held(case, limit):
    """The case behind a function that takes the leash first."""
    leash = Leash()
    return leash, Call(known_tool.run, CASES[case], leash.path).options(timeout=limit)


@section
def main_thread():
    """The function itself, by name, one after another; a shorter limit is the harder one."""
    out = {}
    for case in (*HANGS, *ENDS):
        limit = 2.0 if case in ENDS else 0.4 if case == "66" else 0.12  # 66 has to come as far as its print
        result, elapsed = timed(lambda case=case, limit=limit: call(Call(module(case).tool).options(timeout=limit)))
        out[case] = seen(result, elapsed=elapsed, limit_s=limit, leash="let go")
    return out


@section
def main_thread_at_once():
    """All in one batch, with the limit of the case."""
    pairs = {case: held(case, limit_of(case)) for case in (*HANGS, *ENDS)}
    results, elapsed = timed(lambda: batch([asked for _, asked in pairs.values()], parallel=len(pairs)))
    return {
        case: told(result, result.duration_s, pairs[case][0], limit_of(case))
        for case, result in zip(pairs, results, strict=True)
    } | {"_s": elapsed}


@section
def twenty_threads():
    """Twenty threads that begin together share three of each case."""
    jobs, out, lock, gate = (
        [case for case in (*HANGS, *ENDS) for _ in range(3)],
        [],
        threading.Lock(),
        threading.Barrier(THREADS),
    )

    def body():
        gate.wait(20)
        while True:
            with lock:
                if not jobs:
                    return
                case = jobs.pop()
            limit = 0.4 if case in HANGS else 3.0
            leash, asked = held(case, limit)
            result, elapsed = timed(lambda asked=asked: call(asked))
            found = told(result, elapsed, leash, limit)
            with lock:
                out.append([case, found])

    threads = [threading.Thread(target=body) for _ in range(THREADS)]
    started_and_joined(threads, 60)
    return out


@section
def twenty_threads_same():
    """One case from all of them in the same moment."""
    gate, out = threading.Barrier(THREADS), []

    def body():
        gate.wait(20)
        result, elapsed = timed(lambda: call(Call(module("60").tool).options(timeout=0.5)))
        out.append([result.status, elapsed, result.receipt.survivors])

    call(len, [])
    threads = [threading.Thread(target=body) for _ in range(THREADS)]
    started_and_joined(threads, 30)
    return out


@section
def awaited():
    """All at once on one loop, which must not be late for anybody else."""

    async def body():
        pairs, late, stop = {case: held(case, limit_of(case)) for case in (*HANGS, *ENDS)}, [], False

        async def beat():
            while not stop:
                begun = time.monotonic()
                await asyncio.sleep(0.01)
                late.append(time.monotonic() - begun - 0.01)

        async def one(case):
            begun = time.monotonic()
            result = await call_async(pairs[case][1])
            return case, told(result, time.monotonic() - begun, pairs[case][0], limit_of(case))

        await call_async(len, [])
        heart = asyncio.create_task(beat())
        got = dict(await asyncio.gather(*[one(case) for case in pairs]))
        stop = True
        await heart
        return got, max(late)

    begun = time.monotonic()
    got, late = asyncio.run(body())
    return {**got, "_late_s": late, "_s": time.monotonic() - begun}


@section
def blocking_the_loop():
    async def body():
        out = {}
        for case in (*HANGS, *ENDS):
            limit = 0.12 if case in HANGS else 2.0
            leash, asked = held(case, limit)
            result, elapsed = timed(lambda asked=asked: call(asked))
            out[case] = told(result, elapsed, leash, limit)
        return out

    return asyncio.run(body())


# -- those with a course of events of their own ------------------------------------------------------------------------


@waits
def case_50():
    """The loop closes at once after it."""

    async def body():
        result = await call_async(Call(module("50").tool).options(timeout=0.5))
        return result, time.monotonic()

    begun = time.monotonic()
    result, ended = asyncio.run(body())
    return {"result": seen(result), "awaited_s": ended - begun, "closed_s": time.monotonic() - ended}


@waits
def case_56():
    async def body():
        blocked = asyncio.create_task(call_async(Call(module("56").tool).options(timeout=0.7)))
        await asyncio.sleep(0)
        begun = time.monotonic()
        quick = await call_async(known_tool.nap, 0.1)
        return [quick.value, time.monotonic() - begun, (await blocked).status]

    return asyncio.run(body())


@waits
def case_62():
    tool = module("62").tool
    results = batch([Call(tool, number) for number in range(3)], parallel=3, timeout=5)
    return {"results": [seen(one) for one in results], "next": call(known_tool.nap, 0).value}


@section
def case_64():
    """A lock of the module is held by a thread of the caller."""
    found, gate = module("64"), threading.Event()

    def holder():
        with found.L:
            gate.wait(20)

    thread = threading.Thread(target=holder)
    thread.start()
    until(found.L.locked)
    result, elapsed = timed(lambda: call(Call(found.tool).options(timeout=1)))
    gate.set()
    thread.join()
    return seen(result, elapsed=elapsed)


@waits
def case_68():
    tool = module("68").tool
    results, elapsed = timed(lambda: batch([Call(tool, number) for number in range(3)], parallel=2, timeout=0.3))
    return {"results": [seen(one) for one in results], "elapsed": elapsed}


@section
def case_73():
    """The wall clock goes back, for the caller and for the tool; nothing else does."""
    real, tool = time.time, module("73").tool
    time.time = lambda: real() - 3600
    try:
        short = [call(Call(tool).options(timeout=1)).status for _ in range(5)]
        result, elapsed = timed(lambda: call(Call(known_tool.turns_the_clock).options(timeout=0.5)))
    finally:
        time.time = real
    return {"short": short, "result": seen(result, elapsed=elapsed)}


@section
def case_74():
    """Nobody here collects children: the status of a crash and of a tool's child is known all the same."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        return {"value": call(module("74").tool).value, "crash": seen(call(module("55").tool))}
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


@section
def case_80():
    """One call is one run: nothing is tried again."""
    sent = os.path.join(os.environ["TMPDIR"], "sent")
    result = call(known_tool.sends, CASES["80"], "a@example.invalid", sent)
    with open(sent) as file:
        return {"result": seen(result), "sent": len(file.readlines())}


@section
def case_81():
    before = threading.active_count()
    result, elapsed = timed(lambda: call(Call(module("81").tool).options(timeout=0.5)))
    return {"result": seen(result, elapsed=elapsed), "threads": threading.active_count() - before}


@section
def case_84():
    """Nothing burns on after it: the caller's and its children's processor time over half a second."""
    result, elapsed = timed(lambda: call(Call(module("84").tool).options(timeout=0.5)))
    before = _burned()
    time.sleep(0.5)
    return {"result": seen(result, elapsed=elapsed), "burned_s": _burned() - before}


def _burned():
    """Of all processes of this host's."""
    from telling import processes

    ticks = 0
    for pid in processes():
        try:
            with open(f"/proc/{pid}/stat") as file:
                ticks += sum(map(int, file.read().rpartition(") ")[2].split()[11:13]))
        except OSError:
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


@waits
def case_85():
    path = os.path.join(os.environ["TMPDIR"], "mail")
    tool = module("85").tool
    attempts = []
    for _ in range(2):
        begun = time.monotonic()
        result = call(Call(tool, path).options(timeout=0.3))
        attempts.append([seen(result), begun, time.monotonic()])
    time.sleep(1.4)
    return {"attempts": attempts, "effects": os.path.exists(path)}


@last
def quiet():
    until(lambda: own_processes().count("deadstop-worker") == workers_alive())
    return {
        "names": own_processes(),
        "workers": workers_alive(),
        "threads": threads_of_ours(),
        "value": call(len, "abc").value,
    }


if __name__ == "__main__":
    main()
