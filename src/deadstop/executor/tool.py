# SPDX-License-Identifier: Apache-2.0
"""A Python function as a tool: what it may take and use, and one call of it."""

from __future__ import annotations

import copy
import functools
import itertools
import os
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

from .. import clock, deadlines
from ..closures import carried_variables, pack
from ..errors import UsageError
from ..model import Place
from ..operation import acting, acting_now
from ..packing import BY_PARTS, BY_VALUE
from ..results import FiredLimit
from . import declared
from .functions import Parts, Sent, Target
from .inside import worker_binds
from .prepare import DEFAULT, PLACE_OPTIONS, Default, Options, check_names, prepare_place

if TYPE_CHECKING:
    from ..ledger.definition import Effect
    from ..results import Progress, ToolResult
    from .heartbeat import Lease
    from .soft import OnSoft
    from .workers import Pool

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", covariant=True)
S = TypeVar("S")
Level = Literal["inline", "process", "sandbox"]

DEFAULT_TIMEOUT_S = 60.0
DEFAULT_ANSWER_S = 10.0
EFFECTS = ("none", "undeclared")
LEVELS = ("inline", "process", "sandbox")
_INFINITE = float("inf")
_NO_LIMIT = (_INFINITE, None)

_prefix = os.urandom(6).hex()
_numbers = itertools.count(1)


def new_call_id() -> str:
    return f"call_{_prefix}{next(_numbers):06x}"


def _new_prefix() -> None:
    global _prefix
    _prefix = os.urandom(6).hex()


os.register_at_fork(after_in_child=_new_prefix)


