# SPDX-License-Identifier: Apache-2.0
"""Amounts of a task's budget: checked where they come in, and shown as people read them."""

from __future__ import annotations

from . import clock
from .errors import InvalidLimit, UsageError
from .plain import plain_text

LARGEST = 2**63 - 1  # of a count; a saved task must be readable everywhere
RESOURCES = {"wall_clock": "wall clock", "steps": "steps", "tokens": "tokens", "cost": "cost"}


def whole_limit(name: str, value: object) -> int | None:
    checked = clock.check_count(name, value)
    if checked is not None and checked > LARGEST:
        raise InvalidLimit(f"{name}: at most {LARGEST} can be counted")
    return checked


def whole_amount(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
        raise UsageError(f"{name}: give a whole number of at least 0 and at most {LARGEST}, not {_brief(value)}")
    return value


def real_amount(name: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and value == 0:
        return 0.0
    try:
        checked = clock.check_limit(name, value)
    except UsageError:
        checked = None
    if checked is None:
        raise UsageError(f"{name}: give a finite number of at least 0, not {_brief(value)}")
    return checked


def _brief(value: object) -> str:
    try:
        return f"{value!r:.60}"
    except ValueError:  # an int of more than 4300 digits
        return f"one such {type(value).__name__}"


def shown(which: str, amount: float) -> str:
    """Time in seconds throughout: `602.5s of 600s` compares at a glance, `602.5s of 10m` does not."""
    if which in ("steps", "tokens"):
        return str(int(amount))
    digits = 6 if which == "cost" else 1 if amount >= 10 else 3
    text = f"{amount:.3g}" if amount >= 1e15 else f"{amount:.{digits}f}".rstrip("0").rstrip(".")
    return f"{text}s" if which == "wall_clock" else text


def spent_words(which: str, used: float, limit: float) -> str:
    over = shown(which, max(0.0, used - limit))
    both = f"{shown(which, used)} of {shown(which, limit)}"
    return f"{both} {RESOURCES[which]}" if over in ("0", "0s") else f"{RESOURCES[which]} over by {over} ({both})"


def short_name(text: str) -> str:
    """Names may come from a model or a payload."""
    return " ".join(plain_text(str(text)[:200]).split())[:80]
