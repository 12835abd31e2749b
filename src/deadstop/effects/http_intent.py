# SPDX-License-Identifier: Apache-2.0
"""A write, made into what is sent and what the ledger is told before. Raises UsageError for what cannot be sent."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

from ..errors import UsageError
from ..executor.effects import binding_of, task_id
from ..ledger.canonical import canonical, digest, fingerprint, selected
from ..ledger.definition import Definition
from ..ledger.records import Intent
from ..operation import acting_now
from .http_exchange import Wire

__all__ = ["Write", "base_of", "encoded", "headers_of", "intent_of", "url_in", "without_query"]

if TYPE_CHECKING:
    from typing import TypedDict

    class WriteOptions(TypedDict, total=False):
        """What a write may be given besides its method and path (AsyncHttpEffects.request)."""

        json: Any
        content: bytes | str | None
        key: str | None
        correlation: str | None
        if_match: str | None
        fields: Mapping[str, Any] | None
        target: str | None
        asked_by: str | None
        authorised_by: str | None


METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
OURS = frozenset({"idempotency-key", "x-correlation-id", "if-match", "content-length", "host", "transfer-encoding"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """What a program asks for."""

    method: str
    url: str
    json: Any = None
    content: bytes | str | None = None
    key: str | None = None
    correlation: str | None = None
    if_match: str | None = None
    fields: Mapping[str, Any] | None = None
    target: str | None = None
    asked_by: str | None = None
    authorised_by: str | None = None
    body: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UsageError(
                f"method={self.method!r:.40} is not one of {', '.join(sorted(METHODS))}; reads go by read()"
            )
        if self.json is not None and self.content is not None:
            raise UsageError("give json or content, not both")
        for name in ("key", "correlation", "if_match"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value and value.isascii() and value.isprintable()):
                raise UsageError(f"{name}={value!r:.60}: give printable ASCII text")
        object.__setattr__(self, "body", encoded(self.json, self.content))

    @property
    def named(self) -> Mapping[str, Any]:
        """Its fields, by the names that a definition may use."""
        return self.fields if self.fields is not None else self.json if isinstance(self.json, Mapping) else {}

    def wire(self, headers: Mapping[str, str], key: str, correlation: str) -> Wire:
        """With the headers of its operation, which nothing replaces."""
        sent = {"accept": "application/json", "user-agent": "deadstop", **headers, "accept-encoding": "identity"}
        if self.json is not None:
            sent["content-type"] = "application/json"
        if self.if_match is not None:
            sent["if-match"] = self.if_match
        sent |= {"idempotency-key": key, "x-correlation-id": correlation}
        return Wire(self.method, self.url, sent, self.body)


def encoded(value: Any, content: bytes | str | None) -> bytes:
    if value is None:
        return content.encode() if isinstance(content, str) else content or b""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as problem:
        raise UsageError(f"json: this is not JSON: {problem}") from problem


def intent_of(write: Write, definition: Definition, seconds: float, call_id: str, name: str | None = None) -> Intent:
    """What is durable before the first byte leaves. The request is in it as a digest; of its fields only those that the
    definition names, sealed. What it redacts is in none of them: a digest of a few digits can be guessed at. `name` is
    what keys are unique for: the same for the same service, whatever is declared, or a key would hold only until then.
    """
    told = {name: value for name, value in write.named.items() if name not in definition.redact}
    name = name or definition.tool
    same, fields = _same(write, definition, told)
    print_of = fingerprint(name, same)
    place, acting = without_query(write.url), acting_now()
    correlation = write.correlation or acting.correlation or task_id()
    binding, holds = binding_of(write.key, correlation, print_of)
    return Intent(
        scope=f"{definition.scope}/{name}", binding=binding, fingerprint=print_of, tool=definition.tool,
        definition=definition.version, correlation=correlation or call_id, holds=holds,
        target=_target(write, definition, place, told),
        digest=digest(canonical(told) if definition.redact else write.body),
        arguments={"method": write.method, "url": place}, sealed={"request": fields} if fields else {},
        asked_by=write.asked_by or acting.asked_by, authorised_by=write.authorised_by or acting.authorised_by,
        request_s=seconds, recovery_s=definition.recovery_s,
    )  # fmt: skip


def _same(write: Write, definition: Definition, told: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what makes two writes the same one, the fields in it that may be kept)"""
    same: dict[str, Any] = {"method": write.method, "url": write.url}
    if write.if_match is not None:
        same["if_match"] = write.if_match
    if write.fields is not None or definition.fingerprint is not None:
        if write.fields is None and not isinstance(write.json, Mapping):
            raise UsageError("fingerprint names fields of a JSON object: give json={...}, or the fields themselves")
        same["fields"] = selected(told, definition.fingerprint)
        return same, same["fields"]
    if isinstance(write.json, Mapping):
        same["json"] = told
    elif write.json is not None:
        same["json"] = write.json
    else:
        same["content"] = digest(write.body)
    return same, {}


def _target(write: Write, definition: Definition, place: str, told: Mapping[str, Any]) -> str:
    if write.target is not None or definition.target is None:
        return write.target or place
    try:
        return definition.target.format_map(told)[:200]
    except Exception as problem:  # a format and any values: it names things for people, and must stop nothing
        return f"{definition.target} ({type(problem).__name__})"


def base_of(url: str) -> str:
    """A base URL that can be used. Raises UsageError."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises for what is none
    except ValueError as problem:
        raise UsageError(f"base_url={url!r:.120}: {problem}") from problem
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise UsageError(f"base_url={url!r:.120} is not http://HOST/... or https://HOST/...")
    if parts.username or parts.password:
        raise UsageError(
            "base_url: put user name and password into headers={'Authorization': ...}, where nobody notes them"
        )
    return url.rstrip("/")


def url_in(base: str, path: str) -> str:
    """`path` below the base. Raises UsageError for what leads out of it: paths are often made of what a model said."""
    if not isinstance(path, str) or "\\" in path or not path.isprintable():
        raise UsageError(f"path={path!r:.80} is not the path of a URL")
    if path.startswith(("http://", "https://")):
        if not (path == base or path.startswith((f"{base}/", f"{base}?"))):
            raise UsageError(f"path={path!r:.80} is not below {base}")
        path = path.removeprefix(base)
    parts = urlsplit(f"{base}{path}" if path[:1] in ("", "?") else f"{base}/{path.lstrip('/')}")
    if any(each in (".", "..") for each in re.split(r"[/\\]", unquote(parts.path))):  # as its server may read it
        raise UsageError(f"path={path!r:.80} leads out of {base}")
    return urlunsplit(parts._replace(fragment=""))


def without_query(url: str) -> str:
    """For records and people: a query may carry what is secret."""
    return urlunsplit(urlsplit(url)._replace(query="", fragment=""))


def headers_of(given: Mapping[str, str] | None) -> dict[str, str]:
    """Checked, with names in lower case. Raises UsageError, also for those that deadstop sets itself."""
    headers = {}
    for name, value in (given or {}).items():
        if name.lower() in OURS:
            raise UsageError(f"headers: {name} is set by deadstop")
        if not (name.isascii() and name.replace("-", "").replace("_", "").isalnum() and _sendable(value)):
            raise UsageError(f"headers: {name!r:.40} cannot be sent")  # its value may be a secret
        headers[name.lower()] = value
    return headers


def _sendable(value: object) -> bool:
    return isinstance(value, str) and value.isascii() and value.isprintable() and value == value.strip()
