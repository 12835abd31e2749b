# SPDX-License-Identifier: Apache-2.0
"""Asking a Python function about an operation, in a worker that can be killed: and what it does ends with it."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..executor.function import call
from ..executor.tool import Call
from ..ledger.queries import FunctionQuery
from ..ledger.records import Finding
from ..ledger.states import Verdict
from ..results import Status, ToolResult

if TYPE_CHECKING:
    from ..operation import Operation

__all__ = ["ask_function"]

_NOT_LOADED = "deadstop: cannot be loaded"  # as the first of a pair: no function of a user's answers this


def ask_function(query: FunctionQuery, operation: Operation, timeout: float) -> Finding:
    """What the function returns: a Finding, a Verdict or its word. Whatever else happens to it settles nothing."""
    function = _of_this_program(query)
    asked = Call(_load_and_ask, query.name, operation) if function is None else Call(function, operation)
    result = call(asked.options(timeout=timeout))
    return _read(query.name, result)


def _load_and_ask(name: str, operation: Operation) -> Any:
    """Runs in the worker: an import that hangs is killed like anything else."""
    try:
        function = _loaded(name)
    except (ImportError, AttributeError) as problem:
        return _NOT_LOADED, f"{type(problem).__name__}: {problem}"
    return function(operation)


def _loaded(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for word in path.split("."):
        found = getattr(found, word)
    return getattr(found, "function", found)  # of a Tool


def _of_this_program(query: FunctionQuery) -> Any:
    """A function of the main program can be named by no other process, a worker's included: it is sent."""
    module, _, name = query.name.partition(":")
    if module != "__main__" or "." in name:
        return None
    found = getattr(sys.modules.get("__main__"), name, None)
    return getattr(found, "function", found)


def _read(name: str, result: ToolResult) -> Finding:
    source = f"function {name}"
    if result.status is Status.COMPLETED:
        return _returned(source, result.value)
    text = result.error["message"] if result.error else result.status.value
    if result.status in (Status.TIMEOUT, Status.CANCELLED, Status.REFUSED):
        return Finding(Verdict.UNREACHABLE, source, detail=text)
    lost = isinstance(result.exception, OSError)  # ConnectionError and TimeoutError are of that kind
    return Finding(Verdict.UNREACHABLE if lost else Verdict.INCONCLUSIVE, source, detail=text)


def _returned(source: str, value: Any) -> Finding:
    if isinstance(value, tuple) and len(value) == 2 and value[0] == _NOT_LOADED:
        return Finding(Verdict.UNREACHABLE, source, detail=f"cannot be loaded in this process: {value[1]}")
    if isinstance(value, str) and value in set(Verdict):
        return Finding(Verdict(value), source)
    if isinstance(value, Finding) and isinstance(value.verdict, str) and value.verdict in set(Verdict):
        return value if value.source else replace(value, source=source)
    kind = type(value).__name__
    return Finding(
        Verdict.INCONCLUSIVE, source, detail=f"it returned {kind} {value!r:.80}, which is no Finding and no Verdict"
    )
