# SPDX-License-Identifier: Apache-2.0
"""Every error deadstop raises.

DeadstopError
|-- UsageError (also ValueError)         the caller passed something that is not allowed
|   `-- InvalidLimit                     a limit that is not a finite number above zero, or None
|-- BoundaryUnavailable                  this host cannot give the isolation level asked for
|-- InternalError                        a defect in deadstop itself
|-- SandboxError                         a sandbox, or what is asked of its server
|   |-- NotFound                         no such sandbox, exec, session, snapshot or template
|   |-- SandboxEnded                     it has ended; `.reason` says how
|   |-- SandboxPaused                    it is paused: resume it first
|   |-- NotAllowed                       its state does not allow that
|   |-- KeyConflict                      an idempotency key was used before, for something else
|   |-- CapacityError                    no room for another; nothing was made. `.retry_after` where waiting can help
|   |-- FileProblem                      a path that is missing, outside, of the wrong kind, or too large
|   `-- ServerUnreachable                no server answered
|-- EffectError                          raised by a tool with effects, to say what it knows about them
|   |-- NotSent                          surely nothing has left: it did not happen
|   |-- Rejected                         the authority refused it: it did not happen
|   `-- Accepted                         the authority took it and is not done
|-- LedgerError                          the record of operations
|   |-- LedgerUnavailable                it cannot be opened, or not written to; `.fix` says what would change that
|   |-- LedgerBroken                     it is not what was written: its log, its checkpoints or its state disagree
|   |-- IllegalTransition                an operation's state does not allow that
|   |-- StaleClaim                       somebody else has settled the operation, or its lease is over
|   |-- OperationConflict                one key, two different requests
|   `-- OperationNotFound                no such operation
|-- MissingExtra                         a part of deadstop whose packages are not installed
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
    "Accepted",
    "BoundaryUnavailable",
    "CapacityError",
    "DeadstopError",
    "EffectError",
    "FileProblem",
    "IllegalTransition",
    "InternalError",
    "InvalidLimit",
    "KeyConflict",
    "LedgerBroken",
    "LedgerError",
    "LedgerUnavailable",
    "MissingExtra",
    "NotAllowed",
    "NotFound",
    "NotSent",
    "OperationConflict",
    "OperationNotFound",
    "OutcomeUnknown",
    "Rejected",
    "SandboxEnded",
    "SandboxError",
    "SandboxPaused",
    "ServerUnreachable",
    "StaleClaim",
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

    TRY_AGAIN = "try again when other processes have ended"

    def __init__(self, level: str, reason: str, fix: str = "") -> None:
        super().__init__(level, reason, fix)
        self.level = level
        self.reason = reason
        self.fix = fix

    @property
    def temporary(self) -> bool:
        """The host has run out of something that others may give back."""
        return self.fix == self.TRY_AGAIN

    def __str__(self) -> str:
        text = f"the {self.level} boundary is not available on this host: {self.reason}"
        return f"{text}; {self.fix}" if self.fix else text


class InternalError(DeadstopError):
    """A defect in deadstop itself, not in the tool and not in the call."""


class EffectError(DeadstopError):
    """Raised by a tool with effects to say what it knows. Anything else that it raises leaves its effect unknown.

    `phase` is how far it had come, `observation` what was seen, `reference` the authority's own name for it,
    `retry_after` in seconds what the authority asked to wait. `operation` is the id of the one it speaks of, once it
    has been raised as a call's end: what it says of that one, it does not say of an operation around it.
    """

    operation: str | None = None

    def __init__(
        self, text: str, *, phase: str | None = None, observation: str | None = None, reference: str | None = None,
        retry_after: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(text)
        self.phase, self.observation, self.reference, self.retry_after = phase, observation, reference, retry_after

    def __reduce__(self) -> tuple[object, ...]:
        told = (self.phase, self.observation, self.reference, self.retry_after)
        return _effect_error, (type(self), str(self), self.operation, *told)


def _effect_error(kind: type[EffectError], text: str, operation: str | None, *told: object) -> EffectError:
    names = ("phase", "observation", "reference", "retry_after")
    made = kind(text, **dict(zip(names, told, strict=True)))  # type: ignore[arg-type]
    made.operation = operation
    return made


class NotSent(EffectError):
    """Surely nothing has left this machine: it did not happen, and may be sent again if its definition says so."""


class Rejected(EffectError):
    """The authority refused it, so it did not happen. Sent again unchanged it would be refused again."""


class Accepted(EffectError):
    """The authority has taken it and is not done: unknown until it is looked up under `reference`."""


class MissingExtra(DeadstopError, ImportError):
    """A part of deadstop was used whose packages are not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(what, extra)
        self.what, self.extra = what, extra

    def __str__(self) -> str:
        return f"{self.what} needs more packages: pip install 'deadstop[{self.extra}]'"


class LedgerError(DeadstopError):
    """Something asked of the ledger cannot be done."""


