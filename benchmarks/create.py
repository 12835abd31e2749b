# SPDX-License-Identifier: Apache-2.0
"""Until a command says its first word: in a new boundary, and in one that is there already."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

import deadstop
from deadstop import clock

from .harness import Bench, Candidate, Figure, figures, milliseconds
from .ours import Ours, RawNamespace, bare_bwrap, end_bwrap, find_bwrap, plain_subprocess

HOSTS = ("root", "user", "no-userns")


def measure(bench: Bench) -> Iterator[Figure]:
    ours = Ours()
    yield from _process(bench, ours)
    if bench.namespaces and find_bwrap():
        yield from _sandbox(bench, ours)
    yield from _in_live_boundary(bench, ours)


def _process(bench: Bench, ours: Ours) -> Iterator[Figure]:
    hello = bench.payload("hello")
    candidates: dict[str, Candidate] = {
        "engine": lambda: _create(ours, hello),
        "run": lambda: _run(bench.payload("hello", "once"), "process"),
        "plain subprocess": lambda: plain_subprocess(hello),
    }
    if bench.namespaces:
        candidates["raw namespaces"] = lambda: _raw(hello)
    results = bench.measure(candidates, rounds=200, seconds=4)
    target = (8.0, 20.0)
    yield from figures(
        results, {"engine": ("process: create to first output", target), "run": ("  through deadstop.run", target)}
    )


def _sandbox(bench: Bench, ours: Ours) -> Iterator[Figure]:
    hello = bench.payload("hello", inside=True)
    options = _sandbox_options(bench)
    candidates: dict[str, Candidate] = {
        "engine": lambda: _create(ours, hello, **options),
        "run": lambda: _run(bench.payload("hello", "once", inside=True), **options),
        "bare bwrap": lambda: _bwrap(bench.payload("hello")),
    }
    results = bench.measure(candidates, rounds=120, seconds=6)
    beside = {"bare bwrap": results["bare bwrap"]}
    for name, title in (("engine", "sandbox: create to first output"), ("run", "  through deadstop.run")):
        yield Figure(title, results[name], (25.0, 50.0), beside=beside, most_times=("bare bwrap", 4.0))


def _in_live_boundary(bench: Bench, ours: Ours) -> Iterator[Figure]:
    levels = ["process", "sandbox"] if bench.namespaces and find_bwrap() else ["process"]
    shell = Shell()
    for level in levels:
        inside = level == "sandbox"
        words = bench.payload("hello", "once", inside=inside)
        options = _sandbox_options(bench) if inside else {}
        prepared = ours.prepared(words, **options)
        room = ours.open(prepared)
        with deadstop.Boundary(**options) as kept:
            candidates: dict[str, Candidate] = {
                "engine": lambda: _execute(ours, prepared, room),  # noqa: B023  (used within this round)
                "run": lambda: _run(words, within=kept),  # noqa: B023
                "shell fork+exec": lambda: shell.run(bench.payload("hello", "once")),
            }
            results = bench.measure(candidates, rounds=200, seconds=3)
        ours.kill(room)
        target = (3.0, 8.0)
        yield from figures(
            results,
            {"engine": (f"exec in a live boundary ({level})", target), "run": ("  through Boundary.run", target)},
        )
    shell.close()


def _sandbox_options(bench: Bench) -> dict[str, Any]:
    return {"isolation": "sandbox", "bind_cwd": False, "ro_bind": [bench.payload_bind]}


def _create(ours: Ours, argv: Sequence[str], **options: object) -> float:
    room, took = ours.create(ours.prepared(argv, **options))
    ours.kill(room)
    return took


def _execute(ours: Ours, prepared: object, room: object) -> float:
    ours.protect()
    start = clock.monotonic()
    _, sink, results = ours.start(prepared, room=room)  # type: ignore[arg-type]
    ours.step_until(lambda: bool(results))
    ours.relax()
    return milliseconds(start, sink.at)


def _run(argv: Sequence[str], isolation: str = "process", *, within: object = None, **options: object) -> float:
    """What a user sees: from the call of the function to the callback with the first output."""
    first: list[float] = []

    def on_output(stream: str, data: bytes) -> None:
        first.append(clock.monotonic())

    start = clock.monotonic()
    if within is None:
        result = deadstop.run(argv, isolation=isolation, timeout=30, on_output=on_output, **options)  # type: ignore[arg-type]
    else:
        result = within.run(argv, timeout=30, on_output=on_output)  # type: ignore[attr-defined]
    if not first:
        raise RuntimeError(f"no output: {result}")
    return milliseconds(start, first[0])


def _raw(argv: Sequence[str]) -> float:
    start = clock.monotonic()
    namespace = RawNamespace(argv)
    namespace.first_output()
    took = milliseconds(start)
    namespace.kill()
    return took


def _bwrap(argv: Sequence[str]) -> float:
    start = clock.monotonic()
    process = bare_bwrap(argv)
    assert process.stdout
    assert os.read(process.stdout.fileno(), 6), "bwrap did not start"
    took = milliseconds(start)
    end_bwrap(process)
    return took


class Shell:
    """A shell that waits for commands: what an agent without deadstop keeps open."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(["/bin/sh"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, argv: Sequence[str]) -> float:
        assert self._process.stdin
        assert self._process.stdout
        start = clock.monotonic()
        os.write(self._process.stdin.fileno(), " ".join(argv).encode() + b"\n")
        assert os.read(self._process.stdout.fileno(), 6)
        return milliseconds(start)

    def close(self) -> None:
        self._process.communicate()
