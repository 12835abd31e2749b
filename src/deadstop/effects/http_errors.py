# SPDX-License-Identifier: Apache-2.0
"""What was seen on the wire, as the errors by which a tool function says what it knows."""

from __future__ import annotations

import time

from .. import clock, deadlines
from ..errors import EffectError, NotSent, Rejected
from ..ledger.states import State
from ..operation import Operation
from .http_verdict import Judged

__all__ = ["error_of", "until_of"]


def error_of(judged: Judged) -> EffectError | None:
    """NotSent, Rejected, or the EffectError that leaves it unknown; None for what was done or accepted."""
    outcome = judged.outcome
    if outcome.to is State.SUCCEEDED or judged.accepted:
        return None
    kind = {State.PREPARED: NotSent, State.FAILED: Rejected}.get(outcome.to, EffectError)
    return kind(
        judged.words, phase=outcome.phase, observation=outcome.observation, reference=outcome.reference,
        retry_after=outcome.retry_after_s,
    )  # fmt: skip


_first: dict[tuple[str, int, float], float] = {}  # of an operation's attempt, what was said first: never later then
_MOST = 256


def until_of(op: Operation) -> float | None:
    """The last moment at which it may be sent, on CLOCK_MONOTONIC.

    What it is given is a point on the wall clock. One that is set back must not give it more time: never beyond the end
    of the call that it is in, nor beyond what this process was told before.
    """
    if op.deadline is None:
        return None
    now, left = clock.monotonic(), deadlines.remaining()
    until = now + op.deadline - time.time()
    if left is not None:
        until = min(until, now + left)
    key = op.id, op.fence, op.deadline
    if key not in _first and len(_first) >= _MOST:
        _first.pop(next(iter(_first)), None)
    _first[key] = min(until, _first.get(key, until))
    return _first[key]
