# SPDX-License-Identifier: Apache-2.0
"""Every error deadstop raises.

DeadstopError
|-- UsageError (also ValueError)         the caller passed something that is not allowed
|   `-- InvalidLimit                     a limit that is not a finite number above zero, or None
|-- BoundaryUnavailable                  this host cannot give the isolation level asked for
|-- InternalError                        a defect in deadstop itself
`-- ToolError                            a call did not give its result; carries it as `.result`
    |-- ToolTimeoutError (also TimeoutError)
    |-- ToolCancelledError
    |-- ToolCrashedError
    |-- ToolRefusedError
    |-- ToolResourceError
    |-- ToolSignaledError
    |-- ToolStartError                   the command could not be started
    |-- ToolExitError                    the command completed with a non-zero exit code
    `-- OutcomeUnknown                   never a TimeoutError: retry libraries match on that
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .results import ToolResult

__all__ = [
    "BoundaryUnavailable",
    "DeadstopError",
    "InternalError",
    "InvalidLimit",
    "OutcomeUnknown",
    "ToolCancelledError",
    "ToolCrashedError",
    "ToolError",
    "ToolExitError",
    "ToolRefusedError",
    "ToolResourceError",
    "ToolSignaledError",
    "ToolStartError",
    "ToolTimeoutError",
    "UsageError",
]


class DeadstopError(Exception):
    """The base of every error that deadstop raises on its own account."""


class UsageError(DeadstopError, ValueError):
    """The caller passed something that is not allowed; one line names the value and what is allowed.

    Raised before anything starts, so nothing has happened yet.
    """


class InvalidLimit(UsageError):
    """A limit that is not None and not a finite number above zero."""


class BoundaryUnavailable(DeadstopError):
    """This host cannot give the isolation level asked for; nothing was started.

    `reason` says what is missing, `fix` what would change that ("" where nothing can).
    """

    def __init__(self, level: str, reason: str, fix: str = "") -> None:
        super().__init__(level, reason, fix)
        self.level = level
        self.reason = reason
        self.fix = fix

    def __str__(self) -> str:
        text = f"the {self.level} boundary is not available on this host: {self.reason}"
        return f"{text}; {self.fix}" if self.fix else text


class InternalError(DeadstopError):
    """A defect in deadstop itself, not in the tool and not in the call."""


class ToolError(DeadstopError):
    """A call did not give its result. `result` is the whole `ToolResult` (None only if built by hand)."""

    result: ToolResult | None

    def __init__(self, message: str = "", result: ToolResult | None = None) -> None:
        # Only the message goes into args: an exception is unpickled as cls(*args) and then
        # gets its __dict__ back, which brings `result` along.
        super().__init__(message)
        self.result = result


class ToolTimeoutError(ToolError, TimeoutError):
    """A time limit ended the call, and nothing says that its effect is in doubt."""


class ToolCancelledError(ToolError):
    """The call was cancelled, before or while it ran."""


class ToolCrashedError(ToolError):
    """A worker or server died without giving a result."""


class ToolRefusedError(ToolError):
    """The call never started."""


class ToolResourceError(ToolError):
    """A memory, process, disk or output limit ended the call."""


class ToolSignaledError(ToolError):
    """The call ended by a signal that deadstop did not send."""


class ToolStartError(ToolError):
    """The command could not be started."""


class ToolExitError(ToolError):
    """The command completed with an exit code other than zero."""


class OutcomeUnknown(ToolError):
    """Nobody can say yet whether the call had its effect. Reconcile it; do not simply call again."""
