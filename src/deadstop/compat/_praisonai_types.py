# SPDX-License-Identifier: Apache-2.0
"""The records and errors of PraisonAI's tool-call executor, by the names and in the shapes its callers know."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .. import results


@dataclass
class ToolProgress:
    """What a running tool says about itself. The executor fills in whose it is where the tool did not."""

    text: str
    id: str | None = None
    replace: bool = True
    tool_call_id: str | None = None
    function_name: str | None = None


OnProgress = Callable[[ToolProgress], None]


@dataclass
class DeferredToolResult:
    """What a tool returns instead of a value that comes later; `note` is what the model is told meanwhile."""

    handle_id: str
    note: str = "started; will resolve later"


def defer(note: str = "started; will resolve later", handle_id: str | None = None) -> DeferredToolResult:
    """Make one, with a handle of its own if none is given."""
    return DeferredToolResult(handle_id or uuid.uuid4().hex, note)


@dataclass
class ToolCall:
    """One tool call as a model asked for it."""

    function_name: str
    arguments: dict[str, Any]
    tool_call_id: str
    is_ollama: bool = False
    iteration_index: int | None = None


@dataclass
class ToolResult:
    """How one call ended. Success is `error is None`: `error_kind` says "error" even then, as it does in PraisonAI.

    `progress` is kept also of a call that was ended. `outcome` is deadstop's own result of a call that ran under a
    limit (receipt, evidence, what it printed, a late answer), None for others.
    """

    function_name: str
    arguments: dict[str, Any]
    result: Any
    tool_call_id: str
    is_ollama: bool
    error: Exception | None = None
    progress: list[ToolProgress] = field(default_factory=list)
    deferred: DeferredToolResult | None = None
    error_kind: str = "error"

    @property
    def is_deferred(self) -> bool:
        return self.deferred is not None

    @property
    def structured_error(self) -> dict[str, Any] | None:
        """Five keys for the model, None on success."""
        if self.error is None:
            return None
        return {
            "error": True,
            "kind": self.error_kind,
            "type": type(self.error).__name__,
            "message": text_of(self.error),
            "tool": self.function_name,
        }

    @property
    def outcome(self) -> results.ToolResult | None:
        found: results.ToolResult | None = self.__dict__.get("_outcome")
        return found


class ToolTimeoutError(TimeoutError):
    """A tool was ended at its limit. One class for both layers: returned in `error` by the executor, raised by
    `wrap_with_timeout`.

    `background_work_may_continue` is False: the work was killed, and its receipt counts no survivors. It is True only
    where that cannot be said: the function ran inline (see DEADSTOP_PRAISONAI_INLINE), or a process was unkillable.
    """

    def __init__(
        self, tool_name: str = "", timeout_seconds: float | None = None, background_work_may_continue: bool = False
    ) -> None:
        """With `tool_name` alone that is the whole message."""
        super().__init__(
            tool_name if timeout_seconds is None else f"Tool {tool_name!r} exceeded its limit of {timeout_seconds:g}s"
        )
        self.tool_name = tool_name
        self.timeout_seconds = timeout_seconds
        self.background_work_may_continue = background_work_may_continue


class ToolCancelledError(Exception):
    """The call was cancelled: before it started, or, under a limit, while it ran."""


class ToolCapacityError(Exception):
    """No worker came free for the call. It never ran."""


class ToolNotSendableError(Exception):
    """A call with a limit was not run, for it cannot go to a process that could be killed. The text names the fixes."""


class ToolExitError(Exception):
    """The tool called sys.exit: that ended the tool and nobody else. `code` is what it gave."""

    def __init__(self, code: object = None) -> None:
        super().__init__(f"the tool called sys.exit({'' if code is None else code})")
        self.code = code


class ToolRemoteError(Exception):
    """Stands for an exception that could not leave the tool's process; the class in hand has that one's name."""


class ToolExecutionError(Exception):
    """Terminal: raised by a tool, it is raised again instead of becoming a result.

    `results` are those of the other calls of the batch that ended, in the order of the calls.
    """

    def __init__(
        self, message: str = "", tool_name: str = "unknown", *, is_retryable: bool = True, **context: Any
    ) -> None:
        super().__init__(message)
        self.message, self.tool_name, self.is_retryable = message, tool_name, is_retryable
        self.context = {**context, "tool_name": tool_name}
        self.results: list[ToolResult] = []


def text_of(problem: BaseException) -> str:
    try:
        return str(problem)
    except Exception:
        return "<its text cannot be had>"
