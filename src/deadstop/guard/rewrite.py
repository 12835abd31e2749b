# SPDX-License-Identifier: Apache-2.0
"""Python source to a code object that checks itself: operators and callees go through `Checks`.

The checks are a constant of the code object, put in after compilation in place of a text that no source contains. So
guarded code needs no name, no import and no builtins of its own: it runs in every namespace and leaves nothing there.
"""

from __future__ import annotations
import __future__

import ast
import builtins
from types import CodeType

from . import watched
from .depth import deep_enough
from .fold import is_small, is_unit, never_too_wide, stored_names
from .limits import DEFAULT
from .runtime import Checks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

    from .limits import GuardLimits

__all__ = ["compile_guarded", "compile_source"]

_STAND_IN = "\0deadstop.guard\0"
_OPERATORS: dict[type[ast.operator], str] = {ast.Pow: "pow", ast.LShift: "lshift", ast.Mult: "mul", ast.Mod: "mod"}
# Callees that are not looked at, for speed, unless the source gives the name another meaning.
_HARMLESS = frozenset(
    "super locals globals vars dir eval exec print len isinstance issubclass hasattr getattr setattr type range int "
    "str float bool repr abs round ord chr id iter next enumerate zip filter reversed dict".split()
)
_HARMLESS_METHODS = frozenset(
    "append items keys values get add pop setdefault startswith endswith strip lower upper popleft appendleft "
    "remove discard copy insert index count isdigit isalpha write close".split()
)


def compile_guarded(
    source: str,
    filename: str = "<guarded>",
    mode: Literal["exec", "eval", "single"] = "exec",
    *,
    limits: GuardLimits = DEFAULT,
) -> CodeType:
    """`source` as a code object that raises GuardError before it does something over `limits`.

    Run it with exec() or eval(), in any namespace: values, exceptions, line numbers and the order of evaluation are
    those of the plain code. Source text that it hands to eval() or exec() is guarded as well. It is no sandbox, and it
    bounds nothing that it does not see (docs/guard.md lists it). The code object carries its checks with it, so marshal
    cannot write it to a file. Raises SyntaxError or ValueError where compile() does, and RecursionError for a source
    that nests too deep to become a syntax tree.
    """
    return compile_source(source, filename, mode, limits, 0)


def compile_source(source: str, filename: str, mode: str, limits: GuardLimits, flags: int) -> CodeType:
    """The same, with the future features of the code that asks for it."""
    watched.refresh()

    def make() -> CodeType:
        tree: Any = builtins.compile(source, filename, mode, flags | ast.PyCF_ONLY_AST, dont_inherit=True)
        features = flags | _future_flags(tree)
        tree = _rewritten(tree, features, limits)
        code: CodeType = builtins.compile(tree, filename, mode, features, dont_inherit=True)
        return _with_checks(code, Checks(limits))

    return deep_enough(make, source, mode)


def _rewritten(tree: Any, flags: int, limits: GuardLimits) -> Any:
    return ast.fix_missing_locations(_Rewriter(flags, limits, frozenset(stored_names(tree))).visit(tree))


def _with_checks(code: CodeType, checks: Checks) -> CodeType:
    constants = tuple(
        checks
        if each == _STAND_IN and type(each) is str
        else _with_checks(each, checks)
        if isinstance(each, CodeType)
        else each
        for each in code.co_consts
    )
    return code.replace(co_consts=constants)


def _future_flags(tree: ast.AST) -> int:
    flags = 0
    for node in getattr(tree, "body", []) if not isinstance(tree, ast.Expression) else []:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            for alias in node.names:
                flags |= getattr(__future__, alias.name).compiler_flag
    return flags


