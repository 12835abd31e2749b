# SPDX-License-Identifier: Apache-2.0
"""What the testing authority does with what it is sent: words, each for one question, and their figures."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ..errors import UsageError

__all__ = ["WORDS", "Behaviour"]

#: Every word, the question that it answers, and what it means. The first word of each question is what holds at first.
WORDS: dict[str, tuple[str, str]] = {
    "normal": ("writes", "commits and answers 201"),
    "reject_before": ("writes", "closes the connection, or answers `status`, before any application code has run"),
    "drop_mid_request": ("writes", "reads half of the request's body and resets the connection; commits nothing"),
    "too_many_requests": ("writes", "429 with Retry-After; commits nothing"),
    "unavailable": ("writes", "503 with Retry-After; commits nothing"),
    "conflict": ("writes", "409 without saying about what; commits nothing"),
    "accept_then_drop": ("writes", "commits, then closes the connection without a reply"),
    "accept_then_error": ("writes", "commits, then answers `status` (502 if none is given), as a gateway does"),
    "accept_then_delay": ("writes", "commits, then answers after `seconds`"),
    "accept_async": ("writes", "202 and where to ask; it ends as `ends` after `seconds`, never if that is None"),
    "half_reply": ("writes", "commits, sends the head and half of the body, then closes"),
    "garbage_reply": ("writes", "commits, then sends what is no HTTP"),
    "bad_json": ("writes", "commits, then sends JSON that is none"),
    "drip_reply": ("writes", "commits, then sends the body byte by byte over `seconds`"),
    "huge_reply": ("writes", "commits, then sends a body without end"),
    "redirect": ("writes", "`status` (307 if none is given) to another path; commits nothing"),
    "status_up": ("lookups", "look-ups are answered"),
    "status_down": ("lookups", "look-ups find a closed connection, or `status`, while writes are healthy"),
    "status_slow": ("lookups", "look-ups are answered after `seconds`"),
    "status_lagging": ("lookups", "look-ups and resources show a write only `lag` seconds after it"),
    "duplicate_tolerant": ("duplicates", "one key, one effect: the second request gets the first one's answer"),
    "duplicate_intolerant": ("duplicates", "every request is an effect of its own, whatever its key"),
    "consistent": ("finding", "look-ups tell what was committed"),
    "contradiction": ("finding", "a look-up by key shows two records: one succeeded, one failed"),
    "contradicting_marker": ("finding", "a look-up shows one record that says succeeded and failed"),
}


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One word for each question. `times`: after so many writes, the word for writes is "normal" again."""

    writes: str = "normal"
    lookups: str = "status_up"
    duplicates: str = "duplicate_tolerant"
    finding: str = "consistent"
    times: int | None = None
    seconds: float | None = None
    lag: float = 0.5
    status: int | None = None
    retry_after: float = 1.0
    ends: str = "succeeded"

    def but(self, *words: str, **figures: Any) -> Behaviour:
        """With these instead. Raises UsageError for a word or figure that there is not."""
        known = {each.name for each in fields(self)}
        for word in words:
            if word not in WORDS:
                raise UsageError(f"{word!r:.60} is not one of {', '.join(WORDS)}")
        for name in figures:
            if name not in known:
                raise UsageError(f"{name!r:.60} is not one of {', '.join(sorted(known))}")
        answers: dict[str, Any] = {WORDS[word][0]: word for word in words}
        return replace(self, **answers, **figures)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
