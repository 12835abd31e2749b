# SPDX-License-Identifier: Apache-2.0
"""The soft limit: the call is frozen, somebody is asked, and the hard limit does not move meanwhile."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from .. import clock, deferred
from ..clock import format_duration
from ..results import Evidence, FiredLimit, Status, ToolResult
from .flight import Flight
from .tokens import POLL_S

if TYPE_CHECKING:
    from typing import Any

OnSoft = Callable[["SoftLimit"], "str | float | None"]


@dataclass(frozen=True, slots=True)
class SoftLimit:
    """What is asked when a call has passed its soft limit. It stands still until the answer.

    Answer "extend" (go on until the hard limit), a number (ask again after so many seconds), "detach" (the caller
    gets a handle now and the result later) or "kill". Anything else, an exception, or no answer within `answer_s`
    seconds is a kill. `left_s` is the time to the hard limit (None without one), which goes on meanwhile.
    """

    tool: str
    call_id: str
    elapsed_s: float
    left_s: float | None
    answer_s: float
    evidence: Evidence | None
    tail: str

    def for_model(self) -> str:
        """The question in words, for a model that is to answer it."""
        lines = [f"{self.tool} has run for {format_duration(round(self.elapsed_s, 3))} and is paused."]
        if self.left_s is not None:
            lines.append(f"Its hard limit is in {format_duration(round(self.left_s, 3))}; pausing does not move it.")
        diagnosis = self.evidence.diagnosis if self.evidence else None
        if diagnosis:
            lines.append(f"It looks like {diagnosis.kind}: {diagnosis.detail}")
        if self.evidence and self.evidence.stacks:
            lines.append(f"Where it is:\n{self.evidence.stacks[-1500:]}")
        if self.tail:
            lines.append(f"Its last output:\n{self.tail[-1000:]}")
        lines.append("Answer extend, a number of seconds, detach or kill.")
        return "\n".join(lines)


def question(flight: Flight, cancelled: Callable[[], bool] = lambda: False) -> ToolResult | None:
    """Ask, and do as answered. A result if the call goes on without its caller. A cancel ends the asking."""
    assert flight.question is not None
    document, tails = flight.question
    tool, now = flight.call.tool, clock.monotonic()
    asked = SoftLimit(
        tool=tool.name, call_id=flight.call.call_id, elapsed_s=now - flight.started,
        left_s=max(0.0, flight.end - now) if isfinite(flight.end) else None, answer_s=tool.soft_answer,
        evidence=ToolResult.from_dict(_loads(document)).evidence,
        tail=b"".join(tails).decode("utf-8", "replace"),
    )  # fmt: skip
    assert tool.on_soft is not None
    answer = _answer(tool.on_soft, asked, min(tool.soft_answer, max(0.0, flight.end - now)), cancelled)
    if answer is None and cancelled():
        flight.question = None
        flight.cancel()
        return None
    return _obey(flight, answer)


def _answer(ask: OnSoft, asked: SoftLimit, seconds: float, cancelled: Callable[[], bool]) -> str | float | None:
    """The answer, if it comes in time. Asked in a thread: whoever is asked may hang, too."""
    answers: list[str | float | None] = []
    context = contextvars.copy_context()

    def body() -> None:
        try:
            answers.append(context.run(ask, asked))
        except Exception:
            import logging

            logging.getLogger("deadstop").exception("on_soft failed: the call is killed")

    thread = threading.Thread(target=body, name="deadstop-on-soft", daemon=True)
    thread.start()
    end = clock.monotonic() + seconds
    while thread.is_alive() and (left := end - clock.monotonic()) > 0 and not cancelled():
        thread.join(min(left, POLL_S))
    return answers[0] if answers else None


def _obey(flight: Flight, answer: str | float | None) -> ToolResult | None:
    number = isinstance(answer, (int, float)) and not isinstance(answer, bool)
    if answer == "extend":
        flight.thaw()
    elif number and isfinite(answer) and answer > 0:  # type: ignore[arg-type, operator]
        flight.thaw()
        flight.soft_at = clock.monotonic() + answer  # type: ignore[operator]
    elif answer == "detach":
        flight.thaw()
        return detach(flight)
    else:
        flight.question = None
        if clock.monotonic() < flight.end:  # otherwise the hard limit has ended it meanwhile
            flight.limit = FiredLimit("soft", flight.call.tool.soft_timeout, "given")
        flight.end_by_limit()
    return None


def detach(flight: Flight) -> ToolResult:
    """A handle now; the result under it when the call has ended, which its hard limit still sees to."""
    from .function import wait

    handle = deferred.defer()
    tool, limits = flight.call.tool, flight.pool.limits
    flight.pool.let_go(flight)
    thread = threading.Thread(
        target=lambda: deferred.resolve(handle.id, wait(flight, None)), name="deadstop-detached", daemon=True
    )
    thread.start()
    return ToolResult(
        tool=tool.name, status=Status.TIMEOUT, limit=FiredLimit("soft", tool.soft_timeout, "given"),
        call_id=flight.call.call_id, started_at=flight.started_at, duration_s=clock.monotonic() - flight.started,
        queued_s=flight.started - flight.queued, effect=tool.effect, deferred=handle.id,
        environment="it goes on without its caller until it ends or its hard limit ends it",
        hint=f"its result comes under the handle {handle.id}", limits=limits,
    )  # fmt: skip


def _loads(document: str) -> Any:
    import json

    return json.loads(document)
