# SPDX-License-Identifier: Apache-2.0
"""What becomes of an operation whose answer was lost: by what the authority says, and by whoever asks."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import reconcile_functions
from lost_answers import attempted, begun, by_key, effect, eventually, kinds, later, lost, told
from plain_http import plain_server, said

from deadstop.effects import reconciler as module
from deadstop.effects.reconciler import Reconciler
from deadstop.effects.settlement import reconcile
from deadstop.errors import LedgerUnavailable, OperationNotFound, UsageError
from deadstop.ledger import alerts
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.queries import HttpQuery, SqlQuery
from deadstop.ledger.records import Record
from deadstop.ledger.states import State, Verdict
from deadstop.testing import Authority

HERE = Path(__file__).parent


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger.in_memory() as made:
        yield made


@pytest.fixture
def authority() -> Iterator[Authority]:
    with Authority() as made:
        yield made


def verdicts(ledger: Ledger, op_id: str) -> list[str]:
    return [each["counts_as"] for each in told(ledger, op_id, "reconcile.finding")]


def open_alerts(ledger: Ledger) -> list[tuple[str, int]]:
    return [(each.kind, each.count) for each in ledger.read(alerts.list_alerts)]


# -- what is found, and what becomes of it -------------------------------------------------------------------------


def test_what_was_committed_has_succeeded(ledger: Ledger, authority: Authority) -> None:
    authority.behave("accept_then_drop")
    record = reconcile(ledger, lost(ledger, effect(reconcile=by_key(authority.url)), authority.url).op_id[:20])
    assert (record.state, record.verdict) == (State.SUCCEEDED, Verdict.APPLIED)
    assert record.reference == authority.operations()[0]["id"] and authority.effects() == 1
    assert reconcile(ledger, record.op_id, force=True) == record  # it is over: nobody asks again
    assert len(verdicts(ledger, record.op_id)) == 1


def test_what_is_under_way_is_waited_for(ledger: Ledger, authority: Authority) -> None:
    authority.behave("accept_async", seconds=None)
    declared = effect(reconcile=by_key(authority.url), consistent=True)
    for word, state in (("succeeded", State.SUCCEEDED), ("failed", State.FAILED)):
        record = reconcile(ledger, lost(ledger, declared, authority.url, too_late=True).op_id)
        assert (record.state, record.verdict, record.queries) == (State.UNKNOWN, Verdict.IN_PROGRESS, 1)
        assert reconcile(ledger, record.op_id) == record  # too early: not asked
        authority.finish(record.key, word)
        later(ledger, 1)
        assert reconcile(ledger, record.op_id).state is state


@pytest.mark.parametrize(
    ("changes", "state", "verdict"),
    [
        ({"retry": "if_not_accepted", "consistent": True}, State.PREPARED, Verdict.DEFINITELY_ABSENT),
        ({"retry": "same_key_safe", "key_ttl": 60, "consistent": True}, State.PREPARED, Verdict.DEFINITELY_ABSENT),
        ({"retry": "never", "consistent": True}, State.FAILED, Verdict.DEFINITELY_ABSENT),
        ({"consistent": True, "max_attempts": 1}, State.FAILED, Verdict.DEFINITELY_ABSENT),
        ({}, State.UNKNOWN, Verdict.INCONCLUSIVE),
        ({"settle": 30}, State.UNKNOWN, Verdict.INCONCLUSIVE),
    ],
)
def test_absence_counts_as_the_definition_says(
    ledger: Ledger, authority: Authority, changes: dict[str, Any], state: State, verdict: Verdict
) -> None:
    authority.behave("reject_before")
    record = reconcile(ledger, lost(ledger, effect(reconcile=by_key(authority.url), **changes), authority.url).op_id)
    assert (record.state, record.verdict) == (state, verdict)
    assert told(ledger, record.op_id, "reconcile.finding")[0]["verdict"] == "definitely_absent"


def test_absence_counts_when_its_settle_time_is_over(ledger: Ledger, authority: Authority) -> None:
    authority.behave("reject_before", times=1)
    declared = effect(reconcile=by_key(authority.url), settle=30)
    first = lost(ledger, declared, authority.url, binding="b")
    waiting = reconcile(ledger, first.op_id)
    assert waiting.state is State.UNKNOWN and 29_000 < waiting.next_ms - waiting.updated_ms <= 30_000
    later(ledger, 31)
    assert reconcile(ledger, first.op_id).state is State.PREPARED
    second = begun(ledger, declared, binding="b")
    done = attempted(ledger, second.claim, authority.url)
    assert (done.op_id, done.key, done.state, done.attempts) == (first.op_id, first.key, State.SUCCEEDED, 2)
    assert authority.effects() == 1


def test_a_status_that_lags_is_not_absence(ledger: Ledger, authority: Authority) -> None:
    authority.behave("accept_then_drop", "status_lagging", lag=0.3)
    record = lost(ledger, effect(reconcile=by_key(authority.url), settle=5), authority.url)
    assert reconcile(ledger, record.op_id).state is State.UNKNOWN
    eventually(lambda: reconcile(ledger, record.op_id, force=True).state is State.SUCCEEDED)
    found = verdicts(ledger, record.op_id)
    assert found[0] == "inconclusive" and found[-1] == "applied" and "definitely_absent" not in found


@pytest.mark.parametrize("word", ["contradiction", "contradicting_marker"])
def test_what_contradicts_itself_waits_for_a_person(ledger: Ledger, authority: Authority, word: str) -> None:
    authority.behave("accept_then_drop", word)
    record = reconcile(ledger, lost(ledger, effect(reconcile=by_key(authority.url)), authority.url).op_id)
    assert record.state is State.NEEDS_HUMAN
    assert open_alerts(ledger) == [("marker_contradiction", 1)]
    assert "marker.contradiction" in kinds(ledger, record.op_id)


def test_two_effects_under_one_key_contradict(ledger: Ledger, tmp_path: Path) -> None:
    file = str(tmp_path / "authority.db")
    query = SqlQuery(
        database=file, statement="SELECT state, id FROM operations WHERE key = :key", applied=("succeeded",)
    )
    with Authority("accept_then_drop", "duplicate_intolerant", record=file) as authority:
        claim = begun(ledger, effect(reconcile=query)).claim
        assert claim is not None
        attempted(ledger, claim, authority.url)
        assert reconcile(ledger, claim.op_id, force=True).state is State.SUCCEEDED
        claim = begun(ledger, effect(reconcile=query)).claim
        from lost_answers import send

        assert claim is not None
        send(authority.url, claim)
        attempted(ledger, claim, authority.url)
        assert authority.effects(claim.record.key) == 2
        assert reconcile(ledger, claim.op_id, force=True).state is State.NEEDS_HUMAN


def test_nobody_answers_until_its_deadline(ledger: Ledger, authority: Authority) -> None:
    authority.behave("accept_then_drop", "status_down")
    record = lost(ledger, effect(reconcile=by_key(authority.url), recovery_deadline=10), authority.url)
    waits = []
    with_time = Reconciler(ledger)
    while record.state is not State.NEEDS_HUMAN:
        (record,) = with_time.run_once()
        if record.state is State.UNKNOWN:
            assert record.verdict is Verdict.UNREACHABLE and record.next_ms <= record.recovery_ms
            waits.append((record.next_ms - record.updated_ms) / 1000)
            later(ledger, waits[-1] + 0.001)
    assert waits[:4] == [0.5, 1.0, 2.0, 4.0] and sum(waits) < 11  # further and further apart, and not for ever
    assert open_alerts(ledger) == [("recovery_deadline_passed", 1)]
    later(ledger, 60)
    assert with_time.run_once() == [] and open_alerts(ledger) == [("recovery_deadline_passed", 1)]
    # A person can still have it asked about, and only with `force`.
    authority.behave("accept_then_drop", "status_up")
    assert reconcile(ledger, record.op_id).state is State.NEEDS_HUMAN
    assert reconcile(ledger, record.op_id, force=True, operator="ada").state is State.SUCCEEDED
    assert told(ledger, record.op_id, "authz.decision")[0]["asked_by"] == "ada"


def test_a_key_that_is_kept_needs_no_answer(ledger: Ledger, authority: Authority) -> None:
    """It may be sent again in doubt; that nobody answers still shows nothing, and does not look as if it did."""
    authority.behave("accept_then_drop", "status_down", times=1)
    declared = effect(retry="same_key_safe", key_ttl=20, reconcile=by_key(authority.url))
    record = lost(ledger, declared, authority.url, binding="b")
    assert reconcile(ledger, record.op_id).state is State.UNKNOWN
    again = begun(ledger, declared, binding="b")
    assert again.record.op_id == record.op_id
    assert attempted(ledger, again.claim, authority.url).state is State.SUCCEEDED
    assert authority.effects() == 1


def test_without_an_authority_nobody_is_asked(ledger: Ledger) -> None:
    waits = lost(ledger, effect(reconcile=None))
    kept = lost(ledger, effect(reconcile=None, retry="same_key_safe", key_ttl=20), tool="kept")
    assert (waits.state, kept.state) == (State.NEEDS_HUMAN, State.UNKNOWN)
    for record in (waits, kept):
        assert reconcile(ledger, record.op_id, force=True) == record
    assert Reconciler(ledger).run_once() == []
    later(ledger, 61)
    assert [each.state for each in Reconciler(ledger).run_once()] == [State.NEEDS_HUMAN]


def test_a_function_is_asked_and_a_hanging_one_is_killed(ledger: Ledger, tmp_path: Path) -> None:
    found = reconcile(ledger, lost(ledger, effect(reconcile=reconcile_functions.finds_it)).op_id)
    assert found.state is State.SUCCEEDED and found.reference == f"of {found.key}"
    assert ledger.value(found.op_id) == (True, {"id": 7})
    declared = effect(reconcile=reconcile_functions.hangs_for_good, reconcile_timeout=0.5)
    before = time.monotonic()
    hung = reconcile(ledger, lost(ledger, declared, tool="hangs").op_id)
    assert (hung.state, hung.verdict) == (State.UNKNOWN, Verdict.UNREACHABLE) and time.monotonic() - before < 3


def test_what_is_being_sent_or_may_be_sent_is_not_asked_about(ledger: Ledger, authority: Authority) -> None:
    begin = begun(ledger, effect(reconcile=by_key(authority.url), consistent=True))
    assert reconcile(ledger, begin.record.op_id, force=True).state is State.DISPATCHING
    attempted(ledger, begin.claim, None)
    assert reconcile(ledger, begin.record.op_id).state is State.PREPARED
    assert reconcile(ledger, begin.record.op_id, force=True).state is State.PREPARED
    assert len(authority.requests()) == 1


def test_an_operation_that_is_not_there(ledger: Ledger) -> None:
    with pytest.raises(OperationNotFound):
        reconcile(ledger, "op_nothing")


# -- somebody else was quicker -------------------------------------------------------------------------------------


def test_a_person_decides_while_the_authority_is_being_asked(ledger: Ledger) -> None:
    with plain_server() as server:
        asked, go = threading.Event(), threading.Event()

        def answer(_: str, one: Any) -> None:
            asked.set()
            assert go.wait(10)
            one.sendall(said(200, '{"state": "succeeded"}'))

        server.answer = answer
        record = lost(ledger, effect(reconcile=HttpQuery(url=server.url + "/{key}", state="state")))
        ends: list[Record] = []
        thread = threading.Thread(target=lambda: ends.append(reconcile(ledger, record.op_id)))
        thread.start()
        assert asked.wait(10)
        decided = ledger.resolve(record.op_id, State.FAILED, "ada", "the console shows nothing")
        go.set()
        thread.join(10)
    assert ends[0].state is State.FAILED and ledger.get(record.op_id).ver == decided.ver
    (refused,) = told(ledger, record.op_id, "fence.refused")
    assert refused["verdict"] == "applied" and refused["fence_of_query"] < decided.fence


PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
from deadstop.effects import settlement
from deadstop.effects.reconciler import Reconciler
from deadstop.effects.settlement import reconcile
from deadstop.ledger.ledger import Ledger
ledger = Ledger.open({where!r})
print("open", flush=True)
sys.stdin.readline()
"""


