# SPDX-License-Identifier: Apache-2.0
"""PraisonAI's second layer: tools with a limit in seconds, which raise ToolTimeoutError when they are ended at it."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..executor.function import run
from ..executor.function_async import run_async
from ..executor.tool import BoundTool, Call, Tool
from ..results import Status
from ..results import ToolResult as Outcome
from ._praisonai_calls import inline_is_allowed
from ._praisonai_limits import seconds_of
from ._praisonai_outcomes import could_not_be_sent, error_of, may_continue
from ._praisonai_types import ToolTimeoutError

_METHODS = ("run", "_run", "__call__")  # by which frameworks run a tool object


def wrap_with_timeout(tool: Any, timeout_seconds: float | None) -> Any:
    """The tool with a limit: it runs in a process of its own, and is gone when ToolTimeoutError is raised.

    A function, sync or async, stays one; a framework's tool object (with `run` or `_run`, and a name, a description or
    a schema) becomes one of a subclass of its own class, and is not changed itself. None, zero and below mean no
    limit: the tool is returned as it is. What it changes in memory is not seen by the caller. What it raises is raised.

    Raises InvalidLimit for what is no number; a call raises ToolNotSendableError, before anything ran, where the tool
    cannot go to another process.
    """
    seconds = seconds_of("timeout_seconds", timeout_seconds, 1.0)
    if seconds is None:
        return tool
    if isinstance(tool, _Limited):
        tool = vars(tool)["_deadstop_inner"]
    tool = getattr(tool, "_deadstop_unlimited", tool)
    if _is_framework_tool(tool):
        return _limited_object(tool, seconds)
    return _limited_function(tool, seconds) if callable(tool) else tool


def effective_tool_timeout(config: Mapping[str, Any], cli_config: Mapping[str, Any] | None = None) -> float | None:
    """The limit for the tools of a run: the command line's `tool_timeout` if it gives one, else the smallest of all
    `roles` and `agents`. Bools are no limits; a role that asks for none does not lift the others'."""
    given = (cli_config or {}).get("tool_timeout")
    if _is_number(given):
        return seconds_of("tool_timeout", given, 1.0)
    entities = [*(config.get("roles") or {}).values(), *(config.get("agents") or {}).values()]
    declared = [each.get("tool_timeout") for each in entities if isinstance(each, Mapping)]
    limits = [seconds_of("tool_timeout", each, 1.0) for each in declared if _is_number(each)]
    return min((each for each in limits if each is not None), default=None)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_framework_tool(tool: Any) -> bool:
    if isinstance(tool, type) or not any(hasattr(tool, name) for name in ("args_schema", "name", "description")):
        return False
    return any(callable(getattr(tool, name, None)) for name in _METHODS[:2])


def _limited_function(function: Callable[..., Any], seconds: float, name: object = None) -> Callable[..., Any]:
    limited: Any
    if isinstance(function, Tool | BoundTool) and function.declared is not None:  # still an operation, with this limit
        limited = function.with_options(timeout=seconds)
    else:
        limited = Tool(function, {"timeout": seconds, "name": name if isinstance(name, str) else None})

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        outcome = run(Call(limited, *args, **kwargs))
        if could_not_be_sent(outcome) and inline_is_allowed():
            outcome = run(Call(limited.with_options(isolation="inline"), *args, **kwargs))
        return _value(limited.name, seconds, outcome)

    @functools.wraps(function)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        outcome = await run_async(Call(limited, *args, **kwargs))
        if could_not_be_sent(outcome) and inline_is_allowed():
            outcome = await run_async(Call(limited.with_options(isolation="inline"), *args, **kwargs))
        return _value(limited.name, seconds, outcome)

    made: Any = call_async if inspect.iscoroutinefunction(function) else call
    made._deadstop_unlimited = function
    return made  # type: ignore[no-any-return]


def _value(name: str, seconds: float, outcome: Outcome) -> Any:
    if outcome.status is Status.COMPLETED:
        return outcome.value
    if outcome.status is Status.TIMEOUT:
        error = ToolTimeoutError(name, outcome.limit.seconds if outcome.limit else seconds, may_continue(outcome))
        error.result = outcome  # type: ignore[attr-defined]
        if outcome.operation is not None:  # a model that reads of a timeout alone would call again
            error.args = (f"{error}; effect {outcome.effect}, operation {outcome.operation['id']}: {outcome.hint}",)
        raise error
    if outcome.operation is not None:
        outcome.unwrap()  # raises OutcomeUnknown where nobody can say whether it happened
    raise error_of(name, outcome)


class _Limited:
    """Mixed into the class of a framework's tool. What is not a way to run it is the tool's own."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_deadstop_inner" not in vars(self):
            raise AttributeError(name)
        return getattr(vars(self)["_deadstop_inner"], name)

    def __reduce_ex__(self, protocol: object) -> Any:
        return _limited_object, (vars(self)["_deadstop_inner"], vars(self)["_deadstop_seconds"])

    def __copy__(self) -> Any:
        return _limited_object(copy.copy(vars(self)["_deadstop_inner"]), vars(self)["_deadstop_seconds"])

    def __deepcopy__(self, memo: Any) -> Any:
        return _limited_object(copy.deepcopy(vars(self)["_deadstop_inner"], memo), vars(self)["_deadstop_seconds"])

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["_deadstop_inner"], name, value)


def _limited_object(inner: Any, seconds: float) -> Any:
    methods: dict[str, Any] = {}
    for name in _METHODS:
        method = getattr(inner, name, None)
        if callable(method):
            methods[name] = _as_method(_limited_function(method, seconds, getattr(inner, "name", None)))
    kind: Any = type(f"Limited{type(inner).__name__}", (_Limited, type(inner)), methods)
    made: Any = object.__new__(kind)
    vars(made).update(_deadstop_inner=inner, _deadstop_seconds=seconds)
    return made


def _as_method(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def method(_self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    @functools.wraps(function)
    async def method_async(_self: Any, *args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return method_async if inspect.iscoroutinefunction(function) else method
