# SPDX-License-Identifier: Apache-2.0
"""Guarded code is the same code: ordinary programs, random expressions, every mode, and what it leaves behind."""

from __future__ import annotations

import contextlib
import io
import pickle
import random
import traceback
import warnings

import corpus
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deadstop import guard
from deadstop.errors import DeadstopError


def ran(code, names: list[str] | None = None) -> tuple[str, str, list[str]]:
    """(what it printed, the exception it ended with, the names it left)."""
    namespace: dict = {"__name__": "prog"}
    out = io.StringIO()
    random.seed(0)
    error = ""
    with contextlib.redirect_stdout(out):
        try:
            exec(code, namespace)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
    return out.getvalue(), error, sorted(namespace)


@pytest.mark.parametrize("name", corpus.PROGRAMS)
def test_program(name: str) -> None:
    source = corpus.PROGRAMS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of them call what they should not on purpose
        plain = ran(compile(source, "prog", "exec", dont_inherit=True))
        guarded = ran(guard.compile(source, "prog"))
    assert guarded == plain
    assert plain[1] == ""
    assert plain[0].strip()
    assert guard.check(source) == []


NUMBERS = st.one_of(
    st.integers(-5, 5), st.integers(-(2**90), 2**90), st.booleans(), st.floats(-1e6, 1e6), st.just(2**40)
)
TEXTS = st.sampled_from(["ab", "\u20acx", b"yz", [1, 2], (3,), "", [], "%s", "%5d", "{:>5}"])
VALUES = st.one_of(NUMBERS, TEXTS)
SHAPES = st.sampled_from(
    [
        "a * b", "a ** b", "a << b", "a % b", "pow(a, b)", "pow(a, b, c)", "a * b * c", "a ** b % 7", "(a * b) ** 2",
        "operator.mul(a, b)", "operator.pow(a, b)", "math.factorial(a)", "math.perm(a, b)", "math.comb(a, b)",
        "math.prod([a, b, c])", "functools.reduce(operator.mul, [a, b, c])", "str.ljust(str(a), b)", "f'{a:>{b}}'",
        "'{:{}}'.format(a, b)", "format(a, str(b))", "'%*d' % (b, a)", "int.__mul__(a, b)", "list(range(b))",
        "sum(range(b))", "bytes(b)", "str(a).zfill(b)", "str(a).replace('1', str(b))", "','.join([str(a)] * b)",
        "all(range(a, b))", "any(range(a, b))", "-a ** b", "math.prod(range(a, b))", "sorted(a * b)",
    ]
)  # fmt: skip
SMALL = guard.GuardLimits(int_bits=500, working_bits=500, sequence_bytes=2000, iterations=1000, format_width=300)
MODULES = "import math, operator, functools"


def answer(code, namespace: dict) -> str:
    """The value and its type, or the exception; "refused" for a refusal, which must be right about its numbers."""
    try:
        value = eval(code, dict(namespace))
    except guard.GuardError as error:
        return "refused" if error.refusal.estimate > error.refusal.limit else "a wrong refusal"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return f"{type(value).__name__}: {value!r}"


def moderate(value):
    """Small enough for the plain code to be run."""
    return value % 3000 if isinstance(value, int) and abs(value) > 3000 else value


@given(SHAPES, VALUES, VALUES, NUMBERS)
@settings(max_examples=400, deadline=None)
def test_what_passes_has_the_value_or_the_exception_of_the_plain_code(shape: str, a, b, c) -> None:
    namespace: dict = {"a": moderate(a) if "(a" in shape else a, "b": moderate(b), "c": c}
    exec(MODULES, namespace)
    guarded = answer(guard.compile(shape, mode="eval", limits=SMALL), namespace)
    if guarded != "refused":
        assert guarded == answer(compile(shape, "", "eval"), namespace)


@given(st.integers(-(2**60), 2**60), st.integers(0, 60), st.sampled_from(["a ** b", "a << b", "a * (1 << b)"]))
@settings(max_examples=500, deadline=None)
def test_it_refuses_exactly_what_has_more_bits_than_the_limit(a: int, b: int, shape: str) -> None:
    for limit in (1, 40, 60, 300, 1000):
        code = guard.compile(shape, mode="eval", limits=guard.GuardLimits(int_bits=limit))
        too_large = eval(shape).bit_length() > limit or (shape.endswith("b)") and b + 1 > limit)
        try:
            assert eval(code) == eval(shape)
        except guard.GuardError:
            assert too_large
        else:
            assert not too_large