class Program:
    """A process with a ledger of its own; it does what `text` says when it is told to `go`."""

    def __init__(self, where: str, text: str, **environment: str) -> None:
        code = PROGRAM.format(folder=str(HERE), where=where) + text
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, **environment},
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "open\n", self.process.communicate(timeout=10)

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self, within: float = 20) -> str:
        out, problems = self.process.communicate(timeout=within)
        assert self.process.returncode == 0, problems
        return out

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=10)


@pytest.fixture
def where(tmp_path: Path) -> str:
    return str(tmp_path / "ledger.db")


@pytest.fixture
def shared(where: str) -> Iterator[Ledger]:
    with Ledger.open(where) as made:
        yield made


def test_two_reconcilers_in_two_processes_settle_each_operation_once(
    shared: Ledger, where: str, authority: Authority
) -> None:
    authority.behave("accept_then_drop")
    declared = effect(reconcile=by_key(authority.url))
    records = [lost(shared, declared, authority.url, binding=f"b{n}") for n in range(12)]
    text = "print(len(Reconciler(ledger, parallel=8).run_once()))"
    with Program(where, text) as one, Program(where, text) as two:
        one.go()
        two.go()
        counts = [int(one.end()), int(two.end())]
    assert sum(counts) == len(records)
    assert len(authority.requests()) == 2 * len(records)  # written once, looked up once
    for record in records:
        assert shared.get(record.op_id).state is State.SUCCEEDED
        assert kinds(shared, record.op_id)[3:] == ["reconcile.started", "reconcile.finding", "settled"]


