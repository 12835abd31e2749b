# SPDX-License-Identifier: Apache-2.0
"""A call in this very process: for trusted functions, where a limit is only told of, not kept."""

from __future__ import annotations

import contextvars
import threading
import types
from typing import TYPE_CHECKING, Any

from .. import clock, deadlines, messages
from ..results import FiredLimit, Late, Progress, Receipt, Status, ToolResult
from . import tool as tool_module
from .refusals import lease_is_over, over_before_start
from .tokens import Token

if TYPE_CHECKING:
    from .tool import Call, Tool

# Of every inline call: nothing was, or could have been, ended.
RECEIPT = Receipt("inline", (), "none", None)
ENVIRONMENT = "it ran in the caller's own process: nothing could be ended, and what it started may still run"
_COMPLETED = Status.COMPLETED
_new = object.__new__
_monotonic = clock.monotonic


def run_inline(call: Call) -> ToolResult:
    """Run it here. Raises only KeyboardInterrupt and its like; SystemExit is the tool's, and becomes a result."""
    if call.tool.timeout is None and call.cancel is None and call.on_progress is None and not deadlines.nested():
        return _run(call, None)
    return contextvars.copy_context().run(_run_within, call)


def run_light(tool: Tool[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> ToolResult:
    """As `run_inline`, where there is no limit, token or task that could matter: it costs two microseconds."""
    started_at, started = clock.now_iso(), _monotonic()
    try:
        value = tool.function(*args, **kwargs)
        if type(value) is types.CoroutineType:
            value = complete(value)
    except (Exception, SystemExit) as problem:
        outcome: dict[str, Any] = {
            "status": Status.ERROR, "exception": problem, "error_type": type(problem).__name__,
            "error_message": _text(problem),
        }  # fmt: skip
    else:
        outcome = {"status": _COMPLETED, "value": value}
    result = _new(ToolResult)
    vars(result).update(
        outcome, tool=tool.name, call_id=tool_module.new_call_id(), effect=tool.effect, receipt=RECEIPT,
        started_at=started_at, duration_s=_monotonic() - started,
    )  # fmt: skip
    return result


def _run_within(call: Call) -> ToolResult:
    end, limit = call.resolve()
    if end <= _monotonic():
        return over_before_start(call, limit)
    if (refused := lease_is_over(call)) is not None:
        return refused
    told: list[Progress] = []
    _set_up(call, end, limit.seconds if limit else None, told)
    result = _run(call, end, limit)
    return ToolResult.made({**vars(result), "progress": tuple(told)}) if told else result


def _set_up(call: Call, end: float, seconds: float | None, told: list[Progress]) -> None:
    if end != float("inf"):
        deadlines.enter(end, seconds or 0.0)

    def tell(message: Progress) -> None:
        messages.add(told, message)
        if call.on_progress is not None:
            call.on_progress(message)

    messages.sink.set(tell)
    if call.cancel is not None:
        messages.cancelled.set(Token(call.cancel).is_set)


def _run(call: Call, end: float | None, limit: FiredLimit | None = None) -> ToolResult:
    tool = call.tool
    started = _monotonic()
    fields: dict[str, Any] = {"tool": tool.name, "call_id": call.call_id, "effect": tool.effect, "receipt": RECEIPT}
    fields["started_at"] = clock.now_iso()
    try:
        value = tool.function(*call.args, **call.kwargs)
        if type(value) is types.CoroutineType:
            value = complete(value)
    except (Exception, SystemExit) as problem:
        fields["status"], fields["exception"] = Status.ERROR, problem
        fields["error_type"], fields["error_message"] = type(problem).__name__, _text(problem)
    else:
        fields["status"], fields["value"] = Status.COMPLETED, value
    now = _monotonic()
    fields["duration_s"] = now - started
    if end is not None and now > end:
        return _overran(fields, now - end, limit)
    return ToolResult.made(fields)


async def run_inline_async(call: Call) -> ToolResult:
    """An async tool on the caller's own loop, a sync one right here."""
    import asyncio

    return await asyncio.get_running_loop().create_task(_run_async(call), context=contextvars.copy_context())


async def _run_async(call: Call) -> ToolResult:
    end, limit = call.resolve()
    if end <= _monotonic():
        return over_before_start(call, limit)
    if (refused := lease_is_over(call)) is not None:
        return refused
    told: list[Progress] = []
    _set_up(call, end, limit.seconds if limit else None, told)
    import asyncio

    tool, started = call.tool, _monotonic()
    fields: dict[str, Any] = {"tool": tool.name, "call_id": call.call_id, "effect": tool.effect, "receipt": RECEIPT}
    fields["started_at"] = clock.now_iso()
    try:
        value = tool.function(*call.args, **call.kwargs)
        if type(value) is types.CoroutineType:
            async with asyncio.timeout(None if end == float("inf") else end - started):
                value = await value
    except TimeoutError as problem:
        fields["status"], fields["exception"] = Status.ERROR, problem
        fields["error_type"], fields["error_message"] = type(problem).__name__, _text(problem)
    except (Exception, SystemExit) as problem:
        fields["status"], fields["exception"] = Status.ERROR, problem
        fields["error_type"], fields["error_message"] = type(problem).__name__, _text(problem)
    else:
        fields["status"], fields["value"] = Status.COMPLETED, value
    now = _monotonic()
    fields["duration_s"], fields["progress"] = now - started, tuple(told)
    return _overran(fields, now - end, limit) if now > end else ToolResult.made(fields)


def complete(coroutine: Any) -> Any:
    """Run a coroutine to its end from code that is not async, also where a loop runs in this thread already."""
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    outcome: list[Any] = []
    context = contextvars.copy_context()

    def body() -> None:
        try:
            outcome.append((True, context.run(asyncio.run, coroutine)))
        except BaseException as problem:
            outcome.append((False, problem))

    thread = threading.Thread(target=body, name="deadstop-inline")
    thread.start()
    thread.join()
    fine, value = outcome[0]
    if not fine:
        raise value
    return value


def _overran(fields: dict[str, Any], after: float, limit: FiredLimit | None) -> ToolResult:
    """Its limit was over before it ended: that is a timeout, and what it gave is evidence."""
    if fields["status"] is Status.COMPLETED:
        value = fields.pop("value")
        late = Late("value", _repr(value), round(after, 6), value)
    else:
        late = Late("error", f"{fields.pop('error_type')}: {fields.pop('error_message')}", round(after, 6))
        fields.pop("exception")
    fields.update(status=Status.TIMEOUT, limit=limit, late=late, environment=ENVIRONMENT)
    return ToolResult.made(fields)


def _text(problem: BaseException) -> str:
    try:
        return str(problem)
    except Exception:
        return "<its text cannot be had>"


def _repr(value: object) -> str:
    try:
        return repr(value)[:1000]
    except Exception:
        return f"<{type(value).__name__}>"
