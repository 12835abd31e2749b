# SPDX-License-Identifier: Apache-2.0
"""From what was heard to what is known: the outcome for the ledger, and the result for the caller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .. import clock
from ..contract import receipt_to_dict
from ..executor.refusals import NOTHING_STARTED
from ..ledger.answers import not_sent_now
from ..ledger.definition import Definition
from ..ledger.ledger import Ledger
from ..ledger.records import Outcome, Record
from ..ledger.states import Phase, State, Verdict
from ..results import FiredLimit, Output, Status, ToolResult
from .ssh_client import Heard
from .ssh_status import ended_as

__all__ = ["attached", "outcome_of", "over_before", "seen_result"]

# The helper's words for: nothing was started, and by nobody else either.
_NOT_STARTED = frozenset({"no_helper", "not_installed", "failed", "locked"})
_BY_US = frozenset({Status.TIMEOUT, Status.CANCELLED, Status.REFUSED})  # what ended ssh is then ours to say
_STATE_OF = {Verdict.APPLIED: State.SUCCEEDED, Verdict.APPLIED_FAILED: State.FAILED}


def outcome_of(heard: Heard, nonzero: str) -> Outcome:
    """Success and failure are the host's word alone, and "not sent" ssh's own log's. Everything else is UNKNOWN."""
    receipt = None if heard.result.receipt is None else receipt_to_dict(heard.result.receipt)
    if heard.sent is False:
        phase = Phase.CONNECT if heard.result.status is not Status.ERROR else Phase.PREPARE
        return Outcome(State.PREPARED, phase, True, heard.observation, receipt=receipt)
    last = heard.last
    ended = last.get("operation", last) if last.get("state") == "exists" else last
    if ended.get("state") == "finished":
        return _ended({"nonzero": nonzero, **ended}, heard, receipt)
    if last.get("state") in _NOT_STARTED:
        return Outcome(State.PREPARED, Phase.REMOTE_EXEC, True, _words(last), receipt=receipt)
    if last:
        seen = "it was started" if last["state"] == "started" else _words(last)
        return Outcome(State.UNKNOWN, Phase.REMOTE_EXEC, True, f"{seen}; {heard.observation}", receipt=receipt)
    # Nothing from the helper: it may have begun, or may still begin.
    phase = Phase.WRITE_REQUEST if heard.sent is None else Phase.AWAIT_RESPONSE
    return Outcome(State.UNKNOWN, phase, False, heard.observation, receipt=receipt)


def _ended(document: Mapping[str, Any], heard: Heard, receipt: Any) -> Outcome:
    verdict, text = ended_as(document)
    to = _STATE_OF.get(verdict, State.UNKNOWN)
    value = {"exit_code": document.get("code"), "stdout": heard.result.stdout.tail}
    return Outcome(
        to, Phase.REMOTE_EXEC, True, text, value=value if to is State.SUCCEEDED else None,
        has_value=to is State.SUCCEEDED, receipt=receipt,
    )  # fmt: skip


def _words(document: Mapping[str, Any]) -> str:
    return ": ".join(str(document[name]) for name in ("state", "detail") if document.get(name))


def seen_result(heard: Heard, outcome: Outcome, host: str) -> ToolResult:
    """What was heard alone says. It does not count before the ledger has taken it.

    ssh's own end is not the command's: the exit code is the host's report, or there is none.
    """
    result, last = heard.result, heard.last
    fields: dict[str, Any] = {"exit_code": None, "signal": None, "environment": _environment(heard, outcome, host)}
    ended = last.get("operation", last) if last.get("state") == "exists" else last
    if ended.get("state") == "finished":
        fields |= _end_of(ended, outcome)
    elif last.get("state") == "locked":
        fields |= {"status": Status.REFUSED, "reason": "capacity", "error_message": _words(last)}
    elif result.status not in _BY_US and outcome.to in (State.PREPARED, State.FAILED):
        fields |= {"status": Status.ERROR, "error_message": f"not started: {outcome.observation}"}
    elif result.status not in _BY_US:
        fields |= {"status": Status.UNKNOWN, "error_message": outcome.observation}
    return replace(result, **fields)


def _environment(heard: Heard, outcome: Outcome, host: str) -> str | None:
    if outcome.to is not State.UNKNOWN:
        return heard.result.environment
    known = heard.last.get("state") == "finished"
    seen = "has ended; what it had done by then is not known" if known else "may have run, or may still run"
    return f"on {host} the command {seen}"


def _end_of(ended: Mapping[str, Any], outcome: Outcome) -> dict[str, Any]:
    if ended.get("limited"):
        return {"status": Status.TIMEOUT, "limit": FiredLimit("call"), "error_message": str(ended.get("error"))}
    if ended.get("signal") is not None:
        return {"status": Status.SIGNALED, "signal": ended["signal"], "error_message": None}
    if ended.get("ran") is False:
        return {"status": Status.ERROR, "error_message": f"not started: {ended.get('error')}"}
    # A code other than 0 may mean half of the work: no retry library is to take it for a plain failure.
    status = Status.UNKNOWN if outcome.to is State.UNKNOWN else Status.COMPLETED
    message = outcome.observation if outcome.to is State.UNKNOWN else None
    return {"status": status, "exit_code": ended.get("code"), "error_message": message}


def attached(tool: str, call_id: str, ledger: Ledger, record: Record, definition: Definition) -> ToolResult:
    """What is known of an operation that somebody began before. Nothing was sent."""
    result = not_sent_now(tool, call_id, record, definition)
    if record.state is not State.SUCCEEDED:
        return result
    has, value = ledger.value(record.op_id)
    kept = value if has and isinstance(value, dict) else {}
    text = str(kept.get("stdout", "")).encode()
    hint = result.hint if not has else f"already done as operation {record.op_id}: nothing was sent again"
    return replace(result, exit_code=0, stdout=Output(text, len(text)), hint=hint)


def over_before(tool: str, call_id: str, limit: FiredLimit | None) -> ToolResult:
    return ToolResult(
        tool=tool, call_id=call_id, status=Status.REFUSED, reason="deadline_over", limit=limit,
        started_at=clock.now_iso(), effect="not_applied", environment=NOTHING_STARTED,
    )  # fmt: skip
