# SPDX-License-Identifier: Apache-2.0
"""The text of a saved task: numbers with a version, a check, and the time at which they were true."""

from __future__ import annotations

import json
import time

from .budget import key_of
from .errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["load", "save"]

SAVED = "deadstop.task/1"


def save(numbers: dict[str, Any]) -> str:
    document = {"schema": SAVED, **numbers, "saved_at": time.time(), "boot": [_boot_id(), _since_boot()]}
    return _dumps({**document, "check": _check(document)})


def load(saved: str) -> tuple[dict[str, Any], float]:
    """What was saved, and the seconds that have passed since. Raises UsageError for any other text."""
    document = _checked(saved)
    try:
        return document, _elapsed(float(document["saved_at"]), *document["boot"])
    except (KeyError, TypeError, ValueError):
        raise UsageError("this saved task does not say when it was saved") from None


def _dumps(document: dict[str, Any]) -> str:
    return json.dumps(document, allow_nan=False, sort_keys=True)


def _check(document: dict[str, Any]) -> str:
    return key_of(_dumps(document)).hex()


def _checked(saved: str) -> dict[str, Any]:
    try:
        document = json.loads(saved) if isinstance(saved, str) else None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or not str(document.get("schema")).startswith("deadstop.task/"):
        raise UsageError("this is not a text that Task.save() gave")
    if document["schema"] != SAVED:
        raise UsageError(f"this task was saved as {document['schema']!r:.60}; this version reads {SAVED}")
    check = document.pop("check", None)
    try:
        unchanged = check == _check(document)
    except (ValueError, RecursionError):
        unchanged = False
    if not unchanged:
        raise UsageError("this saved task was changed after Task.save() gave it")
    return document


def _elapsed(saved_at: float, boot_id: str, since_boot: float) -> float:
    if boot_id and boot_id == _boot_id() and (passed := _since_boot() - since_boot) >= 0:
        return passed
    return max(0.0, time.time() - saved_at)


def _boot_id() -> str:
    """Changes with every start of the host; "" where there is none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _since_boot() -> float:
    kind = getattr(time, "CLOCK_BOOTTIME", None)
    return 0.0 if kind is None else time.clock_gettime(kind)
