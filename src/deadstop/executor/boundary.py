# SPDX-License-Identifier: Apache-2.0
"""A boundary to keep and to run commands in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from .. import clock, wire
from ..cancel import CancelToken
from ..errors import InternalError, UsageError
from ..model import place_to_dict
from ..results import Receipt, ToolResult
from . import client
from .admission import Admission, command_key
from .client import Call, OnOutput
from .given import Given, Stdin, command_of
from .prepare import COMMAND_OPTIONS, PLACE_OPTIONS, Options, check_names, over_before_start, prepare_place, refused
from .private import supervisor, wait_readable
from .waiting import checked, wait, wait_async

if TYPE_CHECKING:
    from typing import Unpack

    from .options import CommandOptions, PlaceOptions

ANSWER_S = 15.0  # opening or ending a boundary, unless the supervisor itself is stopped


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
        admission = Admission()
        started = self._start(argv, options, stdin, on_output, admission)
        result = started if isinstance(started, ToolResult) else admission.settled(wait(started, cancel))
        return checked(result, check)

    async def run_async(
        self, argv: Sequence[str], *, stdin: Stdin = None, on_output: OnOutput | None = None,
        cancel: CancelToken | None = None, check: bool = False, **options: Unpack[CommandOptions],
    ) -> ToolResult:  # fmt: skip
        """The async twin of `run`."""
        admission = Admission()
        started = self._start(argv, options, stdin, on_output, admission)
        result = started if isinstance(started, ToolResult) else admission.settled(await wait_async(started, cancel))
        return checked(result, check)

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
        self, argv: Sequence[str], options: CommandOptions, stdin: Stdin, on_output: OnOutput | None,
        admission: Admission,
    ) -> Call | ToolResult:  # fmt: skip
        if options.keys() & {"effect", "key", "failed_exit"}:
            raise UsageError("effect: in a kept boundary something may go on acting after a command has ended, and so "
                             "no end of one is the end of an operation: use deadstop.run(effect=...)")  # fmt: skip
        check_names(options, COMMAND_OPTIONS, "Boundary.run")
        fixed = {name: getattr(self._options, name) for name in ("isolation", "bind_cwd")}
        asked = Options(**{**fixed, **options})
        command = command_of(argv, asked, self.place, self._python, stdin, on_output)
        if self.receipt is not None:
            return refused(command, "policy", "this boundary has ended: open a new one")
        with Given(asked, stdin) as (cwd, source):
            return (
                over_before_start(command)
                or admission.refusal(command.tool, command.call_id, lambda: command_key(command, asked, stdin))
                or client.start_in(self._channel, self.place.isolation, command, cwd, source, on_output)
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