class LedgerUnavailable(LedgerError):
    """The ledger cannot be opened, read or written; what was asked has not been done, as far as anybody can say.

    `uncertain` is True where a commit was sent and its answer was lost: read the operation again.
    """

    def __init__(self, where: str, reason: str, fix: str = "", *, uncertain: bool = False) -> None:
        super().__init__(where, reason, fix)
        self.where, self.reason, self.fix, self.uncertain = where, reason, fix, uncertain

    def __str__(self) -> str:
        text = f"the ledger {self.where} is not available: {self.reason}"
        return f"{text}; {self.fix}" if self.fix else text


class LedgerBroken(LedgerError):
    """The ledger is not what was written. `problems` locates each, one line."""

    def __init__(self, where: str, problems: tuple[str, ...]) -> None:
        super().__init__(where, problems)
        self.where, self.problems = where, problems

    def __str__(self) -> str:
        return f"the ledger {self.where} is broken: {'; '.join(self.problems)}"


class IllegalTransition(LedgerError):
    """The operation's state does not allow that."""

    def __init__(self, before: str, after: str) -> None:
        super().__init__(before, after)
        self.before, self.after = before, after

    def __str__(self) -> str:
        return f"an operation that is {self.before} cannot become {self.after}"


class StaleClaim(LedgerError):
    """The one who asks no longer holds the operation, which is `state` now. What was brought is kept as evidence."""

    def __init__(self, op_id: str, state: str) -> None:
        super().__init__(op_id, state)
        self.op_id, self.state = op_id, state

    def __str__(self) -> str:
        return f"operation {self.op_id} was taken or settled by somebody else meanwhile; it is {self.state}"


class OperationConflict(LedgerError):
    """The key belongs to an operation with another fingerprint. Nothing was sent; the attempt is on record."""

    def __init__(self, op_id: str, key: str) -> None:
        super().__init__(op_id, key)
        self.op_id, self.key = op_id, key

    def __str__(self) -> str:
        return f"the idempotency key belongs to operation {self.op_id}, which is a different request"


class OperationNotFound(LedgerError):
    """No such operation."""

    def __init__(self, op_id: str) -> None:
        super().__init__(op_id)
        self.op_id = op_id

    def __str__(self) -> str:
        return f"no such operation: {self.op_id}"


class SandboxError(DeadstopError):
    """Something asked of a sandbox, or of the server that keeps it, cannot be done."""


class NotFound(SandboxError):
    """No such thing. `kind` is sandbox, exec, session, snapshot or template."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(kind, name)
        self.kind, self.name = kind, name

    def __str__(self) -> str:
        return f"no such {self.kind}: {self.name}"


class SandboxEnded(SandboxError):
    """The sandbox has ended. `reason`: killed, ttl, idle, owner_gone, resource, host_lost or failed."""

    def __init__(self, sandbox_id: str, reason: str, detail: str = "") -> None:
        super().__init__(sandbox_id, reason, detail)
        self.sandbox_id, self.reason, self.detail = sandbox_id, reason, detail

    def __str__(self) -> str:
        text = f"sandbox {self.sandbox_id} has ended ({self.reason})"
        return f"{text}: {self.detail}" if self.detail else text


class SandboxPaused(SandboxError):
    """The sandbox is paused; resume it first."""

    def __init__(self, sandbox_id: str) -> None:
        super().__init__(sandbox_id)

    def __str__(self) -> str:
        return f"sandbox {self.args[0]} is paused: resume it first"


class NotAllowed(SandboxError):
    """What the sandbox is, or is doing, does not allow that; one line says why."""


class KeyConflict(SandboxError):
    """An idempotency key was used before with another request; nothing was done."""

    def __init__(self, key: str) -> None:
        super().__init__(key)

    def __str__(self) -> str:
        return f"the idempotency key {self.args[0]!r} was used before for another request"


class CapacityError(SandboxError):
    """There is no room for another; nothing was made.

    `full` is sandboxes, memory, disk or host; `retry_after` is seconds, or None where waiting alone does not help.
    """

    def __init__(self, text: str, full: str = "sandboxes", retry_after: float | None = None) -> None:
        super().__init__(text, full, retry_after)
        self.full, self.retry_after = full, retry_after

    def __str__(self) -> str:
        return str(self.args[0])


class FileProblem(SandboxError):
    """A path in a sandbox that cannot be had.

    `kind`: not_found, denied, outside, is_a_directory, not_a_directory, not_empty, exists, not_a_file, too_large,
    no_space or changed.
    """

    def __init__(self, kind: str, path: str, text: str = "") -> None:
        super().__init__(kind, path, text)
        self.kind, self.path = kind, path

    def __str__(self) -> str:
        text = self.args[2] or self.kind.replace("_", " ")
        return f"{self.path}: {text}"


class ServerUnreachable(SandboxError):
    """No server answered; one line says where it was looked for and how to start one."""


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
