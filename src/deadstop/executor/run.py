# SPDX-License-Identifier: Apache-2.0
"""`deadstop.run`, its async twin, and a boundary to keep: two thin faces over one engine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from .. import clock, wire
from ..cancel import CancelToken
from ..errors import BoundaryUnavailable, InternalError, UsageError
from ..model import Command, Place, place_to_dict
from ..results import Receipt, Status, ToolResult
from . import client
from .client import Call, OnOutput
from .prepare import (
    COMMAND_OPTIONS,
    DEFAULT,
    PLACE_OPTIONS,
    Default,
    Options,
    check_names,
    host_cwd,
    over_before_start,
    prepare_command,
    prepare_place,
    refused,
)
from .private import LONGEST_WAIT_S, supervisor, wait_readable

if TYPE_CHECKING:
    from typing import Unpack

    from .options import CommandOptions, PlaceOptions, RunOptions

Stdin = bytes | str | int | None
Path = str | os.PathLike[str]
ANSWER_S = 15.0  # opening or ending a boundary, unless the supervisor itself is stopped


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
    return _checked(_run(argv, options, stdin, on_output, cancel), check)


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
    started = _start(argv, Options(**options), stdin, on_output, cancel)
    result = started if isinstance(started, ToolResult) else await _await(started, cancel)
    return _checked(result, check)


class Boundary:
    """A boundary to keep: commands run in it one after another or at once, and it ends as one.

    Promised: leaving the `with` block (or `kill`, or the end of this process) ends everything inside, background
    processes included. A command that meets a limit takes the whole boundary with it: what it left inside cannot be
    told apart from it. Raises BoundaryUnavailable when this host cannot give it.
    """

    def __init__(self, isolation: Literal["process", "sandbox"] = "process", **options: Unpack[PlaceOptions]) -> None:
        """`options`: memory, pids, cpus, disk, net, bind, ro_bind, bind_cwd, as for `run`."""
        check_names(options, PLACE_OPTIONS, "Boundary")
        self._options = Options(isolation=isolation, **options)
        self.place, self._python = prepare_place(self._options)
        self.receipt: Receipt | None = None
        self._channel = client.Channel(*supervisor.connect())
        self._channel.send(wire.OPEN, {"place": place_to_dict(self.place)})
        try:
            self._wait_for(wire.OPENED)
        except BaseException:
            self._channel.close()
            raise

    def run(
        self, argv: Sequence[str], *, stdin: Stdin = None, on_output: OnOutput | None = None,
        cancel: CancelToken | None = None, check: bool = False, **options: Unpack[CommandOptions],
    ) -> ToolResult:  # fmt: skip
        """Run a command inside, with those options of `deadstop.run` that concern one command."""
        started = self._start(argv, options, stdin, on_output)
        return _checked(started if isinstance(started, ToolResult) else _wait(started, cancel), check)

    async def run_async(
        self, argv: Sequence[str], *, stdin: Stdin = None, on_output: OnOutput | None = None,
        cancel: CancelToken | None = None, check: bool = False, **options: Unpack[CommandOptions],
    ) -> ToolResult:  # fmt: skip
        """The async twin of `run`."""
        started = self._start(argv, options, stdin, on_output)
        return _checked(started if isinstance(started, ToolResult) else await _await(started, cancel), check)

    def kill(self) -> Receipt:
        """End everything inside and return the receipt. Idempotent."""
        if self.receipt is None:
            self._channel.send(wire.KILL)
            try:
                self.receipt = self._wait_for(wire.GONE)
            except InternalError:
                self.receipt = self._channel.end_from_here(self.place.isolation)
            self._channel.close()
        assert self.receipt is not None
        return self.receipt

    def __enter__(self) -> Boundary:
        return self

    def __del__(self) -> None:
        if "_channel" in self.__dict__:
            self._channel.close()  # which ends it

    def __exit__(self, *exc_info: object) -> None:
        self.kill()

    def _start(
        self, argv: Sequence[str], options: CommandOptions, stdin: Stdin, on_output: OnOutput | None
    ) -> Call | ToolResult:
        check_names(options, COMMAND_OPTIONS, "Boundary.run")
        fixed = {name: getattr(self._options, name) for name in ("isolation", "bind_cwd")}
        asked = Options(**{**fixed, **options})
        command = _command(argv, asked, self.place, self._python, stdin, on_output)
        if self.receipt is not None:
            return refused(command, "policy", "this boundary has ended: open a new one")
        with _Given(asked, stdin) as (cwd, source):
            return over_before_start(command) or client.start_in(
                self._channel, self.place.isolation, command, cwd, source, on_output
            )

    def _wait_for(self, wanted: bytes) -> Receipt | None:
        """Read the boundary's own channel until this frame. Bounded."""
        end = clock.monotonic() + ANSWER_S
        while (left := end - clock.monotonic()) > 0:
            wait_readable([self._channel.socket.fileno()], left)
            frames = self._channel.read()
            if frames is None:
                raise InternalError("the supervisor ended, and the boundary with it")
            for kind, body in frames:
                if kind == wire.FAILED:
                    raise client.failure(body)
                if kind == wire.GONE:
                    self.receipt = client.gone_receipt(body)
                if kind == wanted:
                    return self.receipt
        raise InternalError("the supervisor did not answer in time")


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
    started = _start(argv, options, stdin, on_output, cancel)
    return started if isinstance(started, ToolResult) else _wait(started, cancel)


