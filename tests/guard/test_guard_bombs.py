# SPDX-License-Identifier: Apache-2.0
"""Every bomb the guard claims is refused at once. They run in a process of their own, with little memory and time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import deadstop
from deadstop import guard

# kind of refusal, source; what is above a line "#---" prepares the bomb and is not timed.
BOMBS = [
    ("power", "10**10**8"),
    ("power", "pow(10, 10**8)"),
    ("power", "p = pow\np(10, 10**8)"),
    ("power", "import operator\noperator.pow(10, 10**8)"),
    ("power", "import operator\noperator.ipow(10, 10**8)"),
    ("power", "int.__pow__(10, 10**8)"),
    ("power", "(10).__pow__(10**8)"),
    ("power", "(10**8).__rpow__(10)"),
    ("power", "import functools\nfunctools.partial(pow, 10)(10**8)"),
    ("power", "class Big(int): pass\nBig(10) ** 10**8"),
    ("power", "class Big(int):\n def __pow__(self, n): return super().__pow__(n)\nBig(10) ** 10**8"),
    ("power", "int.from_bytes(b'\\xff' * 100_000, 'big') ** 10**4"),
    ("power", "from fractions import Fraction\nFraction(3, 7) ** 10**7"),
    ("power", "from fractions import Fraction\nFraction(3, 7) ** -10**7"),
    ("power", "x = 10\nx **= 10**8"),
    ("power", "d = {'a': 10}\nd['a'] **= 10**8"),
    ("power", "class A: x = 10\nA.x **= 10**8"),
    ("power", "eval('9**9**9')"),
    ("power", "exec('x = 9**9**9')"),
    ("power", "list(map(lambda x: x ** 10**8, [10]))"),
    ("power", "f'{9**9**9}'"),
    ("factorial", "import math\nlist(map(math.factorial, [10**7]))"),
    ("power", "list(map(pow, [10], [10**8]))"),
    ("product", "x = 10**300000\nfor _ in range(40): x = x * x"),
    ("product", "import itertools, operator\nx = 10**900_000\n#---\nlist(itertools.accumulate([x] * 9, operator.mul))"),
    ("product", "x = 10**300000\nfor _ in range(40): x *= x"),
    ("product", "import functools, operator\nfunctools.reduce(operator.mul, range(1, 300_000))"),
    ("product", "import functools\nfunctools.reduce(lambda a, b: a * b, range(1, 300_000))"),
    ("product", "import functools\nfunctools.reduce(lambda x, acc: acc * x, range(1, 300_000), 1)"),
    ("product", "import math\nmath.prod(range(1, 1_000_000))"),
    ("product", "import math\nmath.prod(range(1, 10**12, 7))"),
    ("product", "import functools, operator\nfunctools.reduce(operator.mul, [10**200_000] * 1000)"),
    ("shift", "1 << 10**11"),
    ("shift", "True << 10**9"),
    ("shift", "x = 1\nx <<= 10**11"),
    ("shift", "import operator\noperator.lshift(1, 10**11)"),
    ("factorial", "import math\nmath.factorial(10**6)"),
    ("factorial", "from math import factorial as f\nf(10**9)"),
    ("factorial", "import math\nmath.perm(10**6)"),
    ("permutations", "import math\nmath.perm(10**6, 10**6 - 5)"),
    ("combinations", "import math\nmath.comb(10**6, 5 * 10**5)"),
    ("combinations", "import math\nmath.comb(10**9, 5 * 10**8)"),
    ("random", "import random\nrandom.getrandbits(10**11)"),
    ("repetition", "'a' * 10**10"),
    ("repetition", "10**10 * b'a'"),
    ("repetition", "[0] * 10**9"),
    ("repetition", "x = [0]\nx *= 10**9"),
    ("repetition", "class L(list): pass\nL([0]) * 10**9"),
    ("repetition", "(1, 2) * 10**9"),
    ("repetition", "bytearray(b'a') * 10**10"),
    ("repetition", "import operator\noperator.mul('ab', 10**10)"),
    ("repetition", "from collections import deque\ndeque([1]) * 10**9"),
    ("repetition", "import array\narray.array('d', [1]) * 10**9"),
    ("repetition", "'\\u20ac' * 60_000_000"),
    ("width", "'%1000000000d' % 5"),
    ("width", "'%.1000000000f' % 5"),
    ("width", "'%*d' % (10**9, 5)"),
    ("width", "b'%1000000000d' % 5"),
    ("width", "s = '%1000000000d'\ns %= 5"),
    ("width", "f'{1:>1000000000d}'"),
    ("width", "w = 10**9\nf'{1:>{w}d}'"),
    ("width", "w = 10**9\nf'{1.5:.{w}f}'"),
    ("width", "'{:1000000000d}'.format(1)"),
    ("width", "'{:{}d}'.format(1, 10**9)"),
    ("width", "'{0:{w}}'.format('x', w=10**9)"),
    ("width", "'{x:1000000000}'.format_map({'x': 1})"),
    ("width", "str.format('{:1000000000d}', 1)"),
    ("width", "format(1, '1000000000')"),
    ("width", "'x'.ljust(10**9)"),
    ("width", "'x'.rjust(10**9)"),
    ("width", "b'x'.center(10**9)"),
    ("width", "'x'.zfill(2 * 10**9)"),
    ("width", "z = 'x'.zfill\nz(10**9)"),
    ("width", "str.ljust('x', 10**9)"),
    ("width", "'a\\tb'.expandtabs(10**9)"),
    ("materialisation", "list(range(10**9))"),
    ("materialisation", "tuple(range(10**30))"),
    ("materialisation", "set(range(10**8))"),
    ("materialisation", "sorted(range(10**8))"),
    ("materialisation", "list(zip(*[iter(range(10**8))] * 2))"),
    ("materialisation", "list(enumerate(range(10**9)))"),
    ("materialisation", "list(map(str, range(10**9)))"),
    ("materialisation", "','.join(map(str, range(10**9)))"),
    ("materialisation", "print(*range(10**9))"),
    ("materialisation", "x = [*range(10**9)]"),
    ("materialisation", "x = []\nx.extend(range(10**9))"),
    ("materialisation", "dict.fromkeys(range(10**9))"),
    ("materialisation", "bytes(10**10)"),
    ("materialisation", "bytearray(10**10)"),
    ("materialisation", "(1).to_bytes(10**10, 'big')"),
    ("materialisation", "import collections, itertools\ncollections.deque(itertools.repeat(1))"),
    ("materialisation", "import itertools\nlist(itertools.count())"),
    ("materialisation", "import itertools\nlist(itertools.cycle('ab'))"),
    ("materialisation", "import itertools\nlist(itertools.product(range(1000), repeat=4))"),
    ("materialisation", "import itertools\nlist(itertools.permutations(range(14)))"),
    ("materialisation", "import itertools\nlist(itertools.combinations(range(60), 30))"),
    ("materialisation", "import random\nrandom.sample(range(10**9), 10**8)"),
    ("materialisation", "s = 'a' * 10**5\ns.replace('a', s)"),
    ("materialisation", "s = 'a' * 10**5\nparts = [s] * 10**5\n#---\ns.join(parts)"),
    ("iteration", "sum(range(10**9))"),
    ("iteration", "max(range(10**9))"),
    ("iteration", "min(range(10**9))"),
    ("iteration", "all(map(bool, range(1, 10**9)))"),
    ("iteration", "any(range(0, 1, 1)) or all(range(1, 10**9))"),
    ("iteration", "sum(i * i for i in range(10**10))"),
    ("iteration", "max(i for i in range(10**10) if i % 7 == 0)"),
    ("iteration", "x = [i for i in range(10**10) if not i]"),
    ("iteration", "x = {i % 7 for i in range(10**10)}"),
    ("iteration", "import itertools\nsum(itertools.count())"),
    ("iteration", "import collections, itertools\ncollections.deque(itertools.repeat(1), maxlen=1)"),
    ("iteration", "import statistics\nstatistics.mean(range(10**8))"),
    ("iteration", "import functools\nfunctools.reduce(lambda a, b: a + b, range(10**9))"),
    ("precision", "import decimal\ndecimal.getcontext().prec = 10**7\ndecimal.Decimal(2).sqrt()"),
    ("precision", "import decimal\ndecimal.getcontext().prec = 10**4\ndecimal.Decimal(2) ** decimal.Decimal('0.5')"),
    ("precision", "import decimal\ndecimal.Decimal(2).ln(decimal.Context(prec=20_000))"),
    ("precision", "import decimal\nd = decimal.Decimal(2)\ne = d.exp\ndecimal.getcontext().prec = 10**5\ne()"),
    ("decompression", "import zlib\nd = zlib.compress(bytes(100_000_000))\n#---\nzlib.decompress(d)"),
    ("decompression", "import zlib\nd = zlib.compress(bytes(100_000_000))\n#---\nzlib.decompressobj().decompress(d)"),
    ("decompression", "import gzip\nd = gzip.compress(bytes(50_000_000))\n#---\ngzip.decompress(d)"),
    ("decompression", "import bz2\nd = bz2.compress(bytes(50_000_000))\n#---\nbz2.decompress(d)"),
    ("decompression", "import lzma\nd = lzma.compress(bytes(50_000_000), preset=0)\n#---\nlzma.decompress(d)"),
    (
        "decompression",
        "import io, zipfile\nb = io.BytesIO()\nz = zipfile.ZipFile(b, 'w', zipfile.ZIP_DEFLATED)\n"
        "z.writestr('a', bytes(50_000_000))\nz.close()\nz = zipfile.ZipFile(b)\n#---\nz.read('a')",
    ),
    ("regex", "import re\nre.match('(a+)+$', 'a' * 40 + 'b')"),
    ("regex", "import re\nre.compile('(a+)+$').match('a' * 40 + 'b')"),
    ("regex", "import re\nre.sub(r'^(\\w+\\s?)*$', '', 'word ' * 20 + '!')"),
    ("regex", "import re\nre.fullmatch('(a|a)*', 'a' * 40 + 'b')"),
]

RUNNER = """
import contextlib, io, json, resource, sys, time
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (30, 31))
from deadstop import guard
for index, source in enumerate(json.load(sys.stdin)):
    before, found, after = source.rpartition("#---\\n")
    namespace = {}
    exec(before, namespace)
    code = guard.compile("\\n" * (before + found).count("\\n") + after)
    start = time.process_time()  # others may be using this machine
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(code, namespace)
        said = ["passed", "", 0]
    except guard.GuardError as error:
        refusal = error.refusal
        said = [refusal.kind, str(refusal), refusal.line]
    except BaseException as error:
        said = [repr(error), "", 0]
    print(json.dumps([index, (time.process_time() - start) * 1000, *said]), flush=True)
