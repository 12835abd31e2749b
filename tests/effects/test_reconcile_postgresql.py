# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL as the authority that is asked, and as the ledger that several machines reconcile."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from lost_answers import by_key, effect, kinds, lost
from reconcile_subjects import operation
from webhook_receiver import receiver

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "ledger"))

import pg_server
import stores

from deadstop.effects import asking
from deadstop.effects.asking import ask
from deadstop.effects.deliver import Deliverer
from deadstop.effects.reconciler import Reconciler
from deadstop.ledger import outbox
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.queries import SqlQuery
from deadstop.ledger.records import Message
from deadstop.ledger.states import State, Verdict
from deadstop.testing import Authority

BY_KEY = "SELECT state, id::text FROM deployment WHERE key = :key AND '50%:x' LIKE '%' || $$:no$$ || '%' OR key = :key"


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stores.Databases]:
    if (why := pg_server.why_not()) is not None:
        pytest.skip(why)
    folder = tmp_path_factory.getbasetemp()
    made = stores.Databases(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)
    yield made
    made.release()


@pytest.fixture(scope="module")
def authority(databases: stores.Databases) -> str:
    """A service's own database, with what it has committed."""
    url = databases.fresh()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE deployment (key text, state text, id int)")
        rows = [("done", "succeeded", 1), ("bad", "failed", 2), ("now", "running", None)]
        rows += [("twice", "succeeded", 3), ("twice", "succeeded", 4), ("odd", "resting", 5)]
        connection.cursor().executemany("INSERT INTO deployment VALUES (%s, %s, %s)", rows)
    return url


@pytest.mark.parametrize(
    ("key", "verdict", "reference"),
    [
        ("done", Verdict.APPLIED, "1"),
        ("bad", Verdict.APPLIED_FAILED, "2"),
        ("now", Verdict.IN_PROGRESS, None),
        ("odd", Verdict.INCONCLUSIVE, "5"),
        ("twice", Verdict.CONTRADICTION, None),
        ("none", Verdict.DEFINITELY_ABSENT, None),
        ("' OR true --", Verdict.DEFINITELY_ABSENT, None),
    ],
)
def test_the_row_decides(authority: str, key: str, verdict: Verdict, reference: str | None) -> None:
    found = ask(SqlQuery(database=authority, statement=BY_KEY, applied=("succeeded",)), operation(key=key), 5)
    assert (found.verdict, found.reference) == (verdict, reference), found.detail


def test_the_authority_is_only_read_and_its_password_is_never_said(
    authority: str, databases: stores.Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTHORITY", authority)
    password = databases.server.password
    statements = ["DELETE FROM deployment WHERE key = :key", "SELECT 1; DELETE FROM deployment", "SELEC :key"]
    places = ["env:AUTHORITY"] * 3 + [
        authority.replace(password, f"{password}-wrong"),
        "postgresql://me:canary@/x?nothing=1",
    ]
    for place, statement in zip(places, [*statements, BY_KEY, BY_KEY], strict=True):
        found = ask(SqlQuery(database=place, statement=statement), operation(key="done"), 5)
        assert found.verdict in (Verdict.INCONCLUSIVE, Verdict.UNREACHABLE) and found.detail, statement
        assert password not in repr(found) and "canary" not in repr(found)
    assert ask(SqlQuery(database=authority, statement=BY_KEY), operation(key="done"), 5).verdict is Verdict.APPLIED


def test_a_statement_and_a_lock_are_bounded(authority: str) -> None:
    before = time.monotonic()
    endless = ask(SqlQuery(database=authority, statement="SELECT pg_sleep(60), :key::text"), operation(), 0.3)
    with psycopg.connect(authority) as holder:
        holder.execute("LOCK TABLE deployment IN ACCESS EXCLUSIVE MODE")
        held = ask(SqlQuery(database=authority, statement=BY_KEY), operation(), 0.3)
        holder.rollback()
    assert {endless.verdict, held.verdict} == {Verdict.UNREACHABLE} and "0.3 s" in endless.detail + held.detail
    assert time.monotonic() - before < 3 and not asking._left.total()


def test_nobody_there(databases: stores.Databases) -> None:
    found = ask(SqlQuery(database="postgresql://127.0.0.1:1/orders", statement=BY_KEY), operation(), 2)
    assert found.verdict is Verdict.UNREACHABLE and found.source == "SELECT on postgresql://127.0.0.1:1/orders"


def test_two_machines_settle_each_operation_once(
    databases: stores.Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEADSTOP_STATE", str(tmp_path))
    where = databases.fresh()

    def passes(ledger: Ledger) -> list[Any]:
        return Reconciler(ledger, parallel=4).run_once()

    with Authority("accept_then_drop") as service, Ledger.open(where) as one, Ledger.open(where) as two:
        declared = effect(reconcile=by_key(service.url))
        records = [lost(one, declared, service.url) for _ in range(8)]
        with ThreadPoolExecutor(2) as machines:
            counts = [len(done) for done in machines.map(passes, (one, two))]
        assert sum(counts) == len(records) and len(service.requests()) == 2 * len(records)
        for record in records:
            assert two.get(record.op_id).state is State.SUCCEEDED
            assert kinds(one, record.op_id)[3:] == ["reconcile.started", "reconcile.finding", "settled"]


def test_an_event_that_waited_for_its_place_is_not_sent_before_the_one_that_had_it(
    databases: stores.Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEADSTOP_STATE", str(tmp_path))
    where = databases.fresh()
    with Ledger.open(where) as one, Ledger.open(where) as two, receiver() as at:

        def begun_first(tx: Any) -> str:
            assert tx.now  # its time is that of its beginning
            two.publish(Message("shop.paid", "first", {"n": 1}, group="shop"))
            return outbox.publish(tx, Message("shop.paid", "second", {"n": 2}, group="shop"))

        one.write(begun_first)
        assert Deliverer(two, [at.url]).run_once() == 2 and at.numbers == [1, 2]
