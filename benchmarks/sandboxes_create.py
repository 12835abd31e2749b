# SPDX-License-Identifier: Apache-2.0
"""What a request costs: a new sandbox, cold and from the warm pool, and a command that does nothing in one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import deadstop

from .harness import Bench, Candidate, Figure, Series, figures
from .ours import bare_bwrap
from .sandboxes_served import Served, Unavailable, serving, timed, until

HOSTS = ("root", "user")
WARM = 4
PANDA = "PandaStack publishes 179 / 203 ms, server-side, of another machine"


def measure(bench: Bench) -> Iterator[Figure]:
    try:
        with ExitStack() as stack:
            cold = stack.enter_context(serving(bench))
            warm = stack.enter_context(serving(bench, "--warm", str(WARM)))
            yield from _creates(bench, cold, warm)
            yield from _commands(bench, cold)
    except Unavailable as reason:
        yield Figure("sandboxes: create", Series(()), note=str(reason))


def _creates(bench: Bench, cold: Served, warm: Served) -> Iterator[Figure]:
    candidates: dict[str, Candidate] = {
        "cold": lambda: _create(cold, "cold"),
        "warm": lambda: _create(warm, "warm"),
        "bare bwrap true": _bwrap,
    }
    results = bench.measure(candidates, rounds=120, seconds=15)
    beside = {"bare bwrap true": results["bare bwrap true"]}
    yield Figure("create over HTTP, cold", results["cold"], (35.0, 80.0), beside=beside, note=PANDA)
    yield Figure("  from the warm pool", results["warm"], (6.0, 20.0), beside=beside)


def _create(served: Served, mode: str) -> float:
    if mode == "warm":  # the pool is full again: what is measured is not the making of the next one
        until(lambda: _at_rest(served), 20, "the warm pool")
    made: list[dict[str, object]] = []
    took = timed(lambda: made.append(served.client.create(ttl_seconds=120)))
    if made[0]["boot_mode"] != mode:
        raise RuntimeError(f"{made[0]['boot_mode']} instead of {mode}")
    served.client.delete(str(made[0]["id"]))
    return took


def _at_rest(served: Served) -> bool:
    """Nothing but the pool's own sandboxes lives, and all of those."""
    boxes = [pid for pid in served.ours() if _name(pid) == "deadstop-box"]
    rooms = [pid for pid in served.ours() if _name(pid) == "deadstop-room"]
    return len(boxes) == len(rooms) == WARM


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def _bwrap() -> float:
    def run() -> None:
        process = bare_bwrap(["/bin/true"])
        assert process.stdout
        process.wait()
        process.stdout.close()

    return timed(run)


def _commands(bench: Bench, served: Served) -> Iterator[Figure]:
    sandbox = served.client.create(ttl_seconds=300)["id"]
    with deadstop.Boundary(isolation="sandbox", bind_cwd=False) as kept:
        candidates: dict[str, Candidate] = {
            "http": lambda: timed(lambda: _succeed(served.client.run(sandbox, ["true"])["exit_code"])),
            "shell": lambda: timed(lambda: _succeed(served.client.run(sandbox, "true")["exit_code"])),
            "exec in a kept boundary": lambda: timed(lambda: _succeed(kept.run(["true"], timeout=30).exit_code)),
            "fork+exec": lambda: timed(_spawn),
            "GET": lambda: timed(lambda: served.client.ask("GET", f"/sandboxes/{sandbox}")),
        }
        results = bench.measure(candidates, rounds=300, seconds=10)
    served.client.delete(sandbox)
    yield from figures(
        results,
        {"http": ("exec `true` over HTTP", (5.0, 15.0)), "shell": ("  as a command line (bash -c true)", ())},
    )


def _spawn() -> None:
    _succeed(os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ), 0)[1]))


def _succeed(code: int | None) -> None:
    if code != 0:
        raise subprocess.CalledProcessError(code or 1, "true")
