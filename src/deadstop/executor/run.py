# SPDX-License-Identifier: Apache-2.0
"""`deadstop.run` and its async twin: two thin faces over one engine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from .. import clock
from ..cancel import CancelToken
from ..results import Status, ToolResult
from . import client
from .admission import Admission, command_key
from .client import Call, OnOutput
from .given import Given, Stdin, command_of
from .prepare import DEFAULT, Default, Options, over_before_start, prepare_place
from .waiting import checked, wait, wait_async

if TYPE_CHECKING:
    from typing import Unpack

    from .options import RunOptions

Path = str | os.PathLike[str]


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

    Raises UsageError for bad input and BoundaryUnavailable, in both cases before anything was started.
    """
    options = _options(locals())
    return checked(_run(argv, options, stdin, on_output, cancel), check)


async def run_async(
    argv: Sequence[str],
    *,
    stdin: Stdin = None,
    on_output: OnOutput | None = None,
    cancel: CancelToken | None = None,
    check: bool = False,
    **options: Unpack[RunOptions],
) -> ToolResult:
    """The async twin of `run`, with the same options. Cancelling the task kills the command and waits for the proof."""
    admission = Admission()
    started = _start(argv, Options(**options), stdin, on_output, cancel, admission)
    result = started if isinstance(started, ToolResult) else admission.settled(await wait_async(started, cancel))
    return checked(result, check)


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