@given(st.sampled_from(["'a'", "'\u00e9'", "'\u20ac'", "'\U0001f600'", "b'x'", "[0]", "(1, 2)"]), st.integers(0, 600))
@settings(max_examples=300, deadline=None)
def test_it_refuses_exactly_the_sequences_that_are_larger_than_the_limit(text: str, times: int) -> None:
    value = eval(text)
    unit = {"'a'": 1, "b'x'": 1, "'\u00e9'": 1, "'\u20ac'": 2, "'\U0001f600'": 4}.get(text, 8)
    code = guard.compile(f"{text} * n", mode="eval", limits=guard.GuardLimits(sequence_bytes=1000))
    if len(value) * times * unit > 1000:
        with pytest.raises(guard.GuardError):
            eval(code, {"n": times})
    else:
        assert eval(code, {"n": times}) == value * times


def test_it_needs_no_name_no_import_and_no_builtins() -> None:
    namespace: dict = {"__builtins__": {}}
    exec(guard.compile("x = 3 ** 4\nx *= 2\ny = [x * 2]"), namespace)
    assert sorted(namespace) == ["__builtins__", "x", "y"]
    assert namespace["y"] == [324]
    with pytest.raises(guard.GuardError):
        exec(guard.compile("10 ** 10 ** 9"), {"__builtins__": {}})


def test_eval_and_single() -> None:
    assert eval(guard.compile("2 ** 10 + a", mode="eval"), {"a": 1}) == 1025
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        namespace: dict = {}
        for line in ("x = 3", "x ** 2", "import math", "math.factorial(4)", "x *= 2", "x"):
            exec(guard.compile(line, "<stdin>", "single"), namespace)
    assert out.getvalue() == "9\n24\n6\n"


def test_a_traceback_shows_the_line_of_the_user() -> None:
    source = "def f(n):\n    a = 1\n    return 10 ** n\n\nf(3)\nf(10 ** 9)\n"
    with pytest.raises(guard.GuardError) as caught:
        exec(guard.compile(source, "user.py"), {})
    frames = [(each.filename, each.lineno) for each in traceback.extract_tb(caught.value.__traceback__)]
    assert [line for name, line in frames if name == "user.py"] == [6, 3]
    assert caught.value.refusal.line == 3


def test_a_refusal_passes_by_handlers_of_other_errors() -> None:
    source = "try:\n    10 ** 10 ** 9\nexcept (ValueError, ArithmeticError, MemoryError):\n    x = 1\n"
    with pytest.raises(guard.GuardError):
        exec(guard.compile(source), {})
    assert issubclass(guard.GuardError, DeadstopError)
    namespace: dict = {}
    exec(guard.compile(source.replace("(ValueError, ArithmeticError, MemoryError)", "Exception")), namespace)
    assert namespace["x"] == 1


def test_errors_in_the_source_are_its_own() -> None:
    for broken in ("x = = 2", "return 5", "def f(:", "'a' 'b' = 3", "break"):
        with pytest.raises(SyntaxError) as plain:
            compile(broken, "f.py", "exec")
        with pytest.raises(SyntaxError) as guarded:
            guard.compile(broken, "f.py")
        assert (guarded.value.msg, guarded.value.lineno) == (plain.value.msg, plain.value.lineno)
    with pytest.raises(SyntaxError):
        guard.check("x = = 2")
    with pytest.raises((SyntaxError, ValueError), match="null bytes"):
        guard.compile("x = '\0'")


def test_a_chain_of_nine_hundred_operators() -> None:
    source = "x = 1" + " * 1" * 500 + " + 5" * 400
    namespace: dict = {}
    exec(guard.compile(source), namespace)
    assert namespace["x"] == 2001
    assert guard.check(source) == []


def test_the_error_and_the_checks_can_be_pickled() -> None:
    with pytest.raises(guard.GuardError) as caught:
        exec(guard.compile("10 ** 10 ** 9"), {})
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.refusal == caught.value.refusal
    code = guard.compile("10 ** n", mode="eval", limits=guard.GuardLimits(int_bits=99))
    checks = next(each for each in code.co_consts if type(each).__name__ == "Checks")
    assert pickle.loads(pickle.dumps(checks)).limits == guard.GuardLimits(int_bits=99)


def test_two_sets_of_limits_do_not_meet() -> None:
    small = guard.compile("2 ** 100", mode="eval", limits=guard.GuardLimits(int_bits=100))
    large = guard.compile("2 ** 100", mode="eval")
    assert eval(large) == 2**100
    with pytest.raises(guard.GuardError):
        eval(small)
