# SPDX-License-Identifier: Apache-2.0
"""A function that declares effects: which of its arguments mean what. Nothing of the ledger is loaded by this file."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import UsageError

if TYPE_CHECKING:
    import inspect

    from ..ledger.definition import Effect

__all__ = ["Declared", "UnansweredEffect", "declare", "tell_unanswered"]

_PACKAGE = __name__.partition(".")[0]
_origins: dict[str, str] = {}  # by a tool's name, the first function that had it
_told: set[tuple[str, tuple[str, ...]]] = set()


class UnansweredEffect(UserWarning):
    """A tool with effects does not say how a lost answer can be settled: a person will have to."""


class Declared:
    """The effect of a function, and its signature with and without the operation that deadstop fills in."""

    __slots__ = ("effect", "origin", "parameter", "shown", "signature")

    def __init__(self, effect: Effect, signature: inspect.Signature, parameter: str | None, origin: str) -> None:
        self.effect, self.signature, self.parameter, self.origin = effect, signature, parameter, origin
        others = [each for name, each in signature.parameters.items() if name != parameter]
        self.shown = signature.replace(parameters=others)

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """What it is called with, by name, defaults too. Raises UsageError for what does not fit its signature."""
        if self.parameter in kwargs:
            raise UsageError(f"{self.parameter}: the operation is deadstop's to give, not an argument")
        try:
            bound = self.shown.bind(*args, **kwargs)
        except TypeError as problem:
            raise UsageError(f"these arguments do not fit: {problem}") from problem
        bound.apply_defaults()
        found: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            if self.shown.parameters[name].kind is not self.shown.parameters[name].VAR_KEYWORD:
                found[name] = value
            elif both := found.keys() & value.keys():  # a positional-only one has that name, too
                raise UsageError(
                    f"{sorted(both)[0]}: two arguments have this name, and so it cannot say which is meant"
                )
            else:
                found |= value
        instance = found.pop("self", None)
        if named := [name[5:] for name in self.effect.fingerprint or () if name.startswith("self.")]:
            found["self"] = {name: _attribute(instance, name) for name in named}
        return found

    def given(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], operation: Any
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The arguments with the operation among them, where the function has a place for it."""
        if self.parameter is None:
            return args, kwargs
        place = list(self.signature.parameters).index(self.parameter)
        kind = self.signature.parameters[self.parameter].kind
        if (len(args) > place and kind is not kind.KEYWORD_ONLY) or kind is kind.POSITIONAL_ONLY:
            args = (*args, *(each.default for each in list(self.signature.parameters.values())[len(args) : place]))
            return (*args[:place], operation, *args[place:]), kwargs
        return args, {**kwargs, self.parameter: operation}

    def tell(self, tool: str) -> None:
        """Say once, when the tool is registered, which questions have no answer.

        Raises UsageError for a name that is none: operations are told apart by the tool's name.
        """
        if tool.startswith("<"):
            raise UsageError(f"a tool with effects needs a name of its own, not {tool!r}: give it name=")
        if (origin := _origins.setdefault(tool, self.origin)) != self.origin:
            text = (
                f"two tools with effects are called {tool!r}, {origin} and {self.origin}: the ledger takes them for one"
            )
            warnings.warn(text, UnansweredEffect, stacklevel=_levels_to_the_user())
        lines = self.effect.unanswered()
        if self.parameter is None and self.effect.retry == "same_key_safe":
            lines += ("retry='same_key_safe': the function takes no Operation, so it cannot send the key",)
        tell_unanswered(tool, lines)


def tell_unanswered(tool: str, lines: tuple[str, ...]) -> None:
    """Say once in a process what a declaration leaves open."""
    if lines and (tool, lines) not in _told:
        _told.add((tool, lines))
        text = "".join(f"\n  {line}" for line in lines)
        words = f"tool {tool!r} has effects, and does not say everything:{text}"
        warnings.warn(words, UnansweredEffect, stacklevel=_levels_to_the_user())


def _levels_to_the_user() -> int:
    """As a `stacklevel` of whoever called this: the line outside of this package that brought us here."""
    levels, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        levels, frame = levels + 1, frame.f_back
    return levels


def declare(function: Callable[..., Any], effect: Any) -> Declared:
    """Raises UsageError for what is no Effect, and for one that names parameters the function does not have."""
    from inspect import isasyncgenfunction, isgeneratorfunction, signature

    from ..ledger.definition import Effect

    if not isinstance(effect, Effect):
        raise UsageError(f"effect: {effect!r:.60} is neither 'none' nor 'undeclared' nor an Effect")
    try:
        whole = signature(function)
    except (TypeError, ValueError) as problem:
        raise UsageError(f"a tool with effects needs a signature: {problem}") from problem
    named = [name for name, each in whole.parameters.items() if _is_operation(each.annotation)]
    if len(named) > 1:
        raise UsageError(f"only one parameter can be the operation, not {', '.join(named)}")
    inner = getattr(function, "func", function)  # of a partial
    if isgeneratorfunction(inner) or isasyncgenfunction(inner):
        raise UsageError("a generator function runs nothing by being called: a tool with effects is a plain function")
    origin = f"{getattr(inner, '__module__', '')}.{getattr(inner, '__qualname__', type(inner).__name__)}"
    made = Declared(effect, whole, named[0] if named else None, origin)
    open_ended = any(each.kind is each.VAR_KEYWORD for each in whole.parameters.values())
    if effect.fingerprint is None and next(iter(whole.parameters), None) == "self":
        raise UsageError(
            "a method with effects needs fingerprint=: another instance means another effect ('self.name')"
        )
    for name in (*(effect.fingerprint or ()), *effect.redact):
        if name.partition(".")[0] not in made.shown.parameters and not open_ended:
            raise UsageError(f"effect: the function has no parameter {name!r}")
    return made


def _attribute(instance: object, name: str) -> Any:
    try:
        return getattr(instance, name)
    except AttributeError as problem:
        raise UsageError(f"fingerprint: {problem}") from problem


def _is_operation(annotation: Any) -> bool:
    """`Operation`, or `Operation | None`, as it is or as text."""
    if isinstance(annotation, str):
        words = annotation.removeprefix("typing.").removeprefix("Optional[").rstrip("]").split("|")
        return any(each.strip("'\" ").rpartition(".")[2] == "Operation" for each in words)
    union = type(annotation).__name__ in ("UnionType", "_UnionGenericAlias")
    return any(
        getattr(each, "__module__", "") == "deadstop.operation" and getattr(each, "__name__", "") == "Operation"
        for each in (annotation.__args__ if union else (annotation,))
    )