class Tool(Generic[P, R]):
    """A function with its limits. Calling it runs it under them and gives its value, or raises (see `unwrap`).

    `call` and `call_async` give the whole `ToolResult` instead. The function itself is `function`.
    """

    def __init__(self, function: Callable[P, R], options: dict[str, Any]) -> None:
        if not callable(function):
            raise UsageError(f"a tool must be a function, not {function!r:.60}")
        inner: Any = function
        if isinstance(inner, Tool | BoundTool) and getattr(inner, "declared", None):  # it would be sent as a function
            raise UsageError(f"{inner!r} has effects, which a tool around it would hide: use its with_options()")
        functools.update_wrapper(self, function)
        self.function = function
        self.options = options
        self._configure(**options)

    def _configure(
        self, *, timeout: float | Default | None = DEFAULT, isolation: str = "process",
        effect: str | Effect = "undeclared",
        name: str | None = None, soft_timeout: float | None = None, on_soft: OnSoft | None = None,
        soft_answer: float = DEFAULT_ANSWER_S, writes: Sequence[str] | Callable[..., Sequence[str]] = (),
        **place: Any,
    ) -> None:  # fmt: skip
        given = not isinstance(timeout, Default)
        self.timeout = clock.check_limit("timeout", timeout) if given else DEFAULT_TIMEOUT_S
        self.source = "given" if given else "default"
        self.limit = FiredLimit("call", self.timeout, self.source)
        self.soft_timeout, self.on_soft = clock.check_limit("soft_timeout", soft_timeout), on_soft
        self.soft_answer = clock.check_limit("soft_answer", soft_answer) or DEFAULT_ANSWER_S
        if on_soft is not None and not callable(on_soft):
            raise UsageError(f"on_soft: {on_soft!r:.60} cannot be called")
        if self.soft_timeout and self.timeout and self.soft_timeout >= self.timeout:
            raise UsageError(f"soft_timeout={soft_timeout!r} is never reached: timeout is {self.timeout!r}")
        if not callable(writes) and (isinstance(writes, str | bytes) or not isinstance(writes, Iterable)):
            raise UsageError(f"writes: give a list of names, not {writes!r:.60}")
        if not isinstance(name, str | None):
            raise UsageError(f"name: {name!r:.60} is not a name")
        if (soft_timeout is None) != (on_soft is None):
            raise UsageError("soft_timeout and on_soft belong together: the one says when to ask, the other whom")
        check_names(place, PLACE_OPTIONS, "a tool")
        if isolation not in LEVELS:
            raise UsageError(f"isolation: {isolation!r} is not one of {', '.join(LEVELS)}")
        self.declared = None if isinstance(effect, str) else declared.declare(self.function, effect)
        if isinstance(effect, str) and effect not in EFFECTS:
            raise UsageError(f"effect: {effect!r} is not one of {', '.join(EFFECTS)}, and not an Effect")
        if isolation == "inline" and (place or soft_timeout):
            raise UsageError(f"{', '.join(place) or 'soft_timeout'}: inline has no boundary that could keep that")
        self.effect = effect if isinstance(effect, str) else "undeclared"
        self.isolation, self.writes = isolation, writes
        own_name: str = getattr(self.function, "__name__", type(self.function).__name__)
        self.name = name or own_name
        self.inline = isolation == "inline"
        self.light = self.inline and self.timeout is None and self.declared is None
        if self.declared is not None:
            self.__signature__ = self.declared.shown  # without what deadstop gives: that is no model's to fill in
            told = vars(self).get("__annotations__", {})
            self.__annotations__ = {name: told[name] for name in told if name != self.declared.parameter}
            self.declared.tell(self.name)
        self.place = None if self.inline else place_of(isolation, place)
        self._sent: Sent | None = None
        self.pool: Pool | None = None  # that its last call was run in

    @property
    def sent(self) -> Sent:
        if self._sent is None:
            self._sent = Sent(self.function, whole_module=self.isolation == "sandbox")
        return self._sent

    def with_options(self, **changed: Any) -> Tool[P, R]:
        """The same function with some options changed."""
        new = copy.copy(self)
        new.options = {**self.options, **changed}
        new._configure(**new.options)
        if (new.isolation == "sandbox") == (self.isolation == "sandbox"):
            new._sent = self.sent  # workers know it already
        return new

    def limited(self, timeout: float | None) -> Tool[P, R]:
        """The same tool, sent to the same workers, with another limit."""
        _ = self.sent if not self.inline else None  # made once, for all copies
        new = copy.copy(self)
        new.timeout, new.source = clock.check_limit("timeout", timeout), "given"
        new.limit = FiredLimit("call", new.timeout, "given")
        new.light = new.inline and new.timeout is None and new.declared is None
        return new

    def call(self, *args: P.args, **kwargs: P.kwargs) -> ToolResult:
        """Run it and say how it ended. As `deadstop.call(tool, ...)`."""
        if self.light and not deadlines.nested():
            return inline.run_light(self, args, kwargs)
        asked = Call(self, *args, **kwargs)
        pool = self.pool
        if pool is not None and not pool.closed and self.declared is None and not deadlines.nested():
            begun = quick.begin(asked, pool)
            if begun is not None and (result := function.ended(begun)) is not None:
                return result
        return function.run(asked)

    async def call_async(self, *args: P.args, **kwargs: P.kwargs) -> ToolResult:
        """The async twin of `call`."""
        from .function_async import run_async

        return await run_async(Call(self, *args, **kwargs))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if _is_coroutine_function(self.function):
            return self._unwrapped(*args, **kwargs)  # type: ignore[return-value]
        value: R = self.call(*args, **kwargs).unwrap()
        return value

    async def _unwrapped(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        return (await self.call_async(*args, **kwargs)).unwrap()

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Tool[P, R]: ...
    @overload
    def __get__(self: Tool[Concatenate[S, Q], R], instance: S, owner: type | None = None) -> BoundTool[Q, R]: ...
    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else BoundTool(self, instance)

    def __copy__(self) -> Tool[P, R]:
        new: Tool[P, R] = object.__new__(Tool)
        vars(new).update(vars(self))
        return new

    def __reduce__(self) -> Any:
        return Tool, (self.function, self.options)

    def __repr__(self) -> str:
        return f"<deadstop.Tool {self.name}, {self.isolation}, limit {self.timeout} s>"


class BoundTool(Generic[Q, R]):
    """A tool that is a method, with its instance. It is called as a Tool is; the instance travels as an argument."""

    __slots__ = ("__self__", "tool")

    def __init__(self, tool: Tool[Any, R], instance: object) -> None:
        self.tool, self.__self__ = tool, instance

    def call(self, *args: Q.args, **kwargs: Q.kwargs) -> ToolResult:
        return self.tool.call(self.__self__, *args, **kwargs)

    async def call_async(self, *args: Q.args, **kwargs: Q.kwargs) -> ToolResult:
        return await self.tool.call_async(self.__self__, *args, **kwargs)

    def with_options(self, **changed: Any) -> BoundTool[Q, R]:
        return BoundTool(self.tool.with_options(**changed), self.__self__)

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> R:
        return self.tool(self.__self__, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "__signature__" and self.tool.declared is not None:
            shown = self.tool.declared.shown
            return shown.replace(parameters=list(shown.parameters.values())[1:])
        if name == "__wrapped__":  # so that inspect.signature leaves `self` out
            return types.MethodType(self.tool.function, self.__self__)
        if name.startswith("__") and name not in ("__name__", "__qualname__", "__module__", "__doc__"):
            raise AttributeError(name)
        return getattr(self.tool, name)

    def __reduce__(self) -> Any:
        return BoundTool, (self.tool, self.__self__)

    def __repr__(self) -> str:
        return f"<bound {self.tool!r}>"


def _is_coroutine_function(function: object) -> bool:
    code = getattr(function, "__code__", None)
    return bool(code and code.co_flags & 0x80)  # CO_COROUTINE; inspect takes longer to load than a call takes


def place_of(isolation: str, asked: dict[str, Any]) -> Place:
    """The boundary that workers of this kind live in."""
    check_names(asked, PLACE_OPTIONS, "a tool")
    place, _ = prepare_place(Options(isolation=isolation, **asked))
    if isolation != "sandbox":
        return place
    shown = {target for _, target, _ in place.binds}
    more = [bind for bind in worker_binds() if bind[1] not in shown]
    return Place(place.isolation, place.limits, place.net, (*place.binds, *more))


_plain_tools: dict[Any, Tool[..., Any]] = {}
_closure_tools: dict[Any, Tool[..., Any]] = {}


def tool_of(function: Any) -> Tool[..., Any]:
    """The tool that a plain function is: default limits. Remembered for as long as the function is."""
    if isinstance(function, Tool):
        return function
    if type(function) is BoundTool:
        return function.tool
    kind = type(function)
    of_module = kind is types.BuiltinFunctionType and isinstance(function.__self__, types.ModuleType)
    if kind is not types.FunctionType and kind is not type and not of_module:
        return Tool(function, {})  # objects that are equal need not do the same
    holds = kind is types.FunctionType and function.__closure__
    known, most = (_closure_tools, 16) if holds else (_plain_tools, 1000)
    found = known.get(function)
    if found is None:
        if len(known) >= most:
            known.clear()  # made in a loop, and what they hold may be large
        found = known[function] = Tool(function, {})
    return found


class Call:
    """A function with its arguments, to be run: what `batch` and `race` take.

    `Call(fetch, url="...").options(timeout=2, cancel=token)` changes the limits of this one call, or gives it a cancel
    token, an `on_progress` callback, an id.
    """

    __slots__ = (
        "acting", "args", "call_id", "cancel", "key", "kwargs", "lease", "on_progress", "sandbox", "tool", "whole"
    )  # fmt: skip

    def __init__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        self.tool: Tool[..., Any] = function if type(function) is Tool else tool_of(function)
        self.args = args if type(function) is not BoundTool else (function.__self__, *args)
        self.kwargs = kwargs
        self.call_id = new_call_id()
        self.cancel: Any = None
        self.on_progress: Callable[[Progress], None] | None = None
        self.sandbox: Any = None  # of a server's, to run in
        self.key: str | None = None  # what binds retries of a tool with effects, told by the host program
        self.acting: Any = None  # on whose behalf, if not on that of the block it is called in
        self.lease: Lease | None = None  # of its operation, if its tool has effects
        self.whole: tuple[float, FiredLimit] | None = None  # the batch's end

    def options(
        self, *, cancel: Any = None, on_progress: Callable[[Progress], None] | None = None,
        call_id: str | None = None, sandbox: Any = None, key: str | None = None, acting: Any = None, **changed: Any,
    ) -> Call:  # fmt: skip
        """A copy with these; `sandbox` is one of a server's (`deadstop.Sandbox`). Others are `deadstop.tool`'s.

        For a tool with effects: `key` is the host program's own name for this one intended effect (a run's id and the
        step's, say): whatever comes with it, now or after a restart, is that one operation. `acting` is an `Acting`.
        Neither must come from a model.
        """
        new = copy.copy(self)
        new.tool = self.tool.with_options(**changed) if changed else self.tool
        new.cancel = self.cancel if cancel is None else cancel
        new.on_progress = on_progress or self.on_progress
        new.sandbox = self.sandbox if sandbox is None else sandbox
        new.call_id = call_id or new_call_id()
        new.key = self.key if key is None else key
        new.acting = self.acting if acting is None else acting
        return new

    def limited(self, timeout: float | None) -> Call:
        """A copy whose tool has this limit."""
        new = copy.copy(self)
        new.tool = self.tool.limited(timeout)
        return new

    def with_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """A copy with these."""
        new = copy.copy(self)
        new.args, new.kwargs = args, dict(kwargs)
        return new

    def within(self, whole: tuple[float, FiredLimit]) -> Call:
        """A copy that must have ended when the batch that it is part of ends."""
        new = copy.copy(self)
        new.whole = whole
        return new

    def resolve(self) -> tuple[float, FiredLimit | None]:
        """When it must have ended if it begins now, and which limit says so."""
        tool = self.tool
        if deadlines.nested():
            end, _, limit = deadlines.resolve(tool.timeout, tool.source)
            found = (_INFINITE, None) if end is None else (end, limit)
        elif tool.timeout is None:
            found = _NO_LIMIT
        else:
            found = (clock.monotonic() + tool.timeout, tool.limit)
        return self.whole if self.whole is not None and self.whole[0] < found[0] else found

    def outer(self) -> tuple[float, FiredLimit | None]:
        """When whatever it is part of ends, and which limit says so."""
        end, _, limit = deadlines.resolve(None, "given") if deadlines.nested() else (None, None, None)
        found = _NO_LIMIT if end is None else (end, limit)
        return self.whole if self.whole is not None and self.whole[0] < found[0] else found

    def pack(self, target: Target, end: float, surroundings: dict[str, Any] | None) -> tuple[int, bytes]:
        """Flags and body of a RUN packet. Raises what pickling raises."""
        if variables := _carried():
            surroundings = {**(surroundings or {}), "variables": variables}
        if isinstance(target, bytes):
            rest = pack((None, self.args, self.kwargs, None if end == _INFINITE else end, surroundings))
            return BY_PARTS if type(target) is Parts else BY_VALUE, len(target).to_bytes(4, "little") + target + rest
        return 0, pack((target, self.args, self.kwargs, None if end == _INFINITE else end, surroundings))


def _carried() -> list[tuple[str, str, bytes]]:
    """The context variables that go with a call: also on whose behalf it acts, and within which run."""
    tasks = deadlines.entered.get()
    if not tasks or tasks[-1].task_id is None or acting_now().correlation is not None:
        return carried_variables()
    with acting(correlation=tasks[-1].task_id):
        return carried_variables()


def put_together(target: Call | Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """The call that `call` and `call_async` are asked for. A server's sandbox given as `sandbox` is not an argument."""
    if isinstance(target, Call):
        sandbox = kwargs.pop("sandbox", None)
        if args or kwargs:
            raise UsageError("a Call has its arguments already")
        return target if sandbox is None else target.options(sandbox=sandbox)
    if hasattr(kwargs.get("sandbox"), "run_function"):
        sandbox = kwargs.pop("sandbox")
        return Call(target, *args, **kwargs).options(sandbox=sandbox)
    return Call(target, *args, **kwargs)


# They are made of what stands above, and what they do is only needed once a tool is called.
from . import function, inline, quick  # noqa: E402
