# SPDX-License-Identifier: Apache-2.0
"""The verdict on an integer is the truth about its bits, near the limit and far from it."""

from __future__ import annotations

import functools
import math
import operator
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deadstop import guard
from deadstop.guard import sizes

INTS = st.one_of(st.integers(-40, 40), st.integers(-(2**70), 2**70))
LIMITS = st.integers(1, 3000)


def agrees(verdict: float | None, truth: int, limit: int) -> None:
    """None exactly where the number has at most `limit` bits; an estimate near the truth elsewhere."""
    bits = truth.bit_length()
    assert (verdict is not None) == (bits > limit), (verdict, bits, limit)
    if verdict is not None:
        assert limit < verdict
        assert abs(verdict - bits) <= 1 + bits // 10


@given(INTS, st.integers(0, 200), LIMITS)
@example(2, 31, 31)
@example(2, 31, 32)
@example(-8, 3, 9)
@settings(max_examples=800, deadline=None)
def test_power(base: int, exponent: int, limit: int) -> None:
    agrees(sizes.power_bits(base, exponent, limit), base**exponent, limit)


@given(st.integers(2, 2**40), st.integers(1, 150), st.integers(-2, 2))
@settings(max_examples=500, deadline=None)
def test_power_right_at_its_own_size(base: int, exponent: int, off: int) -> None:
    truth = base**exponent
    limit = max(1, truth.bit_length() + off)
    agrees(sizes.power_bits(base, exponent, limit), truth, limit)


@given(INTS, INTS, st.integers(-2, 2))
@settings(max_examples=500, deadline=None)
def test_product(a: int, b: int, off: int) -> None:
    limit = max(1, (a * b).bit_length() + off)
    verdict = sizes.product_bits(a, b, limit)
    assert (verdict is not None) == ((a * b).bit_length() > limit)


@given(st.lists(st.integers(-1000, 1000).filter(bool), max_size=60), st.integers(-2, 2))
@settings(max_examples=300, deadline=None)
def test_product_of_many(numbers: list[int], off: int) -> None:
    truth = math.prod(numbers)
    limit = max(1, truth.bit_length() + off)
    verdict = sizes.sequence_product_bits(numbers, limit)
    assert (verdict is not None) == (truth.bit_length() > limit)


@given(st.integers(-300, 300), st.integers(-300, 300), st.integers(-5, 5).filter(bool), st.integers(-2, 2))
@settings(max_examples=500, deadline=None)
def test_product_of_a_range(start: int, stop: int, step: int, off: int) -> None:
    numbers = range(start, stop, step)
    truth = functools.reduce(operator.mul, numbers[: numbers.index(0)] if 0 in numbers else numbers, 1)
    limit = max(1, truth.bit_length() + off)
    verdict = sizes.range_product_bits(numbers, limit)
    assert (verdict is not None) == (truth.bit_length() > limit)


@given(st.integers(0, 400), st.integers(0, 400), st.integers(-2, 2))
@settings(max_examples=500, deadline=None)
def test_factorial_permutations_combinations(n: int, k: int, off: int) -> None:
    for verdict, truth in (
        (sizes.factorial_bits, math.factorial(n)),
        (functools.partial(_swapped, sizes.permutation_bits, k), math.perm(n, k)),
        (functools.partial(_swapped, sizes.combination_bits, k), math.comb(n, k)),
    ):
        limit = max(1, truth.bit_length() + off)
        agrees(verdict(n, limit), truth, limit)


def _swapped(function, k: int, n: int, limit: int):
    return function(n, k, limit)


@pytest.mark.parametrize(("n", "k"), [(10**18, 5), (10**30, 7), (10**400, 3), (2**70, 40), (10**7, 900)])
def test_few_out_of_very_many(n: int, k: int) -> None:
    for off in (-2, -1, 0, 1):
        for verdict, truth in ((sizes.permutation_bits, math.perm(n, k)), (sizes.combination_bits, math.comb(n, k))):
            limit = truth.bit_length() + off
            assert (verdict(n, k, limit) is not None) == (truth.bit_length() > limit)


def test_the_limit_of_a_million_bits() -> None:
    limits = guard.GuardLimits(int_bits=1_000_000)

    def passes(source: str) -> bool:
        try:
            exec(guard.compile(source, limits=limits), {})
        except guard.GuardError:
            return False
        return True

    for source in ("2**300000", "10**300000", "1 ** 10**9", "(-1)**(10**9+1)", "0**10**9", "True**10**9", "2.0**500"):
        assert passes(source), source
        assert guard.check(source, limits=limits) == [], source
    assert passes("pow(10**50, 10**50, 97)")
    assert passes("10**-5000")
    assert passes("2**999999")
    assert not passes("2**1000000")
    assert not passes("10**302000")
    assert passes("x = 1 << 999999")
    assert not passes("x = 1 << 1000000")


def test_nothing_too_large_for_a_float_breaks_an_estimate() -> None:
    for source in ("2 ** 10 ** 400", "1 << 10 ** 400", "import math; math.factorial(10 ** 400)", "'a' * 10 ** 400"):
        with pytest.raises(guard.GuardError):
            exec(guard.compile(source), {})
        assert len(guard.check(source)) == 1
        assert len(str(guard.check(source)[0])) < 400
    assert sys.get_int_max_str_digits() > 0


def test_a_range_of_very_many_is_estimated_without_walking_it() -> None:
    truth = math.prod(range(1, 30_000, 7))
    assert abs(sizes.range_product_bits(range(1, 30_000, 7), 1000) - truth.bit_length()) <= 1
    assert abs(sizes.range_product_bits(range(-29_995, 0, 7), 1000) - math.prod(range(-29_995, 0, 7)).bit_length()) <= 1
    assert sizes.range_product_bits(range(1, 10**12, 7), 4_000_000) > 10**12