def test_one_that_was_stopped_past_its_lease_is_refused(shared: Ledger, where: str) -> None:
    text = "settlement.SPARE_S = -19.6\nprint(reconcile(ledger, {op_id!r}).state)"  # its lease is 0.4 s
    with plain_server() as server:
        go_on = threading.Event()

        def late(_: str, one: Any) -> None:
            assert go_on.wait(20)
            one.sendall(said(200, '{"state": "succeeded"}'))

        server.answer = late
        query = HttpQuery(url=server.url + "/{key}", state="state")
        record = lost(shared, effect(reconcile=query, reconcile_timeout=20))
        with Program(where, text.format(op_id=record.op_id)) as stopped:
            stopped.go()
            eventually(lambda: server.heads, within=20)
            os.kill(stopped.process.pid, signal.SIGSTOP)
            try:
                server.answer = said(200, '{"state": "failed"}')
                eventually(lambda: reconcile(shared, record.op_id).state is State.FAILED, within=20)
            finally:
                go_on.set()
                os.kill(stopped.process.pid, signal.SIGCONT)
            assert stopped.end() == "FAILED\n"  # what the other one has found
    (refused,) = told(shared, record.op_id, "fence.refused")
    assert refused["verdict"] == "applied"
    assert kinds(shared, record.op_id).count("settled") == 1


