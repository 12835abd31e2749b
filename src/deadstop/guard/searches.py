# SPDX-License-Identifier: Apache-2.0
"""The rules for searches with a hopeless pattern: as many steps as their text is long, in powers of two."""

from __future__ import annotations

import re

from .operations import refuse
from .patterns import is_hopeless
from .watched import Rule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .runtime import Checks

__all__ = ["PATTERN", "pattern_searches", "searches"]

PATTERN = "one repeat in place of two, e.g. (a+)+ as a+, or a possessive or atomic group, e.g. (?>a+)+"


def searches(name: str) -> Rule:
    text_at = 2 if name in ("sub", "subn") else 1

    def check(checks: Checks, pattern: Any, *args: Any, **options: Any) -> None:
        text = options.get("string", args[text_at - 1] if len(args) >= text_at else None)
        flags = options.get("flags", 0)
        after = {"sub": 3, "subn": 3, "split": 2}.get(name, 1)
        flags = args[after] if len(args) > after else flags
        _pattern(checks, pattern, flags, text, name)

    return Rule(check)


def pattern_searches(name: str) -> Rule:
    text_at = 1 if name in ("sub", "subn") else 0

    def check(checks: Checks, pattern: Any, *args: Any, **options: Any) -> None:
        text = options.get("string", args[text_at] if len(args) > text_at else None)
        _pattern(checks, pattern, 0, text, name)

    return Rule(check)


def _pattern(checks: Checks, pattern: Any, flags: Any, text: Any, name: str) -> None:
    if isinstance(pattern, re.Pattern):
        pattern, flags = pattern.pattern, pattern.flags
    limit = checks.limits.regex_steps
    if len(text) < limit.bit_length() or not is_hopeless(pattern, int(flags), whole=name == "fullmatch"):
        return
    refuse("regex", "a repeat within a repeat can need", 1 << len(text), limit, "steps", PATTERN)
