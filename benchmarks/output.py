# SPDX-License-Identifier: Apache-2.0
"""Memory under a flood: how much the supervisor grows while a command prints as fast as it can."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import deadstop
from deadstop.executor import private

from .harness import Bench, Figure, Series

HOSTS = ("root", "user")
TARGET_MB = 20.0
RIVAL_S = 1.0  # it takes all there is: a tenth of our time is enough to see it, and all that a shared machine bears
RIVAL = """
import resource, subprocess, sys
used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = used()
try:
    subprocess.run(["yes"], capture_output=True, timeout=float(sys.argv[1]))
except subprocess.TimeoutExpired:
    pass
print(used() - before)
"""


def measure(bench: Bench) -> Iterator[Figure]:
    seconds = 2.0 if bench.quick else 10.0
    rival = Series((_subprocess_run(),))
    beside = {f"subprocess.run in {RIVAL_S:g} s": rival}
    names = [f"memory under `yes`, {seconds:g} s: deadstop run", "  private supervisor"]
    with ThreadPoolExecutor() as at_once:
        both = [at_once.submit(_cli, seconds), at_once.submit(_private, seconds)]
    for name, (grown, printed) in zip(names, [one.result() for one in both], strict=True):
        note = f"{printed / 1e9:.1f} GB printed"
        yield Figure(name, Series((grown,)), (TARGET_MB,), unit="MB", beside=beside, note=note)


def _subprocess_run() -> float:
    command = [sys.executable, "-c", RIVAL, str(RIVAL_S)]
    return float(subprocess.run(command, capture_output=True, timeout=60, check=True).stdout)


def _cli(seconds: float) -> tuple[float, int]:
    words = ["run", "--json", "--timeout", f"{seconds:g}s", "--grace", "0", "--", "yes"]
    process = subprocess.Popen([sys.executable, "-m", "deadstop", *words], stdout=subprocess.PIPE)
    grown = _watch(process.pid, seconds)
    out, _ = process.communicate(timeout=30)
    return grown(), int(json.loads(out)["stdout"]["bytes_total"])


def _private(seconds: float) -> tuple[float, int]:
    deadstop.run(["true"], timeout=10)  # the supervisor is there from now on
    process = private.supervisor._process
    assert process
    grown = _watch(process.pid, seconds)
    result = deadstop.run(["yes"], timeout=seconds, grace=0)
    return grown(), result.stdout.bytes_total


def _watch(pid: int, seconds: float) -> Callable[[], float]:
    """Samples while the flood runs. Call what is returned at its end: MB between the first sample and the largest."""
    samples: list[float] = []
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(seconds / 20):
            try:
                samples.append(_resident_mb(pid))
            except (OSError, IndexError):
                return

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()

    def grown() -> float:
        stop.set()
        thread.join(5)
        return max(samples) - samples[0]

    return grown


def _resident_mb(pid: int) -> float:
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:")) / 1024
