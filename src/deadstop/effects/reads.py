# SPDX-License-Identifier: Apache-2.0
"""Reads over HTTP, treated by what they decide.

    read(url)                                                   harmless: tried again, with back-off, within its time
    read(url, decides="write", consistency=Version(7))          read until it shows version 7, or says that it did not
    read(url, decides="write", consistency=ETag())              its ETag is what the write names as if_match
    read(url, decides="write", consistency=ReadAfterWrite(token))
    read(url, decides="write", consistency=Settle(5.0))         waits until an absence means something

A read never has an effect, so it may always be repeated; what it must not do is to decide a write with an answer that
is older than what its program already knows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import clock, deadlines
from ..client.portal import portal
from ..clock import format_duration
from ..errors import UsageError
from ..results import Status, ToolResult
from .consistency import Consistency, ETag, ReadAfterWrite, Seen, Settle, Version, check
from .filling import as_seconds
from .http_exchange import Answer, Failed, Wire, exchange
from .http_follow import next_pause
from .http_intent import base_of, headers_of, without_query
from .http_result import Asked
from .http_verdict import document_of, phrase

__all__ = ["ETag", "ReadAfterWrite", "Settle", "Version", "read", "read_async"]

FIRST_S, LONGEST_S, LAST_S = 0.1, 5.0, 0.05
AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})


def read(url: str, **given: Any) -> ToolResult:
    """As read_async, for blocking code."""
    return portal.run(read_async(url, **given))


async def read_async(
    url: str, *, decides: str = "nothing", consistency: Consistency | None = None, timeout: float = 10.0,
    attempts: int = 3, headers: Mapping[str, str] | None = None, transport: Any = None, tool: str | None = None,
) -> ToolResult:  # fmt: skip
    """GET `url`. Its value is {status, body, etag, version, age_s, attempts, consistency}; its effect is none.

    decides: "nothing", or "write": then a consistency rule has to be given.
    attempts: how often a request that failed, or was answered 408, 425, 429 or 5xx, is made in all. There is no right
        number for every read: 1 for a report that takes minutes. Waiting for the rule to be met does not count.
    timeout: seconds for everything: all attempts, all waiting, whole answers. A Retry-After is waited for if it ends
        within them, and otherwise ends the read at once.

    Any other answer is a result, 404 too. `value["consistency"]` says whether the rule was met, and if not, why: a
    write must then not be decided by it. Raises UsageError for a read that decides a write and has no rule.
    """
    if decides not in ("nothing", "write"):
        raise UsageError(f"decides={decides!r:.40} is neither 'nothing' nor 'write'")
    if decides == "write" and consistency is None:
        raise UsageError(
            "a read that decides a write needs a consistency rule: Version, ETag, ReadAfterWrite or Settle"
        )
    check(consistency)
    base_of(without_query(url))
    if clock.check_count("attempts", attempts) is None or clock.check_limit("timeout", timeout) is None:
        raise UsageError("attempts and timeout cannot be None: a read ends")
    end, _, limit = deadlines.resolve(timeout, "given")
    assert end is not None
    asked = {
        "accept": "application/json",
        "user-agent": "deadstop",
        **headers_of(headers),
        "accept-encoding": "identity",
    }
    if decides == "write":
        asked["cache-control"] = "no-cache"
    if isinstance(consistency, ReadAfterWrite):
        asked[consistency.header.lower()] = str(consistency.token)
    call = Asked(tool or f"read {without_query(url)}", limit)
    return await _Read(Wire("GET", url, asked), consistency, end, attempts, transport, call).made()


@dataclass(slots=True)
class _Read:
    """One read on its way."""

    wire: Wire
    rule: Consistency | None
    end: float
    attempts: int
    transport: Any
    asked: Asked
    made_so_far: int = 0
    pause: float = FIRST_S

    async def made(self) -> ToolResult:
        if self.end <= clock.monotonic():
            return self._result(
                Status.REFUSED, reason="deadline_over", limit=self.asked.limit, environment="nothing was sent"
            )
        unsettled = await self._settled()
        failures, best = 0, None
        while True:
            answer, words, late = await self._once()
            wait = None
            if answer is not None and answer.status not in AGAIN:
                seen = _seen(answer)
                unmet = unsettled or (self.rule.unmet(seen) if self.rule is not None else None)
                if unmet is None or unsettled or not isinstance(self.rule, Version | ReadAfterWrite):
                    return self._answered(answer, seen, unmet)
                best = answer, seen, unmet  # too old: that may change
            else:
                failures += 1
                wait = None if answer is None else as_seconds(answer.headers.get("retry-after"))
                if late or failures >= self.attempts or not self._in_time(wait):
                    return self._ended(best, words, wait, late=late)
            if not await self._paused(wait):
                return self._ended(best, words, wait, late=best is None)

    async def _once(self) -> tuple[Answer | None, str, bool]:
        """(the answer, what was seen, whether the time is over)"""
        self.made_so_far += 1
        try:
            answer = await exchange(self.wire, self.end, transport=self.transport)
        except Failed as problem:
            return None, problem.failure.observation, problem.failure.late
        return answer, f"answered {phrase(answer.status)}", False

    async def _settled(self) -> str | None:
        """Wait as long as the rule says; why it could not be waited for."""
        if not isinstance(self.rule, Settle):
            return None
        wait, left = self.rule.wait(time.time()), self.end - clock.monotonic()
        if wait >= left:
            return f"what was written settles in {format_duration(wait)}, and only {format_duration(left)} were left"
        await asyncio.sleep(wait)
        return None

    def _in_time(self, wait: float | None) -> bool:
        return wait is None or clock.monotonic() + wait < self.end

    async def _paused(self, wait: float | None) -> bool:
        """Whether there is time for another look after the pause."""
        pause, left = next_pause(self.pause, wait), self.end - clock.monotonic()
        self.pause = min(2 * self.pause, LONGEST_S)
        if wait is None and pause >= left > LAST_S:
            pause = left / 2  # a last look, with time for an answer
        if pause >= left:
            return False
        await asyncio.sleep(pause)
        return True

    def _answered(self, answer: Answer, seen: Seen, unmet: str | None) -> ToolResult:
        rule = self.rule
        value = {
            "status": answer.status, "body": seen.document, "etag": seen.etag, "version": _version(rule, seen),
            "age_s": seen.age_s, "attempts": self.made_so_far, "consistency": None,
        }  # fmt: skip
        hint = None
        if rule is not None:
            value["consistency"] = {"rule": type(rule).__name__, "met": unmet is None, "why": unmet}
            hint = None if unmet is None else f"do not decide a write by this answer: {unmet}"
        return self._result(Status.COMPLETED, value=value, hint=hint)

    def _ended(
        self, best: tuple[Answer, Seen, str] | None, words: str, wait: float | None, *, late: bool
    ) -> ToolResult:
        """Its time, or its attempts, are over. An answer that was too old is still one, and says so."""
        if best is not None:
            return self._answered(*best)
        hint = None if wait is None else f"the service asks to wait {format_duration(wait)}"
        times = "" if self.made_so_far == 1 else f" ({self.made_so_far} attempts)"
        if late:
            return self._result(Status.TIMEOUT, limit=self.asked.limit, error_message=f"{words}{times}", hint=hint)
        return self._result(Status.ERROR, error_type="ReadFailed", error_message=f"{words}{times}", hint=hint)

    def _result(self, status: Status, **more: Any) -> ToolResult:
        return self.asked.result(status, effect="none", retry_allowed=True, **more)


def _seen(answer: Answer) -> Seen:
    document, problem = document_of(answer)
    return Seen(answer.status, answer.headers, answer.body.decode("utf-8", "replace") if problem else document)


def _version(rule: Consistency | None, seen: Seen) -> Any:
    return (rule if isinstance(rule, Version) else Version(0)).of(seen)
