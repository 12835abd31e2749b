# SPDX-License-Identifier: Apache-2.0
"""What `**`, `<<`, `*` and `%` would make of two values: each function raises GuardError if it is too large."""

from __future__ import annotations

import sys
from collections import deque

from .refusal import GuardError, number, refusal, short
from .sizes import power_bits, product_bits
from .widths import percent_width

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from .limits import GuardLimits

__all__ = [
    "as_int",
    "check_mod",
    "check_mul",
    "check_pow",
    "check_precision",
    "check_repetition",
    "check_shift",
    "check_text",
    "refuse",
    "slots",
    "unit_of",
]

POWER = "pow(base, exponent, modulus) if a remainder is wanted, a float or math.log2 if the size is"
SHIFT = "pow(2, n, modulus) if a remainder is wanted; or keep the exponent instead of the number"
PRODUCT = "take the remainder in every step (a * b % m), or add logarithms (math.log2)"
REPETITION = "a generator or itertools.repeat, which hold one element at a time"
WIDTH = "a width that fits the text"

_SEQUENCES: tuple[Any, ...] = (str, bytes, bytearray, list, tuple)
_INT_NAMES = "__pow__ __rpow__ __mul__ __rmul__ __lshift__ __rlshift__".split()
_SEQUENCE_NAMES = ("__mul__", "__rmul__", "__len__")
_HERE = __name__.rpartition(".")[0]


def refuse(kind: str, what: str, estimate: float, limit: float, unit: str, alternative: str) -> NoReturn:
    """Raise GuardError for the nearest line that is not the guard's own."""
    frame = sys._getframe(1)
    while frame.f_back and str(frame.f_globals.get("__name__")).startswith(_HERE):
        frame = frame.f_back
    raise GuardError(refusal(kind, what, estimate, limit, unit, alternative, frame.f_lineno))


def as_int(value: Any) -> int | None:
    """`value` if it is an int whose arithmetic is that of int: a bool and most subclasses too; otherwise None."""
    kind = type(value)
    if kind is int or kind is bool:
        return int(value)
    if issubclass(kind, int) and all(getattr(kind, name) is getattr(int, name) for name in _INT_NAMES):
        return int.__index__(value)
    return None


def check_pow(base: Any, exponent: Any, limits: GuardLimits) -> None:
    a, b = as_int(base), as_int(exponent)
    if b is None or type(base) is float:
        _check_decimal(base, exponent, limits)
        return
    parts = [a]
    if a is None:
        if type(base).__module__ != "fractions":
            _check_decimal(base, exponent, limits)
            return
        parts, b = [base.numerator, base.denominator], abs(b)
    for part in parts:
        bits = power_bits(part or 0, b, limits.int_bits)
        if bits is not None:
            what = f"{short(part)} ** {short(b)} would have"
            refuse("power", what, bits, limits.int_bits, "bits", POWER)


def check_shift(value: Any, count: Any, limits: GuardLimits) -> None:
    a, b = as_int(value), as_int(count)
    if a and b is not None and b >= 0 and a.bit_length() + b > limits.int_bits:
        what = f"{short(a)} << {short(b)} would have"
        refuse("shift", what, a.bit_length() + b, limits.int_bits, "bits", SHIFT)


def check_mul(left: Any, right: Any, limits: GuardLimits) -> None:
    a, b = as_int(left), as_int(right)
    if a is not None and b is not None:
        bits = product_bits(a, b, limits.int_bits)
        if bits is not None:
            refuse("product", f"{short(a)} * {short(b)} would have", bits, limits.int_bits, "bits", PRODUCT)
    elif a is None and b is not None:
        check_repetition(left, b, limits)
    elif a is not None:
        check_repetition(right, a, limits)


def check_mod(template: Any, values: Any, limits: GuardLimits) -> None:
    if issubclass(type(template), (str, bytes, bytearray)) and type(template).__mod__ in _TEMPLATES:
        check_text("%", percent_width(template, values), limits)


_TEMPLATES = (str.__mod__, bytes.__mod__, bytearray.__mod__)


def check_text(what: str, width: int, limits: GuardLimits) -> None:
    """Refuse a padding or precision over the limit."""
    if width > limits.format_width:
        refuse("width", f"formatting with {what} would give", width, limits.format_width, "characters", WIDTH)


def slots(count: float, what: str, limits: GuardLimits, alternative: str, *, unit: int = 8) -> None:
    """Refuse a container of `count` elements of `unit` bytes if it is over the limit."""
    if count * unit > limits.sequence_bytes:
        refuse("materialisation", f"{what} would take", count * unit, limits.sequence_bytes, "bytes", alternative)


def unit_of(text: Any) -> int:
    """Bytes of one element of a str, bytes, list or tuple; of a str the widest of its characters decides."""
    if isinstance(text, str):
        if text.isascii():
            return 1
        widest = ord(max(str(text)))
        return 1 if widest < 256 else 2 if widest < 65536 else 4
    return 1 if isinstance(text, bytes | bytearray | memoryview) else 8


def check_repetition(sequence: Any, times: int, limits: GuardLimits, *, own: bool = False) -> None:
    """Refuse `sequence * times`. `own`: the method of the built-in type is what is called, whatever a subclass has."""
    kind = type(sequence)
    base = next((each for each in _SEQUENCES if issubclass(kind, each)), None)
    if base is None:
        if kind is deque and sequence.maxlen is None:
            _repetition(sequence, len(sequence), times, 8, limits)
        elif kind.__module__ == "array" and kind.__name__ == "array":
            _repetition(sequence, len(sequence), times, sequence.itemsize, limits)
        return
    if kind is not base and not own and any(getattr(kind, name) is not getattr(base, name) for name in _SEQUENCE_NAMES):
        return
    count = base.__len__(sequence)
    if count * times * (4 if base is str else 8) > limits.sequence_bytes:
        _repetition(sequence, count, times, unit_of(sequence), limits)


def _repetition(sequence: Any, count: int, times: int, unit: int, limits: GuardLimits) -> None:
    if times > 1 and count * times * unit > limits.sequence_bytes:
        name = type(sequence).__name__ if type(sequence) in (*_SEQUENCES, deque) else "sequence"
        what = f"a {name} of length {number(count)} repeated {number(times)} times would take"
        refuse("repetition", what, count * times * unit, limits.sequence_bytes, "bytes", REPETITION)


def _check_decimal(left: Any, right: Any, limits: GuardLimits) -> None:
    if "decimal" in (type(left).__module__, type(right).__module__) and type(right) is not int:
        check_precision("this power of a Decimal", limits.decimal_digits)


def check_precision(what: str, limit: int, context: Any = None) -> None:
    """Refuse what is computed to all the digits of a decimal context with many. It may need fewer: conservative."""
    if context is None and "decimal" in sys.modules:
        context = sys.modules["decimal"].getcontext()
    if context is not None and context.prec > limit:
        text = f"{what} would be computed to"
        refuse("precision", text, context.prec, limit, "digits", "a smaller decimal.getcontext().prec")
