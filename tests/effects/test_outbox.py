# SPDX-License-Identifier: Apache-2.0
"""The outbox: what is published with a transaction arrives at least once, in its order, whatever is down."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rfc8785", reason="deadstop[ledger] is not installed")
pytest.importorskip("httpx2", reason="deadstop[ledger] is not installed")

sys.path.insert(0, str(Path(__file__).resolve().parent))

from webhook_receiver import receiver

import hosts
from deadstop.effects import deliver
from deadstop.effects.deliver import Deliverer
from deadstop.errors import UsageError
from deadstop.ledger import alerts, outbox
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.records import Intent, Message
from deadstop.ledger.states import State

FAR_MS = 10**9


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


def message(n: int, **more: Any) -> Message:
    return Message("shop.paid", f"paid/{n}/{more.get('group', '')}", {"n": n}, **more)


def publish(ledger: Ledger, *messages: Message) -> list[str]:
    return ledger.write(lambda tx: [outbox.publish(tx, each) for each in messages])


def do(ledger: Ledger, work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    return ledger.write(lambda tx: work(tx, *arguments, **options))


def nobody() -> str:
    """The URL of a port at which nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}/"


# -- writing -------------------------------------------------------------------------------------------------------


def test_an_event_is_a_cloudevent_and_its_dedup_makes_it_one(ledger: Ledger) -> None:
    first, again = publish(ledger, *[Message("shop.paid", "paid/1", {"n": 1, "ü": None}, group="c7", op_id="op_1")] * 2)
    other = publish(ledger, Message("shop.paid", "paid/2", {"n": 2}))[0]
    assert first == again != other
    with receiver() as web:
        assert Deliverer(ledger, [web.url]).run_once() == 2
        got = {each.event["id"]: each for each in web.got}
    one = got[first]
    assert one.headers["content-type"].startswith("application/cloudevents+json")
    event = one.event
    assert len(event.pop("sequence")) == 20
    assert datetime.fromisoformat(event.pop("time")) > datetime.now(UTC) - timedelta(minutes=1)
    assert event == {
        "specversion": "1.0", "id": first, "source": f"deadstop/{ledger.id}", "type": "shop.paid", "subject": "op_1",
        "datacontenttype": "application/json", "partitionkey": "c7",
        "data": {"n": 1, "ü": None},
    }  # fmt: skip
    assert "subject" not in got[other].event and "sequence" not in got[other].event


def test_a_transaction_that_fails_publishes_nothing(ledger: Ledger) -> None:
    def work(tx: Any) -> None:
        outbox.publish(tx, message(1))
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        ledger.write(work)
    assert do(ledger, outbox.counts) == {"waiting": 0, "sending": 0, "dead": 0}


@pytest.mark.parametrize(
    "bad",
    [
        Message("", "d", {}), Message("k", "", {}), Message("k", "d\0", {}), Message("k", "d", [1]),  # type: ignore[arg-type]
        Message("k", "d", {"x": float("nan")}), Message("k", "d", {"x": object()}), Message("k", "d", {}, url="ftp://a/"),
        Message("k", "d", {}, url="http://"), Message("k", "d", {}, url="http://a b/"),
        Message("k", "d", {}, group="g" * 600),
    ],
)  # fmt: skip
def test_what_cannot_be_sent_is_refused_before_it_is_written(ledger: Ledger, bad: Message) -> None:
    with pytest.raises(UsageError):
        outbox.check_message(bad)
    with pytest.raises(UsageError):
        publish(ledger, bad)


