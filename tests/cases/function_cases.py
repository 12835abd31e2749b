# SPDX-License-Identifier: Apache-2.0
"""What the two files about the Python functions in inputs/ have in common.

Common rule for each: one status, back within its limit and a second and a half, nothing of it left in any group or
session (a fifo that it and all its children hold open has nobody at its other end).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "functions"))

import calling
from calling import at_most, measured, measured_once

from hosts import Host

INPUTS = Path(__file__).resolve().parent / "inputs"
MARKER = "# ---- naive demonstration"
SLACK_S = 1.5  # grace, and a second
IDS = "48 49 50 51 52 53 54 55 56 57 59 60 61 62 64 66 67 68 72 73 74 76 80 81 84 85".split()

Told = dict[str, Any]
__all__ = ["SLACK_S", "Told", "at_most", "ends_well", "facts", "gone", "measured", "measured_once"]


def facts(host: Host, section: str, *, by_itself: bool = False, together: tuple[str, ...] = ()) -> Any:
    """The sections of the program `together`, or this one `by_itself`."""
    folder = calling.place(host) / "cases"
    if not folder.exists():
        folder.mkdir()
        for path in sorted(INPUTS.glob("*.py")):
            if path.name[:2] in IDS:
                own = folder / f"case_{re.sub(r'[^0-9a-z]', '_', path.stem)}.py"
                own.write_text(path.read_text().partition(MARKER)[0])
                own.chmod(0o644)
        folder.chmod(0o755)
    return calling.facts(host, "known", section, by_itself=by_itself, together=together)


def gone(host: Host, result: Told) -> None:
    receipt = result["receipt"]
    assert (receipt["proof"], receipt["survivors"], receipt["unkillable"]) == (host.proof, 0, [])


def ends_well(told: Told) -> None:
    """What is left of a program after all its sections: only idle workers."""
    assert told["threads"] == [] and told["value"] == 3
    assert told["names"].count("deadstop-worker") == told["workers"]
    assert not [name for name in told["names"] if name == "sleep"]
