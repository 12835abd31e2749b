# SPDX-License-Identifier: Apache-2.0
"""One rule for each function that is watched; `register()` puts them into the tables of `watched`."""

from __future__ import annotations

import array
import operator
import re
import zlib
from _random import Random
from collections import deque

from . import operations as ops
from .iterables import itertools_length, note
from .operations import as_int, refuse, slots, unit_of
from .products import GAMMA, PRODUCT_RULE, REDUCE_RULE, refuse_bits
from .refusal import short
from .searches import pattern_searches, searches
from .sizes import (
    combination_bits,
    combination_work,
    factorial_bits,
    permutation_bits,
)
from .unpacking import object_unpacks, unpacks, zip_all, zip_member
from .watched import (
    METHODS,
    MODULES,
    PENDING,
    Rule,
    apply,
    check_collected,
    check_length,
    check_taken,
    check_until,
    refresh,
)
from .widths import format_width, spec_width

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .runtime import Checks

__all__ = ["register"]

_STREAM = "smaller pieces, one at a time"


# Integers.


def _pow(checks: Checks, base: Any, exp: Any, mod: Any = None) -> None:
    if mod is None:
        ops.check_pow(base, exp, checks.limits)


def _reversed_pow(checks: Checks, exp: Any, base: Any, mod: Any = None) -> None:
    _pow(checks, base, exp, mod)


def _mul(checks: Checks, a: Any, b: Any) -> None:
    ops.check_mul(a, b, checks.limits)


def _own(method: Callable[..., None]) -> Rule:
    """For a method of int itself, which counts the same whatever a subclass has in its place."""

    def check(checks: Checks, a: Any, *args: Any) -> None:
        method(checks, int.__index__(a), *args)

    return Rule(check)


def _own_repetition(checks: Checks, a: Any, b: Any) -> None:
    if isinstance(a, int):
        ops.check_mul(int.__index__(a), b, checks.limits)
    elif as_int(b) is not None:
        ops.check_repetition(a, int(b), checks.limits, own=True)


def _shift(checks: Checks, a: Any, b: Any) -> None:
    ops.check_shift(a, b, checks.limits)


def _reversed_shift(checks: Checks, b: Any, a: Any) -> None:
    ops.check_shift(a, b, checks.limits)


def _mod(checks: Checks, a: Any, b: Any) -> None:
    ops.check_mod(a, b, checks.limits)


def _factorial(checks: Checks, n: Any) -> None:
    n = operator.index(n)
    bits = factorial_bits(n, checks.limits.int_bits)
    if bits is not None:
        refuse_bits(checks, "factorial", f"{short(n)}!", bits, GAMMA)


def _perm(checks: Checks, n: Any, k: Any = None) -> None:
    if k is None:
        _factorial(checks, n)
        return
    n, k = operator.index(n), operator.index(k)
    bits = permutation_bits(n, k, checks.limits.int_bits)
    if bits is not None:
        refuse_bits(checks, "permutations", f"perm({short(n)}, {short(k)})", bits, GAMMA)


def _comb(checks: Checks, n: Any, k: Any) -> None:
    n, k = operator.index(n), operator.index(k)
    limits, alternative = checks.limits, "math.lgamma for its logarithm"
    if min(k, n - k) * n.bit_length() * 2 <= min(limits.int_bits, limits.working_bits):
        return
    what = f"comb({short(n)}, {short(k)})"
    refuse_bits(checks, "combinations", what, combination_bits(n, k, limits.int_bits), alternative)
    work = combination_work(n, k)
    if work > limits.working_bits:
        refuse("combinations", f"{what} would divide products of", int(work), limits.working_bits, "bits", alternative)


def _getrandbits(checks: Checks, _self: Any, k: Any) -> None:
    if (as_int(k) or 0) > checks.limits.int_bits:
        refuse_bits(checks, "random", "a random integer", k, "fewer bits, or random bytes in pieces")


# Iterables.


def _collects(name: str, unit: int = 8, *, keys: bool = False) -> Rule:
    def check(checks: Checks, iterable: Any = (), *_rest: Any, **_options: Any) -> None:
        check_collected(checks, f"{name} of it", iterable, unit=unit, keys=keys)

    return Rule(check)


def _takes(name: str) -> Rule:
    def check(checks: Checks, *args: Any, **_options: Any) -> None:
        if args and (len(args) == 1 or name not in ("min", "max")):
            check_taken(checks, name, args[0])

    return Rule(check)


def _any(checks: Checks, iterable: Any) -> None:
    check_until(checks, "any", iterable, stops_at=True)


def _all(checks: Checks, iterable: Any) -> None:
    check_until(checks, "all", iterable, stops_at=False)


def _bytes(checks: Checks, source: Any = b"", *_rest: Any) -> None:
    if as_int(source) is not None:
        check_length(checks, "it", source)
    else:
        check_collected(checks, "it", source, unit=1)


