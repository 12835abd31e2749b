# SPDX-License-Identifier: Apache-2.0
"""Outbox and alerts say the same in every store: their statements, their races, their places."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from stores import Ground

from deadstop.ledger import alerts, outbox
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.records import Message

URL, OTHER = "http://one/hook", "http://two/hook"
FAR_MS = 10**9


def do(ledger: Ledger, work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    return ledger.write(lambda tx: work(tx, *arguments, **options))


def message(n: int, **more: Any) -> Message:
    return Message("shop.paid", f"paid/{n}", {"n": n}, **more)


def numbers(taken: list[outbox.Due]) -> list[int]:
    return [json.loads(each.event)["data"]["n"] for each in taken]


def test_the_outbox_from_publishing_to_the_end(ledger: Ledger) -> None:
    names = [do(ledger, outbox.publish, message(n, group="g", op_id=f"op_{n}")) for n in range(3)]
    assert do(ledger, outbox.publish, message(1)) == names[1]
    assert ledger.read(outbox.unspread) and ledger.read(outbox.receivers) == []
    assert do(ledger, outbox.spread, []) == 0
    assert do(ledger, outbox.spread, [URL, OTHER]) == 3 and do(ledger, outbox.spread, [URL]) == 0
    assert sorted(ledger.read(outbox.receivers)) == [URL, OTHER] and not ledger.read(outbox.unspread)
    [first] = do(ledger, outbox.take, URL, 10, 60_000)
    assert numbers([first]) == [0] and first.event_id == names[0] and first.op_id == "op_0"
    assert do(ledger, outbox.take, URL, 10, 60_000) == []
    assert do(ledger, outbox.counts) == {"waiting": 5, "sending": 1, "dead": 0}
    assert do(ledger, outbox.failed, first.id, first.fence, "no\0thing \ud800") == "waiting"
    now = ledger.read(lambda tx: tx.now)
    [again] = do(ledger, outbox.take, URL, 10, 60_000, now + FAR_MS)
    assert (again.fence, again.tries) == (2, 2) and not do(ledger, outbox.sent, first.id, first.fence)
    assert do(ledger, outbox.sent, again.id, again.fence)
    [second] = do(ledger, outbox.take, URL, 10, 60_000)
    assert do(ledger, outbox.failed, second.id, second.fence, "gone", final=True) == "dead"
    [third] = do(ledger, outbox.take, URL, 10, 60_000)
    assert numbers([second, third]) == [1, 2]
    [dead] = ledger.read(outbox.dead)
    assert (dead["id"], dead["problem"], dead["op_id"]) == (second.id, "gone", "op_1")
    assert do(ledger, outbox.retry, second.id) and ledger.read(outbox.dead) == []
    assert numbers(do(ledger, outbox.take, OTHER, 10, 60_000)) == [0]


def test_publishers_at_once_get_one_event_for_each_dedup_and_a_place_each(ground: Ground) -> None:
    with ground.ledger() as ledger:

        def publish(start: int) -> None:
            for n in range(8):
                do(ledger, outbox.publish, message((start + n) % 8, group="g", url=URL))

        threads = [threading.Thread(target=publish, args=(start,)) for start in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        places, seen = [], []
        while taken := do(ledger, outbox.take, URL, 10, 60_000):
            assert len(taken) == 1
            seen += numbers(taken)
            places.append(json.loads(taken[0].event)["sequence"])
            assert do(ledger, outbox.sent, taken[0].id, taken[0].fence)
        assert sorted(seen) == list(range(8)) and places == sorted(places) and len(set(places)) == 8


def test_a_group_never_stands_still_while_some_publish_and_others_send(ground: Ground) -> None:
    with ground.ledger() as ledger:
        seen: list[int] = []
        done = threading.Event()

        def publish(start: int) -> None:
            for n in range(start, start + 12):
                do(ledger, outbox.publish, message(n, group="g", url=URL))

        def send() -> None:
            while True:
                last = done.is_set()
                taken = do(ledger, outbox.take, URL, 5, 60_000)
                assert len(taken) <= 1
                for each in taken:
                    seen.extend(numbers([each]))
                    assert do(ledger, outbox.sent, each.id, each.fence)
                if last and not taken:
                    return

        publishers = [threading.Thread(target=publish, args=(start,)) for start in (0, 100)]
        senders = [threading.Thread(target=send) for _ in range(2)]
        for thread in publishers + senders:
            thread.start()
        for thread in publishers:
            thread.join(30)
        done.set()
        for thread in senders:
            thread.join(30)
        while taken := do(ledger, outbox.take, URL, 5, 60_000):
            seen.extend(numbers(taken))
            assert do(ledger, outbox.sent, taken[0].id, taken[0].fence)
        assert sorted(seen) == [*range(12), *range(100, 112)]
        assert [n for n in seen if n < 100] == list(range(12))


def test_takers_at_once_never_get_the_same(ground: Ground) -> None:
    with ground.ledger() as ledger:
        ledger.write(lambda tx: [outbox.publish(tx, message(n, url=URL)) for n in range(24)])
        found: list[int] = []

        def take() -> None:
            while taken := do(ledger, outbox.take, URL, 3, 60_000):
                found.extend(numbers(taken))

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        found += numbers(do(ledger, outbox.take, URL, 100, 60_000))
        assert sorted(found) == list(range(24))


def test_alerts_count_are_told_acknowledged_and_begin_anew(ledger: Ledger) -> None:
    raised = [do(ledger, alerts.raise_alert, "outbox_dead", "op_1", f"n{n}\0\ud800") for n in range(3)]
    assert raised == [True, False, False]
    [one] = ledger.read(alerts.pending)
    assert (one.count, one.op_id) == (3, "op_1") and one.detail.startswith("n0")
    assert [each.tries for each in do(ledger, alerts.take)] == [1] and do(ledger, alerts.take) == []
    assert do(ledger, alerts.delivered, "outbox_dead", "op_1") and not do(
        ledger, alerts.delivered, "outbox_dead", "op_1"
    )
    assert ledger.read(alerts.counts) == {"outbox_dead": 1}
    assert do(ledger, alerts.acknowledge, "outbox_dead", "op_1", "ada") is True
    assert ledger.read(alerts.list_alerts) == [] and do(ledger, alerts.list_alerts, every=True)[0].ack_by == "ada"
    assert do(ledger, alerts.over, "outbox_dead", "op_1") and do(ledger, alerts.raise_alert, "outbox_dead", "op_1", "x")
    assert ledger.read(lambda tx: alerts.get(tx, "outbox_dead", "op_1")).count == 1  # type: ignore[union-attr]
    assert ledger.read(lambda tx: alerts.get(tx, "outbox_dead", "op_2")) is None


def test_beats_and_what_nobody_ended(ledger: Ledger) -> None:
    do(ledger, alerts.beat, alerts.RECONCILER, "me", 1000)
    do(ledger, alerts.beat, alerts.RECONCILER, "you", 2000)
    [beat] = ledger.read(alerts.beats)
    assert (beat.owner, beat.every_ms) == ("you", 2000)
    assert not beat.late(beat.at_ms + 6000) and beat.late(beat.at_ms + 6001)
    assert ledger.read(lambda tx: alerts.unended(tx, 0)) == [] == ledger.read(lambda tx: alerts.overdue(tx, 0))
    assert do(ledger, alerts.raise_alert, "no_authority", "op_1", "x")
    assert do(ledger, alerts.answered, "op_1", "ada") == 1 and ledger.read(alerts.past) == []
    assert do(ledger, alerts.raise_alert, "no_authority", "op_1", "x")
    assert set(ledger.read(alerts.open_operations).values()) == {0}
