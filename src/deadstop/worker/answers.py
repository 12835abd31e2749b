# SPDX-License-Identifier: Apache-2.0
"""What a tool returned or raised, made into the body of an answer. It never fails: what cannot be sent is described."""

from __future__ import annotations

import json
import sys
import traceback
from base64 import b64encode
from pickle import dumps
from typing import Any

from ..closures import pack

TEXT_CHARS = 20_000  # of a message or a traceback: an exception may carry a whole file


class Pickled:
    """For a worker that runs the caller's own code with the caller's own rights."""

    def value(self, value: object) -> bytes:
        kind = type(value)
        if kind is str or kind is int or value is None or kind is bool or kind is float:
            return dumps(value, 5)
        return pack(value)

    def raised(self, problem: BaseException) -> bytes:
        trace = trace_of(problem)
        try:
            packed: bytes | None = pack(problem)
        except Exception:
            packed = None
        return dumps((type_name(problem), text_of(problem), trace, packed), 5)

    def progress(self, message: tuple[object, ...]) -> bytes:
        return pack(message)


class PlainData:
    """For a sandbox: loading a pickle would run what is in it, so that nothing but plain data comes out."""

    def value(self, value: object) -> bytes:
        return json.dumps(_plain(value, 0)).encode()

    def raised(self, problem: BaseException) -> bytes:
        return json.dumps([type_name(problem), text_of(problem), trace_of(problem)]).encode()

    def progress(self, message: tuple[object, ...]) -> bytes:
        return json.dumps(_plain(message, 0)).encode()


def _plain(value: Any, depth: int) -> Any:
    """JSON with a tag for what JSON does not have. Raises TypeError for what is more than data."""
    if depth > 100:
        raise TypeError("a value nested this deeply cannot leave a sandbox")
    kind = type(value)
    if value is None or kind in (bool, str, float):
        return value
    if kind is int:
        return value if -(1 << 63) <= value < 1 << 64 else {"int": format(value, "x")}
    if kind in (bytes, bytearray):
        return {kind.__name__: b64encode(value).decode("ascii")}
    if kind in (list, tuple, set, frozenset):
        return {kind.__name__: [_plain(part, depth + 1) for part in value]}
    if kind is dict:
        return {"dict": [[_plain(key, depth + 1), _plain(part, depth + 1)] for key, part in value.items()]}
    raise TypeError(
        f"a {type_of(value)} cannot leave a sandbox: return plain data (numbers, text, bytes, lists, dicts)"
    )


def type_of(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def type_name(problem: BaseException) -> str:
    return type(problem).__name__


def text_of(problem: BaseException) -> str:
    try:
        return str(problem)[:TEXT_CHARS]
    except Exception as worse:
        return f"<its text cannot be had: {type(worse).__name__}>"


def trace_of(problem: BaseException) -> str:
    """The traceback from the tool's first frame on: ours say nothing to anybody."""
    try:
        trace = problem.__traceback__
        while trace is not None and trace.tb_frame.f_globals.get("__package__") == __package__:
            trace = trace.tb_next
        lines = traceback.format_exception(type(problem), problem, trace)
    except Exception as worse:
        return f"<its traceback cannot be had: {type(worse).__name__}>"
    return "".join(lines)[-TEXT_CHARS:]


def unloadable(what: str, problem: BaseException) -> RuntimeError:
    """For what could not be loaded here: most often a module that only the caller can import."""
    path = ", ".join(sys.path[:4])
    return RuntimeError(f"{what} could not be loaded in the worker: {text_of(problem)} (its path begins {path})")
