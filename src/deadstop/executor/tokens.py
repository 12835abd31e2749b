# SPDX-License-Identifier: Apache-2.0
"""Cancel tokens of any make: ours, which can be waited for, and whatever else says that it is set."""

from __future__ import annotations

from types import CoroutineType
from typing import Any

from ..cancel import CancelToken
from ..errors import UsageError

NAMES = ("is_set", "is_cancelled", "cancelled")
POLL_S = 0.01  # how often a token that cannot be waited for is asked


class Token:
    """A token as calls see it. One that fails to answer counts as set: better a call too few than one too many.

    A foreign token needs one of `is_set`, `is_cancelled`, `cancelled`, an attribute or something to call. Any of them
    that says yes is a yes. Raises UsageError for an object that has none of them.
    """

    __slots__ = ("error", "given", "source")

    def __init__(self, given: Any) -> None:
        self.given = given
        self.source: int | None = None
        self.error: str | None = None
        if isinstance(given, CancelToken):
            self.source = given.fileno()
        elif not any(_has(given, name) for name in NAMES):
            raise UsageError(f"cancel: {given!r:.60} has none of {', '.join(NAMES)}")

    def is_set(self) -> bool:
        if self.source is not None:
            return bool(self.given.is_set())
        return any(self._says(name) for name in NAMES)

    def _says(self, name: str) -> bool:
        try:
            found = getattr(self.given, name, None)
            if callable(found):
                found = found()
            if hasattr(type(found), "__await__"):
                if isinstance(found, CoroutineType):
                    found.close()
                raise TypeError(f"{name} is async: its answer cannot be waited for here")
        except Exception as problem:
            self.error = f"the cancel token failed and counts as set: {name}: {problem!r}"
            return True
        return bool(found)

    @property
    def reason(self) -> str:
        return "token_error" if self.error else "caller"


def _has(given: Any, name: str) -> bool:
    try:
        return getattr(given, name, None) is not None
    except Exception:
        return True  # it fails to answer: `is_set` says so


class AnyOf:
    """A token that is set when one of these is, for the reason of that one."""

    def __init__(self, *tokens: Token) -> None:
        self._tokens = tokens

    def is_set(self) -> bool:
        return any(each.is_set() for each in self._tokens)
