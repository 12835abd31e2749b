# SPDX-License-Identifier: Apache-2.0
"""What came back from a worker, made into objects again: pickles from our own kind, plain data from a sandbox."""

from __future__ import annotations

import json
from base64 import b64decode
from pickle import loads
from typing import Any

# A sandbox's answer is read with the caller's memory and on its time.
SANDBOX_BYTES = 4 << 20
SANDBOX_PARTS = 500_000
SANDBOX_ODD_KEYS = 2_000  # keys whose hash the sender can choose: enough of them with one hash would take for ever
MESSAGE_BYTES = {"process": 1 << 30, "sandbox": 64 << 10}
TEXT_CHARS = 20_000
_HASH_MODULUS = (1 << 61) - 1


def load(level: str, body: Any) -> Any:
    """A value. Raises what loading raises: what was sent may not exist here."""
    if level != "sandbox":
        return loads(body)
    if len(body) > SANDBOX_BYTES:
        raise ValueError(f"{len(body)} bytes; a sandbox may return {SANDBOX_BYTES}: write a file instead")
    return _Reader().value(json.loads(bytes(body)))


def error_fields(level: str, body: Any) -> dict[str, Any]:
    """The fields of a result that say what was raised; the exception itself only where it can be had."""
    packed = None
    if level != "sandbox":
        kind, text, trace, packed = loads(body)
    elif len(body) > SANDBOX_BYTES:
        raise ValueError("its error is longer than a sandbox may say")
    else:
        kind, text, trace = (str(part)[:TEXT_CHARS] for part in json.loads(bytes(body)))
    fields = {"error_type": kind, "error_message": text, "traceback": trace}
    if packed is not None:
        try:
            exception = loads(packed)
        except KeyboardInterrupt:
            raise
        except BaseException:  # loading runs the tool's code, which must not end its caller
            exception = None
        if isinstance(exception, BaseException):
            fields["exception"] = exception
            exception.__cause__ = RemoteTraceback(trace)
    return fields


class RemoteTraceback(Exception):
    """Stands in a traceback for the part of it that lies in a worker."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


class _Reader:
    """The inverse of what a sandbox's worker makes of data, with what it may cost counted."""

    def __init__(self) -> None:
        self.parts, self.odd_keys = SANDBOX_PARTS, SANDBOX_ODD_KEYS

    def value(self, given: Any) -> Any:
        self.parts -= 1
        if self.parts < 0:
            raise ValueError(f"more than {SANDBOX_PARTS} parts: a sandbox may not return so many")
        if not isinstance(given, dict):
            if isinstance(given, list) or (isinstance(given, int) and not -(1 << 63) <= given < 1 << 64):
                raise ValueError("not a value that our worker sends")
            return given
        (kind, held), *more = given.items()
        if more or kind not in _READERS:
            raise ValueError("not a value that our worker sends")
        return _READERS[kind](self, held)

    def key(self, given: Any) -> Any:
        found = self.value(given)
        if not isinstance(found, (str, bytes, bool, type(None))) and not (
            isinstance(found, int) and -_HASH_MODULUS < found < _HASH_MODULUS
        ):
            self.odd_keys -= 1
            if self.odd_keys < 0:
                raise ValueError(f"more than {SANDBOX_ODD_KEYS} keys that are neither text nor small numbers")
        return found


_READERS: dict[str, Any] = {
    "int": lambda reader, held: int(held, 16),
    "bytes": lambda reader, held: b64decode(held, validate=True),
    "bytearray": lambda reader, held: bytearray(b64decode(held, validate=True)),
    "list": lambda reader, held: [reader.value(part) for part in held],
    "tuple": lambda reader, held: tuple(reader.value(part) for part in held),
    "set": lambda reader, held: {reader.key(part) for part in held},
    "frozenset": lambda reader, held: frozenset(reader.key(part) for part in held),
    "dict": lambda reader, held: {reader.key(key): reader.value(part) for key, part in held},
}
