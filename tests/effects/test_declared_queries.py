# SPDX-License-Identifier: Apache-2.0
"""What is said of a declaration before anything is sent: queries that could never be asked, questions left open, and
names under which several declarations for one host stay apart."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import reconcile_functions
from plain_http import plain_server, said
from reconcile_subjects import operation

import deadstop
from deadstop import clock
from deadstop.effects.asking import ask
from deadstop.effects.http import HttpEffects
from deadstop.effects.http_errors import until_of
from deadstop.effects.http_transport import EffectTransport
from deadstop.effects.settlement import reconcile
from deadstop.effects.ssh import SshEffects
from deadstop.errors import UsageError
from deadstop.executor.declared import UnansweredEffect
from deadstop.ledger.definition import Effect
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.queries import FunctionQuery, HttpQuery, Query, SqlQuery, SshQuery
from deadstop.ledger.states import Retry, State, Verdict
from deadstop.results import Status
from deadstop.testing import Authority

SELECT = "SELECT state FROM t WHERE key = :key"


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger.in_memory() as opened:
        yield opened


# -- queries that could never be asked -----------------------------------------------------------------------------

NEVER: list[tuple[Query, str]] = [
    (HttpQuery(url="not a url/{key}"), "not http://"),
    (HttpQuery(url="ftp://a.example/{key}"), "not http://"),
    (HttpQuery(url="https:///{key}"), "not http://"),
    (HttpQuery(url="https://a.example:port/{key}"), "is no URL"),
    (HttpQuery(url="https://{target}.example/{key}"), "cannot depend on the operation"),
    (HttpQuery(url="https://a.example/{nokey}"), "{nokey} is not one of {key}, {op_id}"),
    (HttpQuery(url="https://a.example/{key}", headers={"X-A": "{kye}"}), "{kye} is not one of"),
    (HttpQuery(url="https://a.example/{key}", headers={"X A": "canary"}), "'X A' cannot be sent"),
    (HttpQuery(url="https://a.example/{key}", applied="done"), "applied: give a list"),
    (HttpQuery(url="https://a.example/{key}", state=""), "not the path of a field"),
    (SqlQuery(database="a.db", statement="DELETE FROM t WHERE key = :key"), "is no SELECT"),
    (SqlQuery(database="a.db", statement=f"{SELECT}; DELETE FROM t"), "there are several"),
    (SqlQuery(database="a.db", statement="SELECT 1 WHERE :kye = 1"), ":kye is not one of :key"),
    (SqlQuery(database="mysql://h/db", statement=SELECT), "'mysql' is not postgresql"),
    (SqlQuery(database="env:", statement=SELECT), "database: give"),
    (SshQuery(host="-oProxyCommand=x"), "begins with no '-'"),
    (SshQuery(host="a b"), "is not one word"),
    (SshQuery(host="a;b"), "is no host"),
    (SshQuery(host="a", helper="-x"), "begins with no '-'"),
    (FunctionQuery(name="module.function"), "is not MODULE:NAME"),
]


@pytest.mark.parametrize(("query", "why"), NEVER, ids=[str(number) for number in range(len(NEVER))])
def test_a_query_that_could_never_be_asked_is_refused_where_it_is_declared(query: Query, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        Effect(reconcile=query)
    assert why in str(refused.value) and "canary" not in str(refused.value)


def test_a_password_in_a_url_is_not_said_back() -> None:
    with pytest.raises(UsageError) as refused:
        Effect(reconcile=HttpQuery(url="ftp://me:canary@a.example/{key}"))
    assert "canary" not in str(refused.value)


FINE: list[Query] = [
    HttpQuery(url="https://me:pw@a.example:8443/{key}?c={correlation}", headers={"Authorization": "env:TOKEN"}),
    HttpQuery(url="https://a.example/status", headers={"X-Operation": "{op_id}"}),
    SqlQuery(database="a.db", statement="-- ; it's\n (SELECT ';' || \"a;b\" FROM t WHERE key = :key::text) ; "),
    SqlQuery(database="postgresql://h/db", statement="with x as (select $$;$$) select * from x where k = :fingerprint"),
    SqlQuery(database="env:PLACE", statement=SELECT, applied=None),
    SshQuery(host="deploy@[::1]", options=("-p", "22")),
    FunctionQuery(name="reconcile_functions:finds_it"),
]


@pytest.mark.parametrize("query", FINE, ids=[str(number) for number in range(len(FINE))])
def test_what_can_be_asked_is_taken_and_leaves_nothing_open(query: Query) -> None:
    assert Effect(fingerprint=["a"], reconcile=query, consistent=True).unanswered() == ()


# -- queries that would settle nothing -----------------------------------------------------------------------------


def test_an_answer_that_is_of_no_operation_settles_none(ledger: Ledger) -> None:
    """Whatever the service says at such a URL, it says of every operation: also of one that never arrived."""
    with plain_server() as server:
        server.answer = said(200, '{"state": "succeeded"}')
        for more in ({}, {"state": "state"}, {"headers": {"Authorization": "env:PATH"}}):
            found = ask(HttpQuery(url=f"{server.url}/status", **more), operation(), 5)
            assert found.verdict is Verdict.INCONCLUSIVE and "names anything of the operation" in found.detail
        assert server.heads == []
        named = ask(HttpQuery(url=f"{server.url}/status", headers={"X-Key": "{key}"}), operation(), 5)
        assert named.verdict is Verdict.APPLIED and "X-Key: op_1" in server.heads[0]
    with Authority("reject_before", times=1, status=503) as authority:
        query = HttpQuery(url=f"{authority.url}/deployments")
        with pytest.warns(UnansweredEffect, match="names nothing of the operation"):
            client = HttpEffects(authority.url, ledger=ledger, effect=Effect(reconcile=query, consistent=True))
        lost = client.post("/deployments", json={"a": 1})
        assert lost.operation is not None and lost.operation["state"] == "UNKNOWN"
        record = reconcile(ledger, lost.operation["id"], force=True)
        assert (record.state, record.verdict, authority.effects()) == (State.UNKNOWN, Verdict.INCONCLUSIVE, 0)


def own_function(op: deadstop.Operation) -> str:
    return "applied"


def test_who_cannot_be_asked_by_everybody_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def lines(query: Any) -> str:
        return "\n".join(Effect(fingerprint=["a"], consistent=True, reconcile=query).unanswered())

    assert lines(own_function) == lines(reconcile_functions.finds_it) == ""
    assert "there is no module no_such_module_5ce9" in lines(FunctionQuery(name="no_such_module_5ce9.inner:find"))
    assert "names nothing" in lines(SqlQuery(database="a.db", statement="SELECT 'succeeded'"))
    monkeypatch.setattr(own_function, "__module__", "__main__")
    assert "no other process can ask it" in lines(own_function)


# -- told once, and kept apart -------------------------------------------------------------------------------------


def test_clients_say_once_what_they_leave_open(ledger: Ledger) -> None:
    with pytest.warns(UnansweredEffect, match="looked up nowhere") as told:
        HttpEffects("http://told.example", ledger=ledger)
    with pytest.warns(UnansweredEffect, match="looked up nowhere") as told_too:
        SshEffects("told.example", ledger=ledger, effect=Effect())
    for each in (*told, *told_too):  # the request itself says what makes two of them the same one
        assert each.filename == __file__ and "fingerprint:" not in str(each.message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        HttpEffects("http://told.example", ledger=ledger)
        SshEffects("told.example", ledger=ledger)  # what it declares by itself leaves nothing open


@pytest.mark.filterwarnings("ignore::deadstop.executor.declared.UnansweredEffect")
def test_two_declarations_for_one_host_do_not_tighten_each_other(ledger: Ledger) -> None:
    with Authority("accept_then_drop", times=1) as authority:
        by_key = HttpQuery(url=f"{authority.url}/operations/by-key/{{key}}", state="state")
        asked = Effect(retry="if_not_accepted", consistent=True, reconcile=by_key)
        orders = HttpEffects(authority.url, ledger=ledger, effect=asked)
        mails = HttpEffects(authority.url, ledger=ledger)
        host = authority.url.removeprefix("http://")
        assert mails._effects.tool == f"http {host}" != orders._effects.tool
        lost = orders.post("/orders", json={"a": 1}, key="o1").operation
        assert mails.post("/mails", json={"a": 1}, key="m1").ok
        assert lost is not None
        record = ledger.get(lost["id"])
        definition = ledger.definition(record.tool, record.definition)
        assert (definition.retry, definition.consistent) == (Retry.IF_NOT_ACCEPTED, True)
        # A key holds for the host, whoever declares what: it is not done again because a declaration has changed.
        again = HttpEffects(authority.url, ledger=ledger, effect=Effect(reconcile=by_key)).post(
            "/orders", json={"a": 1}, key="o1"
        )
        assert again.operation is not None and again.operation["id"] == record.op_id and again.status is Status.UNKNOWN
        assert mails.post("/orders", json={"a": 2}, key="o1").reason == "key_conflict"
        assert len(authority.requests(writes=True)) == 2
        named = [HttpEffects(authority.url, ledger=ledger, effect=each, tool="t") for each in (asked, Effect())]
        assert {each._effects.tool for each in named} == {"t"}
    production = SshEffects("deploy@production", ledger=ledger)
    other = SshEffects("deploy@production", ledger=ledger, effect=Effect(retry="if_not_accepted"))
    assert len({production.tool, other.tool, "ssh deploy@production"}) == 3


# -- the end of the right to send ----------------------------------------------------------------------------------


def test_a_clock_that_is_set_back_gives_no_more_time_to_send(monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    op = operation(id="op_clock", deadline=real() + 10)
    guarded = operation(id="op_guarded", deadline=real() + 10)
    EffectTransport(guarded)
    assert (first := until_of(op)) is not None and 8 < first - clock.monotonic() < 11
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    for each in (op, guarded):
        assert (left := until_of(each)) is not None and left - clock.monotonic() < 11
    with deadstop.deadline(5):
        new = operation(id="op_new", deadline=real() + 10)
        assert (left := until_of(new)) is not None and left - clock.monotonic() <= 5
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    assert (left := until_of(op)) is not None and left < clock.monotonic()
    assert until_of(operation()) is None
