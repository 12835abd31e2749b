# SPDX-License-Identifier: Apache-2.0
"""`deadstop.tool`: the decorator, and what it promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

from .prepare import DEFAULT, Default
from .tool import DEFAULT_ANSWER_S, Level, Tool

if TYPE_CHECKING:
    from ..ledger.definition import Effect
    from .soft import OnSoft

P = ParamSpec("P")
R = TypeVar("R")


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    function: None = None, *, timeout: float | Default | None = DEFAULT,
    isolation: Level = "process", effect: Literal["none", "undeclared"] | Effect = "undeclared",
    name: str | None = None, soft_timeout: float | None = None, on_soft: OnSoft | None = None,
    soft_answer: float = DEFAULT_ANSWER_S, writes: Sequence[str] | Callable[..., Sequence[str]] = (), **place: Any,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...  # fmt: skip
@overload
def tool(
    function: Callable[P, R], *, timeout: float | Default | None = DEFAULT,
    isolation: Level = "process", effect: Literal["none", "undeclared"] | Effect = "undeclared",
    name: str | None = None, soft_timeout: float | None = None, on_soft: OnSoft | None = None,
    soft_answer: float = DEFAULT_ANSWER_S, writes: Sequence[str] | Callable[..., Sequence[str]] = (), **place: Any,
) -> Tool[P, R]: ...  # fmt: skip
def tool(
    function: Callable[..., Any] | None = None,
    *,
    timeout: float | Default | None = DEFAULT,
    isolation: Level = "process",
    effect: Literal["none", "undeclared"] | Effect = "undeclared",
    name: str | None = None,
    soft_timeout: float | None = None,
    on_soft: OnSoft | None = None,
    soft_answer: float = DEFAULT_ANSWER_S,
    writes: Sequence[str] | Callable[..., Sequence[str]] = (),
    **place: Any,
) -> Any:
    """Make a tool of a function: a decorator, with or without options.

    Promised: a call ends at its `timeout` (seconds, finite, above zero, or None; 60 if omitted), kept by another
    process: whatever the function does then ends with it, threads, subprocesses and native code included. With
    `isolation="inline"` none of that: it runs here, and an overrun is only reported. Not promised: that what it did
    before is undone; that module globals it changes are seen by the caller or by the next call (calls run in
    processes of their own, one of which serves many calls one after another).

    `effect="none"` declares that it changes nothing outside; only such tools may race. An `Effect` declares that it
    does, and how that can be known: each call is an operation in the ledger (docs/ledger.md), recorded before it
    starts, sent once, and never again because an answer was lost. A parameter annotated `Operation` is filled in by
    deadstop. Its calls raise LedgerUnavailable, before anything ran, where there is no ledger. `writes` names the
    resources it changes (or is a function of its arguments that does): calls of one batch that share one are run one
    after another. `soft_timeout`, `on_soft`, `soft_answer`: see `deadstop.SoftLimit`. `place`: memory, pids, cpus,
    disk and, for a sandbox, net, bind, ro_bind, bind_cwd, as for `deadstop.run`.
    """
    options: dict[str, Any] = {"isolation": isolation, "effect": effect, **place}
    given = {
        "timeout": (timeout, DEFAULT), "name": (name, None), "soft_timeout": (soft_timeout, None),
        "on_soft": (on_soft, None), "soft_answer": (soft_answer, DEFAULT_ANSWER_S), "writes": (writes, ()),
    }  # fmt: skip
    options.update({key: value for key, (value, default) in given.items() if value is not default})
    if function is None:
        return lambda decorated: Tool(decorated, options)
    return Tool(function, options)
