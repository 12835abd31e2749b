# SPDX-License-Identifier: Apache-2.0
"""What an operation has, filled into the texts of a query as data; and what an answer's words mean."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from ..ledger.query_check import NAMES, PLACE
from ..ledger.states import Verdict

if TYPE_CHECKING:
    from ..operation import Operation

__all__ = [
    "NAMES",
    "Nothing",
    "Several",
    "Unaskable",
    "as_seconds",
    "only",
    "reach",
    "state_verdict",
    "text_of",
    "url_of",
    "values_of",
    "wanted",
]


class Unaskable(Exception):
    """The query cannot be made of this operation: what it would ask would not be about it."""


def values_of(operation: Operation) -> dict[str, str | None]:
    """Everything that a query may name."""
    return {
        "key": operation.key,
        "op_id": operation.id,
        "correlation": operation.correlation or operation.id,
        "reference": operation.reference,
        "target": operation.target,
        "fingerprint": operation.fingerprint,
    }


def wanted(name: str, values: Mapping[str, str | None]) -> str:
    """The value of that name. Raises Unaskable where there is none.

    A query without it would find nothing, or everything, and either would be taken for an answer.
    """
    if name not in values:
        raise Unaskable(f"the query names {name!r}, which is not one of {', '.join(NAMES)}")
    value = values[name]
    if not value:
        raise Unaskable(f"the operation has no {name} yet, and the query asks for it")
    return value


def text_of(template: str, values: Mapping[str, str | None]) -> str:
    """The template with its names filled in as they are. Raises Unaskable also for what would begin a new line."""
    text = PLACE.sub(lambda found: wanted(found[1], values), template)
    if any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise Unaskable("a value of the query holds a control character")
    return text


def url_of(template: str, values: Mapping[str, str | None]) -> str:
    """The URL with its names percent-encoded.

    Raises Unaskable for a name in its host, which decides who gets the query's headers, and for a value that would move
    it to another path.
    """
    parts = urlsplit(template)
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
        raise Unaskable("the query's URL is not http://HOST/... or https://HOST/...")
    if PLACE.search(parts.netloc):
        raise Unaskable("the host of a query's URL cannot depend on the operation")
    return PLACE.sub(lambda found: _encoded(found[1], values), template)


def _encoded(name: str, values: Mapping[str, str | None]) -> str:
    value = wanted(name, values)
    if not value.strip("."):
        raise Unaskable(f"the operation's {name} is {value!r}, which is not a name in a URL")
    return quote(value, safe="")


class Several(LookupError):
    """There is more than one where there is to be one."""


class Nothing(LookupError):
    """There is a list, and nothing in it."""


def reach(document: Any, path: str) -> Any:
    """What is at `path`: "data.status"; a number reaches into a list, and a list of one is what it holds.

    Raises LookupError: Nothing for an empty list on the way, Several for a longer one.
    """
    for word in path.split("."):
        if isinstance(document, list) and word.isdigit():
            document = document[int(word)]
        else:
            document = only(document)
            if not isinstance(document, Mapping):
                raise LookupError(path)
            document = document[word]
    return document


def only(document: Any) -> Any:
    """The one thing in a list; anything else as it is. Raises Nothing, Several."""
    if not isinstance(document, list):
        return document
    if not document:
        raise Nothing
    if len(document) > 1:
        raise Several
    return document[0]


def state_verdict(value: Any, applied: Iterable[str] | None, failed: Sequence[str], pending: Sequence[str]) -> Verdict:
    """What the authority's own word for its state says, letter case aside.

    `applied=None`: any word that is in neither of the other lists will do. Words of several meanings
    contradict.
    """
    if isinstance(value, list) and value:
        found = {state_verdict(each, applied, failed, pending) for each in value}
        if len(found) == 1:
            return found.pop()
        return Verdict.CONTRADICTION if len(found - {Verdict.INCONCLUSIVE}) > 1 else Verdict.INCONCLUSIVE
    word = _word(value)
    for verdict, words in (
        (Verdict.APPLIED, applied or ()),
        (Verdict.APPLIED_FAILED, failed),
        (Verdict.IN_PROGRESS, pending),
    ):
        if word in {_word(each) for each in words}:
            return verdict
    return Verdict.APPLIED if applied is None else Verdict.INCONCLUSIVE


def _word(value: Any) -> str:
    return str(value).strip().casefold()


def as_seconds(text: str | None) -> float | None:
    """A Retry-After in seconds, from its number or its date. None for what is neither."""
    if text is None:
        return None
    if text.strip().isdecimal() and len(text) < 10:
        return float(text)
    try:
        then = parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0.0, then - time.time())
