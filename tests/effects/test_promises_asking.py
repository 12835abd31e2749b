# SPDX-License-Identifier: Apache-2.0
"""Promises of writes, reads and questions over HTTP at their edges: how long, how often, and past which caches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from lost_answers import by_key, effect, lost, told
from plain_http import PlainServer, plain_server, said

from deadstop.effects.http import HttpEffects
from deadstop.effects.reads import Settle, Version, read
from deadstop.effects.settlement import reconcile
from deadstop.ledger.definition import Effect
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.states import State, Verdict
from deadstop.results import Status
from deadstop.testing import Authority


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger.in_memory() as made:
        yield made


@pytest.fixture
def server() -> Iterator[PlainServer]:
    with plain_server() as made:
        yield made


def test_a_question_ends_in_its_own_time_and_before_the_recovery_deadline(ledger: Ledger, server: PlainServer) -> None:
    server.answer = server.silent
    declared = {
        "its own": effect(reconcile=by_key(server.url), reconcile_timeout=0.2, recovery_deadline=60),
        "the deadline": effect(reconcile=by_key(server.url), reconcile_timeout=25, recovery_deadline=1.5),
    }
    records = [lost(ledger, each, tool=name) for name, each in declared.items()]

    def asked(op_id: str) -> tuple[float, str]:
        began = time.monotonic()
        reconcile(ledger, op_id, force=True)
        return time.monotonic() - began, told(ledger, op_id, "reconcile.finding")[-1]["verdict"]

    with ThreadPoolExecutor(2) as pool:
        (own, own_verdict), (last, last_verdict) = pool.map(asked, [each.op_id for each in records])
    assert (own_verdict, last_verdict) == (Verdict.UNREACHABLE, Verdict.UNREACHABLE)
    assert own < 5
    assert last < 10  # a second is what a last question is worth; 25 is what it was declared to take
    assert ledger.get(records[0].op_id).state is State.UNKNOWN


@pytest.mark.filterwarnings("ignore::deadstop.executor.declared.UnansweredEffect")
def test_what_is_not_to_be_followed_is_not_looked_at_again(ledger: Ledger) -> None:
    with Authority("accept_async", seconds=None) as authority:
        began = time.monotonic()
        result = HttpEffects(authority.url, ledger=ledger, effect=Effect(), follow=False).post(
            "/deployments", json={"n": 1}
        )
        assert time.monotonic() - began < 10
        assert [each["method"] for each in authority.requests()] == ["POST"]
        assert (result.status, result.effect) == (Status.UNKNOWN, "unknown")
        assert result.operation is not None
        assert result.operation["reference"] == authority.operations()[0]["id"]


def test_what_decides_a_write_is_asked_past_every_cache_and_what_does_not_may_be_kept(server: PlainServer) -> None:
    server.answer = said(200, '{"version": 7}', Content_Type="application/json")
    for rule in (Version(7), Settle(0.001)):
        assert read(server.url, decides="write", consistency=rule).value["consistency"]["met"]
    assert read(server.url).ok
    asked = ["cache-control: no-cache" in head.lower() for head in server.heads]
    assert asked == [True, True, False]