def _command(
    argv: Sequence[str],
    options: Options,
    place: Place,
    python: dict[str, str],
    stdin: Stdin,
    on_output: OnOutput | None,
) -> Command:
    kind = "tty" if options.tty else "open" if isinstance(stdin, int) and not isinstance(stdin, bool) else "null"
    stream = on_output is not None
    return prepare_command(argv, options, place, python, stdin=kind, size=None, stream=stream)


def _start(
    argv: Sequence[str],
    options: Options,
    stdin: Stdin,
    on_output: OnOutput | None,
    cancel: CancelToken | None,
) -> Call | ToolResult:
    """Check and hand over; a result at once if it must not start."""
    place, python = prepare_place(options)
    command = _command(argv, options, place, python, stdin, on_output)
    if cancel is not None and cancel.is_set():
        return ToolResult(
            tool=command.tool, status=Status.CANCELLED, reason="caller", call_id=command.call_id,
            started_at=clock.now_iso(), environment="nothing was started",
        )  # fmt: skip
    with _Given(options, stdin) as (cwd, source):
        return over_before_start(command) or client.start_run(place, command, cwd, source, on_output)


class _Given:
    """The folder and the input of a call as descriptors, for as long as it takes to hand them over."""

    def __init__(self, options: Options, stdin: Stdin) -> None:
        self._options, self._stdin = options, stdin
        self._open: list[int] = []

    def __enter__(self) -> tuple[int | None, int | None]:
        try:
            return self._descriptors()
        except BaseException:
            self.__exit__()
            raise

    def _descriptors(self) -> tuple[int | None, int | None]:
        cwd = None
        if self._options.isolation == "process":
            folder = host_cwd(self._options) or "."
            cwd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self._open.append(cwd)
        return cwd, self._input()

    def _input(self) -> int | None:
        given = self._stdin
        if given is None:
            return None
        if isinstance(given, int) and not isinstance(given, bool):
            try:
                os.fstat(given)
            except OSError as problem:
                raise UsageError(f"stdin: {given} is not an open descriptor ({problem.strerror})") from None
            return given
        if isinstance(given, str):
            given = given.encode()
        if not isinstance(given, bytes):
            raise UsageError(f"stdin: {given!r:.60} is neither bytes, text, a descriptor nor None")
        memory = os.memfd_create("deadstop-stdin", os.MFD_CLOEXEC)
        self._open.append(memory)
        left = memoryview(given)
        while left:
            left = left[os.write(memory, left) :]
        reading = os.open(f"/proc/self/fd/{memory}", os.O_RDONLY | os.O_CLOEXEC)
        self._open.append(reading)
        return reading

    def __exit__(self, *exc_info: object) -> None:
        for fd in self._open:
            os.close(fd)


def _wait(call: Call, cancel: CancelToken | None) -> ToolResult:
    """The blocking face: until the result, the token, or the moment at which a supervisor must have answered."""
    asked = False
    try:
        while not call.over:
            own = call.channel.socket.fileno()
            token = cancel.fileno() if cancel is not None and not asked else None
            ready = wait_readable([own] if token is None else [own, token], _patience(call))
            if token in ready:
                asked = True
                call.cancel()
            if own in ready:
                call.pump()
            elif not ready and _patience(call) == 0:
                call.overdue()
        return _outcome(call)
    finally:
        call.channel.close()  # if we leave early (KeyboardInterrupt), this kills the call


def _patience(call: Call) -> float | None:
    return None if call.answer_by is None else max(0.0, call.answer_by - clock.monotonic())


def _outcome(call: Call) -> ToolResult:
    if isinstance(call.problem, client.BoundaryEnded):
        return refused(call.command, "policy", str(call.problem))
    if call.problem is not None:
        raise call.problem
    if call.result is None:
        raise InternalError("a call ended without a result")
    error = call.result.error
    if call.result.status is Status.REFUSED and error and error["type"] == "BoundaryUnavailable":
        raise BoundaryUnavailable(call.level, str(error["message"]))
    return call.result


async def _await(call: Call, cancel: CancelToken | None) -> ToolResult:
    """The event loop's face."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    descriptor = call.channel.socket.fileno()
    timers: list[asyncio.TimerHandle] = []

    def pump() -> None:
        try:
            call.pump()
        except Exception as problem:  # what `on_output` raises is the caller's to see
            if not done.done():
                done.set_exception(problem)
        if call.over and not done.done():
            done.set_result(None)

    def overdue() -> None:
        if _patience(call) == 0 and not call.over:
            call.overdue()
        if not call.over:
            watch_time()
        elif not done.done():
            done.set_result(None)

    def watch_time() -> None:
        patience = _patience(call)
        if patience is not None:
            timers.append(loop.call_later(min(patience, LONGEST_WAIT_S), overdue))
            del timers[:-1]

    loop.add_reader(descriptor, pump)
    # A loop watches a descriptor once, and a token may be shared by many calls: each watches a copy.
    token = os.dup(cancel.fileno()) if cancel is not None else None
    if token is not None:
        loop.add_reader(token, _cancel_once, loop, token, call)
    watch_time()
    try:
        await asyncio.shield(done)
    except asyncio.CancelledError:
        call.cancel()
        call.channel.order(wire.HURRY)
        await asyncio.wait([done], timeout=client.PROOF_S)  # shielded and bounded: until it is shown to be gone
        raise
    finally:
        loop.remove_reader(descriptor)
        if token is not None:
            loop.remove_reader(token)
            os.close(token)
        for timer in timers:
            timer.cancel()
        call.channel.close()
    return _outcome(call)


def _cancel_once(loop: asyncio.AbstractEventLoop, token: int, call: Call) -> None:
    loop.remove_reader(token)
    call.cancel()


def _checked(result: ToolResult, check: bool) -> ToolResult:
    if check:
        result.unwrap()
    return result
