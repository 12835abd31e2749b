# SPDX-License-Identifier: Apache-2.0
"""How a call ended: `ToolResult` and the frozen records it is made of (JSON form: `deadstop.result/1`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from .envelope import ERROR_CLASSES, error_envelope, error_type_of
from .errors import EffectError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = [
    "SCHEMA",
    "Diagnosis",
    "Evidence",
    "FileTail",
    "FiredLimit",
    "Late",
    "LimitReport",
    "Output",
    "ProcessSeen",
    "Progress",
    "Receipt",
    "Status",
    "ToolResult",
    "Unkillable",
    "error_envelope",
]

SCHEMA = "deadstop.result/1"


class _Nothing(dict):  # type: ignore[type-arg]
    """The empty mapping that every result without limits shares."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __setitem__(self, key: object, value: object) -> None:
        raise TypeError("a result does not change")


_NO_LIMITS: Mapping[str, LimitReport | None] = _Nothing()


class Status(StrEnum):
    """How a call ended. Exactly one per started call; a closed set."""

    _value_: str
    meaning: str

    COMPLETED = "completed", "it ended by itself: a command has an exit code, a function has a value"
    ERROR = "error", "a function raised, or a command could not be started"
    TIMEOUT = "timeout", "a time limit fired"
    CANCELLED = "cancelled", "the caller cancelled it, before or while it ran"
    SIGNALED = "signaled", "it ended by a signal that deadstop did not send"
    CRASHED = "crashed", "a worker or server died without giving a result"
    RESOURCE_LIMIT = "resource_limit", "a memory, process, disk or output limit ended it"
    REFUSED = "refused", "it never started"
    UNKNOWN = "unknown", "how it ended is not known; never shown as success or failure"

    def __new__(cls, value: str, meaning: str = "") -> Status:
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member


@dataclass(frozen=True, slots=True)
class Output:
    """The LAST bytes of one stream. `bytes_total` were written, `bytes_dropped` of them were cut in front."""

    raw: bytes = b""
    bytes_total: int = 0
    bytes_dropped: int = 0

    @property
    def truncated(self) -> bool:
        """Whether anything was cut."""
        return self.bytes_dropped > 0

    @property
    def tail(self) -> str:
        """`raw` as text. U+FFFD stands for bytes that were never UTF-8, not for a character we cut in two."""
        start = 0
        if self.bytes_dropped > 0:  # a cut leaves at most three continuation bytes in front
            while start < min(3, len(self.raw)) and self.raw[start] & 0xC0 == 0x80:
                start += 1
        return self.raw[start:].decode("utf-8", "replace")

    def plain(self) -> str:
        """`tail` without terminal escapes and with overwritten progress lines collapsed."""
        from .plain import plain_text

        return plain_text(self.tail)


@dataclass(frozen=True, slots=True)
class FiredLimit:
    """The limit that ended the call. `seconds` is None for a limit that is not one of time."""

    which: str
    seconds: float | None = None
    source: str = "given"


@dataclass(frozen=True, slots=True)
class LimitReport:
    """One resource limit as it was in force, and what enforced it."""

    value: int | float | None
    enforced_by: str | None
    source: str = "given"


