# SPDX-License-Identifier: Apache-2.0
"""check(), the limits, the refusal and what it becomes, the rule for patterns, and what importing costs."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

import deadstop
from deadstop import guard
from deadstop.errors import InvalidLimit
from deadstop.guard.patterns import is_hopeless
from deadstop.results import Status, ToolResult


def kinds(source: str) -> list[tuple[str, int | None]]:
    return [(each.kind, each.line) for each in guard.check(source)]


def test_refusals_come_by_line_and_say_everything() -> None:
    source = "N = 10 ** 9\nx = [0] * N\n\ndef f():\n    return 10 ** N\n"
    found = guard.check(source)
    assert [(each.kind, each.line) for each in found] == [("repetition", 2), ("power", 5)]
    assert str(found[1]) == (
        "line 5: 10 ** 1000000000 would have 3,321,928,095 bits; the limit is 4,000,000. Instead: pow(base, exponent, "
        "modulus) if a remainder is wanted, a float or math.log2 if the size is"
    )
    assert found[1].estimate == 3_321_928_095
    assert (found[1].limit, found[1].unit) == (4_000_000, "bits")
    assert found[1].alternative.startswith("pow(base, exponent, modulus)")
    with pytest.raises(FrozenInstanceError):
        found[1].kind = "x"  # type: ignore[misc]


@pytest.mark.parametrize(
    "source",
    [
        "n = 10\nn = 10 ** 9\nx = [0] * n",  # assigned twice
        "def f(n=10 ** 9):\n    return [0] * n",
        "n = 10 ** 9\ndef f(n): return [0] * n",  # a parameter of the same name
        "n = 10 ** 9\nfor n in (1, 2): x = [0] * n",
        "from somewhere import pow\npow(10, 10 ** 9)",
        "math = object()\nmath.factorial(10 ** 9)",
        "import numpy as np\nnp.prod(range(10 ** 9))",
        "pow(10, 10 ** 9, 97)",
        "x.ljust(10 ** 12)",
        "n = input()\n10 ** n",
        "any(range(10 ** 12)) or all(range(10 ** 12))",
        "for i in range(10 ** 12): break",
        "x = range(10 ** 30)[10 ** 29]",
        "1 ** 10 ** 9, (-1) ** 10 ** 9, 0 ** 10 ** 9, 2.0 ** 10 ** 9 if 0 else 1, [] * 10 ** 30, 0 << 10 ** 30",
        "'a' * -10 ** 30",
        "x = (i for i in range(10 ** 12))\nnext(x)",
        "x = x + 1\ny = y",
    ],
)
def test_nothing_is_said_where_it_is_not_certain(source: str) -> None:
    assert guard.check(source) == []


def test_names_and_aliases_that_are_certain() -> None:
    assert kinds("import math as m\nm.factorial(10 ** 7)") == [("factorial", 2)]
    assert kinds("from math import factorial as f\nf(10 ** 7)") == [("factorial", 2)]
    assert kinds("p = pow\np(10, 10 ** 8)") == [("power", 2)]
    assert kinds("BASE = 10\nEXP = BASE ** 8\nx = BASE ** EXP") == [("power", 3)]
    assert kinds("def f():\n    import math\n    math.comb(10 ** 9, 10 ** 8)") == [("combinations", 3)]
    assert kinds("x = f'{y:>99999999999d}'") == [("width", 1)]
    assert kinds("x = '%99999999999d' % y") == [("width", 1)]
    assert kinds("x = '%s' % ('a' * 10 ** 11)") == [("repetition", 1)]


def test_check_takes_little_time_on_anything() -> None:
    source = "\n".join(f"x{i} = 3 ** {i * 50} + {i} if x else 10 ** {i}" for i in range(2000))
    start = time.perf_counter()
    assert guard.check(source) == []
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "10", None, float("nan"), float("inf"), -(10**100)])
def test_a_limit_is_a_whole_number_above_zero(value) -> None:
    with pytest.raises(InvalidLimit, match="int_bits"):
        guard.GuardLimits(int_bits=value)


def test_limits_are_frozen_and_by_name_only() -> None:
    with pytest.raises(FrozenInstanceError):
        guard.GuardLimits().int_bits = 5  # type: ignore[misc]
    with pytest.raises(TypeError):
        guard.GuardLimits(5)  # type: ignore[misc]
    assert replace(guard.GuardLimits(), int_bits=7).int_bits == 7


def test_what_is_exactly_at_a_limit_passes() -> None:
    limits = guard.GuardLimits(sequence_bytes=800, format_width=100, iterations=1000, int_bits=50)
    for passes, refused in (
        ("[0] * 100", "[0] * 101"),
        ("'a' * 800", "'a' * 801"),
        ("'a'.ljust(100)", "'a'.ljust(101)"),
        ("sum(range(1000))", "sum(range(1001))"),
        ("1 << 49", "1 << 50"),
        ("list(range(100))", "list(range(101))"),
        ("'ab'.replace('b', 'c' * 799)", "'ab'.replace('b', 'c' * 800)"),
        ("'-'.join(['a' * 400, 'b' * 399])", "'-'.join(['a' * 400, 'b' * 400])"),
    ):
        eval(guard.compile(passes, mode="eval", limits=limits))
        with pytest.raises(guard.GuardError):
            eval(guard.compile(refused, mode="eval", limits=limits))


@pytest.mark.parametrize(
    "source",
    [
        "set('ab' * 500)",  # large to read, small to hold
        "dict.fromkeys([1] * 100)",
        "'{!s:.200}'.format(1.5)",  # a precision cuts text
        "'%.200s' % 'x'",
        "'%(a)s' % {'a': 1}",
        "f'{None!r:.200}'",
        "pow(3, 10 ** 9, 7)",
        "3.5 ** 200",
        "sum([1] * 100)",
        "any(range(10 ** 9))",
        "all(range(10 ** 9))",
        "any(map(str, range(10 ** 9)))",
        "next(iter(range(10 ** 9)))",
        "10 ** 8 in range(10 ** 9)",
        "len(range(10 ** 9))",
        "max(10 ** 9, 1)",
        "[1, 2].__mul__(2)",
        "'abc'.replace('', '-')",
        "'a'.ljust(-5)",
        "('x' * 90).ljust(90)",
        "bytes(range(90))",
        "0 * 2 ** 49 * 0",
    ],
)
def test_what_is_small_passes_under_small_limits(source: str) -> None:
    limits = guard.GuardLimits(sequence_bytes=1000, format_width=80, iterations=1000, int_bits=50, working_bits=50)
    assert eval(guard.compile(source, mode="eval", limits=limits)) == eval(source)
    assert guard.check(source, limits=limits) == []


def test_a_refusal_becomes_a_result() -> None:
    refusal = guard.check("10 ** 10 ** 9")[0]
    result = guard.refusal_result(refusal, tool="calculate")
    assert result.status is Status.REFUSED
    assert result.reason == "guard"
    assert not result.ok
    assert result.error is not None
    assert result.error["message"] == str(refusal)
    assert result.error["kind"] == "refused"
    assert "pow(base, exponent, modulus)" in result.for_model()
    assert ToolResult.from_dict(result.to_dict()).error == result.error
    with pytest.raises(deadstop.ToolRefusedError, match="would have 3,321,928,095 bits"):
        result.unwrap()


HOPELESS = [
    "(a+)+$", "(a*)*b", "(a+)*b", "([a-z]+)+!", r"(\w+\s?)+$", r"^(\w+\s?)*$", "(x+x+)+y", "(a*b*)*c", "((a+))+$",
    "(?:a+){2,}b", "(a|a)*b", r"(?:\w|_x*|[a-z]+)*!", "(.*)*x", "(a+|b)*c", "(a+)+?b", r"(\d+)*[^0-9]", "(?i:(a+)+b)",
    "(.|x)+!", "((a|b)+)+c", "x*(y+)+z", r"(a+)+\b", "(?=(a+)+b)", "(a{1,30})*b",
]  # fmt: skip
HARMLESS = [
    "a+b+c", r"(\w+\s)+$", "(a+b)+", "(?:a|b)*c", r"(\d+,)*\d+", "(a+)+", "(a*)*", ".*.*.*x", "(ab?)+c", "(?>a+)+b",
    "(a++)+b", r"(\w+|\s+)x", "(a{2})+b", "(a{1,3}b)+c", "[(a+)+]b", r"\(a+\)+b", "(a+b+)+c", "(foo|bar)+!",
]  # fmt: skip


@pytest.mark.parametrize("pattern", HOPELESS)
def test_hopeless_patterns(pattern: str) -> None:
    assert is_hopeless(pattern)
    assert is_hopeless(pattern.encode())


@pytest.mark.parametrize("pattern", HARMLESS)
def test_patterns_that_are_not(pattern: str) -> None:
    assert not is_hopeless(pattern)


def test_the_end_of_a_fullmatch_can_fail_and_a_short_text_is_no_danger() -> None:
    assert is_hopeless("(a+)+", whole=True)
    code = guard.compile("import re\nx = re.fullmatch('(a+)+', 'a' * n + 'b')")
    exec(code, {"n": 15})
    with pytest.raises(guard.GuardError, match="repeat within a repeat"):
        exec(code, {"n": 50})


def test_it_imports_alone_and_light() -> None:
    code = (
        "import sys, deadstop\nbefore = set(sys.modules)\nfrom deadstop import guard\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(Path(deadstop.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    loaded = set(done.stdout.split())
    heavy = {"asyncio", "subprocess", "socket", "json", "statistics", "random", "decimal", "zipfile", "bz2", "lzma"}
    assert loaded & heavy == set()
    ours = {each for each in loaded if each.startswith("deadstop.")}
    allowed = {"deadstop.errors", "deadstop.results", "deadstop.envelope", "deadstop.clock"}
    assert {each for each in ours if not each.startswith("deadstop.guard")} <= allowed


@pytest.mark.alone
def test_guarded_code_is_not_slow() -> None:
    source = "def f():\n s = 0\n for i in range(100000):\n  s = (s * 31 + i) % 1000003\n return s\nx = f()"

    def best(code) -> float:
        times = []
        for _ in range(5):
            start = time.process_time()  # others may be using this machine
            exec(code, {})
            times.append(time.process_time() - start)
        return min(times)

    plain, guarded = best(compile(source, "", "exec")), best(guard.compile(source))
    assert guarded < plain * 8 + 0.01


@pytest.mark.parametrize(
    "product",
    ["[2, b'yz', 10**9]", "['yz', 10**9, 0]", "('a', 10**5, 10**5)", "[10**9, [0]]", "[-1, -(10**9), 'ab']"],
)
def test_a_product_with_a_sequence_in_it_is_a_repetition(product: str) -> None:
    with pytest.raises(guard.GuardError):
        eval(guard.compile(f"math.prod({product})", mode="eval"), {"math": math})


@pytest.mark.parametrize("product", ["['ab', 3, 2]", "[2, b'yz']", "['ab', -5, 10**9]", "[0, 'ab', 10**9]"])
def test_a_small_one_is_what_it_is(product: str) -> None:
    text = f"math.prod({product})"
    assert eval(guard.compile(text, mode="eval"), {"math": math}) == eval(text, {"math": math})
