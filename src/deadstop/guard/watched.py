# SPDX-License-Identifier: Apache-2.0
"""The functions and methods whose arguments are looked at before they run.

A rule that cannot make sense of its arguments says nothing: the real call then says what is wrong with them.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from types import (
    BuiltinFunctionType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    WrapperDescriptorType,
)

from . import operations
from .iterables import Length, length, steps_of_any_or_all
from .operations import slots
from .refusal import GuardError, number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .limits import GuardLimits
    from .runtime import Checks

__all__ = ["METHODS", "MODULES", "TABLE", "Rule", "apply", "check_collected", "check_steps", "fitting_rule", "refresh"]

_C_METHOD = type(re.compile("").match)  # some methods of C types have a type of their own
_TAKE = "a formula, a step in the range, or itertools.islice to take fewer elements"
_COLLECT = "iterate without collecting, or itertools.islice to take fewer elements"


@dataclass(frozen=True, slots=True)
class Rule:
    """`check(checks, *args, **kwargs)` raises GuardError or does nothing.

    The first argument of a method is its object. `run(checks, function, *args, **kwargs)`, where there is one, does the
    whole call, since only its steps can be checked or its result is to be remembered.
    """

    check: Callable[..., None]
    run: Callable[..., Any] | None = None


TABLE: dict[object, Rule] = {}
"""By the function itself, whatever name it is called by. Only objects that are compared by identity are keys."""
METHODS: dict[str, list[tuple[tuple[type, ...], Rule]]] = {}
"""By name and receiver: methods of built-in types, which are new objects each time they are asked for."""
PENDING: dict[str, dict[str, Rule]] = {}
"""By module and name, for modules that nobody has imported yet; an import is not ours to cause."""

MODULES: set[str] = set()
"""The names of all modules that have watched functions."""


def refresh() -> None:
    """Take the functions of newly imported modules into TABLE."""
    if not TABLE:
        from . import rules

        rules.register()
    for name in [name for name in list(PENDING) if name in sys.modules]:
        for attribute, rule in PENDING.pop(name, {}).items():
            found: Any = sys.modules[name]
            for part in attribute.split("."):
                found = getattr(found, part, None)
            if isinstance(found, MethodDescriptorType):
                METHODS.setdefault(found.__name__, []).append(((found.__objclass__,), rule))
            elif found is not None:
                TABLE[found] = rule


def fitting_rule(function: Any) -> tuple[Rule | None, tuple[Any, ...]]:
    """The rule for a callable, and the object of a bound method; runs no code of the callable's class."""
    kind = type(function)
    if kind is FunctionType or kind is type:
        return TABLE.get(function), ()
    if kind is MethodType:
        inner = function.__func__
        return (TABLE.get(inner) if type(inner) is FunctionType else None), (function.__self__,)
    if kind is BuiltinFunctionType or kind is _C_METHOD or kind is MethodWrapperType:
        if kind is not MethodWrapperType and function in TABLE:
            return TABLE[function], ()
        if function.__name__ in METHODS:
            receiver = function.__self__
            return _method_rule(function.__name__, type(receiver), receiver), (receiver,)
    elif (kind is MethodDescriptorType or kind is WrapperDescriptorType) and function.__name__ in METHODS:
        return _method_rule(function.__name__, function.__objclass__, None), ()
    return None, ()


def _method_rule(name: str, kind: type, receiver: object) -> Rule | None:
    """The rule for this method of a built-in type, or of a subclass that inherits it."""
    for kinds, rule in METHODS[name]:
        if issubclass(kind, kinds) or (isinstance(receiver, type) and issubclass(receiver, kinds)):
            return rule
    return None


def apply(checks: Checks, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Ask a rule. Whatever else goes wrong in it is no reason to keep the call from being made."""
    try:
        rule.check(checks, *args, **kwargs)
    except GuardError:
        raise
    except Exception:
        return


def check_steps(what: str, found: Length, limits: GuardLimits) -> None:
    """Refuse to take more elements than the limit."""
    if found.steps > limits.iterations:
        operations.refuse(
            "iteration", f"{what} would take", found.steps, limits.iterations, "elements one by one", _TAKE
        )


def check_collected(checks: Checks, what: str, iterable: Any, *, unit: int = 8, keys: bool = False) -> None:
    """Refuse to put all elements of `iterable` into a container; one with `keys` holds equal ones once."""
    found = length(iterable)
    if found is not None:
        if found.given and (found.distinct or not keys):
            slots(found.steps, what, checks.limits, _COLLECT, unit=unit)
        check_steps(what, found, checks.limits)


def check_taken(checks: Checks, what: str, iterable: Any) -> None:
    """Refuse to take all elements of `iterable`."""
    found = length(iterable)
    if found is not None:
        check_steps(what, found, checks.limits)


def check_until(checks: Checks, what: str, iterable: Any, *, stops_at: bool) -> None:
    """Refuse any() and all() only where it is certain how far they go."""
    steps = steps_of_any_or_all(iterable, stops_at)
    if steps is not None:
        check_steps(what, Length(steps), checks.limits)


def check_length(checks: Checks, what: str, count: Any, unit: int = 1) -> None:
    """Refuse a result of `count` elements."""
    size = operations.as_int(count)
    if size is not None:
        slots(size, what, checks.limits, "smaller pieces, one at a time", unit=unit)


def refuse_output(output: int, compressed: int, limits: GuardLimits, what: str) -> None:
    """Refuse what unpacks to too much."""
    if output > limits.decompressed_bytes:
        limit: float = limits.decompressed_bytes
    else:
        limit = max(compressed * limits.decompress_ratio, 10_000_000)
    operations.refuse(
        "decompression",
        f"{what} of {number(compressed)} bytes would give at least",
        output,
        limit,
        "bytes",
        "a decompressor object with max_length, in pieces",
    )