@dataclass(frozen=True, slots=True)
class Unkillable:
    """A process that could not be shown dead."""

    pid: int
    cmd: str = ""
    waiting_in: str | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """The statement after a kill. `survivors` is counted; None where it could not be."""

    boundary: str
    method: tuple[str, ...]
    proof: str
    survivors: int | None = None
    processes: int = 0
    kill_ms: float = 0.0
    deadline_to_dead_ms: float | None = None
    escalated: bool = False
    unkillable: tuple[Unkillable, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessSeen:
    """One process of the call before the kill. `pid` is as the call sees it, `host_pid` as the host does."""

    pid: int
    host_pid: int | None = None
    cmd: str = ""
    state: str = "?"
    waiting_in: str | None = None
    cpu_s: float | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the call waited for: the blamed `pid`, `confidence` from 0 to 1, `chain` of pids leading to it."""

    kind: str
    detail: str
    pid: int | None = None
    confidence: float | None = None
    hint: str | None = None
    since_s: float | None = None
    chain: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FileTail:
    """The end of a file the caller named as evidence, or the `error` that kept it from being read."""

    path: str
    tail: str = ""
    bytes_total: int | None = None
    truncated: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was read before the kill. `complete` is False where its time budget ran out."""

    diagnosis: Diagnosis | None = None
    processes: tuple[ProcessSeen, ...] = ()
    stacks: str | None = None
    took_ms: float = 0.0
    complete: bool = True
    files: tuple[FileTail, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """One message of a running tool. With `replace`, one with the same `id` stands in its place."""

    text: str
    id: str | None = None
    replace: bool = True
    data: Any = None


@dataclass(frozen=True, slots=True)
class Late:
    """What a function gave after its call had been decided: evidence, never a result.

    `kind` is "value" or "error", `text` its repr or message, `after_s` how long after the verdict it came (0 where
    that is not known). `value` is the object itself where it could be had; it never leaves the process.
    """

    kind: str
    text: str
    after_s: float = 0.0
    value: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)  # without slots: an unset field is the class's, so that building one costs little
class ToolResult:
    """How one call ended, and everything known about it.

    An overrun is never `ok`. `effect` says what is known of the outside world; `retry_allowed` is no guess.
    """

    tool: str
    status: Status
    call_id: str = ""
    task_id: str | None = None
    reason: str | None = None
    limit: FiredLimit | None = None
    limits: Mapping[str, LimitReport | None] = _NO_LIMITS
    exit_code: int | None = None
    signal: int | None = None
    value: Any = None
    started_at: str | None = None
    duration_s: float = 0.0
    queued_s: float = 0.0
    stdout: Output = Output()
    stderr: Output = Output()
    effect: str = "undeclared"
    retry_allowed: bool = False
    receipt: Receipt | None = None
    evidence: Evidence | None = None
    environment: str | None = None
    hint: str | None = None
    degraded: tuple[str, ...] = ()
    operation: Mapping[str, Any] | None = None
    gap_s: float | None = None  # time the supervisor itself was stopped
    leftover: tuple[str, ...] = ()  # names of processes a completed command left behind, which were then killed
    start_errno: int | None = None  # why a command could not be started
    late: Late | None = None  # what a function gave after the verdict
    progress: tuple[Progress, ...] = ()  # what a function said about itself while it ran
    deferred: str | None = None  # handle of a value that comes later (deadstop.deferred)
    traceback: str | None = None  # where a function raised
    error_type: str | None = None  # None: the error envelope follows from the status
    error_message: str | None = None
    exception: BaseException | None = field(default=None, compare=False, repr=False)  # never leaves the process

    @property
    def ok(self) -> bool:
        """It completed, and a command did so with exit code 0."""
        return self.status is Status.COMPLETED and self.exit_code in (0, None)

    @property
    def error(self) -> dict[str, Any] | None:
        """The error envelope; None for a completed call, whatever its exit code."""
        return error_envelope(self)

    def unwrap(self) -> Any:
        """The value of a function, the stdout text of a command.

        Raises ToolExitError for a non-zero exit code, OutcomeUnknown where the effect is unknown, the tool's
        own exception where it raised one here, and otherwise the ToolError that belongs to the status. Each
        carries this result as `.result`.
        """
        if self.ok:
            return self.value if self.exit_code is None else self.stdout.tail
        kind = error_type_of(self)
        # A SystemExit or KeyboardInterrupt of the tool must not act on the caller.
        if self.status is Status.ERROR and isinstance(self.exception, Exception) and kind != "OutcomeUnknown":
            raise self._carried_by(self.exception)
        message = f"exit code {self.exit_code}" if self.error is None else self.error["message"]
        raise ERROR_CLASSES[kind](f"{self.tool}: {message}", self) from self.exception

    def _carried_by(self, own: Exception) -> Exception:
        if isinstance(own, EffectError) and own.operation is None and self.operation is not None:
            own.operation = self.operation["id"]
        try:
            own.result = self  # type: ignore[attr-defined]
        except (AttributeError, TypeError):  # one that cannot carry it is still the right one to raise
            pass
        return own

    def exit_status(self) -> int:
        """What `deadstop run` exits with."""
        match self.status:
            case Status.COMPLETED:
                code = self.exit_code or 0
                return code if 0 <= code <= 255 else 1
            case Status.ERROR:
                return 127 if self.start_errno == 2 else 126
            case Status.SIGNALED if self.signal:
                return 128 + self.signal
            case _:
                return _EXIT_STATUS[self.status]

    def for_model(
        self, max_chars: int = 2000, *, time_left_s: float | None = None, steps_left: int | None = None
    ) -> str:
        """Short plain text for the model, at most `max_chars` long; output from its end, cuts counted."""
        from .narrate import narrate

        return narrate(self, max_chars, time_left_s, steps_left)

    def to_dict(self) -> dict[str, Any]:
        """The JSON contract, key for key. What JSON cannot hold in `value` becomes its repr."""
        from .contract import result_to_dict

        return result_to_dict(self)

    @classmethod
    def made(cls, fields: dict[str, Any]) -> ToolResult:
        """As the constructor, for where a call must cost microseconds: the names are not checked."""
        result = _new(cls)
        _dict_of(result).update(fields)
        return result

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> ToolResult:
        """The inverse of `to_dict`; unknown keys are ignored. Raises UsageError for anything else."""
        from .contract import result_from_dict

        return result_from_dict(document)

    def to_json(self, *, indent: int | None = None) -> str:
        """`to_dict()` as JSON text, ASCII only."""
        from json import dumps

        return dumps(self.to_dict(), indent=indent, allow_nan=False)


_new = object.__new__
_dict_of = vars


_EXIT_STATUS = {
    Status.TIMEOUT: 124,
    Status.REFUSED: 125,
    Status.CANCELLED: 130,
    Status.RESOURCE_LIMIT: 122,
    Status.SIGNALED: 123,  # by a signal nobody knows
    Status.CRASHED: 123,
    Status.UNKNOWN: 123,
}
