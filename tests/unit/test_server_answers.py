# SPDX-License-Identifier: Apache-2.0
"""How the end of a command is told: status, text and exit code, for every status a result can have."""

from __future__ import annotations

import pytest

pytest.importorskip("msgspec")

from deadstop.errors import CapacityError, FileProblem, NotFound, SandboxEnded, UsageError
from deadstop.results import FiredLimit, Output, Status, ToolResult
from deadstop.server.answers import Ended, exit_code_of, exit_event, exit_reply
from deadstop.server.problems import Problem, harmless, problem_of

SENT_AGAIN = ("connect: connection refused", "no route to host", "i/o timeout")


def ended(status: Status, stdout: str = "", stderr: str = "", **facts: object) -> Ended:
    result = ToolResult(tool="bash", status=status, stdout=Output(stdout.encode()), **facts)  # type: ignore[arg-type]
    return Ended("exec_1", result, stdout, stderr)


def read_as_timeout(status: int, text: str) -> bool:
    """What the PandaStack SDK does with an answer to exec."""
    lower = text.lower()
    return status >= 500 and ("timeout" in lower or "deadline exceeded" in lower) and "i/o timeout" not in lower


@pytest.mark.parametrize(
    ("of", "code"),
    [
        (ended(Status.COMPLETED, exit_code=3), 3),
        (ended(Status.COMPLETED, exit_code=0), 0),
        (ended(Status.SIGNALED, signal=9), 137),
        (ended(Status.ERROR, start_errno=2), 127),
        (ended(Status.ERROR, start_errno=13), 126),
        (ended(Status.ERROR), 126),
    ],
)
def test_what_ended_by_itself_is_200_with_an_exit_code(of: Ended, code: int) -> None:
    reply = exit_reply(of)
    assert (reply.status, reply.document["exit_code"]) == (200, code)
    assert reply.document["result"]["schema"] == "deadstop.result/1" and reply.document["exec_id"] == "exec_1"
    event = exit_event(of)
    assert event.name == "exit" and event.data["exit_code"] == code
    if of.result.status is Status.ERROR:
        assert reply.document["stderr"].strip()


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (ended(Status.TIMEOUT, limit=FiredLimit("call", 2.0)), "did not end within 2 s"),
        (ended(Status.TIMEOUT, limit=FiredLimit("ttl", 900.0)), "life of 900 s"),
        (ended(Status.TIMEOUT, limit=FiredLimit("idle", 5.0)), "nothing for 5 s"),
        (ended(Status.TIMEOUT), "did not end within its time"),
        (ended(Status.REFUSED, reason="deadline_over"), "over before it began"),
        (ended(Status.TIMEOUT, "i/o timeout, no route to host, connect: connection refused"), "stdout ends"),
    ],
)
def test_a_timeout_is_504_and_read_as_one_and_not_sent_again(of: Ended, words: str) -> None:
    reply = exit_reply(of)
    text = reply.document["error"]
    assert reply.status == 504 and words in text and text == reply.document["detail"]
    assert read_as_timeout(504, text) and not any(phrase in text for phrase in SENT_AGAIN)
    assert reply.document["stdout"] == of.stdout and reply.document["kind"] == "timeout"
    event = exit_event(of)
    assert event.name == "error" and "timeout" in event.data["error"].lower() and event.data["status"] == 504


@pytest.mark.parametrize("hint", ["the timeout was yours", "Deadline Exceeded", "it timed out", "i/o timeout"])
@pytest.mark.parametrize(
    ("status", "facts", "code"),
    [
        (Status.RESOURCE_LIMIT, {"limit": FiredLimit("memory")}, 500),
        (Status.CRASHED, {}, 500),
        (Status.UNKNOWN, {}, 500),
        (Status.CANCELLED, {"reason": "caller"}, 409),
        (Status.REFUSED, {"reason": "policy"}, 409),
        (Status.REFUSED, {"reason": "capacity"}, 409),
    ],
)
def test_what_is_no_timeout_is_not_read_as_one(status: Status, facts: dict[str, object], code: int, hint: str) -> None:
    for of in (ended(status, hint, hint=hint, **facts), ended(status, "", hint, **facts)):
        reply = exit_reply(of)
        text = reply.document["error"]
        assert reply.status == code and not read_as_timeout(500, text), text
        assert "timed out" not in text and not any(phrase in text for phrase in SENT_AGAIN)
        assert exit_code_of(of.result) is None and exit_event(of).name == "error"


def test_the_end_of_the_output_is_in_the_text_without_escapes() -> None:
    of = ended(Status.TIMEOUT, "x" * 50_000 + "\x1b[31mProceed? [Y/n]", limit=FiredLimit("call", 1.0))
    text = exit_reply(of).document["error"]
    assert text.endswith("Proceed? [Y/n]") and "\x1b" not in text and len(text) < 2000


@pytest.mark.parametrize(
    ("error", "status", "kind", "wait"),
    [
        (NotFound("exec", "x"), 404, "not_found", None),
        (SandboxEnded("sbx_1", "ttl"), 410, "ended", None),
        (CapacityError("full", "sandboxes", 0.2), 503, "capacity", "1"),
        (CapacityError("full", "memory", 2.5), 503, "capacity", "3"),
        (CapacityError("full", "disk", 2.0), 507, "capacity", "2"),
        (CapacityError("full"), 429, "capacity", None),
        (FileProblem("outside", "/x"), 403, "outside", None),
        (FileProblem("exists", "/x"), 409, "exists", None),
        (UsageError("no"), 422, "usage", None),
        (RuntimeError("/secret/path"), 500, "internal", None),
    ],
)
def test_errors_as_problems(error: Exception, status: int, kind: str, wait: str | None) -> None:
    problem = problem_of(error)
    assert (problem.status, problem.kind, problem.headers.get("Retry-After")) == (status, kind, wait)
    assert "secret" not in problem.detail


def test_text_that_no_json_can_hold_is_written_out() -> None:
    assert Problem(404, "not_found", "a\udcffb", path="\udcff").document()["path"] == "\\udcff"
    assert harmless("I/O Timeout") == "I/O-Time-out"