class _Rewriter(ast.NodeTransformer):
    def __init__(self, flags: int, limits: GuardLimits, stored: frozenset[str]) -> None:
        self.flags = flags
        self.limits = limits
        self.harmless = _HARMLESS - stored
        self.classes: list[str] = []

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        name = _OPERATORS.get(type(node.op))
        if name is None or _needs_no_check(node, self.limits):
            return self.generic_visit(node)
        return _call(node, name, self.visit(node.left), self.visit(node.right))

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        name = _OPERATORS.get(type(node.op))
        if name is None:
            return self.generic_visit(node)
        value = self.visit(node.value)
        target = node.target
        if isinstance(target, ast.Name):
            read = ast.copy_location(ast.Name(target.id, ast.Load()), target)
            return ast.copy_location(ast.Assign([target], _call(node, f"i{name}", read, value)), node)
        if isinstance(target, ast.Attribute):
            text = ast.copy_location(ast.Constant(self._mangled(target.attr)), target)
            place = _call(target, "attribute", self.visit(target.value), text)
        else:
            key = ast.Subscript(_member(target, "key"), self.visit(target.slice), ast.Load())
            place = _call(target, "item", self.visit(target.value), ast.copy_location(key, target))
        update = ast.copy_location(ast.Attribute(place, f"i{name}", ast.Load()), node)
        return ast.copy_location(ast.Expr(ast.copy_location(ast.Call(update, [value], []), node)), node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        callee = node.func
        self.generic_visit(node)
        if isinstance(callee, ast.Name):
            if callee.id in ("eval", "exec") and node.args and not isinstance(node.args[0], ast.Starred):
                again = ast.copy_location(ast.Name(callee.id, ast.Load()), callee)
                flags = ast.copy_location(ast.Constant(self.flags), callee)
                node.args[0] = _call(node.args[0], "source", again, node.args[0], flags)
            if callee.id in self.harmless:
                return node
        elif isinstance(callee, ast.Attribute):
            if callee.attr in _HARMLESS_METHODS:
                return node
            if callee.end_lineno and callee.end_lineno > callee.lineno:
                # The compiler puts a method call on the line of the method's name; ours no longer looks like one.
                node.lineno = callee.end_lineno
                node.col_offset = max(0, (callee.end_col_offset or 0) - len(callee.attr))
        node.func = _call(callee, "fn", node.func)
        return node

    def visit_Starred(self, node: ast.Starred) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load):
            node.value = _call(node.value, "star", node.value)
        return node

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.AST:
        self.generic_visit(node)
        if node.format_spec is None or never_too_wide(node.format_spec, self.limits):
            return node
        conversion = ast.copy_location(ast.Constant(node.conversion), node)
        text = _call(node, "text", node.value, conversion, node.format_spec)
        return ast.copy_location(ast.FormattedValue(text, -1, None), node)

    def visit_ListComp(self, node: Any) -> ast.AST:
        self.generic_visit(node)
        first = node.generators[0]
        if not first.is_async:
            first.iter = _call(first.iter, "walk", first.iter)
        return node  # type: ignore[no-any-return]

    visit_SetComp = visit_DictComp = visit_ListComp

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> Any:
        if getattr(node, "module", None) == "__future__":
            return node
        return [node, ast.copy_location(ast.Expr(_call(node, "refresh")), node)]

    visit_ImportFrom = visit_Import

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.classes.append(node.name)
        self.generic_visit(node)
        self.classes.pop()
        return node

    # Annotations may be kept as text and patterns may hold only constants: both stay as they were written.

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.target = self.visit(node.target)
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_FunctionDef(self, node: Any) -> ast.AST:
        returns, node.returns = node.returns, None
        self.generic_visit(node)
        node.returns = returns
        return node  # type: ignore[no-any-return]

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        if node.guard is not None:
            node.guard = self.visit(node.guard)
        node.body = [part for each in node.body for part in _listed(self.visit(each))]
        return node

    def visit_TypeAlias(self, node: ast.AST) -> ast.AST:
        return node

    visit_TypeVar = visit_ParamSpec = visit_TypeVarTuple = visit_TypeAlias

    def _mangled(self, name: str) -> str:
        """A private name as the compiler writes it, which does not see ours."""
        owner = self.classes[-1].lstrip("_") if self.classes else ""
        return f"_{owner}{name}" if owner and name.startswith("__") and not name.endswith("__") else name


def _needs_no_check(node: ast.BinOp, limits: GuardLimits) -> bool:
    """What is certain from the constants beside the operator."""
    left, right = node.left, node.right
    if is_small(node, limits):
        return True
    if isinstance(node.op, ast.Mod):
        return isinstance(left, ast.Constant) and (isinstance(left.value, int | float) or never_too_wide(left, limits))
    if isinstance(node.op, ast.Pow) and is_unit(right):
        return True
    return any(isinstance(each, ast.Constant) and isinstance(each.value, float | complex) for each in (left, right))


def _listed(part: Any) -> list[Any]:
    return part if isinstance(part, list) else [part]


def _member(where: ast.AST, name: str) -> ast.expr:
    checks = ast.copy_location(ast.Constant(_STAND_IN), where)
    return ast.copy_location(ast.Attribute(checks, name, ast.Load()), where)


def _call(where: ast.AST, name: str, *arguments: ast.expr) -> ast.Call:
    return ast.copy_location(ast.Call(_member(where, name), list(arguments), []), where)
