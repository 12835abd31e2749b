# SPDX-License-Identifier: Apache-2.0
"""Products of many integers: `math.prod`, and `functools.reduce` with a multiplication."""

from __future__ import annotations

import functools
import itertools
import operator
from types import FunctionType

from .operations import PRODUCT, as_int, check_repetition, refuse
from .sizes import range_product_bits, sequence_product_bits
from .watched import Rule, apply, check_taken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from .runtime import Checks

__all__ = ["GAMMA", "PRODUCT_RULE", "REDUCE_RULE", "refuse_bits"]

GAMMA = "math.lgamma(n + 1) for its logarithm, or multiply modulo something"


def refuse_bits(checks: Checks, kind: str, what: str, bits: float | None, alternative: str) -> None:
    """Refuse an integer of so many bits; None is for one that is not too large."""
    if bits is not None:
        refuse(kind, f"{what} would have", bits, checks.limits.int_bits, "bits", alternative)


def _product_of(checks: Checks, items: Any, start: Any = 1) -> None:
    """Of a list, a tuple or a range; those are the ones that can be read twice."""
    limit, first = checks.limits.int_bits, as_int(start)
    if not first:
        return
    if type(items) is range:  # beside it the start can only add to the size
        refuse_bits(checks, "product", "this product", range_product_bits(items, limit), GAMMA)
    elif type(items) in (list, tuple):
        numbers = [first]
        for each in items:
            value = as_int(each)
            if value is None:
                _repetition_of(checks, items, first)
                return
            numbers.append(value)
        refuse_bits(checks, "product", "this product", sequence_product_bits(numbers, limit), PRODUCT)


def _repetition_of(checks: Checks, items: Sequence[Any], times: int) -> None:
    """With one sequence among the integers the product is a repetition, in as many steps."""
    sequence: Any = None
    for each in items:
        value = as_int(each)
        if value is not None:
            times *= value
        elif sequence is None:
            sequence = each
        else:
            return
        if times.bit_length() > 64:
            times = 1 << 64 if times > 0 else -1 << 64
        if sequence is not None:
            times = max(times, 0)
            check_repetition(sequence, times, checks.limits)


def _read(checks: Checks, items: Iterator[Any], start: Any) -> Iterable[Any]:
    """All of an iterator, read only as long as its ints have a product below the limit."""
    taken: list[Any] = []
    first = as_int(start) or 0
    bits = first.bit_length()
    for each in items:
        taken.append(each)
        value = as_int(each)
        if not value:  # a product of another kind, or zero: no more can be said
            return itertools.chain(taken, items)
        bits += value.bit_length() - 1
        if bits > checks.limits.int_bits:
            break
    _product_of(checks, taken, first)
    return itertools.chain(taken, items)


def _is_read_once(items: Any) -> bool:
    return type(items) not in (list, tuple, range) and hasattr(type(items), "__iter__")


def _run_prod(checks: Checks, function: Any, *args: Any, **kwargs: Any) -> Any:
    if len(args) == 1 and _is_read_once(args[0]):
        args = (_read(checks, iter(args[0]), kwargs.get("start", 1)),)
    apply(checks, PRODUCT_RULE, args, kwargs)
    return function(*args, **kwargs)


def _reduce(checks: Checks, function: Any, items: Any, *initial: Any) -> None:
    if _multiplies(function):
        _product_of(checks, items, *initial)
    else:
        check_taken(checks, "reduce", items)


def _run_reduce(checks: Checks, reduce: Any, *args: Any, **kwargs: Any) -> Any:
    if len(args) > 1:
        if _multiplies(args[0]) and _is_read_once(args[1]):
            args = (args[0], _read(checks, iter(args[1]), args[2] if len(args) > 2 else 1), *args[2:])
        apply(checks, REDUCE_RULE, args, kwargs)
        args = (checks.fn(args[0]), *args[1:])  # each step is checked too
    return reduce(*args, **kwargs)


def _multiplies(function: Any) -> bool:
    if any(function is each for each in (operator.mul, operator.imul, int.__mul__)):
        return True
    if type(function) is not FunctionType or function.__code__.co_argcount != 2:
        return False
    return function.__code__.co_code in _products()


@functools.cache
def _products() -> tuple[bytes, ...]:
    """The code of `lambda a, b: a * b`, guarded and plain, in both orders."""
    from .limits import DEFAULT
    from .rewrite import compile_source

    texts = ("lambda a, b: a * b", "lambda a, b: b * a")
    guarded = [compile_source(text, "", "eval", DEFAULT, 0) for text in texts]
    plain = [compile(text, "", "eval", dont_inherit=True) for text in texts]
    return tuple(next(each for each in code.co_consts if hasattr(each, "co_code")).co_code for code in guarded + plain)


PRODUCT_RULE = Rule(_product_of, _run_prod)
REDUCE_RULE = Rule(_reduce, _run_reduce)
