# SPDX-License-Identifier: Apache-2.0
"""What was accepted for later (202) is found by whoever comes after its caller, where the service said to look."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lost_answers import begun

from deadstop.cli import main
from deadstop.effects.http import HttpEffects
from deadstop.effects.http_place import keep
from deadstop.effects.reconciler import Reconciler
from deadstop.effects.settlement import place_of, reconcile
from deadstop.ledger.definition import Effect
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.records import Outcome
from deadstop.ledger.states import State, Verdict
from deadstop.results import ToolResult
from deadstop.testing import Authority

# Nothing says where to ask about these: that is their subject.
pytestmark = pytest.mark.filterwarnings("ignore::deadstop.executor.declared.UnansweredEffect")

FOLLOWER = """
import sys
from deadstop.effects.http import HttpEffects
from deadstop.ledger.ledger import Ledger
url, where = sys.argv[1:]
HttpEffects(url, ledger=Ledger.open(where), timeout=20).post("/deployments", json={"a": 1}, key="task")
"""


@pytest.fixture
def authority() -> Iterator[Authority]:
    with Authority("accept_async", seconds=None) as made:
        yield made


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger.in_memory() as opened:
        yield opened


def op_id(result: ToolResult) -> str:
    assert result.operation is not None
    return str(result.operation["id"])


def wait_for_looks(authority: Authority, least: int) -> None:
    end = time.monotonic() + 20
    while len(authority.requests()) < least and time.monotonic() < end:
        time.sleep(0.005)
    assert len(authority.requests()) >= least


def test_a_caller_that_is_killed_while_it_follows_leaves_the_place(
    authority: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = str(tmp_path / "ledger.db")
    child = subprocess.Popen([sys.executable, "-W", "ignore", "-c", FOLLOWER, authority.url, where])
    try:
        wait_for_looks(authority, 2)
    finally:
        child.kill()
        child.wait()
    with Ledger.open(where) as ledger:
        (record,) = ledger.list()
        assert record.state is State.UNKNOWN
        place = place_of(ledger, record.op_id)
        assert place == f"{authority.url}/operations/{record.reference}"
        reconciler = Reconciler(ledger)
        assert reconciler.run_once() == []
        seen = len(authority.requests())
        assert reconciler.run_once() == [] and len(authority.requests()) == seen  # not again at once
        assert ledger.get(record.op_id).state is State.UNKNOWN
        assert main(["ops", "show", record.op_id, "--ledger", where]) == 0
        shown = capsys.readouterr().out
        assert f"to be seen at   {place}" in shown and f"deadstop ops reconcile {record.op_id}" in shown
        assert main(["ops", "reconcile", record.op_id, "--ledger", where]) == 1
        said = capsys.readouterr()
        assert f"GET {place}: answered" in said.out and "looked up nowhere" not in said.err
        authority.finish(record.key)
        (settled,) = Reconciler(ledger).run_once()
        assert (settled.state, settled.verdict) == (State.SUCCEEDED, Verdict.APPLIED)
        assert ledger.value(record.op_id)[1]["state"] == "succeeded"
    assert main(["audit", "verify", "--ledger", where]) == 0
    assert authority.effects() == len(authority.requests(writes=True)) == 1


def test_what_is_not_followed_by_its_caller_waits_for_no_person_as_long_as_its_end_can_be_seen(
    authority: Authority, ledger: Ledger
) -> None:
    client = HttpEffects(authority.url, ledger=ledger, follow=False)
    record = ledger.get(op_id(client.post("/deployments", json={"a": 1})))
    assert record.state is State.UNKNOWN and ledger.alerts() == []
    assert reconcile(ledger, record.op_id, force=True).state is State.UNKNOWN
    assert Verdict.IN_PROGRESS in ledger.trail(record.op_id)[-1].body
    authority.finish(record.key, "failed")
    assert reconcile(ledger, record.op_id, force=True).state is State.FAILED


def test_what_can_be_no_url_is_not_kept_and_disturbs_nothing(ledger: Ledger) -> None:
    for number, place in enumerate(("http://a/\ud800", "http://a/\0", "http://a/" + "x" * 9000)):
        claim = begun(ledger, Effect(), binding=str(number)).claim
        assert claim is not None
        keep(ledger, claim, place)
        assert place_of(ledger, claim.op_id) is None
        assert ledger.finish(claim, Outcome(State.SUCCEEDED)).state is State.SUCCEEDED
        keep(ledger, claim, "http://a/late")  # whose claim is over
        assert place_of(ledger, claim.op_id) is None


def test_it_is_sealed_apart_and_goes_when_it_is_shredded(authority: Authority, ledger: Ledger) -> None:
    client = HttpEffects(authority.url, ledger=ledger, follow=False, effect=Effect(fingerprint=["a"]))
    op = op_id(client.post("/deployments", json={"a": 1}))
    place = place_of(ledger, op)
    assert place is not None
    (accepted,) = [each for each in ledger.trail(op) if each.kind == "attempt.accepted"]
    assert place not in accepted.body and "sealed.place.1" in json.loads(accepted.body)
    assert "place.1" in ledger.shred(op)
    assert place_of(ledger, op) is None
    assert reconcile(ledger, op, force=True).state is State.UNKNOWN and len(authority.requests()) == 1
