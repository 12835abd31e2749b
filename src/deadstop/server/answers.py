# SPDX-License-Identifier: Apache-2.0
"""How the end of a command is told over HTTP. Pure: a result in, a reply or an event out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..results import Status, ToolResult
from .problems import Problem, problem_reply
from .replies import Event, Reply

__all__ = ["Ended", "exit_code_of", "exit_event", "exit_reply"]

_SHOWN = 600  # characters of the output that a problem's text ends with
_CRASHES = (Status.RESOURCE_LIMIT, Status.CRASHED, Status.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended: its result, and its output as far as it was kept."""

    exec_id: str
    result: ToolResult
    stdout: str
    stderr: str
    truncated: bool = False

    @property
    def output(self) -> dict[str, Any]:
        return {"stdout": self.stdout, "stderr": self.stderr, "exec_id": self.exec_id}


def exit_reply(ended: Ended) -> Reply:
    """200 for a command that ended by itself, whatever its exit code; a problem document otherwise."""
    code = exit_code_of(ended.result)
    if code is None:
        return problem_reply(problem_of_result(ended))
    return Reply({**ended.output, **_facts(ended, code), "result": ended.result.to_dict()})


def exit_event(ended: Ended) -> Event:
    """The last event of a stream: `exit` where `exit_reply` gives 200, else `error`."""
    result = ended.result
    document: dict[str, Any] = {"exec_id": ended.exec_id, "result": result.to_dict()}
    code = exit_code_of(result)
    if code is None:
        problem = problem_of_result(ended)
        return Event("error", {"error": problem.detail, "kind": problem.kind, "status": problem.status, **document})
    return Event("exit", {"exit_code": code, "status": result.status.value, **document})


def exit_code_of(result: ToolResult) -> int | None:
    """The exit code as a shell would tell it; None for a command that did not end by itself."""
    match result.status:
        case Status.COMPLETED:
            return result.exit_code or 0
        case Status.SIGNALED:
            return 128 + (result.signal or 0)
        case Status.ERROR:
            return 127 if result.start_errno == 2 else 126
        case _:
            return None


def problem_of_result(ended: Ended) -> Problem:
    """The problem that a command which did not end by itself is told as."""
    result = ended.result
    late = result.status is Status.TIMEOUT or (result.status, result.reason) == (Status.REFUSED, "deadline_over")
    status = 504 if late else 500 if result.status in _CRASHES else 409
    text = f"timeout: {_late(result)}" if late else _message(result)
    kind = "timeout" if late else _kind(result)
    detail = text + _last_words(ended)
    return Problem(status, kind, detail, timeout=late, result=result.to_dict(), **ended.output)


def _facts(ended: Ended, code: int) -> dict[str, Any]:
    result = ended.result
    facts: dict[str, Any] = {
        "exit_code": code,
        "duration_ms": round(result.duration_s * 1000),
        "truncated": ended.truncated,
        "status": result.status.value,
    }
    if result.status is Status.ERROR and not ended.stderr:
        facts["stderr"] = f"{_message(result)}\n"
    return facts


def _late(result: ToolResult) -> str:
    limit = result.limit
    if result.status is Status.REFUSED or (limit and limit.seconds == 0):
        return "the time for the command was over before it began; it was not started"
    seconds = f"{limit.seconds:g} s" if limit and limit.seconds is not None else "its time"
    match limit.which if limit else "call":
        case "ttl":
            return f"the sandbox's life of {seconds} was over before the command ended"
        case "idle":
            return f"the command printed nothing for {seconds}"
        case _:
            return f"the command did not end within {seconds}"


def _kind(result: ToolResult) -> str:
    envelope = result.error
    return result.status.value if envelope is None else str(envelope["kind"])


def _message(result: ToolResult) -> str:
    envelope = result.error
    return result.status.value if envelope is None else str(envelope["message"])


def _last_words(ended: Ended) -> str:
    """What the text says of the cause and the output: it is all that some clients show."""
    from ..plain import plain_text

    words = f"; {ended.result.hint}" if ended.result.hint else ""
    for name, text in (("stdout", ended.stdout), ("stderr", ended.stderr)):
        tail = plain_text(text[-8 * _SHOWN :]).strip()[-_SHOWN:]
        if tail:
            words += f"\n[{name} ends] {tail}"
    return words
