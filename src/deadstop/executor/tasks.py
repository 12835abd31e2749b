# SPDX-License-Identifier: Apache-2.0
"""Function calls and the task they are made in: its budget is asked before, and told after."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ..budget import key_of
from ..closures import pack, reference
from ..errors import BoundaryUnavailable, SandboxError, UsageError
from ..results import ToolResult
from .admission import Admission

if TYPE_CHECKING:
    from .tool import Call


def call_key(call: Call) -> bytes | None:
    """What stands for a function and its arguments; None if they cannot be compared."""
    try:
        function = call.tool.function
        named = reference(function) is not None
        what = f"{function.__module__}.{function.__qualname__}" if named else pack(function)
        return key_of(what, repr(call.tool.timeout), pack((call.args, sorted(call.kwargs.items()))))
    except Exception:
        return None


def within_task(call: Call, run: Callable[[Call], ToolResult]) -> ToolResult:
    admission = Admission()
    refused = admission.refusal(call.tool.name, call.call_id, lambda: call_key(call))
    if refused is not None:
        return refused
    try:
        return admission.settled(run(call))
    except (UsageError, BoundaryUnavailable, SandboxError):  # before anything ran
        admission.withdrawn()
        raise


async def within_task_async(call: Call, run: Callable[[Call], Awaitable[ToolResult]]) -> ToolResult:
    admission = Admission()
    refused = admission.refusal(call.tool.name, call.call_id, lambda: call_key(call))
    if refused is not None:
        return refused
    try:
        return admission.settled(await run(call))
    except (UsageError, BoundaryUnavailable, SandboxError):
        admission.withdrawn()
        raise
