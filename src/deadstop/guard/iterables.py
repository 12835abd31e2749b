# SPDX-License-Identifier: Apache-2.0
"""How many elements an iterable will give, as far as that is certain without taking any of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count, repeat
from math import comb, inf, log2, perm
from operator import length_hint
from types import GeneratorType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

__all__ = ["Length", "itertools_length", "length", "note", "range_length", "steps_of_any_or_all"]

_SIZED = frozenset({list, tuple, str, bytes, bytearray, dict, set, frozenset, type({}.keys()), type({}.values())})
_SIZED |= {type({}.items())}
_EXAMPLES: tuple[Any, ...] = (range(1), range(1 << 70), [], (), "", "\u20ac", b"", bytearray(), {}, set())
_HINTED = frozenset(type(iter(each)) for each in _EXAMPLES) | {
    type(reversed([])),
    type(reversed(range(1))),
    type(reversed(range(1 << 70))),
}

_OF_KEYS = frozenset({dict, set, frozenset, type({}.keys()), type({}.items())})

# The objects of itertools do not tell what they will give; those that give very many are noted when they are made.
# The object itself is kept too, or its id could come to mean another one.
_noted: dict[int, tuple[object, float]] = {}
_NOTED_AT_MOST = 16


@dataclass(frozen=True, slots=True)
class Length:
    """At least `steps` elements are looked at. `given`: each of them is given too. `distinct`: no two are equal."""

    steps: float
    given: bool = True
    distinct: bool = False


def range_length(numbers: range) -> int:
    """len() of a range of any size; len() itself ends at 2**63 - 1."""
    return max(0, (numbers.stop - numbers.start + numbers.step - (1 if numbers.step > 0 else -1)) // numbers.step)


def length(iterable: Any, depth: int = 8) -> Length | None:
    """How many elements `iterable` gives; None where that is not certain. Takes none of them."""
    kind = type(iterable)
    if type(kind) is not type:  # a class of somebody's own, whose metaclass may have an opinion on equality
        return None
    if kind is range:
        return Length(range_length(iterable), distinct=True)
    if kind in _SIZED:
        return Length(len(iterable), distinct=kind in _OF_KEYS)
    if kind in _HINTED:
        return Length(_hint(iterable))
    if depth and kind in (map, zip, filter, enumerate):
        return _wrapped(iterable, kind, depth - 1)
    if depth and kind is GeneratorType:
        return _generated(iterable, depth - 1)
    if kind is repeat:
        return Length(_repeats(iterable))
    if kind is count:
        return Length(inf)
    noted = _noted.get(id(iterable))
    return Length(noted[1]) if noted and noted[0] is iterable else None


def steps_of_any_or_all(iterable: Any, stops_at: bool) -> float | None:
    """How many elements any() (`stops_at` True) or all() takes of a range, also below `map(bool, ...)`."""
    while type(iterable) is map:
        parts: Any = iterable.__reduce__()[1]
        if parts[0] is not bool or len(parts) != 2:
            return None
        iterable = parts[1]
    numbers = _range_of(iterable)
    if numbers is None:
        return None
    if not stops_at:
        return numbers.index(0) + 1 if 0 in numbers else range_length(numbers)
    return min(range_length(numbers), 2)


def itertools_length(name: str, sources: Sequence[Any], chosen: Any) -> float | None:
    """How many elements the product (`chosen`: repeat) or the choices (`chosen`: r) of these will be."""
    sizes = [length(each) for each in sources]
    total: float = 1
    for each in sizes:
        if each is None or each.steps == inf:
            return None
        total *= each.steps
    if name == "cycle":
        return inf if total else 0
    if name == "product":
        return float(total) ** int(chosen) if total < 2 or chosen * log2(total) < 1000 else inf
    return _choices(name, int(total), chosen)


def note(made: object, elements: float | None) -> None:
    """Remember how many elements an object of itertools gives."""
    if elements is not None and elements > 10_000:
        while len(_noted) >= _NOTED_AT_MOST:
            _noted.pop(next(iter(_noted)), None)
        _noted[id(made)] = (made, elements)


def _choices(name: str, n: int, r: Any) -> float:
    chosen = n if r is None else int(r)
    if name == "combinations_with_replacement":
        n += chosen - 1
    if chosen > n or chosen < 0:
        return 0
    fewest = min(chosen, n - chosen) if name != "permutations" else chosen
    if fewest > 60:  # more than 2**60, which is far beyond any limit
        return inf
    return perm(n, chosen) if name == "permutations" else comb(n, chosen)


def _hint(iterable: Any) -> float:
    try:
        return length_hint(iterable)
    except OverflowError:
        return 2.0**63


def _repeats(iterable: Any) -> float:
    try:
        return float(iterable.__length_hint__())
    except TypeError:  # what it says when it was given no number
        return inf


def _wrapped(iterable: Any, kind: type, depth: int) -> Length | None:
    if kind is filter:
        inner = length(iterable.__reduce__()[1][1], depth)
        return inner and Length(inner.steps, given=False)
    if kind is enumerate:
        return length(iterable.__reduce__()[1][0], depth)
    arguments = iterable.__reduce__()[1]
    sources = arguments[1:] if kind is map else arguments
    found = []
    for each in {id(each): each for each in sources}.values():
        inner = length(each, depth)
        if inner is None:
            return None
        shared = sum(each is other for other in sources)  # zip(*[iterator] * 2) takes two at a time
        found.append(Length(inner.steps // shared if inner.steps != inf else inf, inner.given))
    return min(found, key=lambda one: one.steps, default=None)


def _generated(generator: Any, depth: int) -> Length | None:
    """Of a generator expression: its first iterable is walked to the end, whatever its conditions are."""
    if generator.gi_code.co_name != "<genexpr>" or generator.gi_frame is None:
        return None
    first = generator.gi_frame.f_locals.get(".0")
    inner = None if first is None else length(first, depth)
    return inner and Length(inner.steps, given=False)


def _range_of(iterable: Any) -> range | None:
    if type(iterable) is range:
        return iterable
    if type(iterable) is type(iter(range(1))) or type(iterable) is type(iter(range(1 << 70))):
        pickled: Any = iterable.__reduce__()
        inner = pickled[1][0]
        skipped = pickled[2] if len(pickled) > 2 and pickled[2] else 0
        return inner[skipped:] if type(inner) is range else None
    return None
