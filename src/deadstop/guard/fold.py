# SPDX-License-Identifier: Apache-2.0
"""What is certain from the source alone about a small part of it."""

from __future__ import annotations

import ast
import re

from .widths import percent_width

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .limits import GuardLimits

__all__ = ["is_small", "is_unit", "never_too_wide", "small_number", "stored_names"]

_BITS = 64
_DIGITS = re.compile(r"\d+")


def small_number(node: ast.AST, bits: int = _BITS, depth: int = 8) -> float | None:
    """The number that this expression of constants is, if its size is at most `bits`; None for all else."""
    if isinstance(node, ast.Constant):
        value: Any = node.value
        if type(value) is int:
            return value if value.bit_length() <= bits else None
        return value if type(value) is float else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = small_number(node.operand, bits, depth)
        return None if inner is None else -inner
    if isinstance(node, ast.BinOp) and depth:
        left, right = (small_number(each, bits, depth - 1) for each in (node.left, node.right))
        return None if left is None or right is None else _combined(node.op, left, right, bits)
    return None


def _combined(operator: ast.operator, left: Any, right: Any, bits: int) -> float | None:
    result: Any
    if isinstance(operator, ast.Add | ast.Sub):
        result = left + right if isinstance(operator, ast.Add) else left - right
    elif isinstance(operator, ast.Mult):
        result = left * right
    elif not (isinstance(left, int) and isinstance(right, int) and right >= 0):
        return None
    elif isinstance(operator, ast.Pow) and max(left.bit_length(), 1) * right <= bits:
        result = left**right
    elif isinstance(operator, ast.LShift) and left.bit_length() + right <= bits:
        result = left << right
    else:
        return None
    return result if isinstance(result, float) or result.bit_length() <= bits else None


def is_small(node: ast.AST, limits: GuardLimits) -> bool:
    """Whether this is arithmetic on constants that cannot reach any limit."""
    return small_number(node, min(_BITS, limits.int_bits)) is not None


def is_unit(node: ast.AST) -> bool:
    """Whether this is 0, 1 or -1: a power that makes nothing larger."""
    return small_number(node) in (0, 1, -1)


def never_too_wide(node: ast.AST, limits: GuardLimits) -> bool:
    """Whether this constant format (a spec of an f-string, or what is left of `%`) always asks for little."""
    if isinstance(node, ast.JoinedStr):
        constants = [each.value for each in node.values if isinstance(each, ast.Constant)]
        digits = _DIGITS.findall("".join(map(str, constants)))
        return len(constants) == len(node.values) and all(
            len(each) < 20 and int(each) <= limits.format_width for each in digits
        )
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
        return "*" not in text and percent_width(text, ()) <= limits.format_width
    return False


def stored_names(tree: ast.AST) -> dict[str, int]:
    """Every name that the source itself gives a meaning, in whatever scope, and how many times."""
    found: dict[str, int] = {}
    for node in ast.walk(tree):
        for name in _names_of(node):
            found[name] = found.get(name, 0) + 1
    return found


def _names_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        if not isinstance(node.ctx, ast.Load):
            yield node.id
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.alias):
        yield (node.asname or node.name).partition(".")[0]
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
        if node.name:
            yield node.name
    elif isinstance(node, ast.MatchMapping):
        if node.rest:
            yield node.rest
    elif isinstance(node, ast.Global | ast.Nonlocal):
        yield from node.names
