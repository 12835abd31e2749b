# SPDX-License-Identifier: Apache-2.0
"""What was seen on the wire, as the errors by which a tool function says what it knows."""

from __future__ import annotations

import time

from .. import clock
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


def until_of(op: Operation) -> float | None:
    """The last moment at which it may be sent, on CLOCK_MONOTONIC."""
    return None if op.deadline is None else clock.monotonic() + op.deadline - time.time()
