# SPDX-License-Identifier: Apache-2.0
"""How a step can end without its own answer, in words for the model."""

from __future__ import annotations

from typing import Any

from smolagents import local_python_executor as upstream  # type: ignore[import-untyped,import-not-found,unused-ignore]

from ..results import Status, ToolResult


class InterpreterTimeout(upstream.ExecutionTimeoutError):  # type: ignore[misc,unused-ignore]
    """A step met its limit, and the interpreter was ended. `result` is the `deadstop.ToolResult` with the receipt."""

    result: ToolResult


class InterpreterLost(upstream.InterpreterError):  # type: ignore[misc,unused-ignore]
    """The interpreter was ended by its memory limit, crashed, or was found gone. `result` as in InterpreterTimeout."""

    result: ToolResult | None


def ended(result: ToolResult, limit: float | None, memory: int | None) -> str:
    """What ended it, as the beginning of a sentence."""
    message = result.error["message"] if result.error else "it gave no answer"
    which = result.limit.which if result.limit is not None else ""
    if result.status is Status.TIMEOUT and which == "call" and limit is not None:
        return f"Code execution exceeded the maximum execution time of {limit:g} seconds"
    if which == "memory" and memory is not None:
        return f"Code execution needed more than the {memory >> 20} MiB of memory that it may use"
    return f"Code execution did not finish: {message}"


def error_of(result: ToolResult | None, text: str) -> Exception:
    """The exception that belongs to a result, carrying it."""
    timeout = result is not None and result.status is Status.TIMEOUT
    error: Any = InterpreterTimeout(text) if timeout else InterpreterLost(text)
    error.result = result
    return error  # type: ignore[no-any-return]
