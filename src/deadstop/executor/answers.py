# SPDX-License-Identifier: Apache-2.0
"""What came back from a worker, made into objects again: pickles from our own kind, plain data from a sandbox."""

from __future__ import annotations

import json
from base64 import b64decode
from pickle import loads
from typing import Any


def load(level: str, body: Any) -> Any:
    """A value. Raises what loading raises: what was sent may not exist here."""
    if level != "sandbox":
        return loads(body)
    return _plain(json.loads(bytes(body)))


def error_fields(level: str, body: Any) -> dict[str, Any]:
    """The fields of a result that say what was raised; the exception itself only where it can be had."""
    if level != "sandbox":
        kind, text, trace, packed = loads(body)
    else:
        (kind, text, trace), packed = map(str, json.loads(bytes(body))), None
    fields = {"error_type": kind, "error_message": text, "traceback": trace}
    if packed is not None:
        try:
            exception = loads(packed)
        except Exception:
            exception = None
        if isinstance(exception, BaseException):
            fields["exception"] = exception
            exception.__cause__ = RemoteTraceback(trace)
    return fields


class RemoteTraceback(Exception):
    """Stands in a traceback for the part of it that lies in a worker."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


def _plain(value: Any) -> Any:
    """The inverse of what a sandbox's worker makes of data."""
    if not isinstance(value, dict):
        if isinstance(value, list):
            raise ValueError("a list without its tag")
        return value
    (kind, held), *more = value.items()
    if more or kind not in _READERS:
        raise ValueError("not a value that our worker sends")
    return _READERS[kind](held)


_READERS: dict[str, Any] = {
    "int": lambda held: int(held, 16),
    "bytes": lambda held: b64decode(held, validate=True),
    "bytearray": lambda held: bytearray(b64decode(held, validate=True)),
    "list": lambda held: [_plain(part) for part in held],
    "tuple": lambda held: tuple(_plain(part) for part in held),
    "set": lambda held: {_plain(part) for part in held},
    "frozenset": lambda held: frozenset(_plain(part) for part in held),
    "dict": lambda held: {_plain(key): _plain(part) for key, part in held},
}
