# SPDX-License-Identifier: Apache-2.0
"""One call and the task that it is made in: asked before the start, told of the end."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from ..budget import current, key_of, refused_result
from ..model import Command
from ..narrate import diagnosed
from ..results import Status, ToolResult
from .prepare import Options

SMALL_INPUT = 1 << 20  # more than this is not read a second time only to be compared
# What makes a command the same call again. A longer timeout is a new try, and so is another kind of boundary.
_COMPARED = (
    *("timeout", "idle_timeout", "isolation", "memory", "pids", "cpus", "disk", "output_limit", "net"),
    *("clear_env", "env_defaults", "bind", "ro_bind", "bind_cwd", "tty", "on_input_wait"),
)
# An end that says nothing about the call: somebody else wanted it.
_NOT_ITS_FAULT = frozenset({"caller", "race_lost", "owner_gone", "shutdown", "sandbox_ended", "token_error"})


class Admission:
    """Made where the call is made. Without a current task it costs next to nothing and changes nothing."""

    __slots__ = ("_key", "_task", "_tool")

    def __init__(self) -> None:
        self._task = current()
        self._tool = ""
        self._key: bytes | None = None

    def refusal(self, tool: str, call_id: str, key: Callable[[], bytes | None]) -> ToolResult | None:
        """The result of a call that the task refuses; None if it may start, and it has taken its step then."""
        if self._task is None:
            return None
        self._tool, self._key = tool, key()
        refusal = self._task.admit(tool, self._key)
        return None if refusal is None else refused_result(refusal, tool, call_id)

    def withdrawn(self) -> None:
        """It could not be made at all."""
        if self._task is not None:
            self._task.give_back()

    def settled(self, result: ToolResult) -> ToolResult:
        """The result of an admitted call, with the task's id and, if the call keeps failing, words in its hint."""
        task, words = self._task, None
        if task is None:
            return result
        if result.status is Status.REFUSED or (
            result.status is Status.CANCELLED and result.environment == "nothing was started"
        ):
            task.give_back()  # it never started
        elif result.status is not Status.CANCELLED or result.reason not in _NOT_ITS_FAULT:
            words = task.note(self._tool, self._key, not result.ok)
        if words is None:
            return result if result.task_id else replace(result, task_id=task.task_id)
        hint = "; ".join(filter(None, (result.hint or diagnosed(result), words)))
        return replace(result, hint=hint, task_id=result.task_id or task.task_id)


def command_key(command: Command, options: Options, stdin: bytes | str | int | None) -> bytes | None:
    """What stands for a command and all it was given; None if its input cannot be compared."""
    if isinstance(stdin, int) or (stdin is not None and len(stdin) > SMALL_INPUT):
        return None
    env = sorted((options.env or {}).items())
    return key_of(
        repr(command.argv), _folder(), repr(options.cwd), repr(env), repr(stdin),
        *(repr(getattr(options, name)) for name in _COMPARED),
    )  # fmt: skip


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # removed meanwhile
        return ""
