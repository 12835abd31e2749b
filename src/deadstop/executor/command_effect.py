# SPDX-License-Identifier: Apache-2.0
"""A command as an operation, the same for `deadstop run --effect once` and `deadstop.run(effect=...)`.

What makes it the same one again, what its end says about its effect, and what is told of it. One key is one operation
whichever of the two it comes from.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .. import clock
from ..contract import receipt_to_dict
from ..errors import UsageError
from ..ledger.canonical import digest, fingerprint
from ..ledger.records import Intent, Outcome, Record
from ..ledger.states import Phase, State
from ..model import Command
from ..operation import Operation
from ..results import Status, ToolResult
from .prepare import refused
from .refusals import NOTHING_STARTED

__all__ = [
    "done_before", "intent_of", "key_digest", "lease_was_over", "material_of", "outcome_of", "print_of", "shown",
    "with_operation_in_env", "with_own_end",
]  # fmt: skip


# -- which one it is -----------------------------------------------------------------------------------------------


def key_digest(key: bytes) -> str:
    """What binds retries to one operation: a digest, because whoever gives a key may take it for a secret.

    Raises UsageError for one that is empty.
    """
    if not key.strip():
        raise UsageError("the key is empty: it binds nothing to anything")
    return digest(b"deadstop.run.key.v1\0" + key.strip())


def material_of(argv: tuple[str, ...], folder: str) -> dict[str, Any]:
    return {"argv": [digest(os.fsencode(word)) for word in argv], "cwd": digest(os.fsencode(folder))}


def print_of(same: Mapping[str, Any]) -> str:
    """The fingerprint of what has to be the same under one key."""
    return fingerprint("run", same)


def shown(argv: tuple[str, ...], folder: str) -> dict[str, Any]:
    """For people, sealed in the ledger."""
    return {"argv": [_text(word) for word in argv], "cwd": _text(folder)}


def intent_of(scope: str, binding: str, same: Mapping[str, Any], **more: Any) -> Intent:
    """`more`: the other fields of an Intent. Keys are told apart by the scope alone, not by what the command is."""
    return Intent(scope=f"run/{scope}", binding=binding, fingerprint=print_of(same), **more)


def _text(word: str) -> str:
    return os.fsencode(word).decode("utf-8", "backslashreplace")


# -- before its start ----------------------------------------------------------------------------------------------


def with_operation_in_env(command: Command, operation: Operation) -> Command:
    return replace(command, env={**command.env, **operation.environment()})


def lease_was_over(command: Command) -> ToolResult:
    """A refusal: this process was stopped for so long that others may have settled its operation."""
    return refused(command, "deadline_over", "its lease was over before it could start")


def done_before(result: ToolResult, record: Record, ago: str = "") -> ToolResult:
    """`result` of one that was not started because it had succeeded: a good end for whoever comes again."""
    when = clock.iso(record.updated_ms / 1000) + (f", {ago}" if ago else "")
    return replace(result, exit_code=0, value=None, hint=f"already done: {record.op_id} at {when}; nothing was started")


# -- how it ended --------------------------------------------------------------------------------------------------


def outcome_of(result: ToolResult, failed: frozenset[int]) -> Outcome:
    """As seen from here. Exit code 0 is the command's word for its success, one of `failed` its word that nothing has
    happened; any other may come after half of it."""
    message = str((result.error or {}).get("message") or result.status.value)
    not_run = result.status in (Status.REFUSED, Status.ERROR, Status.CANCELLED)
    if not_run and result.environment == NOTHING_STARTED:
        return Outcome(State.PREPARED, phase=Phase.PREPARE.value, observation=f"{NOTHING_STARTED}: {message}")
    receipt = None if result.receipt is None else receipt_to_dict(result.receipt)
    if result.status is not Status.COMPLETED:
        return Outcome(State.UNKNOWN, Phase.REMOTE_EXEC.value, certain=False, observation=message, receipt=receipt)
    to = State.FAILED if result.exit_code in failed else State.UNKNOWN
    return Outcome(State.SUCCEEDED if result.exit_code == 0 else to, phase=Phase.READ_RESPONSE.value, receipt=receipt,
                   observation=f"exit code {result.exit_code}")  # fmt: skip


def with_own_end(told: ToolResult, result: ToolResult) -> ToolResult:
    """How a command ended is known also where what it did is not."""
    return replace(told, status=result.status, error_message=result.error_message)
