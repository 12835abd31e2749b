# SPDX-License-Identifier: Apache-2.0
"""Alerts: told once for each cause, by whichever way works, and never for ever; silence is noticed."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rfc8785", reason="deadstop[ledger] is not installed")
pytest.importorskip("httpx2", reason="deadstop[ledger] is not installed")

sys.path.insert(0, str(Path(__file__).resolve().parent))

from webhook_receiver import receiver

from deadstop.effects.attention import Attention
from deadstop.effects.sinks import AppriseSink, CommandSink, LogSink, NotTold, WebhookSink
from deadstop.errors import LedgerUnavailable, MissingExtra, UsageError
from deadstop.ledger import alerts
from deadstop.ledger.definition import Effect
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.queries import FunctionQuery
from deadstop.ledger.records import Intent

FAR_MS = 10**9
DOCUMENT = {
    "kind": "key_conflict", "op_id": "op_1", "meaning": "m", "detail": "d", "first_at": "2026-01-01T00:00:00.000Z",
    "last_at": "2026-01-01T00:00:00.000Z", "count": 1, "ledger": "l", "operation": None,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and checkpoints of these ledgers stay here."""
    for name in ("DEADSTOP_LEDGER", "DEADSTOP_LEDGER_KEY", "DEADSTOP_CHECKPOINTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DEADSTOP_STATE", str(tmp_path / "state"))


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger.open(":memory:") as made:
        yield made


class Told:
    """A sink that keeps what it is told, or fails as often as it is asked to."""

    name = "the test"

    def __init__(self, fails: int = 0) -> None:
        self.fails, self.seen, self.tries, self.told = fails, list[dict[str, Any]](), 0, threading.Event()

    def tell(self, document: dict[str, Any]) -> None:
        self.tries += 1
        if self.fails:
            self.fails -= 1
            raise NotTold("not now")
        self.seen.append(document)
        self.told.set()

    @property
    def kinds(self) -> list[tuple[str, str]]:
        return [(each["kind"], each["op_id"]) for each in self.seen]


