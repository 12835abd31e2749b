# SPDX-License-Identifier: Apache-2.0
"""python -m benchmarks [NAME...] [--json FILE] [--quick]: runs them all, or those named, for every kind of host."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from . import hosts
from .harness import Bench, Figure

NAMES = (
    "startup", "create", "kill", "deadlines", "survivors", "supervisor_death", "output", "functions", "functions_kill",
    "sandboxes_deadlines", "sandboxes_lives", "sandboxes_create", "sandboxes_fork", "sandboxes_kill", "sandboxes_many",
    "sandboxes_load", "ledger_operation", "ledger_postgresql", "ledger_contention", "ledger_size",
)  # fmt: skip
GROUPS = {group: tuple(name for name in NAMES if name.startswith(f"{group}_")) for group in ("sandboxes", "ledger")}
BOUND_S = 150.0  # for one benchmark on one host
HEAD = ("host", "figure", "target", "got p50 / p99", "n", "", "beside (times its p50)")
WIDTHS = (20, 44, 11, 18, 4, 7, 0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join((*GROUPS, *NAMES))} (default: all)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file, too")
    parser.add_argument("--quick", action="store_true", help="a fifth of the measurements")
    parser.add_argument("--host", action="append", choices=hosts.available(), help="only this host (repeatable)")
    parser.add_argument("--worker", nargs=3, metavar=("HOST", "FOLDER", "COMPILED"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in (*NAMES, *GROUPS)]:
        parser.error(f"no benchmark {unknown[0]!r}: one of {', '.join((*GROUPS, *NAMES))}")
    names = [each for name in arguments.names or NAMES for each in GROUPS.get(name, (name,))]
    if arguments.worker:
        return work(names, *arguments.worker, quick=arguments.quick)
    return run(names, arguments.host or hosts.available(), arguments.json, arguments.quick)


def work(names: list[str], host: str, folder: str, compiled: str, *, quick: bool) -> int:
    """In a process of that host: each figure as a line of JSON."""
    from deadstop.boundary.syscalls import die_with_parent

    die_with_parent()  # and with it every supervisor of ours
    bench = Bench(host, folder, quick, compiled == "yes")
    whole = True
    for name in names:
        try:
            for figure in importlib.import_module(f".{name}", __package__).measure(bench):
                print(json.dumps({**figure.document(), "row": figure.row()}), flush=True)
        except Exception as problem:
            where = traceback.extract_tb(problem.__traceback__)[-1]
            print(f"{name} on {host}: {problem!r:.300} ({where.filename}:{where.lineno})", file=sys.stderr, flush=True)
            whole = False
    return 0 if whole else 1


def run(names: list[str], wanted: list[str], json_path: str | None, quick: bool) -> int:
    """Everything in turn; the exit status is 1 if something could not be measured."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the temporary folder goes even then
    figures: list[dict[str, Any]] = []
    whole = True
    with hosts.folder() as (place, compiled):
        print(_machine() + ("" if compiled else "; no C compiler: Python payloads, which are slower"))
        print(_line(HEAD))
        for name in names:
            for host in _hosts_of(place, name, wanted):
                found = _one(name, host, place, compiled, quick)
                whole = whole and found is not None
                figures += found or []
    print("* the largest of fewer than 100 values; target and got: p50 / p99")
    if json_path:
        document = {"machine": _machine(), "quick": quick, "figures": figures}
        Path(json_path).write_text(json.dumps(document, indent=1) + "\n")
    return 0 if whole else 1


def _hosts_of(place: Path, name: str, wanted: list[str]) -> list[str]:
    """Which hosts this benchmark is for, read from its file: importing it would import deadstop here."""
    text = (place / "benchmarks" / f"{name}.py").read_text()
    line = next(line for line in text.splitlines() if line.startswith("HOSTS = "))
    found = [host for host in wanted if f'"{host}"' in line]
    if "\nONCE = True" in text:  # as whoever asks: only that interpreter is sure to have the packages
        return [host for host in found if host == hosts.available()[0]]
    return found


def _one(name: str, host: str, place: Path, compiled: bool, quick: bool) -> list[dict[str, Any]] | None:
    """One benchmark on one host; None if it failed."""
    python = hosts.python_for(host)
    if python is None:
        print(f"{host:20} {name}: no Python 3.11 or newer that this user may execute")
        return None
    hosts.compile_for(python, place)
    before = os.getloadavg()[0]
    words = [name, "--worker", host, str(place), "yes" if compiled else "no", *(["--quick"] if quick else [])]
    process = hosts.start(host, python, place, words)
    found = _lines(process, host)
    load = [round(before, 2), round(os.getloadavg()[0], 2)]
    print(f"{host:20}   load average {load[0]} before, {load[1]} after {name}", flush=True)
    for figure in found:
        figure.update(benchmark=name, host=host, load=load, python=python)
        del figure["row"]
    return found if process.returncode == 0 else None


def _lines(process: subprocess.Popen[str], host: str) -> list[dict[str, Any]]:
    """Print each figure as it comes. A worker that takes too long is killed; its supervisors end with it."""
    bound = threading.Timer(BOUND_S, process.kill)
    bound.start()
    found = []
    try:
        assert process.stdout
        for line in process.stdout:
            found.append(json.loads(line))
            print(_line((host, *found[-1]["row"])), flush=True)
        process.wait()
    finally:
        bound.cancel()
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
    if process.returncode:
        print(f"{host:20} FAILED with exit status {process.returncode}")
    return found


def _line(cells: tuple[str, ...]) -> str:
    return " ".join(f"{cell:{width}}" if width else cell for cell, width in zip(cells, WIDTHS, strict=True))


def _machine() -> str:
    return f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()} ({sys.executable})"


__all__ = ["Figure", "main"]

if __name__ == "__main__":
    sys.exit(main())
