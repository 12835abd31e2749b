# SPDX-License-Identifier: Apache-2.0
"""How many bits an integer would have, found without computing it.

Every function here answers None for "at most `limit` bits" and otherwise the number of bits. The answer is exact:
a logarithm with a bound on its error decides, and where the limit lies within that error the integer itself is
computed, which is cheap because it is then about as large as the limit.
"""

from __future__ import annotations

from math import comb, factorial, floor, inf, lgamma, log, log2, perm, prod

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["combination_bits", "factorial_bits", "permutation_bits", "power_bits", "product_bits", "range_product_bits"]

_LOG_2 = log(2)
_EPSILON = 2.0**-50  # of log2 and lgamma together: both are within a few units of 2**-53
_HUGE = 1 << 900  # beyond it a float cannot hold the number


def power_bits(base: int, exponent: int, limit: int) -> float | None:
    """Of base ** exponent. A negative exponent gives a float and is never too large."""
    if exponent < 2 or -2 < base < 2:
        return _over(int.bit_length(base), limit) if exponent == 1 else None
    if exponent >= _HUGE:
        return inf
    magnitude = abs(base)
    if magnitude & (magnitude - 1) == 0:
        return _over((magnitude.bit_length() - 1) * exponent + 1, limit)
    logarithm = exponent * log2(magnitude)
    return _settle(logarithm, logarithm * _EPSILON, limit, lambda: magnitude**exponent)


def product_bits(a: int, b: int, limit: int) -> float | None:
    """Of a * b."""
    if not a or not b:
        return None
    high = int.bit_length(a) + int.bit_length(b)
    if high == limit + 1:  # one bit decides
        return _over((int(a) * int(b)).bit_length(), limit)
    return None if high <= limit else high - 1


def sequence_product_bits(numbers: Sequence[int], limit: int) -> float | None:
    """Of the product of positive or negative integers; of those before the first zero, which are multiplied first."""
    total = 0.0
    count = 0
    for each in numbers:
        if not each:
            break
        total += log2(abs(each))
        count += 1
        if total > limit + 64:  # far enough: no rounding brings it back
            return floor(total) + 1
    return _settle(total, (total + 1) * (count + 1) * _EPSILON, limit, lambda: prod(numbers[:count]))


def range_product_bits(numbers: range, limit: int) -> float | None:
    """Of the product of a range."""
    if 0 in numbers:
        numbers = numbers[: numbers.index(0)]
    if not numbers:
        return None
    low, high = sorted((abs(numbers[0]), abs(numbers[-1])))
    low = low if (numbers[0] < 0) == (numbers[-1] < 0) else 1  # one that steps over zero comes near it
    count = 1 + (numbers[-1] - numbers[0]) // numbers.step
    if abs(numbers.step) == 1:
        return permutation_bits(high, count, limit)
    if count * high.bit_length() <= limit:
        return None
    step = abs(numbers.step)
    if high < _HUGE and (numbers[0] < 0) == (
        numbers[-1] < 0
    ):  # step ** count * gamma(low/step + count) / gamma(low/step)
        parts = (count * log2(step), lgamma(low / step + count) / _LOG_2, lgamma(low / step) / _LOG_2)
        logarithm = parts[0] + parts[1] - parts[2]
        if logarithm - 8 * _EPSILON * (parts[0] + abs(parts[1]) + abs(parts[2])) > limit:
            return floor(logarithm) + 1
    if count * (low.bit_length() - 1) > limit:
        return count * (low.bit_length() - 1)
    return sequence_product_bits(numbers, limit)


def factorial_bits(n: int, limit: int) -> float | None:
    """Of n!."""
    if n < 2:
        return None
    if n >= _HUGE:
        return inf
    logarithm = lgamma(n + 1) / _LOG_2
    return _settle(logarithm, logarithm * _EPSILON + 1e-9, limit, lambda: factorial(n))


def permutation_bits(n: int, k: int, limit: int) -> float | None:
    """Of n! / (n - k)!."""
    if k < 1 or k > n:
        return None
    if k >= _HUGE:
        return inf
    low, high = k * log2(n - k + 1), k * log2(n)
    if high * (1 + _EPSILON) < limit:
        return None
    if low * (1 - _EPSILON) > limit:
        return floor((low + high) / 2) + 1
    logarithm, error = (low + high) / 2, (high - low) / 2 + high * _EPSILON
    if n < _HUGE:
        whole = lgamma(n + 1)
        other_error = 2 * whole / _LOG_2 * _EPSILON + 1e-9
        if other_error < error:  # where k is small beside n, the bounds above are nearer than a difference of these
            logarithm, error = (whole - lgamma(n - k + 1)) / _LOG_2, other_error
    return _settle(logarithm, error, limit, lambda: perm(n, k))


def combination_bits(n: int, k: int, limit: int) -> float | None:
    """Of n! / (k! (n - k)!)."""
    k = min(k, n - k)
    if k < 1:
        return None
    if k >= _HUGE:
        return inf
    high = k * log2(n)
    if high + 1 < limit:
        return None
    chosen = lgamma(k + 1) / _LOG_2
    low = k * log2(n - k + 1)
    logarithm, error = (low + high) / 2 - chosen, (high - low) / 2 + (high + chosen) * _EPSILON + 1e-9
    if n < _HUGE:
        whole = lgamma(n + 1) / _LOG_2
        other_error = 2 * whole * _EPSILON + 1e-9
        if other_error < error:
            logarithm, error = whole - chosen - lgamma(n - k + 1) / _LOG_2, other_error
    return _settle(logarithm, error, limit, lambda: comb(n, k))


def combination_work(n: int, k: int) -> float:
    """Bits of the numerator and the denominator that `math.comb` works with."""
    k = min(k, n - k)
    if k < 1 or n >= _HUGE:
        return 0
    return min(k * log2(n), (lgamma(n + 1) - lgamma(n - k + 1)) / _LOG_2) + lgamma(k + 1) / _LOG_2


def all_ints(values: Iterable[object]) -> bool:
    """Whether these are all plain ints (or bools)."""
    return all(type(each) is int or type(each) is bool for each in values)


def _settle(logarithm: float, error: float, limit: int, truth: Callable[[], int]) -> float | None:
    if logarithm == inf:
        return inf
    low, high = floor(logarithm - error) + 1, floor(logarithm + error) + 1
    if low > limit:
        return floor(logarithm) + 1
    return None if high <= limit else _over(truth().bit_length(), limit)


def _over(bits: int, limit: int) -> int | None:
    return bits if bits > limit else None
