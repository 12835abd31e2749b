# SPDX-License-Identifier: Apache-2.0
"""What an answer, or the lack of one, says about a write. Pure: no I/O, no state.

FAILED is only what shows that nothing happened. Whatever leaves a doubt is UNKNOWN, a success cut off in its body too.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from ..ledger.records import Outcome
from ..ledger.states import Phase, State
from .filling import as_seconds
from .http_exchange import Answer
from .http_phase import Failure

__all__ = ["REFUSALS", "Judged", "document_of", "judge", "judge_failure", "phrase", "reference_of"]

#: Answers by which a server says that it has not done what it was asked. Not among them: 408 (it may have had the
#: request), 409 (it may be this very operation that is in the way), and every 5xx.
REFUSALS = frozenset(
    {307, 308, 400, 401, 402, 403, 404, 405, 406, 410, 411, 412, 413, 414, 415, 416, 417,
     421, 422, 423, 424, 426, 428, 429, 431, 451}
)  # fmt: skip
#: Those of them that an earlier attempt of the same operation may itself have brought about.
AFTERMATH = frozenset({404, 410, 412, 422, 423})
_REFERENCES = ("operation_id", "id", "reference")
_PLACES = ("status_url", "operation_url")
_KEYS = ("key", "idempotency_key", "idempotencyKey", "Idempotency-Key")


@dataclass(frozen=True, slots=True)
class Judged:
    """What was seen, for the ledger (`outcome`) and for the caller. `accepted`: it is being done, ask at `place`."""

    outcome: Outcome
    accepted: bool = False
    place: str | None = None
    late: bool = False
    status: int | None = None
    headers: Mapping[str, str] | None = None
    words: str = ""

    @property
    def retry_after_s(self) -> float | None:
        return self.outcome.retry_after_s


def judge_failure(failure: Failure) -> Judged:
    """No whole answer."""
    headers = failure.headers or {}
    outcome = Outcome(
        State.PREPARED if failure.not_sent else State.UNKNOWN, failure.phase.value, failure.certain,
        failure.observation, reference=headers.get("location") if (failure.status or 0) // 100 == 2 else None,
        retry_after_s=as_seconds(headers.get("retry-after")),
    )  # fmt: skip
    return Judged(outcome, late=failure.late, status=failure.status, headers=headers, words=failure.observation)


def judge(
    answer: Answer, *, key: str, again: bool = False, refusals: Collection[int] = (), reference: str | None = None
) -> Judged:
    """A whole answer. `again`: an earlier attempt may have arrived. `refusals`: further statuses by which this
    authority, and nothing between, says that nothing was done. `reference`: the path of its own name for it."""
    status, wait = answer.status, as_seconds(answer.headers.get("retry-after"))
    document, problem = document_of(answer)
    named = reference_of(document, answer, reference) if 200 <= status < 300 or status == 409 else None
    words = f"answered {phrase(status)}"

    def judged(to: State, text: str = words, phase: Phase = Phase.READ_RESPONSE, **more: Any) -> Judged:
        outcome = Outcome(to, phase.value, True, text, named, retry_after_s=wait, value=document,
                          has_value=to is State.SUCCEEDED)  # fmt: skip
        return Judged(outcome, status=status, headers=answer.headers, words=text, **more)

    if problem is not None and 200 <= status < 300:
        return judged(State.UNKNOWN, f"{words}, and {problem}", Phase.DECODE)
    if status == 202 or (status == 409 and _is_about(document, key) and named is not None):
        return judged(State.UNKNOWN, f"{words}: accepted, not done", accepted=True, place=place_of(document, answer))
    if status == 207:
        return judged(State.UNKNOWN, f"{words}: of its parts some may have failed")
    if 200 <= status < 300:
        return judged(State.SUCCEEDED)
    if status == 412 and not again:
        return judged(State.FAILED, f"{words}: the resource has changed")
    if again and status in AFTERMATH:
        return judged(State.UNKNOWN, f"{words}, which an earlier attempt may have brought about")
    if status == 429:
        return judged(State.PREPARED)
    if status in REFUSALS or status in refusals:
        return judged(State.FAILED)
    return judged(State.UNKNOWN)


def document_of(answer: Answer) -> tuple[Any, str | None]:
    """(the body: JSON if it says so, else text, None if empty; why it cannot be read)"""
    if not answer.body:
        return None, None
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        return answer.body.decode("utf-8", "replace"), None
    try:
        return json.loads(answer.body), None
    except (ValueError, RecursionError):
        return None, "its JSON is none"


def reference_of(document: Any, answer: Answer, path: str | None = None) -> str | None:
    """The authority's own name for what it was asked to do."""
    if isinstance(document, Mapping):
        names = _REFERENCES if path is None else (path,)
        for found in (_at(document, name) for name in names):
            if isinstance(found, str | int) and not isinstance(found, bool) and found != "":
                return str(found)[:500]
    location = answer.headers.get("location")
    return location[:500] if location else None


def place_of(document: Any, answer: Answer) -> str | None:
    """Where a 202 says that its end can be seen."""
    if isinstance(document, Mapping):
        for name in _PLACES:
            if isinstance(document.get(name), str):
                return str(document[name])
    return answer.headers.get("operation-location") or answer.headers.get("location")


def _at(document: Any, path: str) -> Any:
    for word in path.split("."):
        document = document.get(word) if isinstance(document, Mapping) else None
    return document


def _is_about(document: Any, key: str) -> bool:
    return isinstance(document, Mapping) and any(document.get(name) == key for name in _KEYS)


def phrase(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
