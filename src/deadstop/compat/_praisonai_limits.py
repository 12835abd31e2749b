# SPDX-License-Identifier: Apache-2.0
"""What may be given as a limit and as a cancel token. Whatever is in doubt is an error, or counts as cancelled."""

from __future__ import annotations

from math import isfinite
from numbers import Real
from threading import Event
from typing import Any

from ..cancel import CancelToken
from ..errors import InvalidLimit, UsageError
from ..executor.tokens import Token
from ._praisonai_interrupt import InterruptController

LONGEST_S = 1e9  # 31 years: what a limit beyond that is taken for
_SURE = (Event, InterruptController, CancelToken)  # whose `is_set` is all there is to them


def seconds_of(name: str, given: object, unit: float) -> float | None:
    """Seconds from a number of `unit`s; None, zero and below mean no limit. Raises InvalidLimit for anything else."""
    if given is None:
        return None
    if type(given) is not bool and isinstance(given, Real):
        try:
            number = float(given)
        except (OverflowError, ValueError):
            number = float("inf")
        if number <= 0 and isfinite(number):
            return None
        seconds = number * unit
        if isfinite(number) and seconds > 0:
            return min(seconds, LONGEST_S)
    try:
        shown = f"{given!r:.60}"
    except Exception:
        shown = f"<{type(given).__name__}>"
    raise InvalidLimit(f"{name}={shown} is not allowed: give a finite number; None or 0 is no limit")


def token_of(given: Any) -> Token:
    """The token as calls see it. Raises UsageError for an object that has no way to say that it is set."""
    try:
        return Token(given)
    except UsageError:
        raise
    except Exception as problem:
        return Token(_Failed(problem))


class _Failed:
    """A token that could not even be looked at."""

    def __init__(self, problem: Exception) -> None:
        self._problem = problem

    def is_set(self) -> bool:
        raise self._problem


def cancelled(given: Any) -> str | None:
    """None while the token says no; otherwise why it counts as set, "" where it simply is."""
    if type(given) in _SURE:
        return "" if given.is_set() else None
    token = token_of(given)
    return (token.error or "") if token.is_set() else None
