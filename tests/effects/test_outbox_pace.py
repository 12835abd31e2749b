# SPDX-License-Identifier: Apache-2.0
"""Many events at once, and receivers that are small, slow, rude or gone: whom they hold up, and whom they do not."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rfc8785", reason="deadstop[ledger] is not installed")
pytest.importorskip("httpx2", reason="deadstop[ledger] is not installed")

sys.path.insert(0, str(Path(__file__).resolve().parent))

from webhook_receiver import receiver

from deadstop import clock
from deadstop.effects import deliver, lanes, pace, posting
from deadstop.effects.deliver import Deliverer
from deadstop.effects.pace import Pace, Slots
from deadstop.errors import LedgerUnavailable
from deadstop.ledger import crash, outbox
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.records import Message


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger.open(":memory:") as made:
        yield made


def publish(ledger: Ledger, count: int, first: int = 0, **more: Any) -> None:
    messages = [Message("shop.paid", f"{n} {more}", {"n": n}, **more) for n in range(first, first + count)]
    ledger.write(lambda tx: [outbox.publish(tx, each) for each in messages])


def counts(ledger: Ledger) -> dict[str, int]:
    return ledger.read(outbox.counts)


def tries(ledger: Ledger) -> int:
    return int(ledger.write(lambda tx: tx._cursor.execute("SELECT sum(tries) FROM outbox").fetchone()[0]))  # type: ignore[attr-defined]


@contextmanager
def started(*arguments: Any, **options: Any) -> Iterator[Deliverer]:
    made = Deliverer(*arguments, every=0.05, **options)
    made.start()
    try:
        yield made
    finally:
        assert made.stop()


@contextmanager
def small() -> Iterator[tuple[str, list[int]]]:
    """What many begin with: one connection served at a time, and a waiting line of five."""
    got: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(0.002)
            got.append(int(self.headers["webhook-timestamp"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    assert server.request_queue_size == 5
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/", got
    finally:
        server.shutdown()
        thread.join(5)
        server.server_close()


@contextmanager
def raw(first: bytes, more: bytes = b"") -> Iterator[str]:
    """It answers with the first, and then with the other for ever."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.recv(65536)
                    connection.sendall(first)
                    while more:
                        connection.sendall(more)
                except OSError:
                    pass  # it has been hung up

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(5)
        assert not thread.is_alive()


# -- many ----------------------------------------------------------------------------------------------------------


def test_a_receiver_that_serves_one_at_a_time_is_not_overrun(ledger: Ledger) -> None:
    """What does not find room there costs a second each: it took 25 s, and takes one."""
    publish(ledger, 200)
    began = time.monotonic()
    with small() as (url, got):
        assert Deliverer(ledger, [url]).run_once() == 200
    assert len(got) == 200 and time.monotonic() - began < 8


