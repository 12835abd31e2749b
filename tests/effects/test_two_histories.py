# SPDX-License-Identifier: Apache-2.0
"""The same exception, two histories: whether the service committed is for the service to say, and decides the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lost_answers import attempted, begun, by_key, effect, kinds, send, told
from reconcile_functions import create_deployment

import deadstop
from deadstop.effects.settlement import reconcile
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.records import Outcome
from deadstop.ledger.states import State, Verdict
from deadstop.ledger.store import default_place
from deadstop.operation import acting
from deadstop.testing import Authority

HISTORIES = {"committed": "accept_then_drop", "never accepted": "reject_before"}


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger.in_memory() as made:
        yield made


def test_the_same_exception_ends_as_the_authority_says(ledger: Ledger) -> None:
    seen, ends, claims = {}, {}, {}
    with Authority() as authority:
        declared = effect(reconcile=by_key(authority.url), consistent=True)
        for history, word in HISTORIES.items():
            authority.behave(word, times=1)
            claim = claims[history] = begun(ledger, declared, binding=history).claim
            assert claim is not None
            seen[history] = send(authority.url, claim)
            lost = ledger.finish(claim, Outcome(State.UNKNOWN, "await_response", True, repr(seen[history])))
            assert lost.state is State.UNKNOWN
            ends[history] = reconcile(ledger, claim.op_id)

        first, second = (seen[history] for history in HISTORIES)
        assert first is not None and (type(first), str(first)) == (type(second), str(second))
        assert ends["committed"].state is State.SUCCEEDED and ends["committed"].verdict is Verdict.APPLIED
        assert ends["committed"].reference == authority.operations()[0]["id"]
        assert ends["never accepted"].state is State.PREPARED
        assert ends["never accepted"].verdict is Verdict.DEFINITELY_ABSENT

        # What was never accepted is sent again, as the same operation under the same key; what was committed is not.
        for history, why in (("committed", "settled"), ("never accepted", "begun")):
            again = begun(ledger, declared, binding=history)
            assert again.why == why and again.record.op_id == ends[history].op_id
            assert again.record.key == claims[history].record.key
            if again.claim is not None:
                assert attempted(ledger, again.claim, authority.url).state is State.SUCCEEDED
        assert [authority.effects(claim.record.key) for claim in claims.values()] == [1, 1]


def test_the_trail_shows_both_attempts_and_the_finding(ledger: Ledger) -> None:
    with Authority("reject_before", times=1) as authority:
        declared = effect(reconcile=by_key(authority.url), consistent=True)
        first = attempted(ledger, begun(ledger, declared, binding="one").claim, authority.url)
        assert reconcile(ledger, first.op_id).state is State.PREPARED
        done = attempted(ledger, begun(ledger, declared, binding="one").claim, authority.url)
    assert (done.op_id, done.state, done.attempts) == (first.op_id, State.SUCCEEDED, 2)
    assert kinds(ledger, first.op_id) == [
        "intent",
        "attempt.started",
        "attempt.ended",
        "reconcile.started",
        "reconcile.finding",
        "attempt.allowed",
        "attempt.started",
        "settled",
    ]
    (finding,) = told(ledger, first.op_id, "reconcile.finding")
    assert finding["verdict"] == "definitely_absent" and first.key in finding["source"] and finding["raw_digest"]
    one, two = ledger.attempts(first.op_id)
    assert (one.outcome, two.outcome) == ("UNKNOWN", "SUCCEEDED") and "RemoteDisconnected" in str(one.observation)


def test_a_tool_ends_as_the_authority_says(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same through `deadstop.tool`: what its caller, or a model, sees of the two."""
    monkeypatch.setattr("deadstop.ledger.ledger._defaults", {default_place(): ledger})
    with Authority() as authority, acting(correlation="run_42"):
        declared = effect(reconcile=by_key(authority.url), consistent=True, fingerprint=["revision"])
        tool = deadstop.tool(create_deployment, timeout=20, effect=declared)
        first, ended, second = {}, {}, {}
        for history, word in HISTORIES.items():
            authority.behave(word, times=1)
            first[history] = tool.call(authority.url, history.replace(" ", "-"))
            ended[history] = reconcile(ledger, first[history].operation["id"])
            second[history] = tool.call(authority.url, history.replace(" ", "-"))
        effects = {history: authority.effects(result.operation["key"]) for history, result in first.items()}
    committed, never = HISTORIES
    for result in first.values():
        assert not result.ok and not result.retry_allowed and result.operation["state"] == "UNKNOWN"
        assert result.operation["reconcile"]["url"].endswith(result.operation["key"])
    assert str(first[committed].exception) == str(first[never].exception)
    assert (ended[committed].state, ended[never].state) == (State.SUCCEEDED, State.PREPARED)
    assert effects == {committed: 1, never: 1}
    assert second[committed].operation["id"] == first[committed].operation["id"]  # told, and not sent again
    assert second[never].ok and second[never].operation["id"] == first[never].operation["id"]
