# SPDX-License-Identifier: Apache-2.0
"""DELETE of a sandbox with 200 hostile processes in it, until the answer with the proof is there."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

from . import processes
from .harness import Bench, Candidate, Figure, Series
from .ours import RawNamespace
from .sandboxes_served import Served, Unavailable, inside, serving, timed

HOSTS = ("root", "user")
HOSTILE = 200
TARGET = (15.0, 40.0)


def measure(bench: Bench) -> Iterator[Figure]:
    try:
        with serving(bench) as served:
            yield from _all(bench, served)
    except Unavailable as reason:
        yield Figure("DELETE to proved empty", Series(()), note=str(reason))


def _all(bench: Bench, served: Served) -> Iterator[Figure]:
    shown: list[float] = []
    candidates: dict[str, Candidate] = {
        "hostile": lambda: _hostile(bench, served, shown),
        "idle": lambda: _idle(served),
        "raw pid namespace": lambda: _raw(bench),
    }
    results = bench.measure(candidates, rounds=60, seconds=20)
    note = f"by the receipt {Series(tuple(shown[1:])).text()} ms"  # the first round is not counted
    beside = {"raw pid namespace": results["raw pid namespace"]}
    yield Figure(f"DELETE to proved empty, {HOSTILE} hostile", results["hostile"], TARGET, beside=beside, note=note)
    yield Figure("  idle", results["idle"], TARGET)


def _hostile(bench: Bench, served: Served, shown: list[float]) -> float:
    """A mob: all ignore every signal, each is in a session of its own, some fork all the time."""
    sandbox, mark = served.client.create(ttl_seconds=120)["id"], uuid.uuid4().hex
    words = _upload(bench, served, sandbox)
    served.client.run(sandbox, [*words, str(HOSTILE)], background=True, timeout_seconds=60, env={processes.MARK: mark})
    inside(mark, HOSTILE)
    answers: list[dict[str, dict[str, dict[str, object]]]] = []
    took = timed(lambda: answers.append(served.client.delete(sandbox)))
    receipt = answers[0]["end"]["receipt"]
    left = processes.marked(mark)
    if left or receipt["proof"] == "none":
        processes.end(left)
        raise RuntimeError(f"{len(left)} processes were left; {receipt}")
    shown.append(float(str(receipt["kill_ms"])))
    return took


def _upload(bench: Bench, served: Served, sandbox: str) -> list[str]:
    words = bench.payload("mob")
    program = Path(words[-1]).read_bytes()
    served.client.ask("PUT", f"/sandboxes/{sandbox}/fs?path=/home/agent/mob", program)
    served.client.run(sandbox, "chmod +x mob", cwd="/home/agent")
    return [*words[:-1], "/home/agent/mob"]


def _idle(served: Served) -> float:
    sandbox = served.client.create(ttl_seconds=120)["id"]
    return timed(lambda: served.client.delete(sandbox))


def _raw(bench: Bench) -> float:
    namespace = RawNamespace(bench.payload("mob", str(HOSTILE)))
    namespace.first_output()
    return namespace.kill()