def test_one_that_dies_with_the_answer_is_followed_at_once(shared: Ledger, where: str, authority: Authority) -> None:
    authority.behave("accept_then_drop")
    record = lost(shared, effect(reconcile=by_key(authority.url)), authority.url)
    with Program(where, f"reconcile(ledger, {record.op_id!r})", DEADSTOP_CRASH_AT="reconcile.answered") as dying:
        dying.go()
        assert dying.process.wait(20) == -signal.SIGKILL
    assert shared.get(record.op_id).state is State.RECONCILING
    assert reconcile(shared, record.op_id).state is State.SUCCEEDED  # its lease had 15 s to go
    assert "lease.expired" in kinds(shared, record.op_id) and authority.effects() == 1


# -- whoever goes on asking ----------------------------------------------------------------------------------------


def test_a_hung_authority_delays_nobody_else_and_stopping_is_bounded(ledger: Ledger, authority: Authority) -> None:
    authority.behave("accept_then_drop")
    with plain_server() as mute:
        mute.answer = mute.silent
        hung = effect(reconcile=by_key(mute.url), reconcile_timeout=30)
        silent = [lost(ledger, hung, tool=f"hung{n % 2}") for n in range(20)]
        healthy = [lost(ledger, effect(reconcile=by_key(authority.url)), authority.url, tool="ok") for _ in range(10)]
        going = Reconciler(ledger, every=0.05, parallel=8).start()
        eventually(lambda: all(ledger.get(each.op_id).state is State.SUCCEEDED for each in healthy))
        eventually(lambda: len(mute.heads) == 2)  # a quarter of the places, for both tools together
        before = time.monotonic()
        assert going.stop(0.2) is False and time.monotonic() - before < 3
        states = {ledger.get(each.op_id).state for each in silent}
    assert states == {State.UNKNOWN, State.RECONCILING}
    assert going.stop(5) is True  # its authority is gone: the questions have ended


def test_those_that_do_not_answer_get_half_of_the_places_and_one_each() -> None:
    places = module._Places(4)
    assert places.take("a") and not places.take("a")  # a quarter
    places.give("a", answered=False)
    for each in "bcd":
        assert places.take(each)
    assert places.take("a") and not places.take("e") and not places.free()
    for each in "abcd":
        places.give(each, answered=False)
    assert places.take("a") and places.take("b") and not places.take("c")  # half of them
    assert places.take("e") and places.take("f")
    places.give("a", answered=None)  # nothing was asked: nothing is known
    assert places.take("c") and not places.free()
    places.give("b", answered=True)
    assert places.take("b")


