# SPDX-License-Identifier: Apache-2.0
"""Whole processes, started and waited for: `deadstop run true`, and the first call of the library."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence

from deadstop import clock

from .harness import Bench, Candidate, Figure, figures, milliseconds
from .ours import find_bwrap

HOSTS = ("root", "user", "no-userns")
BOUND_S = 30.0
FIRST_CALL = "import deadstop; deadstop.run(['true'], timeout=10)"


def measure(bench: Bench) -> Iterator[Figure]:
    deadstop = [sys.executable, "-m", "deadstop", "run"]
    candidates: dict[str, Candidate] = {
        "run": lambda: _whole([*deadstop, "true"]),
        "first": lambda: _whole([sys.executable, "-c", FIRST_CALL]),
        "import": lambda: _whole([sys.executable, "-c", "import deadstop"]),
        "python -c pass": lambda: _whole([sys.executable, "-c", "pass"]),
        "python -I -S -c pass": lambda: _whole([sys.executable, "-I", "-S", "-c", "pass"]),
        "timeout 5 true": lambda: _whole(["timeout", "5", "true"]),
    }
    ours: dict[str, tuple[str, tuple[float, ...]]] = {
        "run": ("`deadstop run true`, whole process", ()),
        "first": ("  a program with one deadstop.run(['true'])", ()),
        "import": ("  a program that only imports deadstop", ()),
    }
    if bench.namespaces and find_bwrap():
        candidates["sandbox"] = lambda: _whole([*deadstop, "--isolation", "sandbox", "--no-bind-cwd", "true"])
        ours["sandbox"] = ("  deadstop run --isolation sandbox true", ())
    if shutil.which("timeout") is None:
        del candidates["timeout 5 true"]
    results = bench.measure(candidates, rounds=40, seconds=9)
    for figure in figures(results, ours):
        if figure.name.startswith("`"):
            note = "the target is for the p50"
            figure = Figure(figure.name, figure.got, (100.0, 1000.0), beside=figure.beside, note=note)
        yield figure


def _whole(words: Sequence[str]) -> float:
    """Waits by pidfd: subprocess's own wait with a timeout sleeps in steps of up to 50 ms."""
    start = clock.monotonic()
    process = subprocess.Popen(list(words), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pidfd = os.pidfd_open(process.pid)
    ended = select.select([pidfd], [], [], BOUND_S)[0]
    took = milliseconds(start)
    os.close(pidfd)
    if not ended:
        process.kill()
    if process.wait() != 0:
        raise RuntimeError(f"{words} ended with {process.returncode}")
    return took
