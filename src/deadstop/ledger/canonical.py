# SPDX-License-Identifier: Apache-2.0
"""One form for one value: RFC 8785 (JCS), digests and fingerprints over it. The one place that imports rfc8785."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import MissingExtra, UsageError

try:
    import rfc8785
except ImportError:
    raise MissingExtra("the ledger", "ledger") from None

__all__ = ["canonical", "digest", "fingerprint", "is_small", "leaf_hash", "selected"]

_MOST_INT, _DEPTH = (1 << 53) - 1, 20
_encode = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False).encode
_DOMAIN = b"deadstop.fp.v1\0"


def canonical(value: Any) -> bytes:
    """The canonical JSON of a value. Raises UsageError for NaN, infinities, integers beyond 2**53 and what is no JSON.

    Text is taken as it is: RFC 8785 does not normalise Unicode, and neither do we.
    """
    try:
        if _is_simple(value, _DEPTH):
            return _encode(value).encode()
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, RecursionError, UnicodeError) as problem:
        raise UsageError(f"this cannot be written as canonical JSON: {problem}") from problem


def _is_simple(value: Any, depth: int) -> bool:
    """Without floats and with keys in ASCII the encoder of the standard library writes the same, in a third of the time
    (a test compares)."""
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return True
    if kind is int:
        return bool(-_MOST_INT <= value <= _MOST_INT)
    if kind is dict:
        return depth > 0 and all(
            type(key) is str and key.isascii() and (type(each) is str or _is_simple(each, depth - 1))
            for key, each in value.items()
        )
    return kind is list and depth > 0 and all(_is_simple(each, depth - 1) for each in value)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def leaf_hash(body: bytes) -> str:
    """RFC 9162, 2.1.1: the hash of a leaf of the log."""
    return hashlib.sha256(b"\0" + body).hexdigest()


def selected(arguments: Mapping[str, Any], names: Iterable[str] | None) -> dict[str, Any]:
    """The arguments that make two requests the same one. Raises UsageError for a name that is not there."""
    if names is None:
        return dict(arguments)
    return {name: _reach(arguments, name) for name in names}


def _reach(arguments: Mapping[str, Any], name: str) -> Any:
    value: Any = arguments
    for word in name.split("."):
        if not isinstance(value, Mapping) or word not in value:
            raise UsageError(f"fingerprint: there is no argument {name!r}")
        value = value[word]
    return value


def fingerprint(tool: str, fields: Mapping[str, Any]) -> str:
    """The same for the same tool and the same values of the declared fields, whatever the order they were given in."""
    try:
        text = canonical(fields)
    except UsageError as problem:
        raise _named(fields, problem) from problem
    return hashlib.sha256(_DOMAIN + tool.encode() + b"\0" + text).hexdigest()


def _named(fields: Mapping[str, Any], problem: UsageError) -> UsageError:
    for name, value in fields.items():
        try:
            canonical(value)
        except UsageError:
            what = f"fingerprint: argument {name!r} ({type(value).__name__}) cannot be written as canonical JSON"
            return UsageError(f"{what}: pass plain data (a Decimal or a date as text), or leave it out of fingerprint=")
    return problem


def is_small(value: Any, most: int) -> bool:
    """False for what would be larger than that as JSON: found out without making it."""
    waiting, size = [value], 0
    while waiting and size <= most:
        each = waiting.pop()
        size += 1
        if isinstance(each, str):
            size += len(each)
        elif isinstance(each, Mapping):
            size += len(each)
            if size <= most:
                waiting += each.keys()
                waiting += each.values()
        elif isinstance(each, list | tuple):
            size += len(each)
            if size <= most:
                waiting += each
    return size <= most
