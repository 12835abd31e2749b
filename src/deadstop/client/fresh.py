# SPDX-License-Identifier: Apache-2.0
"""Attempts that do not inherit what the last one left behind: each has a new machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from .. import clock, deadlines
from ..errors import InvalidLimit, SandboxEnded
from ..results import Receipt, ToolResult

if TYPE_CHECKING:
    from .synchronous import Sandbox

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One that failed: what it raised or gave, and the receipt of its sandbox."""

    sandbox_id: str
    error: Exception | None
    result: object
    receipt: Receipt | None


@dataclass(frozen=True, slots=True)
class Fresh(Generic[T]):
    """`value` and the `sandbox` it was made in, which lives on; both None if every attempt failed."""

    value: T | None
    sandbox: Sandbox | None
    failed: tuple[Attempt, ...]

    @property
    def ok(self) -> bool:
        return self.sandbox is not None

    def unwrap(self) -> T:
        """The value, or what the last attempt raised (the ToolError of its result)."""
        if self.sandbox is not None:
            return self.value  # type: ignore[return-value]
        last = self.failed[-1]
        if last.error is not None:
            raise last.error
        assert isinstance(last.result, ToolResult)
        last.result.unwrap()
        raise AssertionError("an attempt that failed has an error")


def retry_fresh(sandbox: Sandbox, function: Callable[[Sandbox], T], attempts: int = 3) -> Fresh[T]:
    """See `Sandbox.retry_fresh`."""
    if clock.check_count("attempts", attempts) is None:
        raise InvalidLimit("attempts: None is not a number of attempts")
    failed: list[Attempt] = []
    for _ in range(attempts):
        fresh = _like(sandbox.refresh())
        try:
            value = function(fresh)
        except Exception as problem:
            failed.append(Attempt(fresh.id, problem, None, fresh.kill()))
        except BaseException:
            fresh.kill()
            raise
        else:
            if not isinstance(value, ToolResult) or value.ok:
                return Fresh(value, fresh, tuple(failed))
            failed.append(Attempt(fresh.id, None, value, fresh.kill()))
        if deadlines.remaining() == 0:
            break
    return Fresh(None, None, tuple(failed))


def _like(sandbox: Sandbox) -> Sandbox:
    """Another of the same kind, which ends no later."""
    known = sandbox.document
    if sandbox.time_left <= 0:
        raise SandboxEnded(sandbox.id, str((sandbox.end or {}).get("reason", "ttl")))
    server = sandbox._async._server
    limits = known.get("limits") or {}
    return type(sandbox).create(
        sandbox.template, sandbox.time_left, metadata=sandbox.metadata, from_snapshot=sandbox.last_snapshot,
        detached=not known.get("attached", True), memory=limits.get("memory"), pids=limits.get("pids"),
        cpus=limits.get("cpus"), disk=limits.get("disk"), network=known.get("network"), server=server.url,
        token=server.token,
    )  # fmt: skip