def test_each_is_asked_once_in_a_pass_and_none_is_left_out(ledger: Ledger) -> None:
    with plain_server() as server:
        server.answer = said(503, Retry_After="0")
        records = [lost(ledger, effect(reconcile=by_key(server.url))) for _ in range(7)]
        changed = Reconciler(ledger, parallel=3).run_once()
        assert {each.op_id for each in changed} == {each.op_id for each in records}
        assert len(server.heads) == 7


def test_a_pass_goes_on_also_when_every_answer_is_there_at_once(
    ledger: Ledger, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority.behave("accept_then_drop")
    records = [lost(ledger, effect(reconcile=by_key(authority.url)), authority.url) for _ in range(3)]
    one = Reconciler(ledger, parallel=1)
    monkeypatch.setattr(one, "_begin", one._settle)
    assert {each.op_id for each in one.run_once()} == {each.op_id for each in records}


def test_it_beats_and_goes_on_after_the_ledger_was_not_to_be_had(
    ledger: Ledger, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    down, problems, tries = threading.Event(), [], []
    sweep = ledger.sweep

    def swept(limit: int = 100) -> list[Record]:
        tries.append(time.monotonic())
        if down.is_set():
            raise LedgerUnavailable("the ledger", "its disk is full")
        return sweep(limit)

    monkeypatch.setattr(ledger, "sweep", swept)
    down.set()
    authority.behave("accept_then_drop")
    record = lost(ledger, effect(reconcile=by_key(authority.url)), authority.url)
    with Reconciler(ledger, every=0.02, on_problem=problems.append):
        eventually(lambda: len(tries) > 3)
        assert ledger.get(record.op_id).state is State.UNKNOWN
        down.clear()
        eventually(lambda: ledger.get(record.op_id).state is State.SUCCEEDED)
    assert len(problems) == 1 and "its disk is full" in problems[0]  # told once
    gaps = [after - before for before, after in itertools.pairwise(tries)]
    assert gaps[2] > gaps[0]
    (beat,) = ledger.read(alerts.beats)
    assert (beat.name, beat.owner) == (alerts.RECONCILER, ledger.owner) and beat.every_ms >= 1000


def test_a_definition_that_cannot_be_read_holds_up_no_other(ledger: Ledger, authority: Authority) -> None:
    authority.behave("accept_then_drop")
    newer = lost(ledger, effect(reconcile=by_key(authority.url)), tool="newer")
    body = '{"tool": "newer", "retry": "never", "query": {"kind": "telepathy"}}'
    ledger.write(lambda tx: tx.run("add_definition", tool="newer", digest="d", body=body, at_ms=tx.now))
    record = lost(ledger, effect(reconcile=by_key(authority.url)), authority.url, tool="ok")
    problems: list[str] = []
    with Reconciler(ledger, every=0.02, on_problem=problems.append):
        eventually(lambda: ledger.get(record.op_id).state is State.SUCCEEDED)
        eventually(lambda: problems)
        swept = lost(ledger, effect(reconcile=by_key(authority.url)), authority.url, tool="ok")
        eventually(lambda: ledger.get(swept.op_id).state is State.SUCCEEDED)
    assert ledger.get(newer.op_id).state is State.UNKNOWN
    assert len(problems) == 1 and "definition of newer" in problems[0]  # told once


def test_a_question_that_fails_here_holds_up_no_other(
    ledger: Ledger, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority.behave("accept_then_drop")
    declared = effect(reconcile=by_key(authority.url))
    poisoned, well = (lost(ledger, declared, authority.url) for _ in range(2))
    take, tries = ledger.take, []

    def taken(op_id: str, *more: Any, **named: Any) -> Any:
        if op_id == poisoned.op_id:
            tries.append(time.monotonic())
            raise ZeroDivisionError("a defect")
        return take(op_id, *more, **named)

    monkeypatch.setattr(ledger, "take", taken)
    with pytest.raises(ZeroDivisionError):
        Reconciler(ledger).run_once()
    assert ledger.get(well.op_id).state is State.SUCCEEDED
    tries.clear()
    with Reconciler(ledger, every=0.1, on_problem=lambda text: None):
        eventually(lambda: len(tries) >= 3)
    assert all(after - before > 0.09 for before, after in itertools.pairwise(tries))  # not again and again at once


def test_what_it_is_given_has_bounds(ledger: Ledger) -> None:
    for wrong in ({"every": None}, {"every": 0}, {"parallel": 0}, {"parallel": None}):
        with pytest.raises(UsageError):
            Reconciler(ledger, **wrong)
    with Reconciler(ledger) as going:
        with pytest.raises(UsageError):
            going.run_once()
        with pytest.raises(UsageError):
            going.start()