"""


@pytest.fixture(scope="module")
def answers() -> dict[int, list]:
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps([source for _kind, source in BOMBS]),
        env={"PYTHONPATH": str(Path(deadstop.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines, done.stderr
    return {index: rest for index, *rest in lines}


@pytest.mark.parametrize("index", range(len(BOMBS)), ids=[source.splitlines()[-1][:50] for _kind, source in BOMBS])
def test_bomb(answers: dict[int, list], index: int) -> None:
    kind, source = BOMBS[index]
    _milliseconds, said, message, line = answers[index]
    assert said == kind, message
    if "eval" not in source and "exec" not in source:
        last = source.count("\n") + 1
        assert line == (last if "class Big(int):\n def" not in source else 2), message
    assert "the limit is" in message
    assert "Instead: " in message
    assert "\n" not in message


@pytest.mark.alone
def test_every_bomb_is_answered_within_50_ms(answers: dict[int, list]) -> None:
    # The loops that square a million-bit number do honest work below the limit first.
    slow = {
        BOMBS[index][1]: rest[0] for index, rest in answers.items() if rest[0] > 50 and "for _" not in BOMBS[index][1]
    }
    assert slow == {}


STATIC = [source for kind, source in BOMBS if "#---" not in source and "\n" not in source and "eval" not in source]
NOT_CERTAIN = (
    "exec('x = 9**9**9')",
    "int.from_bytes(b'\\xff' * 100_000, 'big') ** 10**4",
    "bytearray(b'a') * 10**10",
    "'{x:1000000000}'.format_map({'x': 1})",
    "list(zip(*[iter(range(10**8))] * 2))",
    "list(map(lambda x: x ** 10**8, [10]))",
    "list(map(pow, [10], [10**8]))",
)


@pytest.mark.parametrize("source", [each for each in STATIC if each not in NOT_CERTAIN])
def test_a_bomb_of_constants_is_found_without_running_it(source: str) -> None:
    found = guard.check(source)
    assert [each.line for each in found] == [1]


@pytest.mark.parametrize("source", NOT_CERTAIN)
def test_what_the_source_alone_does_not_say_is_left_to_run_time(source: str) -> None:
    assert guard.check(source) == []


def test_a_bomb_ends_in_a_killable_call_as_an_error_at_once() -> None:
    program = "from deadstop import guard\nexec(guard.compile('10**10**9'))"
    source = str(Path(deadstop.__file__).parents[1])
    result = deadstop.run([sys.executable, "-c", program], timeout=5, env={"PYTHONPATH": source})
    assert result.exit_code == 1
    assert "GuardError: line 1: 10 ** 1000000000 would have" in result.stderr.tail
