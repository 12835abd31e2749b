# SPDX-License-Identifier: Apache-2.0
"""How many characters a format asks for: `%`, format(), str.format and f-strings."""

from __future__ import annotations

import re
from _string import formatter_parser  # type: ignore[import-not-found]  # what string.Formatter is made of; importing string costs ten times more

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

__all__ = ["UNKNOWN", "certain_width", "format_width", "percent_width", "spec_width"]

_SPEC = re.compile(r"(?:.?[<>=^])?[-+ ]?z?#?0?(\d*)[_,]?(?:\.(\d+))?([a-zA-Z%]?)", re.DOTALL)
_PERCENT = re.compile(r"%(?:\(([^)]*)\))?[-+ #0]*(\*|\d+)?(?:\.(\*|\d+)?)?[hlL]?(.)", re.DOTALL)
_FLOAT_TYPES = frozenset("eEfFgG%")
_OF_NUMBERS: frozenset[object] = frozenset({int.__format__, float.__format__, complex.__format__})
UNKNOWN = object()
"""Stands for a value that is not known."""
_PLAIN_FIELD = re.compile(r"\w*")


def spec_width(value: Any, spec: str) -> int:
    """The width or precision that `format(value, spec)` pads to; 0 for values that give specs another meaning."""
    if value is UNKNOWN:
        return certain_width(spec)
    of_type: object = type(value).__format__
    if of_type in _OF_NUMBERS or getattr(type(value), "__module__", "") in ("decimal", "fractions"):
        return _standard(spec, number=True, floating=not isinstance(value, int))
    return _standard(spec, number=False) if of_type is str.__format__ else 0


def certain_width(spec: str) -> int:
    """The width in a spec for a value nobody knows yet, where the spec can only be one of the standard kind."""
    return _standard(spec, number=True, floating=False) if spec[-1:].isalpha() else 0


def _standard(spec: str, *, number: bool, floating: bool = False) -> int:
    if len(spec) < 5:  # at most 9999 characters
        return 0
    found = _SPEC.fullmatch(spec)
    if found is None:
        return 0
    width, precision, kind = found.groups()
    # A precision cuts text and pads numbers; an int has one only with a float's type letter.
    counts = precision and number and (kind in _FLOAT_TYPES if kind else floating)
    return max(_count(width), _count(precision) if counts else 0)


def percent_width(template: str | bytes | bytearray, values: Any) -> int:
    """The sum of the widths and precisions of a `%` template; a `*` takes its own from `values` (None: not known)."""
    text = template.decode("latin-1") if isinstance(template, bytes | bytearray) else template
    if "%" not in text:
        return 0
    given: Sequence[Any] = values if isinstance(values, tuple) else (values,)
    position = total = 0
    for _name, width, precision, letter in _PERCENT.findall(text):
        if letter == "%":
            continue
        for part, counts in ((width, True), (precision, letter not in "sracb")):
            if part == "*":
                part, position = _taken(given, position), position + 1
            total += _count(part) if counts else 0
        position += 1
    return total


def format_width(template: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """The sum of the widths of `template.format(*args, **kwargs)`.

    Fields that look into a value count as numbers where the spec has the type letter of one ("{0.name:>{1}d}").
    """
    total = automatic = 0
    for _literal, name, spec, conversion in formatter_parser(template):
        if name is None:
            continue
        if not name:
            name, automatic = str(automatic), automatic + 1
        filled = ""
        for literal, inner, _spec, _conv in formatter_parser(spec or ""):
            filled += literal
            if inner is not None:
                if not inner:
                    inner, automatic = str(automatic), automatic + 1
                filled += _shown(_field(inner, args, kwargs))
        value = "" if conversion else _field(name, args, kwargs)  # one that is converted is text by then
        total += spec_width(value, filled)
    return total


def _field(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if not _PLAIN_FIELD.fullmatch(name):
        return UNKNOWN
    if name.isdecimal():
        return args[int(name)] if int(name) < len(args) else UNKNOWN
    return kwargs.get(name, UNKNOWN)


def _shown(value: Any) -> str:
    """How a nested field reads: only plain values, whose text costs nothing and runs no code of the user."""
    if type(value) is str and len(value) < 100:
        return value
    return str(value) if type(value) is int and value.bit_length() < 200 else ""


def _taken(values: Sequence[Any], position: int) -> str:
    return _shown(abs(values[position])) if position < len(values) and type(values[position]) is int else ""


def _count(digits: str) -> int:
    if not digits or not digits.isdecimal():
        return 0
    return int(digits) if len(digits) < 20 else 10**20
