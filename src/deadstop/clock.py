# SPDX-License-Identifier: Apache-2.0
"""Clocks, and the one place where a limit is read and checked."""

from __future__ import annotations

import time
from math import isfinite

from .errors import InvalidLimit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "VirtualClock",
    "check_count",
    "check_limit",
    "format_duration",
    "monotonic",
    "now_iso",
    "parse_duration",
    "parse_size",
]

_monotonic: Callable[[], float] = time.monotonic

_DURATION_UNITS = (("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0))
_SIZE_UNITS = {"": 1, "b": 1} | {
    letter + rest: 1024**power for power, letter in enumerate("kmgt", 1) for rest in ("", "b", "ib")
}
_SIZE_MAX = (1 << 63) - 1
_DIGITS = frozenset("0123456789")
_DURATION_RULE = "a duration above zero such as 500ms, 30s, 5m, 2h or 1.5 (seconds), or none"
_SIZE_RULE = "a whole size above zero such as 1000, 64KiB, 512M or 1G (1024-based), or none"


def monotonic() -> float:
    """Seconds on CLOCK_MONOTONIC: comparable between processes of one host, never set back."""
    return _monotonic()


class VirtualClock:
    """A clock for unit tests: while it is entered, `monotonic()` moves only by `advance()`.

    It does not replace the wall clock, and it is not for threads that enter different clocks.
    """

    def __init__(self, start: float = 1000.0) -> None:
        self.now = start
        self._before: list[Callable[[], float]] = []

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> float:
        """Move the clock forward and return the new time. Raises InvalidLimit for a step back."""
        if not seconds >= 0:
            raise InvalidLimit(f"advance={_shown(seconds)}: a monotonic clock only moves forward")
        self.now += seconds
        return self.now

    def __enter__(self) -> VirtualClock:
        global _monotonic
        self._before.append(_monotonic)
        _monotonic = self
        return self

    def __exit__(self, *exc_info: object) -> None:
        global _monotonic
        _monotonic = self._before.pop()


_second = (0, "")  # the last one that was written out: a call made every few microseconds shares it


def now_iso() -> str:
    """The wall clock in UTC as `2026-11-30T12:00:00.000Z`: for people to read, not for deadlines."""
    global _second
    seconds, ms = divmod(time.time_ns() // 1_000_000, 1000)
    known, text = _second
    if known != seconds:
        text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        _second = seconds, text
    return f"{text}.{ms:03d}Z"


def boottime() -> float:
    """CLOCK_BOOTTIME, in seconds: it goes on while the machine sleeps, and no setting of the time moves it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def iso(when: float) -> str:
    """A point of the wall clock in the same form."""
    seconds, ms = divmod(round(when * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{ms:03d}Z"


def parse_duration(text: str) -> float | None:
    """Seconds from `500ms`, `30s`, `5m`, `2h` or `1.5`; None from `none`, which means no limit.

    Raises InvalidLimit for anything else, for zero, and for what is not finite.
    """
    word = text.strip().lower()
    if word == "none":
        return None
    number, factor = word, 1.0
    for unit, unit_seconds in _DURATION_UNITS:
        if word.endswith(unit):
            number, factor = word[: -len(unit)].rstrip(), unit_seconds
            break
    seconds = float(number) * factor if _is_decimal(number) else 0.0
    if not (isfinite(seconds) and seconds > 0):
        raise InvalidLimit(f"{_shown(text)} is not allowed: give {_DURATION_RULE}")
    return seconds


def format_duration(seconds: float) -> str:
    """The short form people read: `5s`, `1.5s`, `300ms`, `5m`. Rounded to 1 ms, below a second to 1 us."""
    if not isfinite(seconds):
        return str(seconds)
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    ms = round(seconds * 1000, 3)
    if ms < 1000:
        return f"{_trimmed(max(ms, 0.001) if seconds > 0 else 0.0)}ms"
    whole = round(seconds, 3)
    for unit, unit_seconds in (("h", 3600), ("m", 60)):
        if whole % unit_seconds == 0:
            return f"{_trimmed(whole / unit_seconds)}{unit}"
    return f"{_trimmed(whole)}s"


def parse_size(text: str) -> int | None:
    """Bytes from `512M`, `1G`, `64KiB` or `1000` (K, M, G, T are 1024-based); None from `none`.

    Raises InvalidLimit for anything else, for zero, and above 2**63 - 1.
    """
    word = text.strip().lower()
    if word == "none":
        return None
    number = word.rstrip("bikmgt ")
    factor = _SIZE_UNITS.get(word[len(number) :].strip(), 0)
    plain = 0 < len(number) <= 19 and _DIGITS.issuperset(number)
    size = int(number) * factor if plain else 0
    if not 0 < size <= _SIZE_MAX:
        raise InvalidLimit(f"{_shown(text)} is not allowed: give {_SIZE_RULE}")
    return size


def check_limit(name: str, value: object) -> float | None:
    """`value` as a float, or None for no limit.

    Raises InvalidLimit for anything but None or a finite real number above zero; a bool, a str,
    NaN and infinity are none of these.
    """
    if value is None:
        return None
    seconds = _as_float(value)
    if not (isfinite(seconds) and seconds > 0):
        raise InvalidLimit(f"{name}={_shown(value)} is not allowed: give a finite number above zero, or None")
    return seconds


def check_count(name: str, value: object) -> int | None:
    """`value` as an int, or None for no limit.

    Raises InvalidLimit for anything but None or an int above zero.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise InvalidLimit(f"{name}={_shown(value)} is not allowed: give a whole number above zero, or None")
    return value


def _as_float(value: object) -> float:
    """0.0, which no limit may be, for what is not a real number or does not fit a float."""
    if isinstance(value, bool):
        return 0.0
    if not isinstance(value, (int, float)):
        from numbers import Real  # only the rare kinds of number (numpy's, Fraction) pay for this import

        if not isinstance(value, Real):
            return 0.0
    try:
        return float(value)
    except (OverflowError, ValueError):
        return 0.0


def _is_decimal(number: str) -> bool:
    whole, dot, fraction = number.partition(".")
    return bool(whole) and _DIGITS.issuperset(whole + fraction) and bool(fraction or not dot)


def _trimmed(number: float) -> str:
    text = f"{number:.3f}"
    return text.rstrip("0").rstrip(".")


def _shown(value: object) -> str:
    """A short repr that cannot fail: repr of a very long int raises, and so may that of any object."""
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 60 else f"{text[:57]}..."
