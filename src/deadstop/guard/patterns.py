# SPDX-License-Identifier: Apache-2.0
"""Regular expressions that can need 2**n steps for n characters.

The rule. A pattern is hopeless where a repeat without an upper end

* has a body in which everything that must match is itself a repeat without an upper end of things that can be the same
  character, as in `(a+)+`, `(\\w+\\s?)*`, `(x+x+)+`, `(a*b*)*`; or
* has a body of alternatives of which two can match the same single character, as in `(a|a)*`, `(\\w|\\d)+`; or of which
  one is a body of the first sort, as in `(a+|b)*`;

and something that can fail comes after it. Possessive and atomic parts are never tried again and do not count.
Nothing else is judged: patterns that need n**2 or n**3 steps pass, and so do overlaps of longer alternatives.
"""

from __future__ import annotations

from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

__all__ = ["is_hopeless"]

_Item = tuple["Any", "Any"]
_SAMPLE = [chr(code) for code in range(256)] + ["\u0416", "\u4e2d", "\u0663"]
_MANY = 20  # from here on an upper end makes no difference
_ZERO_WIDTH = (op.AT, op.ASSERT, op.ASSERT_NOT)
_remembered: dict[tuple[Any, int, bool], bool] = {}


def is_hopeless(pattern: str | bytes, flags: int = 0, *, whole: bool = False) -> bool:
    """Whether the rule above holds. `whole`: the end of the text must match too, as in re.fullmatch."""
    key = (pattern, flags, whole)
    if key not in _remembered:
        if len(_remembered) > 500:
            _remembered.clear()
        try:
            tree = parser.parse(pattern, flags)
            _remembered[key] = _sequence_is_hopeless(list(tree), whole, tree.state.flags)
        except (parser.error, RecursionError, OverflowError, ValueError, TypeError):
            _remembered[key] = False  # re itself says what is wrong with it
    return _remembered[key]


def _sequence_is_hopeless(items: Sequence[_Item], may_fail_after: bool, flags: int) -> bool:
    for index, (code, value) in enumerate(items):
        fails = may_fail_after or any(_can_fail(each) for each in items[index + 1 :])
        if code in (op.MAX_REPEAT, op.MIN_REPEAT):
            _low, high, body = value
            if fails and _many(high) and _is_ambiguous(list(body), flags):
                return True
            if _sequence_is_hopeless(list(body), fails, flags):
                return True
        elif code is op.SUBPATTERN:
            if _sequence_is_hopeless(list(value[3]), fails, flags):
                return True
        elif code is op.BRANCH:
            if any(_sequence_is_hopeless(list(each), fails, flags) for each in value[1]):
                return True
        elif code in (op.ASSERT, op.ASSERT_NOT) and _sequence_is_hopeless(list(value[1]), False, flags):
            return True
    return False


def _is_ambiguous(items: list[_Item], flags: int) -> bool:
    """Whether a run of characters can be cut into several of these bodies in more than one way."""
    items = _opened(items)
    if len(items) == 1 and items[0][0] is op.BRANCH:
        alternatives = [_opened(list(each)) for each in items[0][1][1]]
        if any(_is_ambiguous(each, flags) for each in alternatives):
            return True
        single = [_characters(each[0], flags) for each in alternatives if len(each) == 1]
        return any(one & other for index, one in enumerate(single) for other in single[index + 1 :])
    if any(code is op.BRANCH and _has_twins(value[1]) for code, value in items):
        return True
    needed = [each for each in items if not _is_nullable(each)]
    repeats = [each for each in (needed or items) if _is_unbounded(each)]
    if not repeats or (needed and len(repeats) < len(needed)):
        return False
    if len(needed) < 2:
        return True
    sets = [_repeated_characters(each, flags) for each in needed]
    return all(one & other for one in sets for other in sets)


def _has_twins(alternatives: Sequence[Any]) -> bool:
    """Whether two alternatives are the same; the parser leaves two empty ones of (a|a), having taken out the a."""
    texts = [repr(list(each)) for each in alternatives]
    return len(set(texts)) < len(texts)


def _opened(items: list[_Item]) -> list[_Item]:
    """Without the groups around: ((?:a)) is a."""
    while len(items) == 1 and items[0][0] is op.SUBPATTERN:
        items = list(items[0][1][3])
    return [_inner(each) for each in items]


def _inner(item: _Item) -> _Item:
    while item[0] is op.SUBPATTERN and len(item[1][3]) == 1:
        item = item[1][3][0]
    return item


def _many(high: Any) -> bool:
    return bool(high is op.MAXREPEAT or high >= _MANY)


def _is_unbounded(item: _Item) -> bool:
    return item[0] in (op.MAX_REPEAT, op.MIN_REPEAT) and _many(item[1][1]) and item[1][0] != item[1][1]


def _is_nullable(item: _Item) -> bool:
    code, value = item
    if code in _ZERO_WIDTH:
        return True
    if code in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
        return bool(value[0] == 0) or all(_is_nullable(each) for each in value[2])
    if code is op.SUBPATTERN:
        return all(_is_nullable(each) for each in value[3])
    if code is op.BRANCH:
        return any(all(_is_nullable(item) for item in each) for each in value[1])
    return bool(code is op.GROUPREF or code is op.GROUPREF_EXISTS)


def _can_fail(item: _Item) -> bool:
    return item[0] in (*_ZERO_WIDTH, op.GROUPREF) or not _is_nullable(item)


def _repeated_characters(item: _Item, flags: int) -> frozenset[str]:
    body = _opened(list(item[1][2]))
    return _characters(body[0], flags) if len(body) == 1 else frozenset()


def _characters(item: _Item, flags: int) -> frozenset[str]:
    """Those of a sample that a single-character item matches; empty for every other item."""
    code, value = item
    if code is op.LITERAL:
        own = chr(value)
        return frozenset((own.lower(), own.upper()) if flags & parser.SRE_FLAG_IGNORECASE else own)
    if code is op.NOT_LITERAL:
        return frozenset(each for each in _SAMPLE if each != chr(value))
    if code is op.ANY:
        return frozenset(_SAMPLE if flags & parser.SRE_FLAG_DOTALL else (each for each in _SAMPLE if each != "\n"))
    if code is not op.IN:
        return frozenset()
    matched: set[str] = set()
    for kind, detail in value:
        if kind is op.LITERAL:
            matched.add(chr(detail))
        elif kind is op.RANGE:
            matched.update(chr(each) for each in range(detail[0], min(detail[1], detail[0] + 500) + 1))
        elif kind is op.CATEGORY:
            matched.update(each for each in _SAMPLE if _in_category(detail, each))
    negated = value[0][0] is op.NEGATE
    return frozenset(each for each in _SAMPLE if each not in matched) if negated else frozenset(matched)


def _in_category(category: Any, character: str) -> bool:
    name = str(category)
    if name.endswith("DIGIT"):
        found = character.isdigit()
    elif name.endswith("SPACE"):
        found = character.isspace()
    else:
        found = character.isalnum() or character == "_"
    return found != ("NOT_" in name)