def test_keys_without_an_answer_hold_up_no_other(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than are sent at once."""
    monkeypatch.setattr(deliver, "STOP_S", 0.1)
    with receiver() as web:
        web.hanging = set(range(pace.AT_ONCE + 1))
        publish(ledger, 40)
        with started(ledger, [web.url], timeout=10) as deliverer:
            web.wait(40)
            end = time.monotonic() + 5
            while deliverer._slots.left > deliver.MOST_SLOW - len(web.hanging):
                assert time.monotonic() < end
                time.sleep(0.01)
            publish(ledger, 5, 40)  # nor those that come while nothing else happens
            web.wait(45)
        assert sorted(web.numbers) == list(range(45))


def test_who_is_not_there_is_asked_once_in_a_while_and_not_for_each_event(ledger: Ledger) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}/"
    publish(ledger, 50, url=url)
    with receiver() as fine:
        publish(ledger, 50, url=fine.url)
        deliverer = Deliverer(ledger)
        assert deliverer.run_once() == 50
    assert tries(ledger) == 50 + pace.REFUSALS and deliverer.run_once() == 0
    assert counts(ledger) == {"waiting": 50, "sending": 0, "dead": 0}


def test_who_asks_to_be_left_alone_is(ledger: Ledger) -> None:
    with receiver(*[(429, {"Retry-After": "30"})] * 99) as web, receiver() as fine:
        publish(ledger, 50)
        with started(ledger, [web.url, fine.url]):
            fine.wait(50)
            web.wait(pace.REFUSALS)
            publish(ledger, 5, 50)
            fine.wait(55)
        assert len(web.got) <= pace.REFUSALS + pace.AT_ONCE


def test_one_key_that_is_refused_leaves_the_others_alone(ledger: Ledger) -> None:
    with receiver((503, {"Retry-After": "3000"})) as web:
        publish(ledger, 30)
        assert Deliverer(ledger, [web.url]).run_once() == 29
        assert counts(ledger)["waiting"] == 1


def test_more_receivers_than_lanes_take_turns(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliver, "LANES", 2)
    monkeypatch.setattr(deliver, "TURN_S", 0.1)
    with receiver(*["hang"] * 999) as one, receiver(*["hang"] * 999) as two, receiver() as fine:
        for url in (one.url, two.url):
            publish(ledger, 60, url=url)
        with started(ledger, timeout=0.5):
            one.wait(1), two.wait(1)
            publish(ledger, 3, url=fine.url)
            fine.wait(3)


def test_how_it_ended_is_written_down_as_soon_as_the_ledger_is_back(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it is not sent again for that."""
    real, left = ledger.store.write, [1, 2, 3]

    def write(work: Callable[[Any], Any]) -> Future[Any]:
        mine = threading.current_thread() is threading.main_thread()  # this test, which looks
        if web.got and not mine and left:
            left.pop()
            raise LedgerUnavailable("it", "away")
        return real(work)

    monkeypatch.setattr(lanes, "_PAUSE_S", 0.02)
    with receiver() as web:
        publish(ledger, 1)
        monkeypatch.setattr(ledger.store, "write", write)
        with started(ledger, [web.url]):
            web.wait(1)
            end = time.monotonic() + 5
            while any(counts(ledger).values()):
                assert time.monotonic() < end
                time.sleep(0.01)
        assert not left and len(web.got) == 1


def test_who_was_stopped_before_it_could_send_leaves_it_to_the_next(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its POST would not be over with its lease."""
    later, real = [0.0], clock.boottime
    monkeypatch.setattr(clock, "boottime", lambda: real() + later[0])

    def stopped(place: str) -> None:
        if place == "outbox.taken" and not later[0]:
            later[0] = deliver.LEASE_SPARE_S + 1

    monkeypatch.setattr(crash, "at", stopped)
    with receiver() as web:
        publish(ledger, 1)
        deliverer = Deliverer(ledger, [web.url])
        assert deliverer.run_once() == 0 and counts(ledger)["sending"] == 1
        assert deliverer.run_once() == 0 and web.got == []
        later[0] += deliverer.timeout
        assert deliverer.run_once() == 1 and len(web.got) == 1


# -- rude answers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "more", "taken"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", b"x" * 65536, 1),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 5000, 1),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Encoding: gzip\r\n\r\nhello", b"", 1),
        (b"HTTP/1.1 200 OK\r\nX: ", b"a" * 65536, 0),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 50, 0),
        (b"", b"\0\xff" * 9999, 0),
        (b"HTTP/1.1 503 No\r\nRetry-After: nan\r\nContent-Length: 0\r\n\r\n", b"", 0),
    ],
    ids=["endless-body", "tiny-chunks", "no-gzip", "endless-header", "endless-continue", "garbage", "no-number"],
)
def test_an_answer_without_an_end_is_hung_up_on(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, first: bytes, more: bytes, taken: int
) -> None:
    monkeypatch.setattr(posting, "_DRAIN_S", 10.0)  # it is not the time that ends it
    with raw(first, more) as url:
        publish(ledger, 1, url=url)
        began = time.monotonic()
        assert Deliverer(ledger, timeout=0.4).run_once() == taken
        assert time.monotonic() - began < 5
    assert counts(ledger) == {"waiting": 1 - taken, "sending": 0, "dead": 0}


def test_tiny_chunks_do_not_keep_the_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posting, "_DRAIN_BYTES", 1 << 40)
    monkeypatch.setattr(posting, "_DRAIN_S", 10.0)
    with raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 5000) as url:
        began = time.monotonic()
        assert posting.post_once(url, "evt_1", "{}", seconds=20).taken
        assert time.monotonic() - began < 5


# -- the pace ------------------------------------------------------------------------------------------------------


def test_the_pace_grows_with_answers_and_is_halved_once_where_it_was_too_much() -> None:
    with clock.VirtualClock() as now:
        made = Pace(Slots(9))
        assert made.room() == 1
        for _ in range(9):
            under_way = [made.begin() for _ in range(made.room())]
            assert made.room() == 0
            now.advance(0.01)
            for each in under_way:
                made.end(each, taken=True)
        assert made.room() == pace.AT_ONCE
        under_way = [made.begin() for _ in range(pace.AT_ONCE)]
        now.advance(1)
        for each in under_way:
            made.end(each, busy=True)
        assert made.room() == pace.AT_ONCE // 2
        for _ in range(round(1 / pace.REGROWTH)):
            made.end(made.begin(), taken=True)
        assert made.room() == pace.AT_ONCE // 2 + 1


def test_the_pace_does_not_grow_where_answers_overtake_or_fall_behind() -> None:
    with clock.VirtualClock() as now:
        made = Pace(Slots(9))
        made.end(made.begin(), taken=True)
        first = made.begin()
        now.advance(0.001)
        made.end(made.begin(), taken=True)
        assert made.room() == 1  # of two, one is under way
        made.end(first, taken=True)
        late = made.begin()
        now.advance(1)
        made.end(late, taken=True)
        assert made.window == 3


def test_a_slow_one_makes_room_as_long_as_there_are_slots_for_such() -> None:
    with clock.VirtualClock() as now:
        slots = Slots(2)
        made, other = Pace(slots), Pace(slots)
        tried = []
        for _ in range(3):
            tried.append(made.begin())
            assert made.room() == 0
            now.advance(pace.SLOW_S)
            made.slow(tried[-1])
            made.slow(tried[-1])
        assert made.room() == 0 and slots.left == 0
        lone = other.begin()
        other.slow(lone)
        assert other.room() == 0
        for each in tried:
            made.end(each, busy=True)
            made.forget(each)
        assert slots.left == 2 and made.room() == 1


def test_a_rest_is_bounded_and_ends_with_the_first_that_is_taken() -> None:
    with clock.VirtualClock() as now:
        made = Pace(Slots(9))
        for _ in range(pace.REFUSALS):
            assert not made.rests()
            made.end(made.begin(), busy=True, rest_s=10**9)
        assert made.rests() and made.room() == 0
        now.advance(pace.LONGEST_REST_S + 0.1)
        assert made.room() == 1
        made.end(made.begin(), busy=True, rest_s=0)
        assert made.rests()
        now.advance(pace.SHORTEST_REST_S + 0.1)
        made.end(made.begin(), taken=True)
        made.end(made.begin(), busy=True, rest_s=0)
        assert not made.rests()
