# SPDX-License-Identifier: Apache-2.0
"""What is told about a call that is about to be killed: first who is there, then why it does not end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from . import proc, waits
from .diagnose import VAGUE, diagnose
from .hints import HINTS
from .snapshot import Finding, Snapshot
from .stacks import python_stacks, shows_stacks
from .view import View

_SHOWN = 64  # processes

Emit = Callable[[dict[str, Any]], None]


def collect(view: View, emit: Emit) -> None:
    """Emit {"processes", "count"} as soon as the first sample is read, then {"diagnosis", "complete",
    "took_ms"}, then, if the blamed process is a Python and somebody can tell, {"stacks", "complete"}.

    Where all are asleep, what the first sample alone tells is emitted before the second is taken, as
    {"diagnosis", "complete": False}: on a busy machine a reader that sleeps may not get a CPU again in time.

    Meant for a short-lived child that may be killed between these. Processes may vanish at any time: that
    is never an error. Not promised: that every process is listed (at most 64 are, `count` says how many there
    were), or that one that forks meanwhile is seen. Raises only what `emit` raises.
    """
    started = time.monotonic()
    snapshot = Snapshot(view)
    try:
        emit({"processes": process_list(snapshot), "count": len(snapshot.pids)})
        early = _first_look(snapshot)
        if early is not None:
            emit({"diagnosis": _described(snapshot, early), "complete": False})
        finding = _find(snapshot)
        if early is not None and snapshot.cut_short and finding.kind in VAGUE:
            finding = early
        took = round((time.monotonic() - started) * 1000, 2)
        asks = view.stacks and shows_stacks(finding.pid)
        complete = not snapshot.cut_short
        emit({"diagnosis": _described(snapshot, finding), "complete": complete and not asks, "took_ms": took})
        if asks:
            found, in_time = python_stacks(finding.pid)
            emit({"stacks": found, "complete": complete and in_time})
    finally:
        snapshot.close()


def _first_look(snapshot: Snapshot) -> Finding | None:
    """What one sample tells, if it tells anything; less sure than two."""
    first = snapshot.early()
    if first is None:
        return None
    try:
        finding = diagnose(first)
    except Exception:  # the second look meets it again, and says so
        return None
    finally:
        snapshot.sockets.keep()
    finding.confidence *= 0.8
    return None if first.cut_short or finding.kind in VAGUE else finding


def _find(snapshot: Snapshot) -> Finding:
    try:
        snapshot.sample_again()
        return diagnose(snapshot)
    except Exception as error:  # a fact nobody thought of must not cost the caller its result
        snapshot.cut_short = True
        return Finding("unknown", snapshot.view.leader, f"the diagnosis failed: {type(error).__name__}", 0.0)


def process_list(snapshot: Snapshot) -> list[dict[str, Any]]:
    """The members for people, leader first: pid inside, host pid, command, state, what the main thread waits
    in.
    """
    shown: list[dict[str, Any]] = []
    for pid in snapshot.pids[: 2 * _SHOWN]:
        found = snapshot.before.get(pid)
        if found is None or len(shown) == _SHOWN:
            continue
        shown.append(
            {
                "pid": snapshot.number(pid),
                "host_pid": pid,
                "cmd": proc.command_line(pid) or f"[{found.name}]",
                "state": found.state,
                "waiting_in": "" if found.state in "RZX" else waits.name_only(pid),
                "cpu_s": round(found.cpu, 2),
            }
        )
    return shown


def _described(snapshot: Snapshot, finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind,
        "pid": snapshot.number(finding.pid),
        "detail": finding.detail[:600],
        "confidence": round(finding.confidence, 2),
        "hint": HINTS[finding.kind],
        "chain": [snapshot.number(pid) for pid in finding.chain],
    }
