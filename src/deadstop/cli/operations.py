# SPDX-License-Identifier: Apache-2.0
"""What the verbs about operations share: the ledger, who acts, and how an operation is shown."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from .. import clock
from .common import say

if TYPE_CHECKING:
    from ..ledger.ledger import Ledger
    from ..ledger.records import Evidence, Record


EVERY = 1 << 31  # as a limit: none


def ledger_file(arguments: argparse.Namespace) -> str | None:
    """The path of the ledger that is asked for; None for one that is no file."""
    from ..ledger.store import default_place

    place = default_place() if arguments.ledger is None else arguments.ledger
    return None if "://" in place or not place else place


def own_folder_too() -> None:
    """So that a function of a program in this folder is found, as `python -m` would find it; but behind everything that
    is installed, which no file of this folder may stand in for."""
    with suppress(OSError):  # a folder that was removed
        if not sys.flags.safe_path and os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())


@contextmanager
def opened(arguments: argparse.Namespace, *, sweep: bool = True) -> Iterator[Ledger]:
    """The ledger, after what deadlines ask for has been done; stderr says what that has changed.

    Raises LedgerUnavailable for a file that is not there: looking at one must not make one.
    """
    from ..errors import LedgerUnavailable
    from ..ledger.ledger import Ledger

    path = ledger_file(arguments)
    if path is not None and not os.path.exists(path):
        fix = "name one with --ledger or DEADSTOP_LEDGER; the first operation makes it"
        raise LedgerUnavailable(path, "there is no such file", fix)
    with Ledger.open(arguments.ledger) as ledger:
        for record in ledger.sweep() if sweep else ():
            say(f"{record.op_id} is {record.state} now: {_why(ledger, record)}")
        yield ledger


def _why(ledger: Ledger, record: Record) -> str:
    reasons = [json.loads(entry.body).get("why") for entry in ledger.trail(record.op_id)]
    return ", and ".join(dict.fromkeys(str(each) for each in reasons[-2:] if each)) or "its time was over"


def login_name() -> str:
    """Who runs this; behind sudo, who runs sudo. It is what this process was told, and proves nothing."""
    import pwd

    uid = os.getuid()
    if uid == 0 and (sudo := os.environ.get("SUDO_USER")):
        return sudo
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


# -- times ---------------------------------------------------------------------------------------------------------


def now_ms(ledger: Ledger) -> int:
    """On the ledger's own clock."""
    return ledger.read(lambda tx: tx.now)


def length(seconds: float) -> str:
    """`45s`, `12m`, `3h 20m`, `5d 2h`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m"
    if whole < 86400:
        hours, minutes = divmod(whole // 60, 60)
        return f"{hours}h {minutes}m" if minutes else f"{hours}h"
    days, hours = divmod(whole // 3600, 24)
    return f"{days}d {hours}h" if hours else f"{days}d"


def ago(seconds: float) -> str:
    """`2m ago`, `in 45s`."""
    if abs(seconds) < 1:
        return "now"
    return f"{length(seconds)} ago" if seconds > 0 else f"in {length(-seconds)}"


def when(ms: int | None, now: int) -> str:
    """`2026-11-30T12:00:00.000Z (2m ago)`; `-` for what has no time."""
    return "-" if ms is None else f"{clock.iso(ms / 1000)} ({ago((now - ms) / 1000)})"


# -- operations ----------------------------------------------------------------------------------------------------


def waits_for(record: Record, now: int) -> str:
    """What happens next, and when."""
    from ..ledger.states import State

    left = {State.PREPARED: record.request_ms, State.UNKNOWN: record.recovery_ms}.get(record.state, record.lease_ms)
    time_left = "" if left is None else f", {length(max(0, left - now) / 1000)} left"
    return {
        State.PREPARED: f"its caller{time_left}",
        State.DISPATCHING: f"its answer{time_left}",
        State.UNKNOWN: f"its authority{time_left}",
        State.RECONCILING: f"its authority's answer{time_left}",
        State.NEEDS_HUMAN: "a person",
    }.get(record.state, "")


def last_confirmed(trail: list[Evidence]) -> dict[str, Any] | None:
    """The last state that says something about the world: sent by nobody, done, not done, or given up."""
    for entry in reversed(trail):
        body = json.loads(entry.body)
        if body.get("to") in ("PREPARED", "SUCCEEDED", "FAILED", "ABANDONED"):
            return {"state": body["to"], "at": clock.iso(entry.at_ms / 1000), "n": entry.n}
    return None


def line(record: Record) -> str:
    """One operation in one line."""
    parts = [record.op_id, record.state.value]
    if record.verdict is not None and record.queries:
        parts.append(f"(last finding: {record.verdict.value}{f', {record.reference}' if record.reference else ''})")
    return " ".join(parts)
