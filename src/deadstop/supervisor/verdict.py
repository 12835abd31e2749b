# SPDX-License-Identifier: Apache-2.0
"""What the end of a command says: from its exit status, and from how its boundary went."""

from __future__ import annotations

import os
import resource
import signal
from typing import TYPE_CHECKING

from ..results import FiredLimit, Status

if TYPE_CHECKING:
    from .call import Call

Verdict = tuple[Status, str | None, FiredLimit | None]  # status, reason, the limit that fired


def of_completed(call: Call, status: int) -> Verdict:
    """Its first process ended by itself, in time, with this wait status."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    exceeded = _blamed_memory(call, status) if call.part else call.room.resource_exceeded()
    rlimits = (*call.room.boundary.applied.rlimits, *call.command.rlimits)
    if number == signal.SIGXFSZ and any(which == resource.RLIMIT_FSIZE for which, _ in rlimits):
        exceeded = "disk"
    if number == signal.SIGXCPU and any(which == resource.RLIMIT_CPU for which, _ in rlimits):
        exceeded = "cpu"
    if exceeded and status != 0:
        return Status.RESOURCE_LIMIT, None, FiredLimit(exceeded, None, "given")
    return (Status.SIGNALED if number else Status.COMPLETED), None, None


def _blamed_memory(call: Call, status: int) -> str | None:
    """In a shared boundary a kill for memory is this command's if it ended by such a kill."""
    killed = os.waitstatus_to_exitcode(status) in (-signal.SIGKILL, 128 + signal.SIGKILL)
    return "memory" if killed and call.room.memory_kills() > call.memory_kills else None


def of_lost(call: Call) -> Verdict:
    """The boundary ended, and this call did not ask for it: killed for another, at its own end, or its holder died."""
    room = call.room
    if room.end_limit is not None:
        return Status.TIMEOUT, None, room.end_limit
    if room.kill_at is not None:
        if room.end_reason == "owner_gone":
            return Status.CANCELLED, "owner_gone", None
        return Status.CANCELLED, "sandbox_ended" if call.part else "shutdown", None
    if room.failed:
        call.record.setup_failed = room.failed
        return Status.REFUSED, "policy", None
    group = room.boundary.applied.group
    if group and group.out_of_memory_kills():
        return Status.RESOURCE_LIMIT, None, FiredLimit("memory", None, "given")
    return Status.CRASHED, None, None
