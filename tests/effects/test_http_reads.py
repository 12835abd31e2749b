# SPDX-License-Identifier: Apache-2.0
"""Reads: what is tried again and for how long, and when an answer may decide a write."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import urllib.request
from collections.abc import Iterator
from email.utils import formatdate

import pytest

import deadstop
from deadstop.effects import reads
from deadstop.effects.consistency import Consistency, Seen
from deadstop.effects.reads import ETag, ReadAfterWrite, Settle, Version, read, read_async
from deadstop.errors import UsageError
from deadstop.results import Status
from deadstop.testing import Authority


@pytest.fixture
def authority() -> Iterator[Authority]:
    with Authority() as made:
        yield made


def put(authority: Authority, value: int) -> str:
    """The token of a new version of /resources/1."""
    request = urllib.request.Request(f"{authority.url}/resources/1", json.dumps({"n": value}).encode(), method="PUT")
    with urllib.request.urlopen(request, timeout=5) as answer:
        return str(answer.headers["X-Consistency-Token"])


def test_a_harmless_read(authority: Authority) -> None:
    put(authority, 1)
    result = read(f"{authority.url}/resources/1")
    assert result.ok and (result.effect, result.retry_allowed) == ("none", True)
    assert result.value == {
        "status": 200, "body": {"id": "1", "version": 1, "value": {"n": 1}}, "etag": '"v1"', "version": 1,
        "age_s": None, "attempts": 1, "consistency": None,
    }  # fmt: skip
    deadstop.ToolResult.from_dict(result.to_dict())


def test_an_absence_is_an_answer_too(authority: Authority) -> None:
    result = read(f"{authority.url}/resources/1")
    assert result.ok and result.value["status"] == 404 and result.value["attempts"] == 1


def test_failed_reads_are_tried_again_in_bounds(authority: Authority) -> None:
    authority.behave("status_down")
    began = time.monotonic()
    result = read(f"{authority.url}/resources/1", timeout=5)
    assert (result.status, result.error and result.error["type"]) == (Status.ERROR, "ReadFailed")
    assert "(3 attempts)" in str(result.error) and len(authority.requests()) == 3
    assert 0.1 < time.monotonic() - began < 2
    assert read(f"{authority.url}/resources/1", attempts=1).status is Status.ERROR and len(authority.requests()) == 4


def test_it_recovers_when_the_service_does(authority: Authority) -> None:
    put(authority, 1)
    authority.behave("status_down", status=503, retry_after=0)

    async def meanwhile() -> object:
        reading = asyncio.ensure_future(read_async(f"{authority.url}/resources/1", attempts=20))
        while len(authority.requests()) < 2:
            await asyncio.sleep(0.005)
        authority.behave("status_up")
        return (await reading).value["status"]

    assert asyncio.run(meanwhile()) == 200


def test_retry_after_is_waited_for_if_there_is_time(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "as_seconds", lambda text: None if text is None else float(text) / 10)
    authority.behave("status_down", status=429, retry_after=3)
    began = time.monotonic()
    assert read(f"{authority.url}/resources/1", timeout=2, attempts=2).status is Status.ERROR
    assert 0.3 <= time.monotonic() - began < 1.5 and len(authority.requests()) == 2
    began = time.monotonic()
    result = read(f"{authority.url}/resources/1", timeout=0.25, attempts=2)
    assert result.hint == "the service asks to wait 300ms" and time.monotonic() - began < 0.25
    assert len(authority.requests()) == 3


def test_a_read_ends_with_its_deadline(authority: Authority) -> None:
    authority.behave("status_slow", seconds=None)
    began = time.monotonic()
    result = read(f"{authority.url}/resources/1", timeout=0.3)
    assert result.status is Status.TIMEOUT and 0.3 <= time.monotonic() - began < 0.8
    with deadstop.deadline(0.2):
        late = read(f"{authority.url}/resources/1")
        assert late.limit is not None and late.limit.which == "parent"
        assert read(f"{authority.url}/resources/1").reason == "deadline_over"


def test_a_read_that_decides_a_write_needs_a_rule() -> None:
    with pytest.raises(UsageError, match="needs a consistency rule"):
        read("http://127.0.0.1:1/", decides="write")
    with pytest.raises(UsageError, match="neither 'nothing' nor 'write'"):
        read("http://127.0.0.1:1/", decides="delete")
    for wrong in ("etag", Settle(-1), Settle(1.0, since=time.time() + 999)):
        with pytest.raises(UsageError):
            read("http://127.0.0.1:1/", decides="write", consistency=wrong)
    for more in ({"attempts": 0}, {"timeout": None}, {"headers": {"If-Match": "x"}}):
        with pytest.raises(UsageError):
            read("http://127.0.0.1:1/", **more)


def told(result: deadstop.ToolResult) -> tuple[bool, str | None]:
    rule = result.value["consistency"]
    assert bool(result.hint) == (not rule["met"])
    return rule["met"], rule["why"]


def test_a_version_is_read_until_it_is_there_and_said_when_it_is_not(authority: Authority) -> None:
    authority.behave("status_lagging", lag=0.0)
    put(authority, 1)
    authority.behave(lag=0.3)
    put(authority, 2)
    url = f"{authority.url}/resources/1"
    early = read(url, decides="write", consistency=Version(2), timeout=0.15)
    assert told(early) == (False, "the answer is of version 1, and 2 was to be seen")
    assert (
        early.hint == f"do not decide a write by this answer: {told(early)[1]}" and early.value["body"]["version"] == 1
    )
    shown = read(url, decides="write", consistency=Version("2", "header:X-Version"), timeout=5)
    assert told(shown) == (True, None) and shown.value["attempts"] > 1 and shown.value["version"] == "2"


def test_what_one_has_written_is_seen(authority: Authority) -> None:
    authority.behave("status_lagging", lag=0.15)
    token = put(authority, 1)
    url = f"{authority.url}/resources/1"
    assert told(read(url, decides="write", consistency=ReadAfterWrite(token), timeout=5)) == (True, None)
    unmet = read(url, decides="write", consistency=ReadAfterWrite("7"), timeout=0.1)
    assert told(unmet) == (False, "the answer shows 1, before 7")


def test_an_etag_binds_the_write_to_what_was_read(authority: Authority) -> None:
    url = f"{authority.url}/resources/1"
    assert told(read(url, decides="write", consistency=ETag())) == (
        False, "the answer carries no strong ETag that a write could name",
    )  # fmt: skip
    put(authority, 1)
    seen = read(url, decides="write", consistency=ETag())
    assert told(seen) == (True, None) and seen.value["etag"] == '"v1"'
    assert told(read(url, decides="write", consistency=ETag('"v7"')))[0] is False


def test_a_settle_time_is_waited_for_or_said_to_be_too_long(authority: Authority) -> None:
    authority.behave("status_lagging", lag=0.15)
    since = time.time()
    put(authority, 1)
    url = f"{authority.url}/resources/1"
    hasty = read(url, decides="write", consistency=Settle(9.0, since), timeout=0.5)
    assert hasty.value["status"] == 404 and not told(hasty)[0] and "settles in" in str(told(hasty)[1])
    settled = read(url, decides="write", consistency=Settle(0.2, since), timeout=5)
    assert told(settled) == (True, None) and settled.value["status"] == 200 and time.time() >= since + 0.2


@pytest.mark.parametrize(
    ("rule", "seen", "unmet"),
    [
        (Version(7), Seen(200, {}, {"version": 8}), False),
        (Version("10"), Seen(200, {}, {"version": "9"}), True),
        (Version("b"), Seen(200, {}, {"version": "a"}), True),
        (Version("a", "meta.tag"), Seen(200, {}, {"meta": {"tag": "a"}}), False),
        (Version(1), Seen(404, {}, None), True),
        (Version(1), Seen(200, {}, {"version": True}), True),
        (ETag(), Seen(200, {"etag": 'W/"1"'}, None), True),
        (ReadAfterWrite(3), Seen(200, {}, None), True),
        (ReadAfterWrite(3, echoed=False), Seen(200, {}, None), False),
        (Settle(1.0), Seen(200, {"age": "12"}, None), True),
        (Settle(1.0), Seen(200, {"age": "0"}, None), False),
    ],
)
def test_the_rules(rule: Consistency, seen: Seen, unmet: bool) -> None:
    assert bool(rule.unmet(seen)) is unmet


def test_retry_after_may_be_a_date_and_an_answer_may_be_no_json() -> None:
    """A server of three answers: 503 until a date that has passed, then text that says that it is JSON."""
    answers = [
        f"HTTP/1.1 503 X\r\nRetry-After: {formatdate(time.time() - 5, usegmt=True)}\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 4\r\n\r\n{no}",
    ]
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer.encode())

        async def both() -> deadstop.ToolResult:
            serving = asyncio.ensure_future(asyncio.to_thread(serve))
            result = await read_async(f"http://127.0.0.1:{listener.getsockname()[1]}/", timeout=5)
            await serving
            return result

        result = asyncio.run(both())
    assert (result.value["status"], result.value["body"], result.value["attempts"]) == (200, "{no}", 2)
