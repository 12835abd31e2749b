# SPDX-License-Identifier: Apache-2.0
"""What the guard lets pass: `GuardLimits`."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..errors import InvalidLimit

__all__ = ["DEFAULT", "GuardLimits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardLimits:
    """The largest results that pass; what is exactly at a limit passes.

    Raises InvalidLimit for anything but a whole number above zero.
    docs/guard.md has the measured cost of an operation that is just under each default.
    """

    int_bits: int = 4_000_000
    """Bits of one integer: powers, shifts, products, factorials."""
    working_bits: int = 4_000_000
    """Bits of the two products that `math.comb` divides; its result may be far smaller than they are."""
    sequence_bytes: int = 100_000_000
    """Bytes of the elements of one str, bytes, list, tuple or set (8 for a slot of a list), not of what they hold."""
    iterations: int = 50_000_000
    """Elements that one call takes from an iterable, as in `sum(range(n))`."""
    format_width: int = 10_000_000
    """Characters that the padding or the precision of one format asks for."""
    decompressed_bytes: int = 100_000_000
    """Bytes that one decompression gives."""
    decompress_ratio: int = 100
    """Times that an output may be larger than its input, once it is larger than 10 MB."""
    regex_steps: int = 10_000_000
    """Steps of a pattern that can need 2**n of them for n characters."""
    decimal_digits: int = 5_000
    """Digits of an exponential, a logarithm or a power of a Decimal; a square root may have twenty times as many."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if type(value) is not int or value <= 0:
                shown = repr(value) if type(value) is not int or value.bit_length() < 64 else "a huge negative number"
                raise InvalidLimit(f"{each.name}={shown} is not allowed: give a whole number above zero")


DEFAULT = GuardLimits()
