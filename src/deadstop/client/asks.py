# SPDX-License-Identifier: Apache-2.0
"""What is asked of a server and what it answers, as plain data: no sockets here."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from .. import errors

ANSWER_S = 30.0  # for what should take milliseconds
LONG_S = 180.0  # for what copies files: snapshot, fork, trees

Content = bytes | Callable[[], AsyncIterator[bytes]]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `seconds` bounds all of it, from sending until its answer has been read; of a stream, its head.

    With a `key` the server does it once, however often it is sent.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    content: Content | None = None
    key: str | None = None
    seconds: float = ANSWER_S

    @property
    def repeatable(self) -> bool:
        """Whether sending it twice does no harm."""
        return self.key is not None or self.method in ("GET", "PUT", "DELETE")

    @property
    def headers(self) -> dict[str, str]:
        found = {"Idempotency-Key": self.key} if self.key else {}
        if self.body is not None:
            found["Content-Type"] = "application/json"
        elif self.content is not None:
            found["Content-Type"] = "application/octet-stream"
        return found

    @property
    def data(self) -> bytes | AsyncIterator[bytes] | None:
        if self.body is not None:
            return json.dumps(self.body, allow_nan=False).encode()
        return self.content() if callable(self.content) else self.content


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer, all of it."""

    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def document(self) -> dict[str, Any]:
        """The JSON object in it; an empty one where there is none."""
        try:
            found = json.loads(self.data)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


def new_key() -> str:
    return uuid4().hex


def sandbox_path(ref: str, *rest: str) -> str:
    return "/".join(["/sandboxes", *(quote(word, safe="") for word in (ref, *rest))])


def given(**values: Any) -> dict[str, Any]:
    """Those that are not None."""
    return {name: value for name, value in values.items() if value is not None}


# -- what a refusal means ----------------------------------------------------------------------------------------


def problem_of(reply: Reply) -> errors.DeadstopError:
    """The error that this answer stands for."""
    document = reply.document()
    text = str(document.get("detail") or document.get("error") or document.get("title") or f"HTTP {reply.status}")
    if isinstance(path := document.get("path"), str):
        return errors.FileProblem(str(document.get("kind")), path, text.removeprefix(f"{path}: "))
    make = _MEANINGS.get(reply.status)
    if make is not None:
        return make(text, str(document.get("kind") or ""), document, reply)
    return errors.SandboxError(f"the server answered {reply.status}: {text}")


def _unknown_token(text: str, *_: Any) -> errors.DeadstopError:
    return errors.SandboxError(f"the server does not accept the token ({text}): set DEADSTOP_TOKEN to its own")


def _not_found(text: str, kind: str, document: Mapping[str, Any], _: Reply) -> errors.DeadstopError:
    if document.get("what") == "operation":
        return errors.OperationNotFound(str(document.get("name") or text))
    return errors.NotFound(str(document.get("what") or kind or "thing"), str(document.get("name") or text))


def _conflict(text: str, kind: str, document: Mapping[str, Any], _: Reply) -> errors.DeadstopError:
    return errors.SandboxPaused(_identity(document, text)) if kind == "paused" else errors.NotAllowed(text)


def _ended(text: str, _: str, document: Mapping[str, Any], __: Reply) -> errors.DeadstopError:
    detail = text.partition("): ")[2]
    return errors.SandboxEnded(_identity(document, text), str(document.get("reason") or "unknown"), detail)


def _unusable(text: str, kind: str, document: Mapping[str, Any], _: Reply) -> errors.DeadstopError:
    if kind == "key_conflict":
        return errors.KeyConflict(text.partition("'")[2].partition("'")[0])
    return errors.UsageError(text)


def _full(text: str, kind: str, document: Mapping[str, Any], reply: Reply) -> errors.DeadstopError:
    if kind.startswith("ledger_"):
        return errors.LedgerUnavailable("of the server", text, uncertain=bool(document.get("uncertain", True)))
    wait = reply.headers.get("retry-after")
    usual = "disk" if reply.status == 507 else "sandboxes"
    return errors.CapacityError(text, str(document.get("full") or usual), float(wait) if wait else None)


def _no_boundary(text: str, kind: str, *_: Any) -> errors.DeadstopError:
    if kind == "no_ledger":
        return errors.LedgerUnavailable("of the server", text, "start it without --no-ledger")
    prefix = "the sandbox boundary is not available on this host: "
    return errors.BoundaryUnavailable("sandbox", text.removeprefix(prefix))


_MEANINGS: dict[int, Callable[[str, str, Mapping[str, Any], Reply], errors.DeadstopError]] = {
    400: _unusable,
    401: _unknown_token,
    403: _unknown_token,
    404: _not_found,
    409: _conflict,
    410: _ended,
    413: _unusable,
    422: _unusable,
    429: _full,
    501: _no_boundary,
    503: _full,
    507: _full,
}


def _identity(document: Mapping[str, Any], text: str) -> str:
    found = document.get("sandbox_id")
    return str(found) if found else next((word for word in text.split() if word.startswith("sbx_")), "")


# -- streams -----------------------------------------------------------------------------------------------------


class Events:
    """Server-sent events, read as they come: feed bytes, get (name, document)."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._name, self._data = "", list[bytes]()

    def feed(self, data: bytes) -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = []
        self._line += data
        *lines, rest = bytes(self._line).split(b"\n")
        self._line = bytearray(rest)
        for line in lines:
            self._take(line.removesuffix(b"\r"), found)
        return found

    def _take(self, line: bytes, found: list[tuple[str, Any]]) -> None:
        if not line:
            if self._data:
                found.append((self._name, _json(b"\n".join(self._data))))
            self._name, self._data = "", []
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            self._name = value.decode("utf-8", "replace")
        elif name == b"data":
            self._data.append(value)


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode("utf-8", "replace")