def test_publishers_at_once_get_one_event_for_each_dedup_and_a_place_each(tmp_path: Path) -> None:
    with Ledger.open(str(tmp_path / "ledger.db")) as ledger:
        threads = [
            threading.Thread(target=lambda: [publish(ledger, message(n, group="g")) for n in range(10)])
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        with receiver() as web:
            deliverer = Deliverer(ledger, [web.url])
            assert deliverer.run_once() == 10
            assert web.numbers == list(range(10)) and len({each.event["sequence"] for each in web.got}) == 10
            assert deliverer.run_once() == 0


def test_the_end_of_an_operation_is_an_event(ledger: Ledger) -> None:
    ledger.publish_ends()
    ended = _settled(ledger)
    with receiver() as web:
        assert Deliverer(ledger, [web.url]).run_once() == 1
        event = web.got[0].event
    assert event["type"] == "deadstop.operation.settled" and event["subject"] == ended.op_id
    assert event["data"]["state"] == "SUCCEEDED" and event["data"]["key"] == ended.key
    assert event["data"]["reference"] == "ch_1" and event["data"]["tool"] == "pay"
    with pytest.raises(ValueError, match="settles nothing"):
        outbox.settled_message(ended, State.UNKNOWN)


def _settled(ledger: Ledger) -> Any:
    from deadstop.ledger.definition import Effect
    from deadstop.ledger.records import Outcome

    definition = ledger.define(Effect().define("pay"))
    begun = ledger.begin(Intent("default/pay", "b", "f" * 64, "pay", definition.version))
    assert begun.claim is not None
    return ledger.finish(begun.claim, Outcome(State.SUCCEEDED, reference="ch_1"))


# -- order, leases, fences -----------------------------------------------------------------------------------------


def test_who_waited_for_its_place_does_not_go_before_whoever_had_it(ledger: Ledger) -> None:
    """As on PostgreSQL, where the second of a group may have begun first."""

    class Begun:
        def __init__(self, tx: Any, earlier_ms: int) -> None:
            self.tx, self.now = tx, tx.now - earlier_ms

        def __getattr__(self, name: str) -> Any:
            return getattr(self.tx, name)

    for n, earlier_ms in enumerate((0, 500, 250)):
        do(ledger, lambda tx, n=n, ms=earlier_ms: outbox.publish(Begun(tx, ms), message(n, group="shop")))  # type: ignore[arg-type]
    with receiver() as at:
        assert Deliverer(ledger, [at.url]).run_once() == 3
        assert at.numbers == [0, 1, 2]


def test_no_proxy_of_the_environment_gets_it(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with receiver() as at:
        publish(ledger, message(1, url=at.url))
        assert Deliverer(ledger).run_once() == 1


def test_of_a_group_one_after_another_and_no_group_waits_for_another(ledger: Ledger) -> None:
    publish(ledger, message(1, group="a"), message(2, group="a"), message(3, group="b"), message(4))
    with receiver() as web:
        web.refused = {1}
        deliverer = Deliverer(ledger, [web.url])
        assert deliverer.run_once() == 2
        assert sorted(web.numbers) == [1, 3, 4]  # a's first was refused, so a's second is not even tried
        _make_due(ledger)
        web.refused = set()
        assert deliverer.run_once() == 2
        assert web.numbers[3:] == [1, 2]


def _make_due(ledger: Ledger) -> None:
    """Time passes for what waits: its next try is due."""
    set_due = f"UPDATE outbox SET next_ms = 0 WHERE state = 'waiting' AND next_ms < {outbox.NEVER_MS}"
    ledger.write(lambda tx: tx._cursor.execute(set_due))


def test_what_is_taken_is_nobody_elses_until_its_lease_is_over(ledger: Ledger) -> None:
    publish(
        ledger,
        message(1, url="http://a/", group="g"),
        message(2, url="http://a/", group="g"),
        message(3, url="http://b/"),
    )
    [first] = do(ledger, outbox.take, "http://a/", 10, 50)
    assert first.fence == 1 and json.loads(first.event)["data"] == {"n": 1}
    assert do(ledger, outbox.take, "http://a/", 10, 50) == []
    now = ledger.read(lambda tx: tx.now)
    [again] = do(ledger, outbox.take, "http://a/", 10, 60_000, now + 1000)
    assert (again.id, again.fence, again.tries) == (first.id, 2, 2)
    assert do(ledger, outbox.sent, first.id, first.fence) is False
    assert do(ledger, outbox.failed, first.id, first.fence, "late") is None
    assert do(ledger, outbox.sent, again.id, again.fence) is True
    assert do(ledger, outbox.sent, again.id, again.fence) is False
    [second] = do(ledger, outbox.take, "http://a/", 10, 50)
    assert json.loads(second.event)["data"] == {"n": 2}
    assert do(ledger, outbox.take, "http://nobody/", 10, 50) == []


def test_it_is_given_up_after_a_bounded_number_of_tries_with_one_alert(ledger: Ledger) -> None:
    publish(ledger, message(1, url="http://secret:word@a/token?x=y", op_id="op_7"))
    states, now = [], ledger.read(lambda tx: tx.now)
    for _ in range(outbox.MOST_TRIES):
        [due] = do(ledger, outbox.take, "http://secret:word@a/token?x=y", 1, 1000, now + FAR_MS)
        states.append(do(ledger, outbox.failed, due.id, due.fence, "it answered 500"))
    assert set(states[:-1]) == {"waiting"} and states[-1] == "dead"
    assert do(ledger, outbox.take, "http://secret:word@a/token?x=y", 1, 1000, now + FAR_MS) == []
    [alert] = do(ledger, alerts.list_alerts)
    assert (alert.kind, alert.op_id, alert.count) == ("outbox_dead", "op_7", 1)
    assert "http://a" in alert.detail and "500" in alert.detail
    assert not any(word in alert.detail for word in ("secret", "word", "token"))
    assert do(ledger, outbox.counts) == {"waiting": 0, "sending": 0, "dead": 1}


def test_whoever_dies_with_it_each_time_uses_its_tries_up_too(ledger: Ledger) -> None:
    publish(ledger, message(1, url="http://a/"))
    now = ledger.read(lambda tx: tx.now)
    for n in range(outbox.MOST_TRIES):
        assert len(do(ledger, outbox.take, "http://a/", 1, 1, now + n * 10)) == 1
    assert do(ledger, outbox.take, "http://a/", 1, 1, now + FAR_MS) == []
    assert do(ledger, outbox.counts)["dead"] == 1 and len(do(ledger, alerts.list_alerts)) == 1


def test_pauses_double_within_bounds_and_follow_the_receivers_wish() -> None:
    random.seed(5)
    for tries in (1, 2, 5, 40, 10_000):
        most = min(outbox.LAST_PAUSE_MS, outbox.FIRST_PAUSE_MS << min(tries - 1, 20))
        found = [outbox.pause_ms(tries) for _ in range(50)]
        assert all(0.75 * most - 1 <= each <= most for each in found) and len(set(found)) > 10
    assert outbox.pause_ms(1, 120) == 120_000
    assert outbox.pause_ms(1, 10**9) == outbox.LONGEST_WISH_MS
    assert outbox.pause_ms(1, -5) <= 1000


# -- sending -------------------------------------------------------------------------------------------------------


def test_every_receiver_gets_it_with_the_same_id(ledger: Ledger) -> None:
    with receiver() as one, receiver() as two:
        [name] = publish(ledger, message(1))
        [direct] = publish(ledger, message(2, url=two.url))
        assert Deliverer(ledger, [one.url, two.url]).run_once() == 3
        assert one.ids == [name] and sorted(two.ids) == sorted([name, direct])
        assert one.got[0].headers["webhook-id"] == name


def test_a_receiver_that_is_down_or_hangs_holds_up_nobody_else(ledger: Ledger) -> None:
    with receiver(*["hang"] * 99) as slow, receiver() as fine, receiver(*["drip"] * 99) as dripping:
        publish(ledger, *(message(n, group=f"g{n % 3}") for n in range(12)))
        deliverer = Deliverer(ledger, [slow.url, nobody(), dripping.url, fine.url], every=0.05, timeout=1.0)
        began = time.monotonic()
        deliverer.start()
        try:
            fine.wait(12, seconds=0.9)  # before a single one of the others' limits is over
            slow.wait(3)  # one of each group
            assert {n % 3: [m for m in fine.numbers if m % 3 == n % 3] for n in range(3)} == {
                r: [r, r + 3, r + 6, r + 9] for r in range(3)
            }
        finally:
            assert deliverer.stop(within=5)
        assert time.monotonic() - began < 5
        assert do(ledger, outbox.counts)["dead"] == 0


def test_a_receiver_that_drips_is_given_up_at_the_limit(ledger: Ledger) -> None:
    with receiver("drip") as web:
        publish(ledger, message(1))
        began = time.monotonic()
        assert Deliverer(ledger, [web.url], timeout=0.3).run_once() == 0
        assert time.monotonic() - began < 1.5
        assert do(ledger, outbox.counts)["waiting"] == 1


def test_gone_is_dead_at_once_and_can_be_tried_again(ledger: Ledger) -> None:
    with receiver(410) as web:
        [name] = publish(ledger, message(1, op_id="op_1"))
        deliverer = Deliverer(ledger, [web.url])
        assert deliverer.run_once() == 0
        [gone] = do(ledger, outbox.dead)
        assert gone["problem"] == "the receiver answered 410" and gone["tries"] == 1 and gone["op_id"] == "op_1"
        assert [each.kind for each in do(ledger, alerts.list_alerts)] == ["outbox_dead"]
        assert do(ledger, outbox.retry, "evt_nothing") is False
        assert do(ledger, outbox.retry, gone["id"]) is True
        assert do(ledger, outbox.retry, gone["id"]) is False
        assert do(ledger, alerts.list_alerts) == []
        assert deliverer.run_once() == 1
        assert web.ids == [name, name]


def test_the_next_of_a_group_follows_one_that_died(ledger: Ledger) -> None:
    with receiver(410) as web:
        publish(ledger, message(1, group="g"), message(2, group="g"))
        assert Deliverer(ledger, [web.url]).run_once() == 1
        assert web.numbers == [1, 2]


@pytest.mark.parametrize(
    ("status", "wish", "least_s"),
    [
        (429, "120", 119), (503, "30", 29), (503, "in ten minutes", 500),
        (500, "120", 0), (302, "", 0), (429, "soon", 0),
    ],
)  # fmt: skip
def test_retry_after_is_respected(ledger: Ledger, status: int, wish: str, least_s: float) -> None:
    if wish == "in ten minutes":  # as a date
        wish = format_datetime(datetime.now(UTC) + timedelta(minutes=10))
    with receiver((status, {"Retry-After": wish, "Location": "/elsewhere"})) as web:
        publish(ledger, message(1))
        assert Deliverer(ledger, [web.url]).run_once() == 0
        assert len(web.got) == 1  # no redirect is followed
    row = ledger.write(lambda tx: tx._cursor.execute("SELECT next_ms FROM outbox WHERE state = 'waiting'").fetchone())
    left = (row[0] - ledger.read(lambda tx: tx.now)) / 1000
    assert least_s <= left <= max(1, 1.3 * least_s)


@pytest.mark.parametrize("secret", ["whsec_" + base64.b64encode(b"0123456789abcdef01234567").decode(), "plain words"])
def test_it_is_signed_as_standard_webhooks_are(ledger: Ledger, secret: str) -> None:
    with receiver() as web, receiver() as unsigned:
        publish(ledger, message(1))
        assert Deliverer(ledger, [web.url], secret).run_once() == 1
        publish(ledger, message(2))
        assert Deliverer(ledger, [unsigned.url]).run_once() == 1
        assert "webhook-signature" not in unsigned.got[0].headers
        got = web.got[0]
    key = base64.b64decode(secret[6:]) if secret.startswith("whsec_") else secret.encode()
    at = int(got.headers["webhook-timestamp"])
    signed = b".".join((got.headers["webhook-id"].encode(), str(at).encode(), got.body))
    wanted = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert got.headers["webhook-signature"] == f"v1,{wanted}" and abs(at - time.time()) < 30


def test_what_cannot_work_is_refused_when_it_is_made(ledger: Ledger) -> None:
    for urls, secret in (
        (["ftp://x/"], None),
        (["http://"], None),
        (["http://x/"], "whsec_???"),
        (["http://x/"], "whsec_"),
    ):
        with pytest.raises(UsageError):
            Deliverer(ledger, urls, secret)
    with pytest.raises(UsageError):
        Deliverer(ledger, [], every=0)


def test_it_stops_within_its_bound_and_what_was_under_way_is_sent_by_the_next(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which does not wait for the end of the lease."""
    monkeypatch.setattr(deliver, "STOP_S", 0.2)
    with receiver("hang") as web:
        [name] = publish(ledger, message(1))
        first = Deliverer(ledger, [web.url], every=0.05, timeout=10)
        first.start()
        web.wait(1)
        began = time.monotonic()
        assert first.stop(within=3) and time.monotonic() - began < 2
        assert first.stop() is True and do(ledger, outbox.counts) == {"waiting": 1, "sending": 0, "dead": 0}
        second = Deliverer(ledger, [web.url], every=0.05, timeout=10)
        second.start()
        try:
            web.wait(2)
        finally:
            assert second.stop()
        assert web.ids == [name, name]


def test_a_ledger_that_is_away_is_tried_again(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    from deadstop.errors import LedgerUnavailable

    real, broken = ledger.store.read, threading.Event()

    def read(work: Any) -> Any:
        if broken.is_set():
            raise LedgerUnavailable("it", "away")
        return real(work)

    monkeypatch.setattr(ledger.store, "read", read)
    with receiver() as web:
        broken.set()
        publish(ledger, message(1))
        deliverer = Deliverer(ledger, [web.url], every=0.03)
        deliverer.start()
        try:
            end = time.monotonic() + 3
            while deliverer.problem is None:
                assert time.monotonic() < end
                time.sleep(0.005)
            assert "away" in deliverer.problem and web.got == []
            broken.clear()
            web.wait(1)
        finally:
            assert deliverer.stop()


CRASHING = """
import sys
from deadstop.effects import deliver
from deadstop.ledger.ledger import Ledger
deliver.LEASE_SPARE_S = float(sys.argv[3]) - 10
deliver.Deliverer(Ledger.open(sys.argv[1]), [sys.argv[2]], timeout=10).run_once()
"""


@pytest.mark.parametrize(("point", "sent_before"), [("outbox.taken", 0), ("outbox.sent", 1)])
def test_killed_in_between_it_comes_at_least_once_and_under_one_id(
    tmp_path: Path, point: str, sent_before: int
) -> None:
    place = str(tmp_path / "ledger.db")
    with receiver() as web:
        with Ledger.open(place) as ledger:
            [name] = publish(ledger, message(1))
        environment = {**os.environ, "PYTHONPATH": str(hosts.SOURCE), "DEADSTOP_CRASH_AT": point}
        done = subprocess.run(
            [sys.executable, "-c", CRASHING, place, web.url, "0.1"], env=environment, timeout=20, check=False
        )
        assert done.returncode == -signal.SIGKILL and len(web.got) == sent_before
        with Ledger.open(place) as ledger:
            assert do(ledger, outbox.counts)["sending"] == 1  # nothing was lost
            second = Deliverer(ledger, [web.url], every=0.05)
            second.start()
            try:
                web.wait(sent_before + 1)
            finally:
                assert second.stop()
            assert do(ledger, outbox.counts) == {"waiting": 0, "sending": 0, "dead": 0}
        assert web.ids == [name] * (sent_before + 1)


def test_killed_with_several_under_way_none_is_lost_and_each_group_keeps_its_order(tmp_path: Path) -> None:
    place = str(tmp_path / "ledger.db")
    with receiver() as web, Ledger.open(place) as ledger:
        publish(ledger, *(message(n, group=f"g{n % 5}") for n in range(20)))
        environment = {**os.environ, "PYTHONPATH": str(hosts.SOURCE), "DEADSTOP_CRASH_AT": "outbox.sent:9"}
        done = subprocess.run(
            [sys.executable, "-c", CRASHING, place, web.url, "60"], env=environment, timeout=20, check=False
        )
        assert done.returncode == -signal.SIGKILL and len(web.got) >= 9
        assert do(ledger, outbox.counts)["sending"] > 0  # the leases of the dead, and then their ends
        ledger.write(lambda tx: tx._cursor.execute("UPDATE outbox SET next_ms = 0 WHERE state = 'sending'"))
        second = Deliverer(ledger, [web.url], every=0.05)
        second.start()
        try:
            end = time.monotonic() + 10
            while sum(do(ledger, outbox.counts).values()):
                assert time.monotonic() < end
                time.sleep(0.01)
        finally:
            assert second.stop()
    firsts = list(dict.fromkeys(web.numbers))
    assert all([n for n in firsts if n % 5 == g] == list(range(g, 20, 5)) for g in range(5))
    assert len(web.got) - 20 <= 6  # no more than were under way


def test_several_deliverers_share_the_work(tmp_path: Path) -> None:
    with Ledger.open(str(tmp_path / "l.db")) as one, Ledger.open(str(tmp_path / "l.db")) as two, receiver() as web:
        publish(one, *(message(n, group=f"g{n % 6}" if n % 6 else "") for n in range(30)))
        counts: list[int] = []
        threads = [
            threading.Thread(target=lambda each=each: counts.append(Deliverer(each, [web.url]).run_once()))
            for each in (one, two)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert sum(counts) == 30 and sorted(web.numbers) == list(range(30))
        assert all([n for n in web.numbers if n % 6 == g] == list(range(g, 30, 6)) for g in range(1, 6))
