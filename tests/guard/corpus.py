# SPDX-License-Identifier: Apache-2.0
"""Ordinary programs. Each prints what it does; the guarded run must print the same."""

from __future__ import annotations

PROGRAMS = {
    "classes_super": """
class Base:
    scale = 2
    def __init__(self, x): self.x = x
    def area(self): return self.x * self.scale
    @classmethod
    def make(cls, *args, **kw): return cls(*args, **kw)
    @property
    def twice(self): return self.x * 2
class Child(Base):
    __count = 3
    def __init__(self, x, y=2):
        super().__init__(x)
        self.y = y
        self.__hidden = y
        self.__hidden *= 5
        self._Child__hidden **= 2
    def area(self): return super().area() ** self.y
    def both(self):
        f = lambda: super(Child, self).area()
        return f(), self.__hidden, [self.__count * i for i in range(3)]
    @staticmethod
    def st(*a, k=1, **kw): return a, k, sorted(kw.items())
c = Child.make(3, y=3)
print(c.area(), c.twice, c.both(), Child.st(1, *[2, 3], k=4, **{"z": 5}))
print(sorted(k for k in vars(c)), sorted(n for n in dir(Child) if not n.startswith("__")))
""",
    "comprehensions_walrus": """
data = [x * y for x in range(5) for y in range(x) if (z := x ** y) % 2]
print(data, z, {k: v * 2 for k, v in zip("abc", range(3))}, {x % 3 for x in range(10)})
print(sum(x * x for x in range(10)), list(map(lambda v: v << 2, range(4))))
if (n := len(data)) > 2: print(n * "=", n)
m = [[i * j for j in range(3)] for i in range(3)]
print(m, [*map(sum, m)], [*range(3), *"ab"], {**{"a": 1}, "b": 2})
""",
    "generators": """
def gen(n):
    total = 1
    try:
        while True:
            got = yield total
            total *= (got or 2)
            if total > n: return "end"
    finally:
        print("closed")
g = gen(100); print(next(g), g.send(3), g.send(None), list(g))
def outer():
    r = yield from gen(10)
    print("r", r)
print(list(outer()))
def tricky(a):
    a[(yield "k")] *= (yield "v")
    return a
t = tricky({"q": [1]}); print(next(t), t.send("q"))
try: t.send(3)
except StopIteration as e: print(e.value)
""",
    "async_code": """
import asyncio
class Ctx:
    async def __aenter__(self): print("in"); return self
    async def __aexit__(self, *a): print("out", a[0])
async def agen():
    for i in range(3):
        await asyncio.sleep(0)
        yield i * 2
async def main():
    async with Ctx() as c:
        xs = [x ** 2 async for x in agen()]
        async for x in agen(): print(x)
        r = await asyncio.gather(*(asyncio.sleep(0, result=i * 3) for i in range(3)))
    return xs, r
print(asyncio.run(main()))
""",
    "decorators": """
import functools, contextlib
def times(n):
    def deco(f):
        @functools.wraps(f)
        def inner(*args, **kwargs): return [f(*args, **kwargs) for _ in range(n)]
        return inner
    return deco
@times(2)
def f(a, /, b, *, c=3): "doc"; return a * b ** c
print(f(1, 2), f(1, b=2, c=1), f.__name__, f.__doc__)
@functools.lru_cache(maxsize=None)
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
print(fib(30), fib.cache_info().misses)
@contextlib.contextmanager
def cm(x): yield x * 2
with cm(4) as v, cm("a") as w: print(v, w)
""",
    "match": """
from dataclasses import dataclass
@dataclass
class P:
    x: int
    y: int = 2 * 3
def m(v):
    match v:
        case 0 | -1 | 2 + 3j: return "num"
        case [a, *rest] if a * 2 > 2: return ("seq", a, rest)
        case {"k": k, **others}: return ("map", k ** 2, others)
        case P(x=0, y=yy): return ("p0", yy * 3)
        case P(xx): return ("p", xx)
        case str() as s: return s * 2
        case _: return None
P.__match_args__ = ("x", "y")
print([m(v) for v in (0, -1, 2 + 3j, [2, 3, 4], [0], {"k": 3, "z": 1}, P(0), P(5), "ab", 1.5)])
""",
    "closures": """
x = 10
def outer():
    n = 2
    def inner():
        nonlocal n
        global x
        n **= 3
        x *= n
        return n
    inner()
    return n, inner(), sorted(locals())
print(outer(), x, sorted(k for k in globals() if not k.startswith("_")))
""",
    "exceptions": """
def f(k):
    try:
        return [1, 2][k] * 10
    except IndexError as e:
        print("index", e)
        raise ValueError("bad") from e
    else: print("never")
    finally: print("finally", k)
print(f(1))
try: f(5)
except ValueError as e: print(repr(e), repr(e.__cause__))
for bad in ("'a' * 'b'", "1 << -1", "2 ** 'x'", "'%d' % 'x'", "[] * 1.5", "None * 2", "pow(2, -1, 4)", "f'{1:zz}'",
            "'{}'.format()", "'{0.q}'.format(1)", "int.__pow__('a', 2)", "''.join([1])", "list(5)", "sum(['a'])",
            "'x'.ljust('a')", "format(1, 2)", "max()", "0 ** -1", "'%s %s' % (1,)", "bytes(-1)", "[1] * [2]",
            "'%(a)s' % 5", "'%*d' % ('x', 1)", "1.5 << 2", "any(5)", "str.join(',', 5)", "'a'.zfill(None)"):
    try: print(bad, eval(bad))
    except Exception as e: print(bad, type(e).__name__, e)
try: exec("x = = 2")
except SyntaxError as e: print(e.msg, e.filename, e.lineno)
""",
    "exception_groups": """
try:
    raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
except* ValueError as e: print("v", e.exceptions)
except* TypeError as e: print("t", e.exceptions)
""",
    "fstrings": """
w, p, v, s = 8, 2, 3.14159, "txt"
print(f"{v:{w}.{p}f}|{s!r:>{w}}|{s:^10}|{v!s:*<12}|{w:#x}|{f'{w * 2:>{p * 3}}'}|{w=}|{v=:.1f}|{'a' * 3}|{{}}")
import datetime, decimal
d = datetime.date(2020, 1, 2); fmt = "%Y/%m"
print(f"{d:{fmt}} {d:%d} {decimal.Decimal('1.5'):{w}} {1234567:,} {0.5:.0%} {None!s:>6}")
class F:
    def __format__(self, spec): return "<" + spec + ">"
big = "1000000000000"
print(f"{F():{big}} {F():99999999999}", format(F(), big), "{:{}}".format(F(), big))
print("%5d|%-5s|%05.1f|%(a)s" .replace("%(a)s", "") % (1, "b", 2.5), "%(k)s %%" % {"k": 1}, b"%d" % 3, "%*d" % (5, 1))
print("{} {:>4} {x!r} {0}".replace("{0}", "").format(1, 2, x="y"), "{a[0]} {b.real}".format(a=[1], b=2))
""",
    "operators_order": """
log = []
def t(x): log.append(x); return x
class V:
    def __init__(self, n): self.n = n
    def __mul__(self, o): log.append(("mul", o)); return NotImplemented
    def __rmul__(self, o): return ("rmul", o)
    def __imul__(self, o): log.append("imul"); self.n *= o; return self
    def __pow__(self, o, m=None): return ("pow", o, m)
    def __rpow__(self, o): return ("rpow", o)
    def __lshift__(self, o): return ("shift", o)
    def __mod__(self, o): return ("mod", o)
    def __index__(self): return 3
    def __matmul__(self, o): return "mat"
print(t(2) * t(3) ** t(2), t(1) << t(2) << t(1), 1 < t(3) * t(2) < 10 != 4, log)
v = V(2); v *= 5; print(v.n, 3 * v, v ** 2, pow(v, 2, 5), 2 ** v, v << 1, v % 2, v @ v, [1] * v)
try: v * 3
except TypeError as e: print(e)
class D(dict):
    def __getitem__(self, k): log.append(("get", k)); return super().__getitem__(k)
    def __setitem__(self, k, x): log.append(("set", k)); super().__setitem__(k, x)
d = D(); d["a"] = 3; d[t("a")] **= t(2); d["a"] <<= 1; d["a"] %= 7; print(d, log)
a = [1, 2, 3, 4]; a[1:3] *= 2; print(a); b = a; b *= 2; print(a is b, a)
t2 = ([1],)
try: t2[0] *= 3
except TypeError as e: print(e, t2)
""",
    "star_args": """
def f(a, b=2, *args, c, d=4, **kw): return a, b, args, c, d, sorted(kw.items())
print(f(1, c=3), f(*range(5), c=1, **{"e": 5}), f(*[1], *(2, 3), **{"c": 1}, **{"z": 2}))
a, *b, c = range(6); print(a, b, c)
try: f(1)
except TypeError as e: print(e)
try: f(*5)
except TypeError as e: print(e)
print(max(3, 1), max([1, 5], key=lambda v: -v), min("b", "a"), sum([[1], [2]], []), sorted("bca", reverse=True))
""",
    "frames": """
import sys, warnings, inspect
def f():
    a = 1
    b = a * 2
    return sorted(locals()), sys._getframe().f_lineno, sys._getframe().f_code.co_name
print(f(), sorted(vars()) == sorted(globals()))
def g(): return sys._getframe(1).f_code.co_name
def h(): return g()
print(h(), inspect.signature(lambda a, b=2 * 3: a), eval("a * 2", {"a": 4}), eval("  1 + 1"))
ns = {}; exec("def q(): return 3 ** 2\\nz = q()", ns); print(ns["z"], "q" in ns)
def scoped():
    local = 5
    exec("print(local * 2)")
    return eval("local ** 2")
print(scoped())
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    def w(): warnings.warn("hey", stacklevel=2)
    w()
print(seen[0].lineno, str(seen[0].message))
class Meta(type):
    def __new__(m, n, b, d): print(sorted(k for k in d if not k.startswith("__"))); return super().__new__(m, n, b, d)
class C(metaclass=Meta):
    x = 2
    x *= 3
    y = [x * 2 for _ in range(2)] if False else x << 1
print(C.x, C.y)
""",
    "future_annotations": '''"""module doc"""
from __future__ import annotations
def f(x: int * 2 = 3, *a: "q" ** 2) -> 1 << 2: return x * 2
class A:
    y: 2 * 3 = 4
    z: undefined.name * 9
print(__doc__, f.__annotations__, A.__annotations__, f())
v: 2 ** 3 = 5
print(__annotations__)
exec("def g(x: nowhere * 2): return x\\nprint(g.__annotations__)")
''',
    "shadowing": """
def pow(a, b): return "mine"
print(pow(10, 10 ** 9))
class math:
    @staticmethod
    def factorial(n): return n
print(math.factorial(10 ** 9))
def len(x): return 42
print(len([]))
def run(range): return range(5)
print(run(lambda n: n * 2))
__deadstop__ = 1; _guard = 2; checks = 3
print(__deadstop__ * _guard * checks)
""",
    "odd_callables": """
import unittest.mock, operator, functools
m = unittest.mock.MagicMock(); m.real * 3; m.foo(1); print(m.foo.call_count, m(1) is m.return_value)
class Eq(type):
    def __eq__(c, o): raise RuntimeError("eq")
    def __hash__(c): raise RuntimeError("hash")
class K(metaclass=Eq):
    def __call__(self, *a): return a
    def __iter__(self): return iter((1, 2))
    def __eq__(self, o): raise RuntimeError("eq")
    def __mul__(self, o): return "mul"
    __hash__ = None
print(K()(1), K() * 2, list(K()), sum(K()), functools.partial(K(), 1)(2), [*K()], K.__call__(K(), 3))
print(functools.reduce(operator.mul, [2, 3.5, 2]), functools.reduce(operator.mul, (x for x in [1, 2, 0, 5])),
      functools.reduce(lambda a, b: a * b, ["ab", 3]), functools.reduce(operator.add, range(5), 2))
import math
print(math.prod([]), math.prod((x for x in (2, 3.0)), start=2), math.prod(iter([1, 2, 3])))
print(math.perm(5), math.comb(5, 2), list(map(math.factorial, range(5))), list(map(pow, [2, 3], [3, 2])))
try: functools.reduce(operator.mul, 5)
except TypeError as e: print(e)
try: functools.reduce(operator.mul, [])
except TypeError as e: print(e)
print((5).__add__(2), "ab".__mul__(2), [].append.__name__, operator.methodcaller("ljust", 4)("a") + "|")
class I(int):
    def __pow__(self, o): return super().__pow__(o) * -1
    def ljust(self, n): return n
print(I(3) ** 2, I(3) * 2, I(2).ljust(10 ** 12), type(I(3) * 2))
import enum
class E(enum.IntFlag): A = 1; B = 2
print(E.A | E.B, E.B * 3, E.B ** 2, E.B << 2)
""",
    "archives_regex": """
import zlib, gzip, bz2, lzma, re, zipfile, io, itertools, random, statistics
data = b"hello " * 1000
for mod in (zlib, gzip, bz2, lzma): print(mod.decompress(mod.compress(data)) == data)
print(zlib.decompressobj().decompress(zlib.compress(data)) == data)
try: zlib.decompress(b"junk" * 10000)
except zlib.error as e: print(e)
try: bz2.decompress(b"junk")
except OSError as e: print(e)
two = gzip.compress(data) + gzip.compress(data); print(len(gzip.decompress(two)))
b = io.BytesIO()
with zipfile.ZipFile(b, "w", zipfile.ZIP_DEFLATED) as z: z.writestr("a", data)
print(zipfile.ZipFile(b).read("a") == data)
try: zipfile.ZipFile(b).read("nope")
except KeyError as e: print(e)
print(re.findall(r"\\w+", "a bc"), re.sub("a+$", "x", "baaa"), re.split(",", "a,b"))
print(re.compile(r"(\\d+)-(\\d+)", re.I).fullmatch("12-34").groups())
try: re.match("(", "a")
except re.error as e: print(e)
print(list(itertools.product("ab", repeat=2)), list(itertools.permutations(range(3), 2)))
print(list(itertools.cycle("")), list(itertools.islice(itertools.cycle("ab"), 3)))
print(list(itertools.accumulate(range(1, 5), lambda a, b: a * b)), list(itertools.starmap(pow, [(2, 3)])))
print(list(itertools.combinations("abc", r=2)))
random.seed(1); print(random.sample(range(10 ** 12), 3), random.choices("ab", k=3), random.getrandbits(8) >= 0)
import decimal
decimal.getcontext().prec = 20_000
print(len(str(decimal.Decimal(2).sqrt())), decimal.Decimal(3) ** 4, decimal.Decimal(2).ln(decimal.Context(prec=9)))
print(statistics.mean(range(10)), list(zip(*[iter(range(6))] * 2)), any(range(10 ** 12)), all(range(10 ** 12)))
""",
    "imports": """
import os.path, sys as system
from math import pi, factorial as fact
def lazy():
    from collections import OrderedDict
    import json
    return OrderedDict(a=1), json.dumps([1])
print(lazy(), fact(5), round(pi, 2), os.path.join("a", "b"), system is __import__("sys"))
try: import nothing_like_this
except ImportError as e: print(e)
try: from math import nothing
except ImportError as e: print(e)
""",
    "traceback": """
import traceback
def f(x):
    y = x * 2

    return g(y)
def g(y):
    return y / 0 ** 2
class Chain:
    def a(self, n): return self
    def b(self, n): return n / 0
def h():
    return (
        Chain()
        .a(1)
        .b(
            2
        )
    )
import sys
try:
    h()
except ZeroDivisionError:
    print([(fr.name, fr.lineno) for fr in traceback.extract_tb(sys.exc_info()[2]) if fr.filename == "prog"])
try:
    f(3)
except ZeroDivisionError:
    print([(fr.name, fr.lineno) for fr in traceback.extract_tb(sys.exc_info()[2]) if fr.filename == "prog"])
""",
    "loops": """
total = 0
for i in range(10):
    if i == 3: continue
    if i == 8: break
    total += i * 2
else: total = -1
while total > 0: total >>= 1
else: print("done", total)
x = y = 3; x **= y; x <<= 2; x %= 50; x *= 1.5; print(x)
del y
assert x * 2 > 0, "no"
lst = [3, 1, 2]; lst.sort(key=lambda v: v * -1); print(lst, lst[::-1], lst[1 * 1 :])
print("a" "b" * 2, not 0 ** 1, -2 ** 2, (-8) ** (1 / 3) == (-8) ** (1 / 3), 2 ** -1, 7 // 2 ** 1, ~(1 << 3))
""",
}
