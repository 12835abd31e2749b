# SPDX-License-Identifier: Apache-2.0
"""When an answer may decide a write: the rules, and whether an answer meets one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import clock
from ..errors import UsageError
from .filling import reach

__all__ = ["Consistency", "ETag", "ReadAfterWrite", "Seen", "Settle", "Version", "check"]


@dataclass(frozen=True, slots=True)
class Seen:
    """One answer, as the rules look at it. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    document: Any

    @property
    def etag(self) -> str | None:
        return self.headers.get("etag")

    @property
    def age_s(self) -> int | None:
        """How long ago a cache between here and there got it; None if none says so."""
        age = self.headers.get("age", "")
        return int(age) if age.isdecimal() and len(age) < 10 else None


@dataclass(frozen=True, slots=True)
class Version:
    """The answer is of this version or a later one. Versions are whole numbers; other text has to be the same.

    `field` is the path of the version in the JSON ("meta.generation"), or the name of a header after "header:".
    """

    least: int | str
    field: str = "version"

    def of(self, seen: Seen) -> Any:
        if self.field.startswith("header:"):
            return seen.headers.get(self.field.removeprefix("header:").strip().lower())
        try:
            return reach(seen.document, self.field)
        except LookupError:
            return None

    def unmet(self, seen: Seen) -> str | None:
        version = self.of(seen)
        if version is None:
            return f"the answer names no version ({self.field})"
        if _not_older(version, self.least):
            return None
        return f"the answer is of version {str(version)[:60]}, and {self.least} was to be seen"


@dataclass(frozen=True, slots=True)
class ETag:
    """The answer carries a strong ETag, `expected` if that is given: the write that is decided by it can name it as
    `if_match`, and then does nothing if anybody has been faster."""

    expected: str | None = None

    def unmet(self, seen: Seen) -> str | None:
        etag = seen.etag
        if etag is None or etag.startswith("W/"):
            return "the answer carries no strong ETag that a write could name"
        if self.expected is not None and etag != self.expected:
            return f"the answer carries {etag[:60]}, and {self.expected[:60]} was to be seen"
        return None


@dataclass(frozen=True, slots=True)
class ReadAfterWrite:
    """The answer shows the write that gave `token`, or a later one: the token is sent in `header`, and the service
    answers with its own in the same header. `echoed=False`: it promises to wait for it, and does not say so."""

    token: int | str
    header: str = "X-Consistency-Token"
    echoed: bool = True

    def unmet(self, seen: Seen) -> str | None:
        if not self.echoed:
            return None
        shown = seen.headers.get(self.header.lower())
        if shown is None:
            return f"the answer has no {self.header}"
        return None if _not_older(shown, self.token) else f"the answer shows {shown[:60]}, before {self.token}"


@dataclass(frozen=True, slots=True)
class Settle:
    """The answer was given `seconds` after `since` (seconds since 1970; the beginning of the read if None): all that
    can be known of a service that is only consistent in the end. What a cache had kept since before does not count."""

    seconds: float
    since: float | None = None

    def wait(self, now: float) -> float:
        """Seconds from now, on the wall clock, until an answer counts."""
        return max(0.0, (now if self.since is None else self.since) + self.seconds - now)

    def unmet(self, seen: Seen) -> str | None:
        return f"the answer was kept by a cache {seen.age_s} s ago" if seen.age_s else None


Consistency = Version | ETag | ReadAfterWrite | Settle


def check(rule: Consistency | None) -> None:
    """Raises UsageError for what is no rule."""
    if rule is not None and not isinstance(rule, Consistency):
        raise UsageError(f"consistency={rule!r:.60}: give Version, ETag, ReadAfterWrite or Settle")
    if isinstance(rule, Settle):
        clock.check_limit("Settle.seconds", rule.seconds)
        if rule.since is not None and rule.since > time.time() + 60:
            raise UsageError("Settle.since is in the future")


def _not_older(version: Any, least: int | str) -> bool:
    number, wanted = _number(version), _number(least)
    if number is not None and wanted is not None:
        return number >= wanted
    return str(version) == str(least)


def _number(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = value.strip() if isinstance(value, str) else ""
    return int(text) if text.isdecimal() and len(text) < 20 else None
