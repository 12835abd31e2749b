# SPDX-License-Identifier: Apache-2.0
"""How a program on a test host tells what it saw: one JSON line with an entry for each of its sections."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback

import deadstop

_alone, _together, _last = [], [], []
os.environ["CALLER_PID"] = str(os.getpid())  # in a pid namespace no worker has it


def section(function):
    """A part of the program whose return value is told. They run one after another."""
    _alone.append(function)
    return function


def waits(function):
    """The same for one that mostly waits: these run all at once, after the others."""
    _together.append(function)
    return function


def last(function):
    """One that comes after all others."""
    _last.append(function)
    return function


def main():
    told, asked = {}, sys.argv[1:]
    for each in _alone:
        if not asked or each.__name__ in asked:
            _run(each, told)
    threads = [
        threading.Thread(target=_run, args=(each, told)) for each in _together if not asked or each.__name__ in asked
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in _last:
        _run(each, told)
    told["_told_at"] = time.monotonic()
    print(json.dumps(told, default=repr), flush=True)


def _run(function, told):
    begun = time.monotonic()
    try:
        told[function.__name__] = function()
    except BaseException:
        told[function.__name__] = {"problem": traceback.format_exc()}
    if os.environ.get("SHOW_TIMES"):
        sys.stderr.write(f"{time.monotonic() - begun:6.2f} {function.__name__}\n")


def seen(result, **more):
    """The contract's form of a result, with what only the object has."""
    exception = None if result.exception is None else [type(result.exception).__name__, _text(result.exception)]
    own = {"exception": exception, "late_value": result.late.value if result.late else None, "ok": result.ok}
    return {**result.to_dict(), **own, **more}


def _text(problem):
    try:
        return str(problem)[:500]
    except Exception:
        return "<none>"


def timed(call):
    """(result, seconds it took)."""
    begun = time.monotonic()
    result = call()
    return result, time.monotonic() - begun


def at_once(*calls):
    """What each gives, all begun together in threads of their own."""
    gate, got = threading.Barrier(len(calls)), [None] * len(calls)

    def body(index, call):
        gate.wait(20)
        try:
            got[index] = call()
        except BaseException as problem:
            got[index] = problem

    threads = [threading.Thread(target=body, args=each) for each in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    return got


def until(check, within=8.0):
    end = time.monotonic() + within
    while not (got := check()):
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.002)
    return got


class Leash:
    """A fifo that a call takes into its hand and everything it starts inherits: at its end nobody holds it any more."""

    def __init__(self):
        self.path = os.path.join(os.environ["TMPDIR"], f"leash-{os.urandom(6).hex()}")
        os.mkfifo(self.path)
        self.end = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        self.taken = False

    def state(self):
        """ "held", "let go", or "never held"."""
        try:
            while os.read(self.end, 1000):
                self.taken = True
        except BlockingIOError:
            return "held"
        return "let go" if self.taken else "never held"

    def close(self):
        os.close(self.end)
        os.unlink(self.path)


def hold(path):
    """In a tool: take the leash, for children too, those of subprocess and those that close what they know of."""
    fd = os.open(path, os.O_WRONLY)
    os.set_inheritable(fd, True)
    os.write(fd, b"h")
    return fd


def processes():
    """pid -> (parent, name) of every live process that carries this host's mark."""
    mark = f"DEADSTOP_TEST_MARK={os.environ['DEADSTOP_TEST_MARK']}".encode()
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if mark not in file.read().split(b"\0"):
                    continue
            with open(f"/proc/{name}/stat", "rb") as file:
                head, _, tail = file.read().decode("utf-8", "replace").rpartition(") ")
            if tail[0] not in "ZX":
                found[int(name)] = (int(tail.split()[1]), head.partition("(")[2])
        except OSError:
            continue
    return found


def own_processes():
    """Those that are this library's at rest: the caller, supervisor, nursery, and workers each under its pid 1."""
    return sorted(name for _, name in processes().values())


def pool():
    """The pool of plain functions."""
    from deadstop.executor.workers import _pools

    return next(found for place, found in _pools.items() if place.isolation == "process" and not place.limits.memory)


def workers_alive():
    """As this library counts them, those that have been asked for included."""
    from deadstop.executor.workers import _pools

    return sum(found.alive + found.asked for found in _pools.values())


def threads_of_ours():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("deadstop")]


def supervisor_pid():
    from deadstop.executor.private import supervisor

    return supervisor._process.pid


__all__ = [name for name in dir() if not name.startswith("_") and name not in ("annotations",)]
assert deadstop


def started_and_joined(threads, seconds):
    """All of them at once; each may take so long."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
