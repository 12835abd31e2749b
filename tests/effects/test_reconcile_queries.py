# SPDX-License-Identifier: Apache-2.0
"""Asking an authority once: over HTTP, in its database, through a function. Always a finding, and in time."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import reconcile_functions
from plain_http import PlainServer, plain_server, said
from reconcile_subjects import operation

from deadstop.effects import ask_http, asking
from deadstop.effects.asking import ask, authority_of, source_of
from deadstop.ledger.definition import Definition
from deadstop.ledger.handle import settled_by
from deadstop.ledger.queries import FunctionQuery, HttpQuery, SqlQuery, SshQuery
from deadstop.ledger.records import Finding
from deadstop.ledger.states import Verdict

IN_TIME_S = 3.0  # for limits of 0.3 s, on a machine that is busy


@pytest.fixture
def server() -> Iterator[PlainServer]:
    with plain_server() as made:
        yield made


def asked(server: PlainServer, answer: Any, timeout: float = 5.0, **query: Any) -> Finding:
    server.answer = answer
    return ask(HttpQuery(**{"url": server.url + "/operations/{key}", **query}), operation(), timeout)


# -- HTTP: what an answer means ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        ("succeeded", Verdict.APPLIED),
        ("SUCCEEDED", Verdict.APPLIED),
        ("cancelled", Verdict.APPLIED_FAILED),
        ("queued", Verdict.IN_PROGRESS),
        ("resting", Verdict.INCONCLUSIVE),
        (None, Verdict.INCONCLUSIVE),
        ({"of": "things"}, Verdict.INCONCLUSIVE),
    ],
)
def test_the_word_in_the_answer_decides(server: PlainServer, state: Any, verdict: Verdict) -> None:
    body = json.dumps({"data": [{"state": state, "id": 1842}]})
    found = asked(server, said(200, body), state="data.0.state", reference="data.0.id")
    assert (found.verdict, found.reference) == (verdict, "1842")
    assert found.raw == body.encode() and server.paths() == ["/operations/op_1"]
    assert "200" in found.detail and found.source == f"GET {server.url}/operations/op_1"


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (200, Verdict.APPLIED),
        (202, Verdict.IN_PROGRESS),
        (404, Verdict.DEFINITELY_ABSENT),
        (410, Verdict.INCONCLUSIVE),
        (401, Verdict.INCONCLUSIVE),
        (429, Verdict.INCONCLUSIVE),
        (500, Verdict.INCONCLUSIVE),
        (503, Verdict.UNREACHABLE),
    ],
)
def test_the_status_decides_where_no_word_does(server: PlainServer, status: int, verdict: Verdict) -> None:
    found = asked(server, said(status, "{}", Retry_After="7"))
    assert found.verdict is verdict
    assert found.retry_after_s == (None if status == 404 else 7.0)


@pytest.mark.parametrize(
    ("said_after", "seconds"), [("0", 0.5), ("120", 120.0), ("soon", None), ("-1", None), ("9" * 9, 86_400.0)]
)
def test_when_to_ask_again_is_the_authoritys_to_say_within_bounds(
    server: PlainServer, said_after: str, seconds: float | None
) -> None:
    assert asked(server, said(503, Retry_After=said_after)).retry_after_s == seconds
    assert asked(server, said(503, Retry_After="Thu, 01 Jan 1970 00:00:00 GMT")).retry_after_s == 0.5


def test_other_statuses_can_mean_absence(server: PlainServer) -> None:
    assert asked(server, said(410), absent=(404, 410)).verdict is Verdict.DEFINITELY_ABSENT


@pytest.mark.parametrize(
    ("body", "state", "verdict"),
    [
        ([], None, Verdict.DEFINITELY_ABSENT),
        ([{"state": "done"}], None, Verdict.APPLIED),
        ([{"state": "done"}, {"state": "done"}], None, Verdict.CONTRADICTION),
        ([{"state": "done"}], "state", Verdict.APPLIED),
        ({"data": []}, "data.state", Verdict.DEFINITELY_ABSENT),
        ({"data": [{"state": "failed"}]}, "data.state", Verdict.APPLIED_FAILED),
        ({"data": [{"state": "done"}, {"state": "failed"}]}, "data.state", Verdict.CONTRADICTION),
        ({"state": ["done", "failed"]}, "state", Verdict.CONTRADICTION),
        ({"state": ["done", "succeeded"]}, "state", Verdict.APPLIED),
        ({"state": []}, "state", Verdict.INCONCLUSIVE),
    ],
)
def test_none_one_or_several_in_a_list(server: PlainServer, body: Any, state: str | None, verdict: Verdict) -> None:
    assert asked(server, said(200, json.dumps(body)), state=state).verdict is verdict


@pytest.mark.parametrize("body", ["", "<html>", "[1]", '{"other": 1}', "[" * 100_000], ids=range(5))
def test_an_answer_without_the_word_settles_nothing(server: PlainServer, body: str) -> None:
    found = asked(server, said(200, body), state="state")
    assert found.verdict is Verdict.INCONCLUSIVE and "'state'" in found.detail


def test_a_body_that_is_too_long_or_packed_settles_nothing(server: PlainServer) -> None:
    body = '{"state": "done"}'
    assert asked(server, said(200, body.ljust(ask_http.BODY_BYTES)), state="state").verdict is Verdict.APPLIED
    for answer in (said(200, body.ljust(ask_http.BODY_BYTES + 1)), said(200, body, Content_Encoding="gzip")):
        found = asked(server, answer, state="state")
        assert found.verdict is Verdict.INCONCLUSIVE and "more than is read, or packed" in found.detail


# -- HTTP: it ends in time, and says so --------------------------------------------------------------------------


def test_every_way_not_to_answer_ends_in_time() -> None:
    with plain_server() as mute, plain_server() as head, plain_server() as body:
        mute.answer = mute.silent
        head.answer = head.drip(b"HTTP/1.1 200 x\r\nX-A: ")
        body.answer = body.drip(b"HTTP/1.1 200 x\r\nContent-Length: 100000\r\n\r\n")
        before = time.monotonic()
        with ThreadPoolExecutor(3) as pool:
            queries = [HttpQuery(url=server.url + "/{key}") for server in (mute, head, body)]
            for found in pool.map(lambda query: ask(query, operation(), 0.3), queries):
                assert found.verdict is Verdict.UNREACHABLE and "0.3 s" in found.detail
        assert 0.25 < time.monotonic() - before < IN_TIME_S


def test_a_resolver_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: release.wait(20) and [])
    before = time.monotonic()
    found = ask(HttpQuery(url="http://authority.invalid/{key}"), operation(), 0.3)
    left = asking._left["authority.invalid"]
    release.set()
    assert found.verdict is Verdict.UNREACHABLE and time.monotonic() - before < IN_TIME_S
    assert left == 0  # the asking itself has ended; only the resolver's thread is left


def test_a_refused_a_broken_and_a_senseless_answer(server: PlainServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    refused = ask(HttpQuery(url=f"http://127.0.0.1:{port}/{{key}}"), operation(), 5)
    assert refused.verdict is Verdict.UNREACHABLE and "ConnectError" in refused.detail
    for answer in (b"", b"HTTP/1.1 200 x\r\nContent-Length: 10\r\n\r\n{}", b"no HTTP at all\r\n\r\n"):
        found = asked(server, answer)
        assert found.verdict is Verdict.UNREACHABLE and found.detail


def test_a_url_that_is_none_settles_nothing() -> None:
    query = HttpQuery(url="http://[::1/{key}")
    assert ask(query, operation(), 5).verdict is Verdict.INCONCLUSIVE
    assert authority_of(query) == "[::1"


def test_no_time_is_no_question(server: PlainServer) -> None:
    assert asked(server, said(200), timeout=0.0).verdict is Verdict.UNREACHABLE
    assert server.heads == []


def test_what_hangs_for_good_is_left_alone_a_bounded_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    release, begun = threading.Event(), []

    def hangs(*_: Any) -> Finding:
        begun.append(1)
        release.wait(20)
        return Finding(Verdict.APPLIED)

    monkeypatch.setattr(ask_http, "ask_http", hangs)
    monkeypatch.setattr(asking, "SPARE_S", 0.02)
    monkeypatch.setattr(asking, "MOST_LEFT", 2)
    query = HttpQuery(url="http://hung.example/{key}")
    found = [ask(query, operation(), 0.02) for _ in range(4)]
    assert {each.verdict for each in found} == {Verdict.UNREACHABLE} and len(begun) == 2
    assert "2 earlier questions to hung.example still hang" in found[-1].detail
    release.set()
    end = time.monotonic() + 5
    while asking._left["hung.example"] and time.monotonic() < end:
        time.sleep(0.005)
    assert asking._left["hung.example"] == 0


# -- HTTP: filled in as data, and told to nobody else ------------------------------------------------------------


def test_values_are_data_in_the_url(server: PlainServer) -> None:
    server.answer = said(200)
    query = HttpQuery(url=server.url + "/by/{target}?ref={reference}&c={correlation}")
    ask(query, operation(target="a/../b?x=1#y", reference="ü &=%"), 5)
    assert server.paths() == ["/by/a%2F..%2Fb%3Fx%3D1%23y?ref=%C3%BC%20%26%3D%25&c=run_42"]


@pytest.mark.parametrize(
    ("url", "changes", "why"),
    [
        ("http://{target}/{key}", {"target": "evil.example"}, "the host"),
        ("http://h.{target}:80/{key}", {}, "the host"),
        ("{reference}/x", {"reference": "http://evil.example"}, "not http://"),
        ("ftp://h/{key}", {}, "not http://"),
        ("http://127.0.0.1:1/{kye}", {}, "'kye'"),
        ("http://127.0.0.1:1/{}", {}, "''"),
        ("http://127.0.0.1:1/{reference}", {}, "no reference yet"),
        ("http://127.0.0.1:1/{target}", {"target": ".."}, "not a name in a URL"),
    ],
)
def test_a_question_that_would_be_about_something_else_is_not_put(
    url: str, changes: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("it was put"))
    found = ask(HttpQuery(url=url), operation(**changes), 5)
    assert found.verdict is Verdict.INCONCLUSIVE and why in found.detail


def test_a_header_comes_from_the_environment_and_is_never_said(
    server: PlainServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTHORITY_TOKEN", "Bearer canary-5ce9")
    body = json.dumps({"state": "you sent Bearer canary-5ce9", "id": "x Bearer canary-5ce9"})
    headers = {"Authorization": "env:AUTHORITY_TOKEN", "X-Key": "{key}"}
    found = asked(server, said(200, body), state="state", reference="id", headers=headers)
    assert "Authorization: Bearer canary-5ce9\r\n" in server.heads[0] and "X-Key: op_1\r\n" in server.heads[0]
    assert found.verdict is Verdict.INCONCLUSIVE and "***" in found.detail
    assert "canary" not in found.detail + str(found.reference) + found.source


def test_a_header_that_cannot_be_sent_is_said_without_its_value(
    server: PlainServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKEN_TOKEN", "canary\r\nX-Other: 1")
    for headers in ({"A": "env:BROKEN_TOKEN"}, {"A": "env:MISSING_TOKEN"}, {"A": "x\ny"}, {"A b": "canary"}):
        found = asked(server, said(200), headers=headers)
        assert found.verdict is Verdict.INCONCLUSIVE and "canary" not in found.detail
    assert server.heads == []


def test_a_redirect_is_followed_at_home_only(server: PlainServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTHORITY_TOKEN", "canary")
    headers = {"Authorization": "env:AUTHORITY_TOKEN"}

    def home(head: str, one: socket.socket) -> None:
        one.sendall(said(200) if head.startswith("GET /there ") else said(307, Location="/there"))

    with plain_server() as other:
        assert asked(server, home, headers=headers).verdict is Verdict.APPLIED
        found = asked(server, said(302, Location=other.url + "/x"), headers=headers)
        assert found.verdict is Verdict.INCONCLUSIVE and "not to be asked" in found.detail and other.heads == []
        endless = asked(server, said(302, Location="/again"))
        assert endless.verdict is Verdict.INCONCLUSIVE and "more than 5 times" in endless.detail


def test_no_proxy_of_the_environment_speaks_for_the_authority(
    server: PlainServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert asked(server, said(200, "{}")).verdict is Verdict.APPLIED


def test_a_password_in_the_url_is_not_told_to_whoever_reads_a_result() -> None:
    query = HttpQuery(url="https://me:canary@api.example/{key}?a=@")
    assert settled_by(Definition("deploy", query=query), operation()) == {
        "method": "GET", "url": "https://api.example/op_1?a=@"
    }  # fmt: skip


def test_a_statement_about_no_operation_is_not_put(authority: str) -> None:
    found = ask(SqlQuery(database=authority, statement="SELECT 'succeeded'"), operation(), 5)
    assert found.verdict is Verdict.INCONCLUSIVE and ":key" in found.detail


def test_a_password_in_the_url_is_in_no_finding(server: PlainServer) -> None:
    query = HttpQuery(url=f"http://me:canary@{server.place}/{{key}}")
    server.answer = said(404)
    found = ask(query, operation(), 5)
    assert "Authorization: Basic" in server.heads[0] and found.verdict is Verdict.DEFINITELY_ABSENT
    unasked = ask(query, operation(), 0)
    assert "canary" not in repr((found, unasked, source_of(query), authority_of(query)))


# -- SQL ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path: Path) -> str:
    path = str(tmp_path / "authority.db")
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE deployment (key TEXT, state TEXT, id TEXT)")
        rows = [("done", "succeeded", "dep_1"), ("bad", "failed", "dep_2"), ("now", "running", None)]
        rows += [("twice", "succeeded", "dep_3"), ("twice", "succeeded", "dep_4"), ("odd", "resting", "")]
        connection.executemany("INSERT INTO deployment VALUES (?, ?, ?)", rows)
    connection.close()
    return path


BY_KEY = "SELECT state, id FROM deployment WHERE key = :key AND ':x' <> \":no\" -- :nothing\n"
SQL_CASES = [
    ("done", ("succeeded",), Verdict.APPLIED, "dep_1"),
    ("bad", ("succeeded",), Verdict.APPLIED_FAILED, "dep_2"),
    ("bad", None, Verdict.APPLIED_FAILED, "dep_2"),
    ("now", None, Verdict.IN_PROGRESS, None),
    ("odd", ("succeeded",), Verdict.INCONCLUSIVE, None),
    ("odd", None, Verdict.APPLIED, None),
    ("none", None, Verdict.DEFINITELY_ABSENT, None),
    ("twice", ("succeeded",), Verdict.CONTRADICTION, None),
    ("' OR 1=1 --", None, Verdict.DEFINITELY_ABSENT, None),
]


@pytest.mark.parametrize(("key", "applied", "verdict", "reference"), SQL_CASES)
def test_the_row_decides(authority: str, key: str, applied: Any, verdict: Verdict, reference: str | None) -> None:
    statement = BY_KEY.replace('":no"', "'%:no'")
    found = ask(SqlQuery(database=authority, statement=statement, applied=applied), operation(key=key), 5)
    assert (found.verdict, found.reference) == (verdict, reference), found.detail
    assert found.source == f"SELECT on {authority}" and found.raw


def test_the_authority_is_only_read(authority: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTHORITY", authority)
    before = Path(authority).read_bytes()
    for statement in (
        "DELETE FROM deployment WHERE key = :key",
        f"ATTACH '{tmp_path}/made.db' AS other",
        "SELECT 1; DELETE FROM deployment",
        "PRAGMA user_version = 3",
        "SELEC :key",
        "SELECT 1 WHERE 'x' = :kye",
        "SELECT 1 WHERE 'x' = :reference",
    ):
        found = ask(SqlQuery(database="env:AUTHORITY", statement=statement), operation(), 5)
        assert found.verdict in (Verdict.INCONCLUSIVE, Verdict.UNREACHABLE) and found.detail, statement
    assert Path(authority).read_bytes() == before and os.listdir(tmp_path) == ["authority.db"]


def test_a_database_that_is_not_there_or_busy_does_not_answer(authority: str, tmp_path: Path) -> None:
    missing = ask(SqlQuery(database=str(tmp_path / "no.db"), statement=BY_KEY), operation(), 5)
    assert missing.verdict is Verdict.UNREACHABLE and os.listdir(tmp_path) == ["authority.db"]
    unnamed = ask(SqlQuery(database="env:NO_SUCH_PLACE", statement=BY_KEY), operation(), 5)
    assert unnamed.verdict is Verdict.INCONCLUSIVE and "NO_SUCH_PLACE" in unnamed.detail
    with sqlite3.connect(authority, isolation_level=None) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        before = time.monotonic()
        busy = ask(SqlQuery(database=authority, statement=BY_KEY), operation(), 0.3)
        assert busy.verdict is Verdict.UNREACHABLE and time.monotonic() - before < IN_TIME_S
        holder.execute("ROLLBACK")
    holder.close()


def test_a_statement_that_does_not_end_is_ended(authority: str) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n WHERE :key <> ''"
    before = time.monotonic()
    found = ask(SqlQuery(database=authority, statement=endless), operation(), 0.3)
    assert found.verdict is Verdict.UNREACHABLE and "0.3 s" in found.detail and time.monotonic() - before < IN_TIME_S
    assert asking._left[authority] == 0  # it has ended itself: no thread was left alone


# -- a function --------------------------------------------------------------------------------------------------


def by_function(function: str, timeout: float = 20.0, **changes: Any) -> Finding:
    return ask(FunctionQuery(name=f"reconcile_functions:{function}"), operation(**changes), timeout)


def test_a_function_answers_with_a_finding_a_verdict_or_a_word() -> None:
    found = by_function("finds_it")
    assert (found.verdict, found.reference, found.value) == (Verdict.APPLIED, "of op_1", {"id": 7})
    assert found.source == "function reconcile_functions:finds_it"
    assert by_function("says_a_verdict").verdict is Verdict.DEFINITELY_ABSENT
    assert by_function("says_a_word").verdict is Verdict.IN_PROGRESS


@pytest.mark.parametrize(
    ("name", "verdict", "why"),
    [
        ("says_something_else", Verdict.INCONCLUSIVE, "bool True, which is no Finding"),
        ("raises", Verdict.INCONCLUSIVE, "neither is ours"),
        ("is_refused", Verdict.UNREACHABLE, "nobody there"),
        ("exits", Verdict.INCONCLUSIVE, ""),
        ("is_not_there", Verdict.UNREACHABLE, "cannot be loaded in this process"),
    ],
)
def test_what_else_a_function_does_settles_nothing(name: str, verdict: Verdict, why: str) -> None:
    found = by_function(name)
    assert found.verdict is verdict and why in found.detail and found.detail


def test_a_finding_that_cannot_be_written_down_is_made_plain() -> None:
    found = by_function("answers_oddly")
    assert found == Finding(Verdict.IN_PROGRESS, found.source, reference="42")
    assert type(found.verdict) is Verdict


def test_a_module_that_is_not_there_is_said_so() -> None:
    found = ask(FunctionQuery(name="no_such_module_5ce9:find"), operation(), 20)
    assert found.verdict is Verdict.UNREACHABLE and "no_such_module_5ce9" in found.detail


def test_a_function_that_hangs_is_killed(tmp_path: Path) -> None:
    who = tmp_path / "who"
    before = time.monotonic()
    found = by_function("hangs", 0.5, target=str(who))
    assert found.verdict is Verdict.UNREACHABLE and time.monotonic() - before < 3
    assert not Path(f"/proc/{who.read_text()}").exists()


def test_a_function_of_the_main_program_is_asked_there_only(monkeypatch: pytest.MonkeyPatch) -> None:
    query = FunctionQuery(name="__main__:find_5ce9")
    assert "cannot be loaded in this process" in ask(query, operation(), 20).detail
    monkeypatch.setattr("__main__.find_5ce9", reconcile_functions.says_a_word, raising=False)
    assert ask(query, operation(), 20).verdict is Verdict.IN_PROGRESS


# -- over SSH ----------------------------------------------------------------------------------------------------


def test_over_ssh_the_remote_helper_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    query, asked_with = SshQuery(host="deploy@web-1"), []

    def status(*words: Any) -> Finding:
        asked_with.append(words)
        if len(asked_with) > 1:
            raise TimeoutError
        return Finding(Verdict.IN_PROGRESS)

    monkeypatch.setattr("deadstop.effects.ssh_status.status", status)
    found = ask(query, operation(), 3)
    assert asked_with == [(query, operation(), 3)]
    assert (found.verdict, found.source) == (Verdict.IN_PROGRESS, "ssh deploy@web-1 deadstop-remote status")
    assert ask(query, operation(), 3).verdict is Verdict.UNREACHABLE


# -- whom it is about --------------------------------------------------------------------------------------------


def test_each_authority_has_one_name() -> None:
    queries = [
        HttpQuery(url="https://me:pw@API.example:8443/x/{key}"),
        SqlQuery(database="postgresql://me@db.example/orders?sslmode=require", statement=""),
        SqlQuery(database="env:ORDERS", statement=""),
        SshQuery(host="deploy@web-1"),
        FunctionQuery(name="a.b:c"),
    ]
    names = ["api.example:8443", "postgresql://db.example/orders", "env:ORDERS", "ssh web-1", "a.b:c"]
    assert [authority_of(each) for each in queries] == names
    assert all("me" not in source_of(each) for each in queries[:2])
