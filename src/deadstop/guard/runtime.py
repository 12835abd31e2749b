# SPDX-License-Identifier: Apache-2.0
"""What guarded code calls in place of its operators: one `Checks` per set of limits, a constant of the code object."""

from __future__ import annotations

import builtins
from functools import partial
from types import FunctionType, MethodType

from . import operations, watched
from .iterables import length
from .widths import spec_width

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any

    from .limits import GuardLimits

__all__ = ["Checks"]

_CONVERSIONS: dict[int, Callable[[Any], Any]] = {ord("s"): str, ord("r"): repr, ord("a"): ascii}


class _Key:
    def __getitem__(self, key: Any) -> Any:
        return key


class Checks:
    """The operators of guarded code. Each does what its operator does, or raises GuardError before doing it.

    It is pickled as its limits, so that functions made by guarded code can be sent by value.
    """

    __slots__ = ("bits", "limits")
    key = _Key()

    def __init__(self, limits: GuardLimits) -> None:
        self.limits = limits
        self.bits = limits.int_bits

    def __reduce__(self) -> Any:
        return Checks, (self.limits,)

    # Operators. The first test of each is what nearly every call of it ends with.

    def mul(self, a: Any, b: Any) -> Any:
        if type(a) is int and type(b) is int:
            if a.bit_length() + b.bit_length() <= self.bits:
                return a * b
        elif type(a) is float or type(b) is float:
            return a * b
        operations.check_mul(a, b, self.limits)
        return a * b

    def pow(self, a: Any, b: Any) -> Any:
        if type(a) is int and type(b) is int:
            if a.bit_length() * b <= self.bits:
                return a**b
        elif type(a) is float or type(b) is float:
            return a**b
        operations.check_pow(a, b, self.limits)
        return a**b

    def lshift(self, a: Any, b: Any) -> Any:
        if not (type(a) is int and type(b) is int and a.bit_length() + b <= self.bits):
            operations.check_shift(a, b, self.limits)
        return a << b

    def mod(self, a: Any, b: Any) -> Any:
        if type(a) is not int and type(a) is not float:
            operations.check_mod(a, b, self.limits)
        return a % b

    def imul(self, a: Any, b: Any) -> Any:
        if not (type(a) is int and type(b) is int and a.bit_length() + b.bit_length() <= self.bits):
            operations.check_mul(a, b, self.limits)
        a *= b
        return a

    def ipow(self, a: Any, b: Any) -> Any:
        operations.check_pow(a, b, self.limits)
        a **= b
        return a

    def ilshift(self, a: Any, b: Any) -> Any:
        operations.check_shift(a, b, self.limits)
        a <<= b
        return a

    def imod(self, a: Any, b: Any) -> Any:
        if type(a) is not int:
            operations.check_mod(a, b, self.limits)
        a %= b
        return a

    def item(self, holder: Any, key: Any) -> _Item:
        """`holder[key] *= ...`: the target is read now, and once."""
        return _Item(self, holder, key, holder[key])

    def attribute(self, holder: Any, name: str) -> _Attribute:
        """`holder.name *= ...`: the target is read now, and once."""
        return _Attribute(self, holder, name, getattr(holder, name))

    # What is not an operator.

    def text(self, value: Any, conversion: int, spec: str) -> str:
        """One field of an f-string."""
        if conversion in _CONVERSIONS:
            value = _CONVERSIONS[conversion](value)
        width = spec_width(value, spec)
        if width > self.limits.format_width:
            operations.check_text("an f-string", width, self.limits)
        return format(value, spec)

    def walk(self, iterable: Any) -> Any:
        """`iterable`, which is about to be taken to its end."""
        found = length(iterable)
        if found is not None:
            watched.check_steps("this comprehension", found, self.limits)
        return iterable

    def star(self, iterable: Any) -> Any:
        """`*iterable` in a call or a display: all of it becomes a list or a tuple."""
        watched.check_collected(self, "unpacking it", iterable)
        return iterable

    def source(self, function: Any, source: Any, flags: int) -> Any:
        """What eval() and exec() are given: source text is guarded too."""
        if type(source) is not str or (function is not builtins.eval and function is not builtins.exec):
            return source
        from .rewrite import compile_source

        mode = "eval" if function is builtins.eval else "exec"
        try:
            code: CodeType = compile_source(
                source.lstrip(" \t") if mode == "eval" else source, "<string>", mode, self.limits, flags
            )
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return source  # whose real error is the one to see
        return code

    def refresh(self) -> None:
        """After an import: watch the functions of modules that are new."""
        watched.refresh()

    def fn(self, function: Any) -> Any:
        """`function`, or what checks its arguments first if it is one of those that are watched.

        Only the callee goes through here, never the call: it is made by the frame that asks for it, so that super(),
        locals(), warnings and tracebacks see what they always see.
        """
        kind = type(function)
        if kind is FunctionType or kind is type:
            rule = watched.TABLE.get(function)
            return function if rule is None else _with_rule(self, rule, function, ())
        if kind is MethodType:
            inner = function.__func__
            if type(inner) is FunctionType and inner not in watched.TABLE:
                return function
        if kind is partial:
            inner = self.fn(function.func)
            return function if inner is function.func else partial(inner, *function.args, **function.keywords)
        rule, receiver = watched.fitting_rule(function)
        return function if rule is None else _with_rule(self, rule, function, receiver)


def _with_rule(checks: Checks, rule: watched.Rule, function: Any, receiver: tuple[Any, ...]) -> Any:
    if rule.run is not None:
        return partial(rule.run, checks, function)

    def checked(*args: Any, **kwargs: Any) -> Any:
        watched.apply(checks, rule, (*receiver, *args), kwargs)
        return function(*args, **kwargs)

    return checked


class _Place:
    """The target of an augmented assignment, read already."""

    __slots__ = ("checks", "holder", "key", "value")

    def __init__(self, checks: Checks, holder: Any, key: Any, value: Any) -> None:
        self.checks, self.holder, self.key, self.value = checks, holder, key, value

    def store(self, value: Any) -> None:
        raise NotImplementedError

    def imul(self, other: Any) -> None:
        self.store(self.checks.imul(self.value, other))

    def ipow(self, other: Any) -> None:
        self.store(self.checks.ipow(self.value, other))

    def ilshift(self, other: Any) -> None:
        self.store(self.checks.ilshift(self.value, other))

    def imod(self, other: Any) -> None:
        self.store(self.checks.imod(self.value, other))


class _Item(_Place):
    __slots__ = ()

    def store(self, value: Any) -> None:
        self.holder[self.key] = value


class _Attribute(_Place):
    __slots__ = ()

    def store(self, value: Any) -> None:
        setattr(self.holder, self.key, value)
