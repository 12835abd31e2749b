# SPDX-License-Identifier: Apache-2.0
"""Running a script against the Python API on one of the test hosts, and reading what it tells."""

from __future__ import annotations

import json
from textwrap import dedent
from typing import Any

from hosts import Host

PRELUDE = """
import asyncio, json, os, signal, socket, subprocess, sys, threading, time
import deadstop
from deadstop import Boundary, CancelToken, run, run_async

MARK = "PAYLOAD_MARK=" + os.urandom(8).hex()
MARKED = dict([MARK.split("=")])

def tell(**facts):
    print(json.dumps(facts), flush=True)

def until(check, within=8.0):
    end = time.monotonic() + within
    while not (got := check()):
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.002)
    return got

def marked(mark=None):
    \"\"\"Live processes that were started with env=MARKED, whatever became of their parents.\"\"\"
    wanted, found = (mark or MARK).encode(), []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                here = wanted in file.read().split(b"\\0")
            with open(f"/proc/{name}/stat", "rb") as file:
                alive = file.read().rpartition(b") ")[2][:1] not in b"ZX"
            if here and alive:
                found.append(int(name))
        except OSError:
            pass
    return found

def clean_up():
    # after the facts are taken: a defect that leaves something behind must not reach the next test.
    for pid in marked():
        os.kill(pid, signal.SIGKILL)

def supervisor_pid():
    from deadstop.executor.client import supervisor
    return supervisor._process.pid

def children():
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(word) for word in file.read().split()]

def state(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1].decode()
    except OSError:
        return "gone"

def fds(pid="self"):
    return len(os.listdir(f"/proc/{pid}/fd"))

def in_thread(call, *args, **options):
    \"\"\"Run it in a thread; the list gets its result or exception.\"\"\"
    got = []
    def body():
        try:
            got.append(call(*args, **options))
        except BaseException as problem:
            got.append(problem)
    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    return thread, got
"""


def shown_without_supervisor(host: Host) -> tuple[str, int | None]:
    """Proof and survivors of a receipt whose supervisor was lost: the caller sees the end of a namespace, no more."""
    return ("pid_namespace_reaped", 0) if host.namespaces else ("none", None)


def ask(host: Host, text: str, *arguments: str, bound: float = 40, env: dict[str, str] | None = None) -> Any:
    """The last line that the script told, as JSON."""
    out = host.script(PRELUDE + dedent(text), *arguments, bound=bound, env=env)
    lines = out.splitlines()
    assert lines, "the script told nothing"
    return json.loads(lines[-1])
