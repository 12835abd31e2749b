# SPDX-License-Identifier: Apache-2.0
"""The testing authority itself: what it says, what it does, and what its record says that it has done."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import deadstop.testing
from deadstop.errors import UsageError
from deadstop.testing import Authority, crash_at, effects_in

BODY = {"repository": "api", "revision": "a1b2"}
DEAD = (ConnectionError, http.client.RemoteDisconnected, http.client.BadStatusLine, http.client.IncompleteRead)


@pytest.fixture
def authority() -> Iterator[Authority]:
    with Authority() as made:
        yield made


def ask(authority: Authority | str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Any]:
    """(status, headers, JSON)"""
    place = urlsplit(authority if isinstance(authority, str) else authority.url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=5)
    try:
        sent = None if body is None else json.dumps(body)
        connection.request(method, path, sent, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        text = response.read()
        return response.status, response.headers, json.loads(text) if text else None
    finally:
        connection.close()


def post(authority: Authority | str, key: str = "k", body: Any = BODY) -> tuple[int, Any, Any]:
    return ask(authority, "POST", "/deployments", body, Idempotency_Key=key, X_Correlation_ID="run_1")


def test_a_write_is_committed_and_can_be_looked_up(authority: Authority) -> None:
    status, headers, document = post(authority)
    assert (status, document["state"], document["request"], document["correlation"]) == (
        201,
        "succeeded",
        BODY,
        "run_1",
    )
    assert ask(authority, "GET", headers["Location"])[2] == document
    assert ask(authority, "GET", "/operations/by-key/k")[2] == document
    assert ask(authority, "GET", "/operations?key=k")[2]["operations"] == [document]
    assert ask(authority, "GET", "/operations/by-key/other")[0] == 404
    assert (authority.effects(), authority.effects("k"), authority.effects("other")) == (1, 1, 0)


def test_one_key_is_one_effect_and_its_answer_is_given_again(authority: Authority) -> None:
    first, again = post(authority), post(authority)
    assert again[2] == first[2] and again[1]["Idempotent-Replayed"] == "true"
    assert authority.effects() == 1
    assert post(authority, body={"repository": "web"})[0] == 422
    assert authority.effects() == 1
    assert [each["did"] for each in authority.requests()] == ["normal", "replayed", "key_reused"]


def test_an_intolerant_one_does_it_twice(authority: Authority) -> None:
    authority.behave("duplicate_intolerant")
    ids = {post(authority)[2]["operation_id"] for _ in range(2)}
    assert len(ids) == authority.effects("k") == 2
    found = ask(authority, "GET", "/operations/by-key/k")[2]
    assert {each["operation_id"] for each in found} == ids


@pytest.mark.parametrize("word", ["accept_then_drop", "half_reply", "garbage_reply"])
def test_it_commits_and_its_answer_is_lost(authority: Authority, word: str) -> None:
    authority.behave(word)
    with pytest.raises(DEAD):
        post(authority)
    assert authority.effects("k") == 1


@pytest.mark.parametrize("word", ["reject_before", "drop_mid_request"])
def test_it_loses_the_request_and_commits_nothing(authority: Authority, word: str) -> None:
    authority.behave(word)
    with pytest.raises(DEAD):
        post(authority)
    assert authority.effects() == 0
    assert authority.requests()[0]["did"] == word


@pytest.mark.parametrize(
    ("word", "status", "effects"),
    [("too_many_requests", 429, 0), ("unavailable", 503, 0), ("conflict", 409, 0), ("redirect", 307, 0),
     ("accept_then_error", 502, 1)],
)  # fmt: skip
def test_it_answers_with_an_error(authority: Authority, word: str, status: int, effects: int) -> None:
    authority.behave(word, retry_after=2)
    answered, headers, _ = post(authority)
    assert (answered, authority.effects()) == (status, effects)
    assert headers["Retry-After"] == ("2" if status in (429, 503) else None)


def test_it_refuses_with_a_status(authority: Authority) -> None:
    authority.behave("reject_before", status=403)
    assert post(authority)[0] == 403 and authority.effects() == 0


def test_words_hold_for_so_many_writes(authority: Authority) -> None:
    authority.behave("unavailable", times=2)
    assert [post(authority, f"k{n}")[0] for n in range(3)] == [503, 503, 201]


def test_what_is_accepted_ends_later_or_when_told(authority: Authority) -> None:
    authority.behave("accept_async", seconds=None)
    status, headers, document = post(authority)
    assert (status, document["state"], document["status_url"]) == (202, "accepted", headers["Location"])
    assert authority.effects() == 0 and len(authority.operations()) == 1
    authority.finish("k")
    assert ask(authority, "GET", document["status_url"])[2]["state"] == "succeeded" and authority.effects() == 1
    authority.behave("accept_async", seconds=0.0, ends="failed")
    post(authority, "other")
    assert ask(authority, "GET", "/operations/by-key/other")[2]["state"] == "failed" and authority.effects("other") == 0


def test_lookups_fail_while_writes_are_healthy(authority: Authority) -> None:
    authority.behave("status_down")
    assert post(authority)[0] == 201
    with pytest.raises(DEAD):
        ask(authority, "GET", "/operations/by-key/k")
    authority.behave(status=503)
    assert ask(authority, "GET", "/operations/by-key/k")[0] == 503


def test_lookups_lag_behind_writes(authority: Authority) -> None:
    authority.behave("status_lagging", lag=0.15)
    began = time.monotonic()
    post(authority)
    assert authority.effects() == 1
    assert ask(authority, "GET", "/operations/by-key/k")[0] == 404
    while ask(authority, "GET", "/operations/by-key/k")[0] == 404:
        assert time.monotonic() < began + 5
    assert time.monotonic() - began >= 0.14


def test_what_it_shows_can_contradict_itself(authority: Authority) -> None:
    post(authority)
    authority.behave("contradiction")
    found = ask(authority, "GET", "/operations/by-key/k")[2]
    assert sorted(each["state"] for each in found) == ["failed", "succeeded"]
    authority.behave("contradicting_marker")
    assert ask(authority, "GET", "/operations/by-key/k")[2]["state"] == ["succeeded", "failed"]


def test_resources_have_versions_and_conditions(authority: Authority) -> None:
    assert ask(authority, "GET", "/resources/7")[0] == 404
    _, headers, _ = ask(authority, "PUT", "/resources/7", {"n": 1})
    first = headers["ETag"]
    assert ask(authority, "GET", "/resources/7")[2] == {"id": "7", "version": 1, "value": {"n": 1}}
    assert ask(authority, "GET", "/resources/7", If_None_Match=first)[0] == 304
    assert ask(authority, "PUT", "/resources/7", {"n": 2}, If_Match=first)[0] == 200
    assert ask(authority, "PUT", "/resources/7", {"n": 3}, If_Match=first)[0] == 412
    assert ask(authority, "GET", "/resources/7")[2]["version"] == authority.effects() == 2


def test_it_is_steered_over_its_own_socket(authority: Authority) -> None:
    status, _, shown = ask(authority, "POST", "/-/behaviour", {"words": ["unavailable"], "times": 1})
    assert (status, shown["writes"], shown["times"]) == (200, "unavailable", 1)
    assert ask(authority, "POST", "/-/behaviour", {"words": ["no such word"]})[0] == 422
    assert [post(authority)[0], post(authority)[0]] == [503, 201]
    assert ask(authority, "GET", "/-/effects?key=k")[2] == {"effects": 1}
    assert len(ask(authority, "GET", "/-/requests")[2]["requests"]) == 2
    assert ask(authority, "GET", "/-/behaviour")[2]["writes"] == "normal"


def test_words_and_figures_that_there_are_not_are_refused() -> None:
    with pytest.raises(UsageError, match="'drop' is not one of normal, "):
        Authority("drop")
    with pytest.raises(UsageError, match="'second' is not one of"):
        Authority("accept_then_delay", second=1)


def test_closing_ends_what_hangs_in_it() -> None:
    authority = Authority("accept_then_delay", seconds=None)
    place = urlsplit(authority.url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=10)
    connection.request("POST", "/deployments", "{}")
    assert authority.wait_until_committed()
    began = time.monotonic()
    authority.close()
    with pytest.raises(DEAD):
        connection.getresponse()
    assert time.monotonic() - began < 2
    connection.close()


def test_as_a_process_its_record_outlives_it(tmp_path: Path) -> None:
    record = tmp_path / "authority.db"
    command = [sys.executable, "-W", "error", "-m", "deadstop.testing.authority", "--record", str(record)]
    figures = ["--figures", '{"times": 1}', "accept_then_drop"]
    with subprocess.Popen([*command, *figures], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with pytest.raises(DEAD):
            post(url)
        assert post(url)[0] == 201 and effects_in(record, "k") == 1  # while it runs
        process.kill()
    assert effects_in(record) == 1
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert post(process.stdout.readline().strip())[1]["Idempotent-Replayed"] == "true"
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0


def test_its_record_can_be_asked_with_sql(tmp_path: Path) -> None:
    with Authority("accept_async", record=tmp_path / "record.db", seconds=None) as authority:
        post(authority)
        with sqlite3.connect(tmp_path / "record.db") as database:
            assert database.execute("SELECT state, id FROM operations WHERE key = 'k'").fetchall() == [
                ("accepted", "dep_1001")
            ]
            authority.finish("k")
            assert database.execute("SELECT state FROM operations WHERE key = 'k'").fetchone() == ("succeeded",)
        database.close()


def test_the_environment_of_a_process_that_dies() -> None:
    env = crash_at("http.written", 2, {"A": "b"})
    assert env == {"A": "b", "DEADSTOP_CRASH_AT": "http.written:2"}
    assert crash_at("http.written")["PATH"] == os.environ["PATH"]
    for point, n in (("nowhere", 1), ("http.written:2", 1), ("http.written", 0)):
        with pytest.raises(UsageError):
            crash_at(point, n)


def test_every_public_name_is_there() -> None:
    for name in deadstop.testing.__all__:
        assert getattr(deadstop.testing, name) is not None
