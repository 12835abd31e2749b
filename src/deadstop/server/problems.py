# SPDX-License-Identifier: Apache-2.0
"""Errors as RFC 9457 problem documents, and the words that may not stand in them.

Clients of the PandaStack contract read meaning into the text of a 5xx: three phrases make them send the command
again, and "timeout" is how they know one. Whatever a command printed may end up in such a text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from .. import errors
from ..sandbox.link import SupervisorLost
from .replies import PROBLEM, Reply

__all__ = ["Problem", "encodable", "harmless", "problem_of", "problem_reply"]

_SENT_AGAIN = re.compile(r"connect: connection refused|no route to host|i/o timeout", re.IGNORECASE)
_READ_AS_TIMEOUT = re.compile(r"timeout|timed out|deadline exceeded|exceeds tier maximum", re.IGNORECASE)
_FILE_STATUS = {"not_found": 404, "denied": 403, "outside": 403, "too_large": 413, "no_space": 507}


def harmless(text: str, *, timeout: bool = False) -> str:
    """`text` without the phrases that make a client repeat a command, nor (save for a `timeout`) take it for one."""
    text = _SENT_AGAIN.sub(_with_dashes, encodable(text))
    return text if timeout else _READ_AS_TIMEOUT.sub(_with_dashes, text)


def encodable(text: str) -> str:
    """`text` with what is no character (half of a file name's bytes, say) written out."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _with_dashes(found: re.Match[str]) -> str:
    phrase = found.group()
    # "i/o timeout" keeps its last word: a timeout's own text must still say so.
    return phrase.replace(" ", "-") if " " in phrase else f"{phrase[:4]}-{phrase[4:]}"


class Problem(Exception):
    """A refusal as the client gets it. `extra` stands beside the standard keys; `retry_after` is seconds."""

    def __init__(
        self, status: int, kind: str, detail: str, *, retry_after: float | None = None,
        headers: Mapping[str, str] | None = None, timeout: bool = False, **extra: Any,
    ) -> None:  # fmt: skip
        super().__init__(status, kind, detail)
        self.status, self.kind, self.timeout = status, kind, timeout
        of_a_command = status >= 500 or "result" in extra  # a 4xx may well name timeout_seconds
        self.detail = harmless(detail, timeout=timeout or not of_a_command)
        self.extra = {key: encodable(value) if isinstance(value, str) else value for key, value in extra.items()}
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after)))

    def document(self) -> dict[str, Any]:
        return {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "error": self.detail,
            "kind": self.kind,
            **self.extra,
        }


def problem_reply(problem: Problem) -> Reply:
    return Reply(problem.document(), problem.status, problem.headers, PROBLEM)


def problem_of(error: Exception) -> Problem:
    """The problem that an exception stands for; a 500 without its text where it is none of ours."""
    if isinstance(error, Problem):
        return error
    for kind, made in _PROBLEMS:
        if isinstance(error, kind):
            return made(error)
    return Problem(500, "internal", "a defect in deadstop: the server's log has more, under this request's id")


def _not_found(error: errors.NotFound) -> Problem:
    return Problem(404, "not_found", str(error), what=error.kind, name=error.name)


def _ended(error: errors.SandboxEnded) -> Problem:
    return Problem(410, "ended", str(error), sandbox_id=error.sandbox_id, reason=error.reason)


def _capacity(error: errors.CapacityError) -> Problem:
    status = 507 if error.full == "disk" else 429 if error.retry_after is None else 503
    return Problem(status, "capacity", str(error), retry_after=error.retry_after, full=error.full)


def _file(error: errors.FileProblem) -> Problem:
    status = _FILE_STATUS.get(error.kind, 409)
    return Problem(status, error.kind, str(error), path=error.path)


def _unavailable(error: errors.BoundaryUnavailable) -> Problem:
    return Problem(501, "unavailable", str(error))


def _lost(error: SupervisorLost) -> Problem:
    return Problem(503, "host_lost", str(error), retry_after=1)  # nothing was made, and the next one starts a new one


def _ledger(error: errors.LedgerUnavailable) -> Problem:
    return Problem(503, "ledger_unavailable", str(error), retry_after=2, uncertain=error.uncertain)


def _broken(error: errors.LedgerBroken) -> Problem:
    return Problem(503, "ledger_broken", str(error), retry_after=60)


def _no_operation(error: errors.OperationNotFound) -> Problem:
    return Problem(404, "not_found", str(error), what="operation", name=error.op_id)


def _plain(status: int, kind: str) -> Callable[[Any], Problem]:
    return lambda error: Problem(status, kind, str(error))


# The first that fits: a class stands before those it is derived from.
_PROBLEMS: tuple[tuple[type[Exception], Callable[[Any], Problem]], ...] = (
    (errors.NotFound, _not_found),
    (errors.SandboxEnded, _ended),
    (errors.SandboxPaused, _plain(409, "paused")),
    (errors.NotAllowed, _plain(409, "not_allowed")),
    (errors.KeyConflict, _plain(422, "key_conflict")),
    (errors.CapacityError, _capacity),
    (errors.FileProblem, _file),
    (errors.UsageError, _plain(422, "usage")),
    (errors.BoundaryUnavailable, _unavailable),
    (errors.OperationNotFound, _no_operation),
    (errors.IllegalTransition, _plain(409, "not_allowed")),
    (errors.StaleClaim, _plain(409, "changed")),
    (errors.OperationConflict, _plain(422, "key_conflict")),
    (errors.LedgerUnavailable, _ledger),
    (errors.LedgerBroken, _broken),
    (errors.MissingExtra, _plain(501, "unavailable")),
    (SupervisorLost, _lost),
    (msgspec.ValidationError, _plain(422, "usage")),
    (msgspec.DecodeError, _plain(400, "malformed")),
)