def _deque(checks: Checks, iterable: Any = (), maxlen: Any = None) -> None:
    if maxlen is None:
        check_collected(checks, "a deque of it", iterable)
    else:
        check_taken(checks, "a deque of it", iterable)


def _extend(checks: Checks, _list: Any, iterable: Any) -> None:
    check_collected(checks, "a list with it", iterable)


def _fromkeys(checks: Checks, _dict: Any, iterable: Any, _value: Any = None) -> None:
    check_collected(checks, "a dict of it", iterable, unit=26, keys=True)


def _join(checks: Checks, separator: Any, parts: Any) -> None:
    if type(parts) not in (list, tuple):
        check_collected(checks, "joining it", parts)  # into a list first
        return
    total = sum(map(len, parts)) + len(separator) * (len(parts) - 1)
    if total * 4 > checks.limits.sequence_bytes:
        _amplified(checks, "joining it", total, separator, *{id(each): each for each in parts}.values())


def _replace(checks: Checks, text: Any, old: Any, new: Any, count: Any = -1) -> None:
    more = len(new) - len(old)
    if more <= 0 or (len(text) // max(1, len(old)) + 1) * more * 4 <= checks.limits.sequence_bytes:
        return
    times = text.count(old) if count < 0 else min(count, text.count(old))
    _amplified(checks, "this replace", len(text) + times * more, text, new)


def _amplified(checks: Checks, what: str, total: int, *texts: Any) -> None:
    if total > checks.limits.sequence_bytes or isinstance(texts[0], str):
        slots(total, what, checks.limits, _STREAM, unit=max(map(unit_of, texts)))


def _run_itertools(name: str) -> Callable[..., Any]:
    collects = _collects(name)

    def run(checks: Checks, function: Any, *args: Any, **kwargs: Any) -> Any:
        sources = (
            args if name == "product" else args[:1] or tuple(kwargs[each] for each in ("iterable",) if each in kwargs)
        )
        for each in sources:
            apply(checks, collects, (each,), {})  # each becomes a tuple first
        chosen = kwargs.get("repeat", 1) if name == "product" else args[1] if len(args) > 1 else kwargs.get("r")
        try:
            elements = itertools_length(name, sources, chosen)
        except (TypeError, ValueError, OverflowError):
            elements = None
        made = function(*args, **kwargs)
        note(made, elements)
        return made

    return run


def _applies(position: int) -> Rule:
    """For what calls one of its arguments again and again: that one is checked too."""

    def run(checks: Checks, function: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) > position:
            args = (*args[:position], checks.fn(args[position]), *args[position + 1 :])
        return function(*args, **kwargs)

    return Rule(_nothing, run)


def _nothing(_checks: Checks, *_args: Any, **_kwargs: Any) -> None:
    """For a rule that is all in its `run`."""


# Text.


def _justify(checks: Checks, text: Any, width: Any, *_fill: Any) -> None:
    if (as_int(width) or 0) > len(text):
        ops.check_text("padding", width, checks.limits)


def _expandtabs(checks: Checks, text: Any, tabsize: Any = 8) -> None:
    tabs = text.count("\t" if isinstance(text, str) else b"\t")
    if tabs * (as_int(tabsize) or 0) > checks.limits.format_width:
        ops.check_text("expanded tabs", tabs * tabsize, checks.limits)


def _format(checks: Checks, value: Any, spec: Any = "") -> None:
    ops.check_text("format()", spec_width(value, spec), checks.limits)


def _str_format(checks: Checks, template: Any, *args: Any, **kwargs: Any) -> None:
    if ":" in template:
        ops.check_text("str.format", format_width(template, args, kwargs), checks.limits)


def _format_map(checks: Checks, template: Any, mapping: Any) -> None:
    if type(mapping) is dict:
        ops.check_text("str.format_map", format_width(template, (), mapping), checks.limits)


# Random, bytes, decimal.


def _sample(checks: Checks, _self: Any, population: Any, k: Any, **_options: Any) -> None:
    if type(population) is range or (as_int(k) or 0) <= len(population):
        check_length(checks, "a sample", k, 8)


def _choices(checks: Checks, _self: Any, _population: Any, *_weights: Any, k: Any = 1, **_options: Any) -> None:
    check_length(checks, "a choice", k, 8)


def _sized_by(position: int, what: str) -> Rule:
    def check(checks: Checks, *args: Any, **kwargs: Any) -> None:
        if len(args) > position:
            check_length(checks, what, args[position])

    return Rule(check)


def _to_bytes(checks: Checks, _number: Any, length: Any = 1, *_rest: Any, **_options: Any) -> None:
    check_length(checks, "it", length)


def _decimal(what: str, *, times: int = 1) -> Rule:
    def check(checks: Checks, *args: Any, context: Any = None) -> None:
        given = next((each for each in args[1:] if hasattr(each, "prec")), context)
        if not (what == "power" and type(args[1]) is int):  # which costs a few multiplications
            ops.check_precision(f"this {what} of a Decimal", checks.limits.decimal_digits * times, given)

    return Rule(check)


# What is watched.


def _import(_checks: Checks, function: Any, *args: Any, **kwargs: Any) -> Any:
    module = function(*args, **kwargs)
    refresh()
    return module


def register() -> None:
    """Fill the tables."""
    PENDING.update(_functions())
    MODULES.update(PENDING)
    for names, kinds, rule in _methods():
        for name in names.split():
            METHODS.setdefault(name, []).append((kinds, rule))
    for name in ("match", "search", "fullmatch", "findall", "finditer", "split", "sub", "subn"):
        METHODS.setdefault(name, []).append(((re.Pattern,), pattern_searches(name)))


def _functions() -> dict[str, dict[str, Rule]]:
    by_search = {name: searches(name) for name in "match search fullmatch findall finditer split sub subn".split()}
    means = "mean fmean geometric_mean harmonic_mean median median_low median_high mode multimode".split()
    spreads = "stdev variance pstdev pvariance quantiles".split()
    power, product, shift, template = Rule(_pow), Rule(_mul), Rule(_shift), Rule(_mod)
    return {
        "builtins": {name: _collects(f"a {name}") for name in ("list", "tuple")}
        | {name: _collects(f"a {name}", 26, keys=True) for name in ("set", "frozenset")}
        | {name: _takes(name) for name in ("sum", "min", "max")}
        | {
            "sorted": _collects("a sorted list"),
            "any": Rule(_any),
            "all": Rule(_all),
            "bytes": Rule(_bytes),
            "bytearray": Rule(_bytes),
        }
        | {"map": _applies(0), "pow": power, "format": Rule(_format), "__import__": Rule(_nothing, _import)},
        "math": {"factorial": Rule(_factorial), "perm": Rule(_perm), "comb": Rule(_comb), "prod": PRODUCT_RULE}
        | {"fsum": _takes("fsum")},
        "operator": {"pow": power, "ipow": power, "mul": product, "imul": product}
        | {"lshift": shift, "ilshift": shift, "mod": template, "imod": template},
        "functools": {"reduce": REDUCE_RULE},
        "itertools": {name: Rule(_nothing, _run_itertools(name)) for name in _CHOOSERS}
        | {"accumulate": _applies(1), "starmap": _applies(0)},
        "collections": {"deque": Rule(_deque), "Counter": _takes("Counter")},
        "statistics": {name: _takes(name) for name in means + spreads},
        "random": {"Random.sample": Rule(_sample), "Random.choices": Rule(_choices)}
        | {"Random.randbytes": _sized_by(1, "random bytes")},
        "os": {"urandom": _sized_by(0, "random bytes")},
        "importlib": {"import_module": Rule(_nothing, _import)},
        "decimal": {f"Decimal.{name}": _decimal("logarithm") for name in ("ln", "log10")}
        | {"Decimal.exp": _decimal("exponential"), "Decimal.__pow__": _decimal("power")}
        | {"Decimal.sqrt": _decimal("square root", times=20)},
        "re": by_search,
        "zlib": {"decompress": unpacks("zlib")},
        "gzip": {"decompress": unpacks("gzip")},
        "bz2": {"decompress": unpacks("bz2")},
        "lzma": {"decompress": unpacks("lzma")},
        "zipfile": {
            "ZipFile.read": Rule(zip_member),
            "ZipFile.extract": Rule(zip_member),
        }
        | {"ZipFile.extractall": Rule(zip_all)},
    }


_CHOOSERS = ("cycle", "product", "permutations", "combinations", "combinations_with_replacement")


def _methods() -> list[tuple[str, tuple[type, ...], Rule]]:
    text = (str, bytes, bytearray)
    repeated = (int, *text, list, tuple, deque, array.array)
    return [
        ("ljust rjust center zfill", text, Rule(_justify)),
        ("expandtabs", text, Rule(_expandtabs)),
        ("join", text, Rule(_join)),
        ("replace", text, Rule(_replace)),
        ("format", (str,), Rule(_str_format)),
        ("format_map", (str,), Rule(_format_map)),
        ("__format__", (str, int, float), Rule(_format)),
        ("__mod__", text, Rule(_mod)),
        ("__pow__", (int,), _own(_pow)),
        ("__rpow__", (int,), _own(_reversed_pow)),
        ("__lshift__", (int,), _own(_shift)),
        ("__rlshift__", (int,), _own(_reversed_shift)),
        ("__mul__ __rmul__ __imul__", repeated, Rule(_own_repetition)),
        ("to_bytes", (int,), Rule(_to_bytes)),
        ("extend", (list, deque), Rule(_extend)),
        ("getrandbits", (Random,), Rule(_getrandbits)),
        ("decompress", (type(zlib.decompressobj()),), Rule(object_unpacks)),
        ("fromkeys", (dict,), Rule(_fromkeys)),
    ]
