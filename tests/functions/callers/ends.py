# SPDX-License-Identifier: Apache-2.0
"""How calls end that do not end well, what goes with them, and what comes after."""

from __future__ import annotations

import os
import re
import signal
import threading
import time

import tools
from telling import (
    Leash,
    at_once,
    last,
    main,
    own_processes,
    pool,
    section,
    seen,
    threads_of_ours,
    timed,
    until,
    waits,
    workers_alive,
)

import deadstop
from deadstop import Call, call

STARTERS = {
    "thread": tools.with_thread, "subprocess": tools.with_subprocess, "daemon": tools.with_daemon,
    "multiprocessing": tools.with_multiprocessing,
}  # fmt: skip
STUBBORN = {
    "native": tools.holds_lock_natively, "blocks": tools.blocks_signals, "ignores": tools.ignores_signals,
    "async": tools.async_eats_cancel,
}  # fmt: skip


@section
def crashes():
    """Beside siblings that must not notice."""
    calls = {
        "exit_0": Call(tools.leave), "exit_3": Call(tools.leave, 3), "segfault": Call(tools.segfault),
        "killed": Call(tools.kill_self), "term": Call(tools.kill_self, signal.SIGTERM), "abort": Call(os.abort),
        "user": Call(tools.kill_self, signal.SIGUSR1),
    }  # fmt: skip
    siblings = [lambda number=number: call(tools.sleep, 0.3, number).value for number in range(4)]
    got = at_once(*[lambda each=each: timed(lambda: call(each)) for each in calls.values()], *siblings)
    out = {name: seen(got[at][0], elapsed=got[at][1]) for at, name in enumerate(calls)}
    until(lambda: pool().free)
    return {
        "crashed": out, "siblings": got[len(calls) :], "free": len(pool().free),
        "next": [call(tools.plus, number).value for number in range(20)],
    }  # fmt: skip


@section
def memory():
    """More than the ceiling, touched (a mapping) and only asked for (an allocation)."""
    limited = deadstop.tool(tools.fill, memory=96 << 20, timeout=8)
    other = deadstop.tool(tools.allocate, memory=96 << 20, timeout=8)
    got = at_once(
        lambda: seen(limited.call(400)), lambda: seen(other.call(400)), lambda: limited.call(4).value,
        lambda: call(tools.sleep, 0.3, "sibling").value,
    )  # fmt: skip
    return {"filled": got[0], "allocated": got[1], "small": [got[2], limited.call(5).value], "sibling": got[3]}


@section
def streams():
    before = _memory()
    large = call(tools.prints, 10_000_000)
    flood, elapsed = timed(lambda: call(Call(_flood).options(timeout=0.5)))
    after = _memory()
    quiet = call(tools.plus, 1)
    many = at_once(
        *[lambda number=number: call(tools.writes_and_returns, f"<{number}>").stdout.tail for number in range(12)]
    )
    return {
        "input": call(tools.read_input).value, "large": seen(large), "raw": seen(call(tools.writes_raw, "past python")),
        "flood": seen(flood), "flood_s": elapsed, "quiet": seen(quiet), "grown": after - before, "many": many,
        "after_raw": seen(call(tools.plus, 1)), "hung": seen(call(Call(tools.prints_and_hangs).options(timeout=0.3))),
        "raised": seen(call(_prints_and_raises)), "no_newline": seen(call(_prints_half_a_line)),
        "child": seen(call(_child_prints)), "not_ascii": seen(call(print, "\u00e4\ud800")),
    }  # fmt: skip


def _memory():
    with open("/proc/self/status") as file:
        return int(re.search(r"VmRSS:\s+(\d+)", file.read())[1]) << 10


def _flood():
    while True:
        os.write(1, b"z" * 65_536)


def _prints_and_raises():
    print("before it failed")
    raise ValueError("it failed")


def _prints_half_a_line():
    import sys

    sys.stdout.write("no newline")


def _child_prints():
    import subprocess

    subprocess.run(["echo", "from a child"], check=True)


@section
def after_a_call():
    """Signals and streams as a fresh process has them, whatever the call before did."""
    masked = call(tools.masked_alarm).value
    again = call(tools.masked_alarm).value
    return {"masked": masked, "again": again}


def _ending(function, then, limit):
    leash = Leash()
    arguments = (leash.path,) if then is None else (leash.path, then)
    try:
        result, elapsed = timed(lambda: call(Call(function, *arguments).options(timeout=limit)))
        told = seen(result, elapsed=elapsed, leash=leash.state(), limit_s=limit)
        if function is tools.with_multiprocessing:
            name = result.stdout.tail.split("\n")[0].lstrip("/")
            told["memory_there"] = os.path.exists(f"/dev/shm/{name}") if name else None
            if told["memory_there"]:
                os.unlink(f"/dev/shm/{name}")
        return told
    finally:
        leash.close()


@section
def interrupted():
    """Ctrl-C in the caller ends the call, and nothing is left of it."""
    leash, caught = Leash(), []

    def strike():
        until(lambda: leash.state() == "held")
        caught.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=strike).start()
    try:
        call(tools.hang, leash.path)
    except KeyboardInterrupt:
        caught.append(time.monotonic())
    until(lambda: leash.state() == "let go")
    return {
        "caught_s": caught[1] - caught[0],
        "gone_s": time.monotonic() - caught[0],
        "next": call(tools.plus, 1).value,
    }


@waits
def timed_out():
    """Together, each with something running when its time is over."""
    jobs = {name: (function, "hang") for name, function in STARTERS.items()}
    jobs |= {name: (function, None) for name, function in STUBBORN.items() if name != "async"}
    got = at_once(*[lambda job=job: _ending(*job, 0.6) for job in jobs.values()])
    out = dict(zip(jobs, got, strict=True))
    return {name: told if isinstance(told, dict) else {"raised": repr(told)} for name, told in out.items()}


@waits
def left_behind():
    """Completed, with something still running."""
    got = at_once(*[lambda job=job: _ending(job, "done", 5) for job in STARTERS.values()])
    out = dict(zip(STARTERS, got, strict=True))
    return {name: told if isinstance(told, dict) else {"raised": repr(told)} for name, told in out.items()}


@waits
def effects():
    """Nothing is done any more after the result of a timeout."""
    path = os.path.join(os.environ["TMPDIR"], "effect")
    result, elapsed = timed(lambda: call(Call(tools.write_after, 0.6, path).options(timeout=0.3)))
    time.sleep(0.7)
    return {"result": seen(result), "elapsed": elapsed, "there": os.path.exists(path)}


@waits
def polite():
    """A tool that asks whether it may go on, inline and killable."""
    inline, first = timed(lambda: call(Call(tools.check_until_over).options(isolation="inline", timeout=0.3)))
    killable, second = timed(lambda: call(Call(tools.check_until_over).options(timeout=0.3)))
    late, third = timed(lambda: call(Call(tools.sleep, 0.3, "slept").options(isolation="inline", timeout=0.1)))
    return {
        "inline": seen(inline, elapsed=first),
        "killable": seen(killable, elapsed=second),
        "late": seen(late, elapsed=third),
    }


@last
def quiet():
    """What there is of this library once nothing is called any more."""

    def one_is_idle():
        pool().harvest()  # what is on its way is nobody's until somebody needs it
        return len(pool().free) >= 1

    until(one_is_idle)
    return {"names": own_processes(), "threads": threads_of_ours(), "alive": workers_alive()}


if __name__ == "__main__":
    main()
