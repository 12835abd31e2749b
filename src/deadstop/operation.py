# SPDX-License-Identifier: Apache-2.0
"""An operation as a tool function sees it, and who acts: plain data that travels into workers and sandboxes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

__all__ = ["Acting", "Operation", "acting", "acting_now"]


@dataclass(frozen=True, slots=True)
class Operation:
    """What a function with effects gets as its `op`, and a reconcile function as its only argument.

    `key` is to be sent as the idempotency key, `correlation` to be logged by whoever is asked. `deadline` is the point
    on the wall clock (seconds since 1970) after which nothing may be sent any more; None where nothing is to be sent.
    It holds no rights: what was sent under it is settled through the ledger alone.
    """

    id: str
    key: str
    correlation: str
    attempt: int
    fence: int
    tool: str
    target: str | None = None
    reference: str | None = None
    fingerprint: str = ""
    deadline: float | None = None

    def headers(self) -> dict[str, str]:
        """For an HTTP request: the idempotency key and the correlation id."""
        return {"Idempotency-Key": self.key, "X-Correlation-ID": self.correlation}

    def environment(self) -> dict[str, str]:
        """For a command."""
        return {"DEADSTOP_OPERATION_KEY": self.key, "DEADSTOP_OPERATION_ID": self.id,
                "DEADSTOP_CORRELATION_ID": self.correlation, "DEADSTOP_OPERATION_FENCE": str(self.fence)}  # fmt: skip

    @classmethod
    def of(cls, record: Any) -> Operation:
        """From the ledger's record of it."""
        sending = record.state == "DISPATCHING" and record.lease_ms is not None
        return cls(record.op_id, record.key, record.correlation or record.op_id, record.attempts, record.fence,
                   record.tool, record.target, record.reference, record.fingerprint,
                   record.lease_ms / 1000 if sending else None)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Acting:
    """On whose behalf: `correlation` (a run's or task's own id), who asked, and who or what authorised it."""

    correlation: str | None = None
    asked_by: str | None = None
    authorised_by: str | None = None


_NOBODY = Acting()
_acting: ContextVar[Acting] = ContextVar("acting", default=_NOBODY)


def acting_now() -> Acting:
    return _acting.get()


@contextmanager
def acting(
    *, correlation: str | None = None, asked_by: str | None = None, authorised_by: str | None = None
) -> Iterator[None]:
    """A block in which operations are made on somebody's behalf. What is None stays as it was outside.

    Within one `correlation` a tool that has succeeded with the same meaningful arguments is not run again: give the id
    that your run keeps when it is resumed. To be set by the host program, never from what a model says.
    """
    outer = _acting.get()
    token = _acting.set(
        Acting(correlation or outer.correlation, asked_by or outer.asked_by, authorised_by or outer.authorised_by)
    )
    try:
        yield
    finally:
        _acting.reset(token)
