# SPDX-License-Identifier: Apache-2.0
"""Early, friendly refusals for code that a model wrote: `check(source)` and `compile(source)`.

    for refusal in guard.check("x = 10 ** 10 ** 8"):
        print(refusal)       # line 1: 10 ** 100000000 would have 332,192,810 bits; the limit is 4,000,000. ...

    exec(guard.compile(source), {})       # raises GuardError instead of doing what is too large

It is an early answer, never the bound: what passes may still take for ever, and is for a killable call to end.
docs/guard.md says what is seen, what is not, and what the checks cost.
"""

from __future__ import annotations

from .limits import GuardLimits
from .refusal import GuardError, Refusal, refusal_result
from .rewrite import compile_guarded as compile  # noqa: A004
from .static import check

__all__ = ["GuardError", "GuardLimits", "Refusal", "check", "compile", "refusal_result"]
