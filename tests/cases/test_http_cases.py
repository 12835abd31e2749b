# SPDX-License-Identifier: Apache-2.0
"""HTTP services that are known to make clients do things twice, or wait for ever. They are kept in inputs/."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deadstop.effects.ask_http import ask_http
from deadstop.effects.http import HttpEffects
from deadstop.ledger.definition import Effect
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.queries import HttpQuery
from deadstop.ledger.states import State, Verdict
from deadstop.operation import Operation
from deadstop.results import Status

INPUTS = Path(__file__).resolve().parent / "inputs"
MARKER = "# ---- naive demonstration"
LIMIT_S, SLACK_S = 1.0, 0.5


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger.in_memory() as opened:
        yield opened


@pytest.fixture
def service(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """The names of an input's own module: its URL, and the keys of the posts that it got."""
    names: dict[str, Any] = {}
    path = next(INPUTS.glob(f"{request.param}-*.py"))
    exec(compile(path.read_text().partition(MARKER)[0], str(path), "exec"), names)
    yield names
    names["srv"].shutdown()
    names["srv"].server_close()


def by_key(service: dict[str, Any]) -> HttpQuery:
    """These services answer any GET. A query has to be about the operation all the same, or it is not put."""
    return HttpQuery(url=f"{service['URL']}?key={{key}}")


def client(service: dict[str, Any], ledger: Ledger, limit: float = LIMIT_S) -> HttpEffects:
    effect = Effect(retry="if_not_accepted", reconcile=by_key(service), consistent=True)
    return HttpEffects(service["URL"], ledger=ledger, effect=effect, timeout=limit)


@pytest.mark.parametrize("service", ["77"], indirect=True)
def test_case_77_committed_and_dropped(service: dict[str, Any], ledger: Ledger) -> None:
    """One intent, asked for three times as its naive callers do: one post, unknown until the service is asked."""
    # The dropped connection ends it, not the limit: that one must be far, also where the service is slow to drop it.
    results = [client(service, ledger, limit=20).post("", json={}) for _ in range(3)]
    assert [each.status for each in results] == [Status.UNKNOWN] * 3
    assert not any(each.retry_allowed for each in results)
    operations = [each.operation for each in results if each.operation]
    assert len({each["id"] for each in operations}) == 1 and len(operations) == 3
    assert service["posts"] == [operations[0]["key"]]
    assert ledger.attempts(operations[0]["id"])[0].phase == "await_response"
    claim = ledger.take(operations[0]["id"], force=True)
    assert claim is not None
    found = ask_http(by_key(service), Operation.of(claim.record), 2.0)
    assert found.verdict is Verdict.APPLIED
    assert ledger.settle(claim, found).state is State.SUCCEEDED
    assert len(service["posts"]) == 1


@pytest.mark.parametrize("service", ["79"], indirect=True)
def test_case_79_a_body_that_drips(service: dict[str, Any], ledger: Ledger) -> None:
    began = time.monotonic()
    result = client(service, ledger).post("", json={})
    assert LIMIT_S <= time.monotonic() - began <= LIMIT_S + SLACK_S
    assert (result.status, result.effect) == (Status.TIMEOUT, "unknown")
    assert result.operation is not None
    read, _, rest = (
        result.operation["transport_observation"].removeprefix("response deadline exceeded after ").partition(" ")
    )
    assert 1 <= int(read) <= 5 and rest == "of 20 bytes of the response's body (status 200)"
    assert len(service["posts"]) == 1
