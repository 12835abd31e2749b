# SPDX-License-Identifier: Apache-2.0
"""`deadstop.run` and its async twin: two thin faces over one engine."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from .. import clock
from ..cancel import CancelToken
from ..errors import UsageError
from ..results import Status, ToolResult
from . import client
from .admission import Admission, command_key
from .client import Call, OnOutput
from .given import Given, Stdin, command_of
from .prepare import DEFAULT, Default, Options, over_before_start, prepare_place
from .waiting import checked, wait, wait_async

if TYPE_CHECKING:
    from typing import Unpack

    from ..ledger.definition import Effect
    from .options import RunOptions
    from .run_effect import Asked

Path = str | os.PathLike[str]
EFFECTS = ("none", "undeclared")


def run(
    argv: Sequence[str],
    *,
    timeout: float | Default | None = DEFAULT,
    idle_timeout: float | None = None,
    grace: float = 0.5,
    isolation: Literal["process", "sandbox"] = "process",
    memory: int | Default | None = DEFAULT,
    pids: int | Default | None = DEFAULT,
    cpus: float | None = None,
    disk: int | Default | None = DEFAULT,
    output_limit: int | None = None,
    net: bool = False,
    cwd: Path | None = None,
    env: Mapping[str, str | None] | None = None,
    clear_env: bool = False,
    env_defaults: bool = True,
    bind: Sequence[str] = (),
    ro_bind: Sequence[str] = (),
    bind_cwd: bool = True,
    stdin: Stdin = None,
    tty: bool = False,
    tail: int = 65536,
    on_input_wait: Literal["wait", "kill"] = "wait",
    evidence_paths: Sequence[str] = (),
    on_output: OnOutput | None = None,
    cancel: CancelToken | None = None,
    tool: str | None = None,
    effect: str | Effect = "undeclared",
    key: str | None = None,
    failed_exit: Collection[int] = (),
    check: bool = False,
) -> ToolResult:
    """Run a command that always ends, and return how it ended.

    Promised: the call ends at its limit, kept by another process; nothing it started in its boundary is left, and the
    receipt says with which proof; the last output and what it was doing are kept. Not promised: that what it did
    before is undone, or, at level `process`, any confinement.

    Times are seconds (finite, above zero) or None; an omitted `timeout` is 300 s. Sizes are bytes. `stdin` is closed
    unless given as bytes, text, or a descriptor. `on_output(stream, data)` is called in the calling thread as output
    comes. `cancel` ends the call from elsewhere. With `check` an end other than a completed one with exit code 0
    raises (see errors.py).

    With an `Effect` it is an operation in the ledger (docs/ledger.md), on record before it can start and done once
    under its `key`: your own name for this one intended effect, never taken from a model; without one, the correlation
    of `deadstop.acting` or the Task around the call binds the same command. It finds the operation's key as
    DEADSTOP_OPERATION_KEY in its environment. Exit code 0 is a success; one of `failed_exit` says that nothing has
    happened; any other, a kill or a limit leaves it unknown, and it is not started again. What had succeeded is not
    started again either: exit code 0 without its output. `effect="none"` says that it changes nothing.

    Raises UsageError for bad input, BoundaryUnavailable, and with an Effect LedgerUnavailable, in all cases before
    anything was started.
    """
    options = _options(locals())
    if (asked := _on_record(argv, options, stdin, on_output, cancel, effect, key, failed_exit)) is not None:
        from .run_effect import run_effect

        return checked(run_effect(asked), check)
    return checked(_as_declared(_run(argv, options, stdin, on_output, cancel), effect), check)


async def run_async(
    argv: Sequence[str],
    *,
    stdin: Stdin = None,
    on_output: OnOutput | None = None,
    cancel: CancelToken | None = None,
    effect: str | Effect = "undeclared",
    key: str | None = None,
    failed_exit: Collection[int] = (),
    check: bool = False,
    **options: Unpack[RunOptions],
) -> ToolResult:
    """The async twin of `run`, with the same options. Cancelling the task kills the command and waits for the proof."""
    given = Options(**options)
    if (asked := _on_record(argv, given, stdin, on_output, cancel, effect, key, failed_exit)) is not None:
        from .run_effect import run_effect_async

        return checked(await run_effect_async(asked), check)
    admission = Admission()
    started = _start(argv, given, stdin, on_output, cancel, admission)
    result = started if isinstance(started, ToolResult) else admission.settled(await wait_async(started, cancel))
    return checked(_as_declared(result, effect), check)


def _on_record(
    argv: Sequence[str], options: Options, stdin: Stdin, on_output: OnOutput | None, cancel: CancelToken | None,
    effect: str | Effect, key: str | None, failed_exit: Collection[int],
) -> Asked | None:  # fmt: skip
    """The command whose effect is an operation; None if it has no part in the ledger, which is not loaded then."""
    if not isinstance(effect, str):
        from .run_effect import Asked

        return Asked(argv, options, stdin, on_output, cancel, effect, key, failed_exit)
    if effect not in EFFECTS:
        raise UsageError(f"effect: {effect!r:.60} is neither 'none' nor 'undeclared' nor an Effect")
    if key is not None or failed_exit:
        raise UsageError(f"{'failed_exit' if key is None else 'key'} has a meaning only with effect=Effect(...)")
    return None


def _as_declared(result: ToolResult, effect: str | Effect) -> ToolResult:
    return replace(result, effect="none") if effect == "none" else result


def _options(given: dict[str, Any]) -> Options:
    names = Options.__dataclass_fields__
    return Options(**{name: value for name, value in given.items() if name in names})


def _run(
    argv: Sequence[str],
    options: Options,
    stdin: Stdin,
    on_output: OnOutput | None,
    cancel: CancelToken | None,
) -> ToolResult:
    admission = Admission()
    started = _start(argv, options, stdin, on_output, cancel, admission)
    return started if isinstance(started, ToolResult) else admission.settled(wait(started, cancel))


def _start(
    argv: Sequence[str],
    options: Options,
    stdin: Stdin,
    on_output: OnOutput | None,
    cancel: CancelToken | None,
    admission: Admission,
) -> Call | ToolResult:
    """Check and hand over; a result at once if it must not start."""
    place, python = prepare_place(options)
    command = command_of(argv, options, place, python, stdin, on_output)
    if cancel is not None and cancel.is_set():
        return ToolResult(
            tool=command.tool, status=Status.CANCELLED, reason="caller", call_id=command.call_id,
            task_id=command.task_id, started_at=clock.now_iso(), environment="nothing was started",
        )  # fmt: skip
    with Given(options, stdin) as (cwd, source):
        return (
            over_before_start(command)
            or admission.refusal(command.tool, command.call_id, lambda: command_key(command, options, stdin))
            or client.start_run(place, command, cwd, source, on_output)
        )