def do(ledger: Ledger, work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    return ledger.write(lambda tx: work(tx, *arguments, **options))


def attention(ledger: Ledger, *sinks: Any, **options: Any) -> Attention:
    return Attention(ledger, sinks, log=LogSink(lambda event, **facts: None), **options)


def make_due(ledger: Ledger) -> None:
    """Time passes: what was not told is to be tried again."""
    ledger.write(lambda tx: tx._cursor.execute("UPDATE alert SET next_ms = 0"))


def started(ledger: Ledger, lease_s: float = 30.0, **effect: Any) -> Any:
    """An operation that is being sent."""
    definition = ledger.define(Effect(reconcile=FunctionQuery(name="m:f"), **effect).define("pay"))
    begun = ledger.begin(
        Intent("default/pay", "b", "f" * 64, "pay", definition.version, target="shop"), lease_s=lease_s
    )
    assert begun.claim is not None
    return begun.claim


# -- once for each cause -------------------------------------------------------------------------------------------


def test_a_cause_is_told_once_and_its_repeats_only_count(ledger: Ledger) -> None:
    sink = Told()
    telling = attention(ledger, sink)
    assert do(ledger, alerts.raise_alert, "key_conflict", "op_1", "first") is True
    assert do(ledger, alerts.raise_alert, "key_conflict", "op_1", "second") is False
    assert do(ledger, alerts.raise_alert, "key_conflict", "op_2", "other") is True
    assert telling.run_once() == 2
    assert sorted(sink.kinds) == [("key_conflict", "op_1"), ("key_conflict", "op_2")]
    for _ in range(3):
        assert do(ledger, alerts.raise_alert, "key_conflict", "op_1", "again") is False
        make_due(ledger)
        assert telling.run_once() == 0
    one = do(ledger, alerts.get, "key_conflict", "op_1")
    assert (one.count, one.detail, one.ack_ms) == (5, "first", None) and one.delivered_ms is not None
    assert do(ledger, alerts.counts) == {"key_conflict": 2}


def test_an_acknowledged_one_is_silent_until_its_cause_begins_anew(ledger: Ledger) -> None:
    sink = Told()
    telling = attention(ledger, sink)
    do(ledger, alerts.raise_alert, "reconciler_silent", "ledger", "x")
    assert do(ledger, alerts.acknowledge, "reconciler_silent", "ledger", "ada") is True
    assert do(ledger, alerts.acknowledge, "reconciler_silent", "ledger", "bob") is False
    assert do(ledger, alerts.acknowledge, "reconciler_silent", "nobody", "bob") is False
    do(ledger, alerts.raise_alert, "reconciler_silent", "ledger", "y")
    assert ledger.read(alerts.pending) == []  # whoever knows need not be told
    found = do(ledger, alerts.get, "reconciler_silent", "ledger")
    assert (found.ack_by, found.count, found.detail) == ("ada", 2, "x")
    assert do(ledger, alerts.over, "reconciler_silent", "ledger") is True
    assert do(ledger, alerts.list_alerts) == [] and len(do(ledger, alerts.list_alerts, every=True)) == 1
    assert do(ledger, alerts.raise_alert, "reconciler_silent", "ledger", "z") is True
    found = do(ledger, alerts.get, "reconciler_silent", "ledger")
    assert (found.ack_ms, found.count, found.detail, found.delivered_ms) == (None, 1, "z", None)
    beat(ledger, every_ms=1, ago_ms=1000)
    assert telling.run_once() == 1 and sink.seen[0]["detail"] == "z"


def test_what_nobody_took_is_tried_again_further_apart_and_not_for_ever(ledger: Ledger) -> None:
    sink = Told(fails=10**6)
    telling = attention(ledger, sink)
    do(ledger, alerts.raise_alert, "key_conflict", "op_1", "x")
    pauses = []
    for _ in range(alerts.MOST_TRIES + 5):
        telling.run_once()
        row = ledger.write(lambda tx: (tx._cursor.execute("SELECT next_ms FROM alert").fetchone()[0], tx.now))
        pauses.append(row[0] - row[1])
        make_due(ledger)
    assert sink.tries == alerts.MOST_TRIES
    told = pauses[: alerts.MOST_TRIES]
    assert told == sorted(told) or told[:9] == sorted(told[:9])
    assert 4_000 < told[0] <= 5_000 and max(told) <= alerts.LAST_PAUSE_MS
    assert do(ledger, alerts.counts) == {"key_conflict": 1}  # still listed


def test_one_that_takes_it_is_enough_and_the_log_has_it_once(ledger: Ledger) -> None:
    broken, fine, logged = Told(fails=10**6), Told(fails=1), list[dict[str, Any]]()
    telling = Attention(ledger, [broken, fine], log=LogSink(lambda event, **facts: logged.append(facts)))
    do(ledger, alerts.raise_alert, "key_conflict", "op_1", "x")
    do(ledger, alerts.raise_alert, "key_conflict", "op_2", "x")
    assert telling.run_once() == 0
    assert (broken.tries, fine.tries) == (1, 1)  # what failed is left alone for the rest of the round
    make_due(ledger)
    assert telling.run_once() == 2
    make_due(ledger)
    assert telling.run_once() == 0
    assert len(fine.seen) == 2 and len(logged) == 2
    assert logged[0]["kind"] == "key_conflict" and logged[0]["detail"] == "x"


def test_without_a_sink_the_log_is_who_was_told(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    do(ledger, alerts.raise_alert, "marker_contradiction", "op_1", "two answers")
    with caplog.at_level(logging.WARNING, logger="deadstop.attention"):
        assert Attention(ledger).run_once() == 1
        assert Attention(ledger).run_once() == 0
    assert [each.getMessage() for each in caplog.records] == ["alert marker_contradiction of op_1: two answers"]


def test_two_who_tell_do_not_tell_the_same(ledger: Ledger) -> None:
    for n in range(10):
        do(ledger, alerts.raise_alert, "key_conflict", f"op_{n}", "x")
    one, two = do(ledger, alerts.take, 6), do(ledger, alerts.take, 6)
    assert len({each.alert.op_id for each in one + two}) == 10 == len(one) + len(two)


def test_an_alert_shows_the_operation_and_where_to_look(ledger: Ledger) -> None:
    claim, sink = started(ledger), Told()
    do(ledger, alerts.raise_alert, "key_conflict", claim.op_id, "x")
    assert attention(ledger, sink).run_once() == 1
    document = sink.seen[0]
    assert document["operation"]["tool"] == "pay" and document["operation"]["state"] == "DISPATCHING"
    assert document["operation"]["target"] == "shop" and document["meaning"]
    assert document["look"] == f"deadstop ops show {claim.op_id}" and document["ledger"] == ledger.id


# -- what nobody else would notice ---------------------------------------------------------------------------------


def beat(ledger: Ledger, *, every_ms: int, ago_ms: int = 0) -> None:
    do(ledger, alerts.beat, alerts.RECONCILER, "it", every_ms)
    ledger.write(lambda tx: tx._cursor.execute("UPDATE beat SET at_ms = at_ms - ?", (ago_ms,)))


def test_a_reconciler_that_falls_silent_is_told_and_again_when_it_does_so_again(ledger: Ledger) -> None:
    sink = Told()
    telling = attention(ledger, sink)
    assert telling.run_once() == 0  # there never was one
    beat(ledger, every_ms=1000, ago_ms=2900)
    assert telling.run_once() == 0
    for n in (1, 2):
        beat(ledger, every_ms=1000, ago_ms=3200)
        assert [telling.run_once() for _ in range(3)] == [1, 0, 0]
        assert sink.kinds == [("reconciler_silent", "ledger")] * n and "3 s ago, from it" in sink.seen[-1]["detail"]
        beat(ledger, every_ms=1000)
        assert telling.run_once() == 0 and do(ledger, alerts.counts) == {}


def test_one_that_should_be_there_and_never_was_is_missed(ledger: Ledger) -> None:
    sink = Told()
    telling = attention(ledger, sink, watch_reconciler=True, grace=0.05, every=0.02)
    telling.start()
    try:
        assert sink.told.wait(3)
    finally:
        assert telling.stop()
    assert sink.kinds == [("reconciler_silent", "ledger")] and "never" in sink.seen[0]["detail"]


def test_an_attempt_without_an_end_is_told_though_nobody_sweeps(ledger: Ledger) -> None:
    sink = Told()
    telling = attention(ledger, sink, grace=0.05, every=0.02)
    held, lost = started(ledger), None
    telling.start()
    try:
        definition = ledger.define(Effect(reconcile=FunctionQuery(name="m:f")).define("pay"))
        intent = Intent("default/pay", "other", "f" * 64, "pay", definition.version)
        lost = ledger.begin(intent, lease_s=0.05).claim
        assert lost is not None and sink.told.wait(3)
    finally:
        assert telling.stop()
    assert sink.kinds == [("started_without_end", lost.op_id)] and ledger.owner in sink.seen[0]["detail"]
    assert held.op_id != lost.op_id and telling.run_once() == 0


def test_what_its_operation_has_overtaken_is_over_and_told_again_if_it_comes_again(ledger: Ledger) -> None:
    sink = Told()
    telling = attention(ledger, sink)
    claim = started(ledger)
    do(ledger, alerts.raise_alert, "started_without_end", claim.op_id, "x")
    assert telling.run_once() == 0  # its lease holds: it was a mistake, or is over
    assert do(ledger, alerts.list_alerts) == []
    do(ledger, alerts.raise_alert, "no_authority", claim.op_id, "x")
    do(ledger, alerts.raise_alert, "key_conflict", claim.op_id, "x")
    assert do(ledger, alerts.answered, claim.op_id, "ada") == 1
    assert [each.kind for each in do(ledger, alerts.list_alerts)] == ["key_conflict"]
    by = do(ledger, alerts.get, "no_authority", claim.op_id)
    assert by.ack_by == "ada" and do(ledger, alerts.raise_alert, "no_authority", claim.op_id, "again") is True
    assert telling.run_once() == 1 and telling.run_once() == 0
    assert sink.kinds == [("key_conflict", claim.op_id)]  # while it is being sent, nobody waits for a decision


def test_an_unknown_one_past_its_deadline_is_told_though_nobody_sweeps(ledger: Ledger) -> None:
    from deadstop.ledger.records import Outcome
    from deadstop.ledger.states import State

    sink = Told()
    claim = started(ledger, recovery_deadline=0.05)
    record = ledger.finish(claim, Outcome(State.UNKNOWN, certain=False))
    assert record.state is State.UNKNOWN
    telling = attention(ledger, sink, grace=0.05, every=0.02)
    telling.start()
    try:
        assert sink.told.wait(3)
    finally:
        assert telling.stop()
    ledger.sweep()  # says so, too: it only counts
    assert telling.run_once() == 0
    assert sink.kinds == [("recovery_deadline_passed", claim.op_id)]


def test_a_ledger_that_is_away_is_looked_at_again(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    sink, real, broken = Told(), ledger.store.read, threading.Event()

    def read(work: Any) -> Any:
        if broken.is_set():
            raise LedgerUnavailable("it", "away")
        return real(work)

    broken.set()
    monkeypatch.setattr(ledger.store, "read", read)
    do(ledger, alerts.raise_alert, "key_conflict", "op_1", "x")
    telling = attention(ledger, sink, every=0.02)
    telling.start()
    try:
        end = time.monotonic() + 3
        while telling.problem is None:
            assert time.monotonic() < end
            time.sleep(0.005)
        broken.clear()
        assert sink.told.wait(3)
    finally:
        assert telling.stop()


# -- the ways ------------------------------------------------------------------------------------------------------


def test_a_webhook_gets_a_signed_cloudevent_with_one_id_for_one_cause() -> None:
    with receiver(500) as web:
        sink = WebhookSink(web.url, "secret")
        with pytest.raises(NotTold, match="500"):
            sink.tell(DOCUMENT)
        sink.tell(DOCUMENT)
        sink.tell({**DOCUMENT, "first_at": "2026-01-02T00:00:00.000Z"})
        assert len({*web.ids}) == 2 and web.ids[0] == web.ids[1]
        event = web.got[0].event
        assert event["type"] == "deadstop.alert" and event["subject"] == "op_1" and event["data"] == DOCUMENT
        assert web.got[0].headers["webhook-signature"].startswith("v1,")
        assert "127.0.0.1" in sink.name and "/hook" not in sink.name
    with pytest.raises(NotTold, match="Connect"):
        sink.tell(DOCUMENT)
    with receiver("hang") as web:
        began = time.monotonic()
        with pytest.raises(NotTold, match="no answer within"):
            WebhookSink(web.url, timeout=0.2).tell(DOCUMENT)
        assert time.monotonic() - began < 2
    with pytest.raises(UsageError):
        WebhookSink("mailto:x")


def test_a_command_gets_it_on_stdin_and_in_its_environment(tmp_path: Path) -> None:
    out = tmp_path / "out"
    CommandSink(["sh", "-c", f'cat > {out}; printf "\\n%s" "$DEADSTOP_ALERT" >> {out}']).tell(DOCUMENT)
    assert [json.loads(line) for line in out.read_text().splitlines()] == [DOCUMENT, DOCUMENT]
    with pytest.raises(NotTold):
        CommandSink(["false"]).tell(DOCUMENT)
    with pytest.raises(NotTold):
        CommandSink(["/no/such/program"]).tell(DOCUMENT)
    began = time.monotonic()
    with pytest.raises(NotTold):
        CommandSink(["sh", "-c", "sleep 60 & sleep 60"], timeout=0.3).tell(DOCUMENT)
    assert time.monotonic() - began < 5
    for bad in ([], "a command", [""], [1]):
        with pytest.raises(UsageError):
            CommandSink(bad)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # apprise's own
def test_apprise_sends_it_in_a_worker() -> None:
    pytest.importorskip("apprise", reason="deadstop[alerts] is not installed")
    with pytest.raises(UsageError, match="nosuch://"):
        AppriseSink("nosuch://word:secret@host")
    with receiver(200, 500, "hang") as web:
        from deadstop.effects.apprise_face import notify

        sink = AppriseSink(f"json://127.0.0.1:{web.port}/secret")
        assert sink.name == "apprise json"
        sink.tell(DOCUMENT)
        sent = json.loads(web.got[0].body)
        assert sent["title"] == "deadstop: key_conflict" and "operation: op_1" in sent["message"]
        assert notify(sink.url, "title", "body") is False
        began = time.monotonic()
        with pytest.raises(NotTold):
            AppriseSink(sink.url, timeout=0.5).tell(DOCUMENT)
        assert time.monotonic() - began < 5


def test_without_apprise_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(MissingExtra, match=r"deadstop\[alerts\]"):
        AppriseSink("json://127.0.0.1/")
