# SPDX-License-Identifier: Apache-2.0
"""`check`: what is certain to be refused, read from the source alone. Nothing of the source is run."""

from __future__ import annotations

import ast
import builtins
import itertools
import operator
from dataclasses import replace

from . import operations, watched
from .depth import deep_enough
from .fold import stored_names
from .iterables import length
from .limits import DEFAULT
from .patterns import is_hopeless
from .refusal import GuardError, refusal
from .runtime import Checks
from .searches import PATTERN
from .sizes import power_bits
from .widths import UNKNOWN, spec_width

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .limits import GuardLimits
    from .refusal import Refusal

__all__ = ["check"]

_BITS, _ELEMENTS = 100_000, 100_000  # results up to here are computed, to be certain about what is made of them
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow, ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.Mod: operator.mod,
    ast.Div: operator.truediv,
}  # fmt: skip
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert, ast.Not: operator.not_,
}  # fmt: skip
_MADE = (range, zip, enumerate, iter, reversed, itertools.count, itertools.repeat)
_MAPPED = (bool, str, int, float, abs, repr)
_PATTERN_CALLS = ("compile", "match", "search", "fullmatch", "findall", "finditer", "split", "sub", "subn")


def check(source: str, *, limits: GuardLimits = DEFAULT) -> list[Refusal]:
    """The operations in `source` that are certain to be refused if they are reached, by line; [] if there are none.

    Certain: from constants, and from names that are assigned once, at the top level, a value that is certain. It does
    not say that a line is reached, and an empty list is no promise: `compile` sees the values themselves. A hopeless
    pattern that is a constant is reported whatever text it may be used on. Raises SyntaxError where compile() does.
    """
    watched.refresh()

    def read() -> list[Refusal]:
        tree: Any = compile(source, "<checked>", "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
        reader = _Reader(tree, limits)
        for node in reversed(list(ast.walk(tree))):  # what is inside comes first, so no recursion goes deep
            if isinstance(node, ast.expr):
                reader.value_of(node)
        return sorted(reader.refusals, key=lambda each: each.line or 0)

    return deep_enough(read, source, "exec")


class _Reader:
    def __init__(self, tree: ast.Module, limits: GuardLimits) -> None:
        self.limits = limits
        self.checks = Checks(limits)
        self.refusals: list[Refusal] = []
        self.values: dict[ast.AST, Any] = {}
        self.stored = stored_names(tree)
        self.imported = _imports(tree, self.stored)
        self.assigned = {name: node for name, node in _assignments(tree) if self.stored.get(name) == 1}

    def value_of(self, node: ast.AST) -> Any:
        """The value of an expression, or UNKNOWN. What is refused on the way is noted once and is UNKNOWN."""
        if node not in self.values:
            self.values[node] = UNKNOWN  # also while it is being looked at: a name may be defined by itself
            method = getattr(self, f"_{type(node).__name__}", None)
            if method is not None:
                self.values[node] = self._asked(node, method)
        return self.values[node]

    def _asked(self, node: Any, method: Callable[[Any], Any]) -> Any:
        try:
            return method(node)
        except GuardError as error:
            self.refusals.append(replace(error.refusal, line=node.lineno))
        except Exception:  # it will fail in its own way when it is run
            pass
        return UNKNOWN

    def _Constant(self, node: ast.Constant) -> Any:
        return node.value

    def _Name(self, node: ast.Name) -> Any:
        if node.id in self.imported:
            return self.imported[node.id]
        if node.id in self.assigned:
            value = self.value_of(self.assigned[node.id])
            return value if isinstance(value, int | float | str | bytes | range) or _is_watched(value) else UNKNOWN
        return UNKNOWN if node.id in self.stored else getattr(builtins, node.id, UNKNOWN)

    def _Attribute(self, node: ast.Attribute) -> Any:
        owner = self.value_of(node.value)
        if owner is UNKNOWN or (node.attr.startswith("__") and owner in self.imported.values()):
            return UNKNOWN
        return getattr(owner, node.attr, UNKNOWN)

    def _UnaryOp(self, node: ast.UnaryOp) -> Any:
        value = self.value_of(node.operand)
        return _UNARY[type(node.op)](value) if isinstance(value, int | float) else UNKNOWN

    def _BinOp(self, node: ast.BinOp) -> Any:
        left, right = self.value_of(node.left), self.value_of(node.right)
        kind, limits = type(node.op), self.limits
        if kind is ast.Pow:
            operations.check_pow(left, right, limits)
        elif kind is ast.LShift:
            operations.check_shift(left, right, limits)
        elif kind is ast.Mult:
            operations.check_mul(left, right, limits)
        elif kind is ast.Mod and isinstance(left, str | bytes):
            operations.check_mod(left, right if type(right) is tuple else (right,), limits)
            return UNKNOWN
        return _BINARY[kind](left, right) if _is_cheap(kind, left, right) else UNKNOWN

    def _Tuple(self, node: ast.Tuple | ast.List) -> Any:
        if any(isinstance(each, ast.Starred) for each in node.elts):
            return UNKNOWN
        values = [self.value_of(each) for each in node.elts]
        return values if isinstance(node, ast.List) else tuple(values)

    _List = _Tuple

    def _JoinedStr(self, node: ast.JoinedStr) -> Any:
        for each in node.values:
            spec = each.format_spec if isinstance(each, ast.FormattedValue) else None
            if isinstance(each, ast.FormattedValue) and isinstance(spec, ast.JoinedStr):
                parts = [self._part(part) for part in spec.values]
                if UNKNOWN not in parts:
                    value = self.value_of(each.value) if each.conversion == -1 else ""
                    operations.check_text("an f-string", spec_width(value, "".join(parts)), self.limits)
        return UNKNOWN

    def _part(self, part: ast.AST) -> Any:
        if isinstance(part, ast.FormattedValue) and part.conversion == -1 and part.format_spec is None:
            value = self.value_of(part.value)
            return str(value) if type(value) in (int, str) else UNKNOWN
        return part.value if isinstance(part, ast.Constant) else UNKNOWN

    def _ListComp(self, node: Any) -> Any:
        found = length(self.value_of(node.generators[0].iter))
        if found is not None:
            watched.check_steps("this comprehension", found, self.limits)
        return UNKNOWN

    _SetComp = _DictComp = _ListComp

    def _GeneratorExp(self, node: ast.GeneratorExp) -> Any:
        first = self.value_of(node.generators[0].iter)
        return UNKNOWN if length(first) is None else filter(None, first)  # it takes the same steps

    def _Starred(self, node: ast.Starred) -> Any:
        if isinstance(node.ctx, ast.Load):
            watched.check_collected(self.checks, "unpacking it", self.value_of(node.value))
        return UNKNOWN

    def _Lambda(self, node: ast.Lambda) -> Any:
        names = [each.arg for each in node.args.args]
        body = node.body
        if isinstance(body, ast.BinOp) and isinstance(body.op, ast.Mult) and len(names) == 2:
            sides = [each.id for each in (body.left, body.right) if isinstance(each, ast.Name)]
            return operator.mul if sorted(sides) == sorted(names) else UNKNOWN
        return UNKNOWN

    def _Call(self, node: ast.Call) -> Any:
        function = self.value_of(node.func)
        if function is UNKNOWN or any(isinstance(each, ast.Starred) for each in node.args):
            return UNKNOWN
        args = [self.value_of(each) for each in node.args]
        options = {each.arg: self.value_of(each.value) for each in node.keywords if each.arg is not None}
        if len(options) < len(node.keywords):
            return UNKNOWN
        self._check_pattern(function, args, options)
        rule, receiver = watched.fitting_rule(function)
        if rule is not None:
            watched.apply(self.checks, rule, (*receiver, *args), options)
        if UNKNOWN in args or options:
            return UNKNOWN
        if function in _MADE or (function is map and args[0] in _MAPPED):
            return function(*args)
        return UNKNOWN

    def _check_pattern(self, function: Any, args: list[Any], options: dict[str, Any]) -> None:
        if getattr(function, "__module__", "") != "re" or function.__name__ not in _PATTERN_CALLS:
            return
        pattern = args[0] if args else options.get("pattern")
        flags = args[1] if function.__name__ == "compile" and len(args) > 1 else options.get("flags", 0)
        whole = function.__name__ == "fullmatch"
        if isinstance(pattern, str | bytes) and flags is not UNKNOWN and is_hopeless(pattern, int(flags), whole=whole):
            what = "a repeat within a repeat can need 2**n steps for n characters, and"
            raise GuardError(refusal("regex", what, float("inf"), self.limits.regex_steps, "steps", PATTERN))


def _is_cheap(kind: type[ast.operator], left: Any, right: Any) -> bool:
    """Whether this operation on two known values may be done here."""
    if isinstance(left, int | float) and isinstance(right, int | float):
        if isinstance(left, float) or isinstance(right, float):
            return True
        if kind is ast.Pow:
            return power_bits(left, right, _BITS) is None and right >= 0
        added = right if kind is ast.LShift else right.bit_length()
        return left.bit_length() + added <= _BITS
    sequence, times = (left, right) if isinstance(right, int) else (right, left)
    if kind is ast.Mult and type(sequence) in (str, bytes, list, tuple) and isinstance(times, int):
        return len(sequence) * times <= _ELEMENTS
    return kind is ast.Add and type(left) is type(right) and type(left) in (str, bytes, list, tuple)


def _is_watched(value: Any) -> bool:
    return callable(value) and watched.fitting_rule(value)[0] is not None


def _assignments(tree: ast.Module) -> list[tuple[str, ast.AST]]:
    found: list[tuple[str, ast.AST]] = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found.append((node.targets[0].id, node.value))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found.append((node.target.id, node.value))
    return found


def _imports(tree: ast.Module, stored: dict[str, int]) -> dict[str, Any]:
    """Names that mean a watched module of the standard library, or something in one, and nothing else anywhere."""
    found: dict[str, list[Any]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.setdefault(alias.asname or alias.name, []).append(_module(alias.name))
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                value = getattr(_module(node.module or ""), alias.name, UNKNOWN)
                found.setdefault(alias.asname or alias.name, []).append(value)
    return {
        name: values[0]
        for name, values in found.items()
        if len(values) == stored.get(name) and all(each is values[0] for each in values) and values[0] is not UNKNOWN
    }


def _module(name: str) -> Any:
    """The module itself; only those that are watched are ever imported for this."""
    if name not in watched.MODULES:
        return UNKNOWN
    try:
        module = __import__(name)
    except ImportError:
        return UNKNOWN
    watched.refresh()
    return module
