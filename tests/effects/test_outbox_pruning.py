# SPDX-License-Identifier: Apache-2.0
"""What was sent is kept for a while and then pruned; what waits, what died and the log are not. In both databases."""

from __future__ import annotations

import json
import logging
import os
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
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "ledger"))

import pg_server
import stores
from webhook_receiver import receiver

from deadstop.effects import deliver
from deadstop.effects.deliver import Deliverer
from deadstop.errors import DeadstopError
from deadstop.ledger import outbox
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.records import Message, Outcome
from deadstop.ledger.states import State

DAY_MS = 24 * 3_600_000
URL = "http://127.0.0.1:1/"


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stores.Databases]:
    folder = tmp_path_factory.getbasetemp()
    made = stores.Databases(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)
    yield made
    made.release()


@pytest.fixture(params=["sqlite", "postgresql"])
def ground(
    request: pytest.FixtureRequest, databases: stores.Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[stores.Ground]:
    if request.param == "postgresql" and (why := pg_server.why_not()) is not None:
        pytest.skip(why)
    monkeypatch.setenv("DEADSTOP_STATE", str(tmp_path / "state"))
    made = stores.Ground(request.param, stores.place(request.param, tmp_path, databases))
    yield made
    made.release()


def do(ledger: Ledger, work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    return ledger.write(lambda tx: work(tx, *arguments, **options))


def publish(ledger: Ledger, *numbers: int, **more: Any) -> list[str]:
    messages = [Message("shop.paid", f"paid/{n}", {"n": n}, **more) for n in numbers]
    return ledger.write(lambda tx: [outbox.publish(tx, each) for each in messages])


def delivered(ledger: Ledger, url: str = URL, most: int = 99) -> list[dict[str, Any]]:
    """Their events, in the order in which they went."""
    events: list[dict[str, Any]] = []
    while len(events) < most and (taken := do(ledger, outbox.take, url, most - len(events), 60_000)):
        for each in taken:
            assert do(ledger, outbox.sent, each.id, each.fence)
            events.append(json.loads(each.event))
    return events


def days_later(ground: stores.Ground, days: int) -> None:
    """That much time goes by for what was sent."""
    ground.raw("UPDATE outbox SET next_ms = next_ms - ?, created_ms = created_ms - ? WHERE state = 'sent'",
               days * DAY_MS, days * DAY_MS)  # fmt: skip


def states(ground: stores.Ground) -> list[tuple[Any, ...]]:
    return sorted(ground.raw("SELECT state, count(*) FROM outbox GROUP BY state"))


def test_only_what_was_sent_long_ago_is_pruned_and_only_some_at_once(ground: stores.Ground) -> None:
    with ground.ledger() as ledger:
        publish(ledger, *range(5), url=URL)
        assert len(delivered(ledger)) == 5
        days_later(ground, 31)
        publish(ledger, 5, 6, 7, url=URL)
        assert len(delivered(ledger, most=1)) == 1
        [died] = do(ledger, outbox.take, URL, 1, 60_000)
        do(ledger, outbox.failed, died.id, died.fence, "gone", final=True)
        log = ground.raw("SELECT count(*) FROM evidence"), ground.raw("SELECT count(*) FROM leaf")
        ground.raw("UPDATE outbox SET next_ms = 1, created_ms = 1 WHERE state <> 'sent'")  # however old they are
        keep_ms = 30 * DAY_MS
        assert ledger.read(lambda tx: outbox.prunable(tx, keep_ms))
        assert [do(ledger, outbox.prune, keep_ms, 2) for _ in range(4)] == [2, 2, 1, 0]
        assert not ledger.read(lambda tx: outbox.prunable(tx, keep_ms))
        assert states(ground) == [("dead", 1), ("sent", 1), ("waiting", 1)]
        assert log == (ground.raw("SELECT count(*) FROM evidence"), ground.raw("SELECT count(*) FROM leaf"))


def test_a_dedup_is_known_as_long_as_its_event_is_kept_and_its_id_and_order_for_ever(ground: stores.Ground) -> None:
    with ground.ledger() as ledger:
        [name], _ = publish(ledger, 1, group="g"), publish(ledger, 2, group="g")
        do(ledger, outbox.spread, [URL])
        before = delivered(ledger)
        days_later(ground, 29)
        assert do(ledger, outbox.prune, 30 * DAY_MS) == 0
        assert publish(ledger, 1, group="g") == [name] and do(ledger, outbox.spread, [URL]) == 0
        days_later(ground, 2)
        assert do(ledger, outbox.prune, 30 * DAY_MS) == 4 and states(ground) == []
        assert publish(ledger, 1, group="g") == [name] and do(ledger, outbox.spread, [URL]) == 1
        publish(ledger, 3, group="g")
        do(ledger, outbox.spread, [URL])
        after = delivered(ledger)
        assert [each["data"]["n"] for each in before + after] == [1, 2, 1, 3] and after[0]["id"] == name
        sequence = [each["sequence"] for each in before + after]
        assert sequence == sorted(sequence) and len(set(sequence)) == 4


def test_a_long_group_is_pruned_in_its_middle_and_keeps_its_order(ground: stores.Ground) -> None:
    """One that died before them stays, and is behind them in no way."""
    with ground.ledger() as ledger:
        publish(ledger, 1, 2, 3, group="g", url=URL)
        [first] = do(ledger, outbox.take, URL, 1, 60_000)
        do(ledger, outbox.failed, first.id, first.fence, "gone", final=True)
        last = delivered(ledger)[-1]["sequence"]
        days_later(ground, 31)
        assert do(ledger, outbox.prune, 30 * DAY_MS) == 2
        publish(ledger, 4, group="g", url=URL)
        assert delivered(ledger)[0]["sequence"] > last


def test_the_one_that_delivers_prunes_and_leaves_the_log_as_it_is(
    ground: stores.Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliver, "PRUNED", 4)
    with Ledger.open(ground.where) as ledger, receiver() as web:
        ledger.publish_ends()
        begun = ledger.begin(stores.intent(ledger))
        assert begun.claim is not None
        ledger.finish(begun.claim, Outcome(State.SUCCEEDED))
        publish(ledger, *range(10))
        assert Deliverer(ledger, [web.url]).run_once() == 11
        days_later(ground, 2)
        working = Deliverer(ledger, [web.url], every=0.05, keep=24 * 3600)
        working.start()
        try:
            end = time.monotonic() + 5
            while states(ground):
                assert time.monotonic() < end
                time.sleep(0.01)
        finally:
            assert working.stop()
        assert [each.kind for each in ledger.trail(begun.record.op_id)][-1] == "settled"
    from deadstop.ledger.verify import verify

    assert verify(ground.where).ok


def test_where_it_must_not_prune_it_delivers_and_says_so(
    ground: stores.Ground, caplog: pytest.LogCaptureFixture
) -> None:
    """As a role of PostgreSQL without the right to."""
    with ground.ledger() as ledger, receiver() as web:
        publish(ledger, 1)
        assert Deliverer(ledger, [web.url]).run_once() == 1
        days_later(ground, 31)
        if ground.kind == "sqlite":
            ground.raw("CREATE TRIGGER kept BEFORE DELETE ON outbox BEGIN SELECT RAISE(ABORT, 'not allowed'); END")
        else:
            ground.raw("CREATE TRIGGER kept BEFORE DELETE ON outbox EXECUTE FUNCTION refused('not allowed')")
        with caplog.at_level(logging.WARNING):
            working = Deliverer(ledger, [web.url], every=0.05)
            working.start()
            try:
                publish(ledger, 2)
                web.wait(2)
                end = time.monotonic() + 5
                while "cannot be pruned" not in caplog.text:
                    assert time.monotonic() < end
                    time.sleep(0.01)
                assert working.problem is None
            finally:
                assert working.stop()


@pytest.mark.parametrize("keep", [0, -1, 10, 3599, float("nan"), float("inf"), "1h", True])
def test_a_keeping_that_could_not_tell_a_repetition_is_refused(keep: Any) -> None:
    with Ledger.open(":memory:") as ledger, pytest.raises(DeadstopError):
        Deliverer(ledger, keep=keep)


def test_kept_for_ever_nothing_is_pruned(ground: stores.Ground) -> None:
    with ground.ledger() as ledger, receiver() as web:
        publish(ledger, 1, url=web.url)
        assert Deliverer(ledger).run_once() == 1
        days_later(ground, 9999)
        assert Deliverer(ledger, keep=None).run_once() == 0 and states(ground) == [("sent", 1)]
        assert Deliverer(ledger).run_once() == 0 and states(ground) == []


# -- two servers ---------------------------------------------------------------------------------------------------


def test_two_servers_on_one_ledger_send_each_once_and_in_the_order_of_its_group(ground: stores.Ground) -> None:
    with Ledger.open(ground.where) as one, Ledger.open(ground.where) as two, receiver() as web:
        both = [Deliverer(each, [web.url], every=0.05) for each in (one, two)]
        for each in both:
            each.start()
        try:
            for first in range(0, 60, 6):
                publish(one, *range(first, first + 3), group=f"g{first % 4}")
                publish(two, *range(first + 3, first + 6), group=f"g{first % 4}")
            web.wait(60, seconds=15)
        finally:
            stopping = [threading.Thread(target=each.stop) for each in both]
            for thread in stopping:
                thread.start()
            for thread in stopping:
                thread.join(10)
        assert sorted(web.numbers) == list(range(60))
        for group in ("g0", "g2"):
            came = [each.event["sequence"] for each in web.got if each.event["partitionkey"] == group]
            assert came == sorted(came) and len(came) == 30


def test_of_two_who_take_at_once_neither_goes_away_empty(ground: stores.Ground) -> None:
    """Or it would look again only some time later."""
    with ground.ledger() as one, ground.ledger() as two:
        publish(one, *range(40), url=URL)
        ready, found = threading.Barrier(2), dict[int, int]()

        def work(which: int, ledger: Ledger) -> None:
            ready.wait(10)
            found[which] = sum(len(do(ledger, outbox.take, URL, 10, 60_000)) for _ in range(2))

        threads = [threading.Thread(target=work, args=each) for each in enumerate((one, two))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(15)
        assert found == {0: 20, 1: 20}
