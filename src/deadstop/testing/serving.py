# SPDX-License-Identifier: Apache-2.0
"""The testing authority's side of the wire: one thread for each connection, and what each word does to an answer."""

from __future__ import annotations

import json
import math
import socket
import struct
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from ..errors import UsageError
from .record import etag, same_body

if TYPE_CHECKING:
    from .authority import Authority
    from .behaviour import Behaviour

__all__ = ["AuthorityHandler"]

_BEFORE = {
    "reject_before": 0, "too_many_requests": 429, "unavailable": 503, "conflict": 409, "redirect": 307,
    "drop_mid_request": 0,
}  # fmt: skip


class _Closed(Exception):
    """This connection ends here."""


class AuthorityHandler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Authority  # type: ignore[assignment]
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing is printed: what arrived is in the record."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (_Closed, OSError):
            self.close_connection = True

    def do_GET(self) -> None:
        place = urlsplit(self.path)
        words = [unquote(each) for each in place.path.strip("/").split("/")]
        if words[0] == "-":
            self._control(words[1:], parse_qs(place.query))
        else:
            self._look_up(words, parse_qs(place.query))

    do_HEAD = do_GET

    def do_POST(self) -> None:
        if self.path.startswith("/-/"):
            self._steer()
        else:
            self._write()

    do_PUT = do_PATCH = do_DELETE = do_POST

    # Writes

    def _write(self) -> None:
        behaviour = self.server.next_write()
        if behaviour.writes in _BEFORE:
            self._refuse(behaviour)
        else:
            self._commit(behaviour, self._body().decode("utf-8", "replace"))

    def _refuse(self, behaviour: Behaviour) -> None:
        """No application code runs, and nothing is committed."""
        word = behaviour.writes
        half = word == "drop_mid_request"
        read = len(self._body(half=half)) if half or behaviour.status or _BEFORE[word] else 0
        self._arrived(read, word)
        status = behaviour.status or _BEFORE[word]
        if half or not status:
            self._drop(reset=half)
        headers = (
            {"Retry-After": _seconds(behaviour.retry_after)} if word in ("too_many_requests", "unavailable") else {}
        )
        if word == "redirect":
            headers["Location"] = f"/moved{self.path}"
        self._answer(status, {"title": HTTPStatus(status).phrase, "status": status}, headers)

    def _commit(self, behaviour: Behaviour, body: str) -> None:
        key, correlation = self.headers.get("Idempotency-Key"), self.headers.get("X-Correlation-ID")
        once = behaviour.duplicates == "duplicate_tolerant"
        for each in self.server.record.by_key(key) if once and key else []:
            if (each["method"], each["path"]) != (self.command, self.path) or not same_body(each["body"], body):
                self._arrived(len(body), "key_reused")
                self._answer(422, {"title": "this idempotency key was used for another request", "status": 422})
                return
        later = behaviour.writes == "accept_async"
        with self.server.committing:
            written = {} if once and key and self.server.record.by_key(key) else self._store(behaviour, body)
            if written is None:
                self._arrived(len(body), "not_matched")
                self._answer(412, {"title": "the resource has changed", "status": 412})
                return
            operation, new = self.server.record.accept(
                key, correlation, self.command, self.path, body, once=once, lag=self._lag(behaviour),
                takes=behaviour.seconds if later else 0.0, ends=behaviour.ends,
            )  # fmt: skip
        self._arrived(len(body), behaviour.writes if new else "replayed")
        self.server.committed.set()
        headers = {**written, **({} if new else {"Idempotent-Replayed": "true"})}
        self._reply(behaviour, operation, headers, later=later)

    def _store(self, behaviour: Behaviour, body: str) -> dict[str, str] | None:
        """Headers of the new version, for a PUT of a resource; None where its condition does not hold."""
        words = self.path.strip("/").split("/")
        if self.command != "PUT" or words[0] != "resources" or len(words) != 2:
            return {}
        wanted = self.headers.get("If-Match")
        done, version = self.server.record.put(words[1], body, self._lag(behaviour), wanted)
        if not done:
            return None
        return {"ETag": etag(version), "X-Version": str(version), "X-Consistency-Token": str(version)}

    def _reply(self, behaviour: Behaviour, operation: dict[str, Any], headers: dict[str, str], *, later: bool) -> None:
        document, place = _public(operation), f"/operations/{operation['id']}"
        match behaviour.writes:
            case "accept_then_drop":
                self._drop()
            case "accept_then_delay":
                self._pause(behaviour.seconds)
            case "accept_then_error":
                self._answer(behaviour.status or 502, {"title": "the gateway has lost its answer"})
                return
            case "garbage_reply":
                self.wfile.write(b"\x00\xffthis is no HTTP\r\n\r\n")
                self._drop()
            case "bad_json":
                self._send(201, b'{"operation_id": "dep_', headers)
                return
            case "half_reply":
                self._half(document)
            case "drip_reply":
                self._drip(document, behaviour.seconds or 10.0)
            case "huge_reply":
                self._endless()
        headers["Location"] = place
        if later:
            self._answer(202, {**document, "status_url": place}, headers)
        else:
            self._answer(201 if self.command == "POST" else 200, document, headers)

    def _half(self, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self._head(201, len(body), {})
        self.wfile.write(body[: len(body) // 2])
        self._drop()

    def _drip(self, document: dict[str, Any], seconds: float) -> None:
        body = json.dumps(document).encode()
        self._head(201, len(body), {})
        for byte in body:
            self._pause(seconds / len(body))
            self.wfile.write(bytes([byte]))
        raise _Closed

    def _endless(self) -> None:
        self._head(201, 1 << 40, {})
        while not self.server.closing.is_set():
            self.wfile.write(b" " * 65536)
        raise _Closed

    # Look-ups

    def _look_up(self, words: list[str], query: dict[str, list[str]]) -> None:
        behaviour = self.server.behaviour
        self._arrived(0, "looked_up")
        if behaviour.lookups == "status_down":
            if not behaviour.status:
                self._drop()
            self._answer(
                behaviour.status or 503, {"title": "no look-ups now"}, {"Retry-After": _seconds(behaviour.retry_after)}
            )
            return
        if behaviour.lookups == "status_slow":
            self._pause(behaviour.seconds)
        record = self.server.record
        match words:
            case ["operations", "by-key", key]:
                self._found(behaviour, record.by_key(key, visible=True))
            case ["operations", name]:
                self._found(behaviour, record.by_id(name, visible=True))
            case ["operations"]:
                found = record.by_key(query["key"][0], visible=True) if "key" in query else record.operations()
                self._answer(200, {"operations": [_public(each) for each in found]})
            case ["resources", name]:
                self._resource(name)
            case _:
                self._answer(404, {"title": "there is no such thing", "status": 404})

    def _found(self, behaviour: Behaviour, found: list[dict[str, Any]]) -> None:
        if not found:
            self._answer(404, {"title": "no such operation", "status": 404})
            return
        shown: list[dict[str, Any]] = [_public(each) for each in found]
        if behaviour.finding == "contradiction":
            shown = [{**shown[0], "state": "succeeded"}, {**shown[0], "operation_id": "dep_1", "state": "failed"}]
        if behaviour.finding == "contradicting_marker":
            shown = [{**shown[0], "state": ["succeeded", "failed"]}]
        self._answer(200, shown[0] if len(shown) == 1 else shown)

    def _resource(self, name: str) -> None:
        found = self.server.record.resource(name)
        if found is None:
            self._answer(404, {"title": "no such resource", "status": 404})
            return
        version, body = found
        headers = {"ETag": etag(version), "X-Version": str(version), "X-Consistency-Token": str(version)}
        if self.headers.get("If-None-Match") == etag(version):
            self._send(304, b"", headers)
        else:
            self._answer(200, {"id": name, "version": version, "value": _parsed(body)}, headers)

    # Steering

    def _control(self, words: list[str], query: dict[str, list[str]]) -> None:
        record = self.server.record
        match words:
            case ["effects"]:
                key = query.get("key", [None])[0]
                self._answer(200, {"effects": record.effects(key)})
            case ["requests"]:
                self._answer(200, {"requests": record.requests()})
            case ["behaviour"]:
                self._answer(200, self.server.behaviour.to_dict())
            case _:
                self._answer(404, {"title": "GET effects, requests or behaviour"})

    def _steer(self) -> None:
        """POST /-/behaviour {"words": [...], "times": 1, ...}"""
        try:
            asked = json.loads(self._body() or b"{}")
            self.server.behave(*asked.pop("words", ()), **asked)
        except (ValueError, TypeError, AttributeError, UsageError) as problem:
            self._answer(422, {"title": str(problem)})
            return
        self._answer(200, self.server.behaviour.to_dict())

    # The wire

    def _body(self, *, half: bool = False) -> bytes:
        """The request's body, or no more than a half of it. Raises _Closed if it does not come."""
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            return b"".join(self._chunks())
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length // 2 if half else length)
        if not half and len(body) < length:
            self._arrived(len(body), "cut_off")
            raise _Closed
        return body

    def _chunks(self) -> Any:
        while size := int(self.rfile.readline().split(b";")[0] or b"0", 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _arrived(self, size: int, did: str) -> None:
        key, correlation = self.headers.get("Idempotency-Key"), self.headers.get("X-Correlation-ID")
        self.server.record.arrived(self.command, self.path, key, correlation, size, did)

    def _lag(self, behaviour: Behaviour) -> float:
        return behaviour.lag if behaviour.lookups == "status_lagging" else 0.0

    def _pause(self, seconds: float | None) -> None:
        """None is for ever. Ends the connection if the authority ends first."""
        if self.server.closing.wait(seconds):
            raise _Closed

    def _drop(self, *, reset: bool = False) -> None:
        if reset:  # a close with nothing said: the other side reads a reset, not an end
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise _Closed

    def _answer(self, status: int, document: Any, headers: dict[str, str] | None = None) -> None:
        self._send(status, json.dumps(document).encode(), headers or {})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self._head(status, len(body), headers)
        if self.command != "HEAD" and status != 304:
            self.wfile.write(body)

    def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        kind = "application/problem+json" if status >= 400 else "application/json"
        for name, value in {"Content-Type": kind, "Content-Length": str(length), **headers}.items():
            self.send_header(name, value)
        self.end_headers()


def _public(operation: dict[str, Any]) -> dict[str, Any]:
    shown = {name: operation[name] for name in ("key", "correlation", "state", "method", "path")}
    return {"operation_id": operation["id"], **shown, "request": _parsed(operation["body"])}


def _parsed(body: str) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body


def _seconds(value: float) -> str:
    return str(math.ceil(value))
