# SPDX-License-Identifier: Apache-2.0
"""A function that declares effects: which of its arguments mean what. Nothing of the ledger is loaded by this file."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import UsageError

if TYPE_CHECKING:
    import inspect

    from ..ledger.definition import Effect

__all__ = ["Declared", "UnansweredEffect", "declare"]

_told: set[tuple[str, tuple[str, ...]]] = set()


class UnansweredEffect(UserWarning):
    """A tool with effects does not say how a lost answer can be settled: a person will have to."""


class Declared:
    """The effect of a function, and its signature with and without the operation that deadstop fills in."""

    __slots__ = ("effect", "parameter", "shown", "signature")

    def __init__(self, effect: Effect, signature: inspect.Signature, parameter: str | None) -> None:
        self.effect, self.signature, self.parameter = effect, signature, parameter
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
            if self.shown.parameters[name].kind is self.shown.parameters[name].VAR_KEYWORD:
                found |= value
            else:
                found[name] = value
        found.pop("self", None)
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
            return (*args[:place], operation, *args[place:]), kwargs
        return args, {**kwargs, self.parameter: operation}

    def tell(self, tool: str) -> None:
        """Say once, when the tool is registered, which questions have no answer."""
        lines = self.effect.unanswered()
        if lines and (tool, lines) not in _told:
            _told.add((tool, lines))
            text = "".join(f"\n  {line}" for line in lines)
            warnings.warn(
                f"tool {tool!r} has effects, and does not say everything:{text}", UnansweredEffect, stacklevel=5
            )


def declare(function: Callable[..., Any], effect: Any) -> Declared:
    """Raises UsageError for what is no Effect, and for one that names parameters the function does not have."""
    from inspect import signature

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
    made = Declared(effect, whole, named[0] if named else None)
    open_ended = any(each.kind is each.VAR_KEYWORD for each in whole.parameters.values())
    for name in (*(effect.fingerprint or ()), *effect.redact):
        if name.partition(".")[0] not in made.shown.parameters and not open_ended:
            raise UsageError(f"effect: the function has no parameter {name!r}")
    return made


def _is_operation(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return annotation.strip("'\" ").rpartition(".")[2] == "Operation"
    return getattr(annotation, "__module__", "") == "deadstop.operation" and annotation.__name__ == "Operation"
