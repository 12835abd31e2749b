# SPDX-License-Identifier: Apache-2.0
"""What the guard says: `Refusal`, the `GuardError` that carries it, and the result it becomes."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from ..errors import DeadstopError
from ..results import Status, ToolResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["GuardError", "Refusal", "number", "refusal", "refusal_result", "short"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """One operation that is not carried out. `str()` of it is one line for a person or a model.

    `estimate` and `limit` are in `unit`; an estimate of infinity stands for something that never ends. `line` is the
    line of the guarded source, None where it is not known. `message` names all three and the `alternative`.
    """

    kind: str
    line: int | None
    estimate: float
    limit: float
    unit: str
    message: str
    alternative: str

    def __str__(self) -> str:
        return self.message if self.line is None else f"line {self.line}: {self.message}"


class GuardError(DeadstopError):
    """Guarded code was about to do something too large; it was not done. `refusal` says what.

    It is no OverflowError, MemoryError or ValueError on purpose: code that handles one of those for reasons of its
    own must not take a refusal for it, carry on and hide it from whoever can choose another way.
    """

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal)
        self.refusal = refusal

    def __str__(self) -> str:
        return str(self.refusal)


def refusal(
    kind: str, what: str, estimate: float, limit: float, unit: str, alternative: str, line: int | None = None
) -> Refusal:
    """A Refusal whose message is put together from its parts; `what` reads like "10 ** 9 would have"."""
    message = f"{what} {number(estimate)} {unit}; the limit is {number(limit)}. Instead: {alternative}"
    return Refusal(kind, line, estimate, limit, unit, message, alternative)


def refusal_result(refusal: Refusal, *, tool: str = "python") -> ToolResult:
    """The ToolResult of a call that `check` kept from starting: status refused, reason guard.

    Not for a GuardError out of running code: what ran before it has been done, so that call ended with an error.
    """
    return ToolResult(
        tool=tool, status=Status.REFUSED, reason="guard", error_message=str(refusal), hint=refusal.alternative
    )


def number(value: float) -> str:
    """A count as people read it: 4,000,000, about 3.3e+24, endlessly many."""
    if value == inf:
        return "endlessly many"
    if isinstance(value, int) and value.bit_length() > 1000:
        return f"about 2**{value.bit_length() - 1:,}"
    if value < 10**15:
        return f"{int(value):,}"
    return f"about {float(value):.1e}"


def short(value: Any) -> str:
    """A value in a message. Never long, never costly, and never the repr of somebody's own class."""
    kind = type(value)
    if issubclass(kind, int):
        size = int.bit_length(value)
        return int.__repr__(value) if size <= 64 else f"(an int of {size:,} bits)"
    if kind in (str, bytes, list, tuple):
        return repr(value) if kind in (str, bytes) and len(value) <= 20 else f"a {kind.__name__} of {len(value):,}"
    return f"a {kind.__name__}"
