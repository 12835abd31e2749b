# SPDX-License-Identifier: Apache-2.0
"""smolagents' `evaluate_python_code`, each evaluation in a killable worker."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pickle import loads
from typing import Any

from smolagents import local_python_executor as upstream  # type: ignore[import-untyped,import-not-found,unused-ignore]

from .. import clock
from ..executor.function import call
from ..executor.tool import Call, Tool
from ._smolagents_errors import ended, error_of
from ._smolagents_values import dump, dump_each
from ._smolagents_worker import constants, serve

MEMORY = 512 << 20
DEFAULT_S: float = upstream.MAX_EXECUTION_TIME_SECONDS

_once = Tool(serve, {"memory": MEMORY, "name": "python", "timeout": None})


@lru_cache(maxsize=64)
def _limited(limit: float | None) -> Tool[..., Any]:
    """Kept: a tool is loaded once in a worker, and each of these is one."""
    return _once.limited(limit)


def evaluate_python_code(
    code: str, static_tools: Mapping[str, Any] | None = None, custom_tools: dict[str, Any] | None = None,
    state: dict[str, Any] | None = None, authorized_imports: list[str] = upstream.BASE_BUILTIN_MODULES,
    max_print_outputs_length: int = upstream.DEFAULT_MAX_LEN_OUTPUT,
    timeout_seconds: float | None = DEFAULT_S,
) -> tuple[Any, bool]:  # fmt: skip
    """As smolagents' function of this name, run in a killable worker with at most 512 MB.

    `state` and `custom_tools` go there by value, and what came of them is put back into the same dicts: the objects in
    them are new ones. After a kill they are as they were, but for `_print_outputs`. Classes and functions that the code
    makes come back as such: using them runs the model's code in this process, without a limit. An executor gives
    nothing like that back.
    """
    state = {} if state is None else state
    custom_tools = {} if custom_tools is None else custom_tools
    packed, kept = _pack(code, {"state": state, "tools": dict(static_tools or {}), "custom": custom_tools})
    settings = {"imports": authorized_imports, "max_prints": max_print_outputs_length, "constants": constants()}
    limit = clock.check_limit("timeout_seconds", timeout_seconds)
    result = call(Call(_limited(limit), "evaluate", packed, settings))
    if not result.ok:
        printed = state["_print_outputs"] = upstream.PrintContainer()
        printed.value = result.stdout.tail
        raise error_of(result, f"{ended(result, limit, MEMORY)}.")
    error, changed = result.value[0], loads(result.value[1])
    _put_back(state, changed["state"], kept)
    _put_back(custom_tools, changed["custom"], kept)
    if error is not None:
        raise upstream.InterpreterError(error)
    return changed["value"], changed["final"]


def _pack(code: str, named: dict[str, dict[str, Any]]) -> tuple[bytes, set[str]]:
    """All together, so that what is one object stays one; else each by itself. And the names that cannot be sent."""
    asked: dict[str, Any] = {"code": code, **dict.fromkeys(named, ({}, {})), "shared": {kind: {} for kind in named}}
    try:
        return dump({**asked, "shared": named}), set()
    except Exception:
        each = {kind: dump_each(space) for kind, space in named.items()}
        return dump({**asked, **each}), {name for _, refused in each.values() for name in refused}


def _put_back(space: dict[str, Any], changed: dict[str, Any], kept: set[str]) -> None:
    for name in space.keys() - changed.keys() - kept:
        del space[name]
    space.update(changed)
