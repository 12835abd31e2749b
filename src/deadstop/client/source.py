# SPDX-License-Identifier: Apache-2.0
"""A function as source, for a sandbox whose Python is another version: compiled code does not travel there.

With it go the modules that it names, plain data, and functions of its own module that it calls.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
import types
from pickle import dumps
from typing import Any

from ..errors import UsageError

HEAD = "from __future__ import annotations\n"  # what only annotations name need not be there
PLAIN = (int, float, complex, str, bytes, bool, type(None))


class Source:
    """`text` defines `name`, once `modules` (name to module) and `data` are in its globals."""

    def __init__(self, function: Any) -> None:
        """Raises UsageError for what source alone cannot bring."""
        self.name = getattr(function, "__name__", "")
        self.modules: dict[str, str] = {}
        self.data: dict[str, Any] = {}
        self._texts: dict[str, str] = {}
        self._add(function)
        self.text = HEAD + "\n\n".join(reversed(self._texts.values()))

    def packed_data(self) -> bytes:
        return dumps(self.data, 4)

    def _add(self, function: Any) -> None:
        name = getattr(function, "__qualname__", repr(function))
        if not isinstance(function, types.FunctionType) or function.__closure__ or "<lambda>" in name:
            raise UsageError(f"{name} cannot go as source to another Python: only a plain function without a closure")
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        except (OSError, SyntaxError) as problem:
            raise UsageError(f"the source of {name} cannot be had: {problem}") from None
        [definition] = tree.body
        assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
        definition.decorator_list = []
        self._texts[function.__name__] = ast.unparse(definition)
        for used in _names(definition):
            if used in function.__globals__ and used not in self._texts:
                self._bring(used, function.__globals__[used])

    def _bring(self, name: str, value: Any) -> None:
        if isinstance(value, types.ModuleType):
            self.modules[name] = value.__name__
        elif _is_plain(value, 0):
            self.data[name] = value
        else:
            value = getattr(value, "function", value)  # a tool
            if not isinstance(value, types.FunctionType) or value.__name__ != name:
                raise UsageError(f"{self.name} uses {name}, which cannot go as source to another Python")
            self._add(value)


def _names(definition: ast.AST) -> list[str]:
    """What it looks up, outside of annotations."""
    found: dict[str, None] = {}
    for node in ast.walk(definition):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
    for node in ast.walk(definition):
        if isinstance(node, ast.Name) and not hasattr(builtins, node.id):
            found[node.id] = None
    return list(found)


def _is_plain(value: Any, depth: int) -> bool:
    if depth > 20:
        return False
    if isinstance(value, list | tuple | set | frozenset):
        return all(_is_plain(part, depth + 1) for part in value)
    if isinstance(value, dict):
        return all(_is_plain(key, depth + 1) and _is_plain(part, depth + 1) for key, part in value.items())
    return type(value) in PLAIN
