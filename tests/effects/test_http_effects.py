# SPDX-License-Identifier: Apache-2.0
"""Writes over HTTP, against a service that loses answers and knows what it has really done. Real sockets throughout."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import deadstop
from deadstop.effects import http
from deadstop.effects.http import AsyncHttpEffects, HttpEffects
from deadstop.effects.http_exchange import Answer
from deadstop.effects.http_follow import next_pause, place_from
from deadstop.effects.http_intent import base_of, url_in
from deadstop.effects.http_verdict import AFTERMATH, REFUSALS, judge
from deadstop.errors import LedgerUnavailable, NotSent, OutcomeUnknown, Rejected, UsageError
from deadstop.ledger.definition import Effect
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.queries import HttpQuery
from deadstop.ledger.states import State
from deadstop.results import Status, ToolResult
from deadstop.testing import Authority, crash_at, note_points, points_passed

# Most of these declare less than a real client would: that it is said, has its own test.
pytestmark = pytest.mark.filterwarnings("ignore::deadstop.executor.declared.UnansweredEffect")

BODY = {"repository": "api", "revision": "a1b2c3d4", "environment": "staging"}
SLACK_S = 0.5


@pytest.fixture(scope="module")
def ledger() -> Iterator[Ledger]:
    with Ledger.in_memory() as opened:
        yield opened


@pytest.fixture
def authority() -> Iterator[Authority]:
    with Authority() as made:
        yield made


def effect(url: str, **more: Any) -> Effect:
    query = HttpQuery(url=f"{url}/operations/by-key/{{key}}", state="state", reference="operation_id")
    return Effect(**{"retry": "if_not_accepted", "reconcile": query, "consistent": True, **more})


def effects_to(
    authority: Authority, ledger: Ledger, *, declared: dict[str, Any] | None = None, **more: Any
) -> HttpEffects:
    options: dict[str, Any] = {"ledger": ledger, "timeout": 2.0, "effect": effect(authority.url, **(declared or {}))}
    return HttpEffects(authority.url, **{**options, **more})


def operation(result: ToolResult) -> dict[str, Any]:
    assert result.operation is not None
    return dict(result.operation)


def kinds(ledger: Ledger, result: ToolResult) -> list[str]:
    return [each.kind for each in ledger.trail(operation(result)["id"])]


# -- what goes well ------------------------------------------------------------------------------------------------


def test_a_write_that_is_answered(authority: Authority, ledger: Ledger) -> None:
    result = effects_to(authority, ledger).post(
        "/deployments", json=BODY, correlation="run_42_task_9", target="staging"
    )
    told = operation(result)
    assert result.ok and result.value["request"] == BODY and result.effect == "applied" and not result.retry_allowed
    assert (told["state"], told["attempt"], told["correlation_id"], told["target"]) == (
        "SUCCEEDED",
        1,
        "run_42_task_9",
        "staging",
    )
    assert told["reference"] == result.value["operation_id"] and told["http"]["status"] == 201
    arrived = authority.requests()
    assert [(each["key"], each["correlation"]) for each in arrived] == [(told["key"], "run_42_task_9")]
    assert authority.effects(told["key"]) == 1
    deadstop.ToolResult.from_dict(result.to_dict())


def test_it_is_durable_before_the_first_byte_leaves(ledger: Ledger) -> None:
    """What listens here looks into the ledger while the request is on its way."""
    seen: list[State] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                head = connection.recv(65536).decode()
                key = next(
                    line.split(": ")[1] for line in head.split("\r\n") if line.lower().startswith("idempotency-key")
                )
                seen.extend(each.state for each in ledger.list() if each.key == key)
                connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        result = HttpEffects(f"http://127.0.0.1:{listener.getsockname()[1]}", ledger=ledger).delete("/deployments/7")
        thread.join()
    assert seen == [State.DISPATCHING]
    assert result.ok and result.value is None


def test_the_methods_and_the_bodies(authority: Authority, ledger: Ledger) -> None:
    client = effects_to(authority, ledger)
    assert client.put("/resources/1", json={"a": 1}).ok
    assert client.patch("/things/1", content=b"plain").value["request"] == "plain"
    assert client.delete("/things/1").ok
    assert client.request("post", "/things?page=1").value["path"] == "/things?page=1"
    assert [each["method"] for each in authority.requests()] == ["PUT", "PATCH", "DELETE", "POST"]


def test_the_same_call_again_is_a_new_operation_after_the_first_has_ended(authority: Authority, ledger: Ledger) -> None:
    client = effects_to(authority, ledger)
    ids = {operation(client.post("/deployments", json=BODY))["id"] for _ in range(2)}
    assert len(ids) == authority.effects() == 2


def test_a_key_of_the_host_binds_for_ever(authority: Authority, ledger: Ledger) -> None:
    client = effects_to(authority, ledger)
    first = client.post("/deployments", json=BODY, key="task-7")
    again = client.post("/deployments", json=BODY, key="task-7")
    assert again.ok and again.value == first.value and operation(again)["id"] == operation(first)["id"]
    assert "nothing was sent again" in (again.hint or "")
    assert authority.effects() == 1 and len(authority.requests()) == 1


def test_a_run_does_not_do_the_same_twice(authority: Authority, ledger: Ledger) -> None:
    client = effects_to(authority, ledger)
    with deadstop.operation.acting(correlation="run_1", asked_by="agent"):
        assert client.post("/deployments", json=BODY).ok and client.post("/deployments", json=BODY).ok
    assert authority.effects() == 1
    assert client.post("/deployments", json=BODY).ok and authority.effects() == 2


def test_one_key_and_two_requests_is_refused(authority: Authority, ledger: Ledger) -> None:
    client = effects_to(authority, ledger, declared={"fingerprint": ["repository", "revision"]})
    first = client.post("/deployments", json=BODY, key="task-8")
    assert client.post("/deployments", json={**BODY, "environment": "other"}, key="task-8").value == first.value
    refused = client.post("/deployments", json={**BODY, "revision": "ffff"}, key="task-8")
    assert (refused.status, refused.reason, refused.effect) == (Status.REFUSED, "key_conflict", "not_applied")
    assert len(authority.requests()) == 1
    assert "conflict.rejected" in kinds(ledger, first)


def test_a_conditional_write_and_the_fingerprint(authority: Authority, ledger: Ledger) -> None:
    client = effects_to(authority, ledger)
    etag = operation(client.put("/resources/1", json={"n": 1}))["http"]["etag"]
    assert client.put("/resources/1", json={"n": 2}, if_match=etag).ok
    lost = client.put("/resources/1", json={"n": 3}, if_match=etag)
    assert (lost.status, lost.effect, operation(lost)["state"]) == (Status.ERROR, "not_applied", "FAILED")
    assert "412 Precondition Failed: the resource has changed" in str(lost.error) and "read the resource again" in str(
        lost.hint
    )
    assert authority.effects() == 2


def test_many_at_once_are_one_operation_and_get_one_answer(authority: Authority, ledger: Ledger) -> None:
    authority.behave("accept_then_delay", seconds=0.15)
    client = AsyncHttpEffects(authority.url, ledger=ledger, effect=effect(authority.url), timeout=5)

    async def all_at_once() -> list[ToolResult]:
        return await asyncio.gather(*(client.post("/deployments", json=BODY, key="shared") for _ in range(8)))

    results = asyncio.run(all_at_once())
    assert {json.dumps(each.value, sort_keys=True) for each in results} == {
        json.dumps(results[0].value, sort_keys=True)
    }
    assert all(each.ok for each in results)
    assert len(authority.requests()) == authority.effects() == 1


# -- what is lost --------------------------------------------------------------------------------------------------

LOST = {
    "accept_then_drop": (1, "await_response", True, "the answer was lost after request write"),
    "half_reply": (1, "read_response", True, "bytes of the response's body (status 201)"),
    "garbage_reply": (1, "await_response", True, "the answer was lost after request write"),
    "bad_json": (1, "decode", True, "its JSON is none"),
    "huge_reply": (1, "decode", True, "longer than 16777216 bytes"),
    "accept_then_error": (1, "read_response", True, "answered 502 Bad Gateway"),
    "reject_before": (0, "", False, ""),
    "drop_mid_request": (0, "", False, ""),
    "unavailable": (0, "read_response", True, "answered 503 Service Unavailable"),
    "conflict": (0, "read_response", True, "answered 409 Conflict"),
}


@pytest.mark.parametrize("word", LOST)
def test_what_nobody_can_say_is_unknown(authority: Authority, ledger: Ledger, word: str) -> None:
    """The same for the caller whether it was committed or not, and never sent again by itself."""
    effects, phase, certain, observation = LOST[word]
    authority.behave(word)
    result = effects_to(authority, ledger).post("/deployments", json={**BODY, "notes": "x" * 2000})
    told = operation(result)
    assert (result.status, result.effect, result.retry_allowed) == (Status.UNKNOWN, "unknown", False)
    assert told["state"] == "UNKNOWN"
    if effects or "answered" in observation:
        assert (told["phase"], told["phase_certain"]) == (phase, certain)
        assert observation in told["transport_observation"]
    else:  # how much had been written when the other side went away is a race, and no verdict depends on it
        assert told["phase"] in ("write_request", "await_response")
    assert told["reconcile"] == {"method": "GET", "url": f"{authority.url}/operations/by-key/{told['key']}"}
    assert told["recovery_deadline"]
    assert len(authority.requests()) == 1 and authority.effects() == effects
    with pytest.raises(OutcomeUnknown):
        result.unwrap()


def test_what_is_unknown_is_not_sent_by_another_call_either(authority: Authority, ledger: Ledger) -> None:
    client = effects_to(authority, ledger)
    authority.behave("accept_then_drop", times=1)
    lost, again = (client.post("/deployments", json=BODY) for _ in range(2))
    assert (again.status, operation(again)["id"]) == (Status.UNKNOWN, operation(lost)["id"])
    assert "ask first: deadstop ops reconcile" in (again.hint or "")
    assert authority.effects() == len(authority.requests()) == 1


def test_a_definition_without_a_lookup_asks_a_person(authority: Authority, ledger: Ledger) -> None:
    authority.behave("accept_then_drop")
    result = HttpEffects(authority.url, ledger=ledger).post("/mails", json={"to": "a"})
    assert operation(result)["state"] == "NEEDS_HUMAN" and "a person decides" in (result.hint or "")


# -- what surely did not happen ------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 410, 413, 415, 422, 428])
def test_a_refusal_is_a_failure_and_nothing_happened(authority: Authority, ledger: Ledger, status: int) -> None:
    authority.behave("reject_before", status=status)
    result = effects_to(authority, ledger).post("/deployments", json=BODY)
    assert (result.status, result.effect, result.retry_allowed) == (Status.ERROR, "not_applied", False)
    assert operation(result)["state"] == "FAILED" and operation(result)["http"]["status"] == status
    with pytest.raises(Rejected, match=f"answered {status} "):
        result.unwrap()


@pytest.mark.parametrize("status", [408, 425, 500, 501, 504, 499])
def test_these_answers_prove_nothing(authority: Authority, ledger: Ledger, status: int) -> None:
    if status == 499:  # no status of the standard library's
        authority.behave("accept_then_error", status=status)
    else:
        authority.behave("reject_before", status=status)
    assert operation(effects_to(authority, ledger).post("/deployments", json=BODY))["state"] == "UNKNOWN"


def test_the_authoritys_own_503_can_be_declared_a_refusal(authority: Authority, ledger: Ledger) -> None:
    authority.behave("unavailable", retry_after=7)
    result = effects_to(authority, ledger, refusals=[503]).post("/deployments", json=BODY)
    assert (operation(result)["state"], operation(result)["retry_after"]) == ("FAILED", 7.0)


def test_redirects_of_a_write_are_not_followed(authority: Authority, ledger: Ledger) -> None:
    authority.behave("redirect")
    assert operation(effects_to(authority, ledger).post("/deployments", json=BODY))["state"] == "FAILED"
    authority.behave("redirect", status=302)
    assert operation(effects_to(authority, ledger).post("/deployments", json=BODY))["state"] == "UNKNOWN"
    assert [each["path"] for each in authority.requests()] == ["/deployments"] * 2


def test_too_many_requests_is_an_answer_and_a_call_after_the_pause_sends_it_under_the_same_key(
    authority: Authority, ledger: Ledger
) -> None:
    authority.behave("too_many_requests", times=1, retry_after=1)
    client = effects_to(authority, ledger)
    began = time.monotonic()
    waiting = client.post("/deployments", json=BODY)
    assert time.monotonic() - began < 1  # it does not wait by itself
    assert (waiting.effect, waiting.retry_allowed, operation(waiting)["state"]) == ("not_applied", True, "PREPARED")
    assert operation(waiting)["retry_after"] == 1.0 and "asks to wait 1s" in (waiting.hint or "")
    for _ in range(5):  # more than it may be sent in all: none of these is an attempt
        early = client.post("/deployments", json=BODY)
        assert (early.status, early.reason, early.effect) == (Status.REFUSED, "capacity", "not_applied")
        assert early.retry_allowed and "again in" in (early.hint or "")
    done = early
    while not done.ok and time.monotonic() - began < 5:
        done = client.post("/deployments", json=BODY)
    assert time.monotonic() - began >= 1
    assert done.ok and operation(done)["id"] == operation(waiting)["id"] and operation(done)["attempt"] == 2
    first, second = authority.requests()
    assert first["key"] == second["key"] and authority.effects() == 1


def test_a_definition_that_never_retries_fails_what_was_refused(authority: Authority, ledger: Ledger) -> None:
    authority.behave("too_many_requests")
    result = effects_to(authority, ledger, declared={"retry": "never"}).post("/deployments", json=BODY)
    assert (operation(result)["state"], result.retry_allowed) == ("FAILED", False)


def test_what_could_not_connect_was_not_sent_and_may_be_sent_again(authority: Authority, ledger: Ledger) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    client = HttpEffects(f"http://127.0.0.1:{port}", ledger=ledger, effect=effect(authority.url))
    result = client.post("/deployments", json=BODY)
    told = operation(result)
    assert (result.status, result.effect, result.retry_allowed) == (Status.ERROR, "not_applied", True)
    assert (told["state"], told["phase"], told["phase_certain"]) == ("PREPARED", "connect", True)
    with pytest.raises(NotSent, match="nothing was sent: ConnectError"):
        result.unwrap()
    with Authority(port=port) as there:
        assert client.post("/deployments", json=BODY).ok and there.effects(told["key"]) == 1


def test_a_name_that_there_is_not(ledger: Ledger) -> None:
    result = HttpEffects("http://nowhere.invalid", ledger=ledger, timeout=5).post("/x")
    assert (operation(result)["phase"], operation(result)["state"]) == ("connect", "FAILED")


def test_a_handshake_that_fails_was_before_anything_was_sent(authority: Authority, ledger: Ledger) -> None:
    client = HttpEffects(authority.url.replace("http:", "https:"), ledger=ledger, timeout=3)
    told = operation(client.post("/x"))
    assert (told["phase"], told["phase_certain"], told["state"]) == ("connect", True, "FAILED")


# -- deadlines -----------------------------------------------------------------------------------------------------

LIMIT_S = 0.4


@contextlib.contextmanager
def full_backlog() -> Iterator[str]:
    """A port whose connections never come about: its queue is full, and nobody takes any."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextlib.contextmanager
def reads_nothing() -> Iterator[str]:
    """A port that takes connections and never reads from them."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_every_kind_of_hanging_ends_in_time(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once: a name that is never found, a connection that never comes, a peer that neither reads nor answers,
    and one whose answer drips so that no single read is ever late."""
    real, hang = socket.getaddrinfo, threading.Event()

    def hanging(host: Any, *rest: Any, **more: Any) -> Any:
        if host == "slow.invalid":
            hang.wait(20)
        return real(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    took: dict[str, float] = {}

    async def one(name: str, url: str, body: bytes) -> tuple[str, ToolResult]:
        client = AsyncHttpEffects(url, ledger=ledger, timeout=LIMIT_S, effect=effect(url))
        began = time.monotonic()
        result = await client.post(f"/{name}", content=body)
        took[name] = time.monotonic() - began
        return name, result

    async def all_of_them(urls: dict[str, str]) -> dict[str, ToolResult]:
        bodies = {"write": b"y" * (16 << 20)}
        return dict(await asyncio.gather(*(one(name, url, bodies.get(name, b"y")) for name, url in urls.items())))

    with (
        full_backlog() as full, reads_nothing() as deaf, Authority("accept_then_delay", seconds=None) as silent,
        Authority("drip_reply", seconds=20) as drips,
    ):  # fmt: skip
        urls = {"name": "http://slow.invalid", "connect": full, "write": deaf, "await": silent.url, "read": drips.url}
        results = asyncio.run(all_of_them(urls))
        hang.set()
    told = {name: operation(result) for name, result in results.items()}
    assert {name: each["phase"] for name, each in told.items()} == {
        "name": "connect", "connect": "connect", "write": "write_request", "await": "await_response",
        "read": "read_response",
    }  # fmt: skip
    assert {name: each["state"] for name, each in told.items()} == {
        "name": "PREPARED", "connect": "PREPARED", "write": "UNKNOWN", "await": "UNKNOWN", "read": "UNKNOWN",
    }  # fmt: skip
    for name, result in results.items():
        assert result.status is Status.TIMEOUT and result.limit is not None and result.limit.which == "call"
        assert LIMIT_S <= took[name] <= LIMIT_S + SLACK_S, took
        assert result.effect == ("not_applied" if name in ("name", "connect") else "unknown")
    assert told["await"]["transport_observation"] == "response deadline exceeded after request write"
    assert "bytes of the request's body" in told["write"]["transport_observation"]


def test_an_enclosing_deadline_is_shorter_and_one_that_is_over_starts_nothing(ledger: Ledger) -> None:
    with Authority("accept_then_delay", seconds=None) as silent, deadstop.deadline(0.2):
        client = effects_to(silent, ledger)
        late = client.post("/deployments", json=BODY)
        assert late.status is Status.TIMEOUT and late.limit is not None and late.limit.which == "parent"
        over = client.post("/deployments", json={**BODY, "revision": "ffff"})
        assert (over.status, over.reason) == (Status.REFUSED, "deadline_over") and len(silent.requests()) == 1


# -- what is accepted for later ------------------------------------------------------------------------------------


def test_202_is_followed_to_its_end(authority: Authority, ledger: Ledger) -> None:
    authority.behave("accept_async", seconds=0.15)
    result = effects_to(authority, ledger).post("/deployments", json=BODY)
    assert result.ok and result.value["state"] == "succeeded" and operation(result)["state"] == "SUCCEEDED"
    assert [kind for kind in kinds(ledger, result) if kind in ("attempt.ended", "reconcile.finding", "settled")] == [
        "attempt.ended", "reconcile.finding", "settled",
    ]  # fmt: skip
    assert authority.effects() == 1 and len(authority.requests(writes=True)) == 1


def test_202_that_ends_badly_did_not_happen(authority: Authority, ledger: Ledger) -> None:
    authority.behave("accept_async", seconds=0.0, ends="failed")
    result = effects_to(authority, ledger).post("/deployments", json=BODY)
    assert (result.status, result.effect, operation(result)["state"]) == (Status.ERROR, "not_applied", "FAILED")
    assert "it was accepted and has failed" in str(result.error)


def test_202_without_an_end_is_unknown_and_its_reference_is_kept(authority: Authority, ledger: Ledger) -> None:
    authority.behave("accept_async", seconds=None)
    result = effects_to(authority, ledger, follow=0.25).post("/deployments", json=BODY)
    assert (result.status, result.effect, operation(result)["state"]) == (Status.UNKNOWN, "unknown", "UNKNOWN")
    assert operation(result)["reference"] == authority.operations()[0]["id"]
    looks = len(authority.requests()) - 1
    assert 1 <= looks <= 5
    assert ledger.get(operation(result)["id"]).reference == authority.operations()[0]["id"]


def test_its_reference_is_durable_before_it_waits(authority: Authority, ledger: Ledger) -> None:
    authority.behave("accept_async", "status_slow", seconds=None)
    client = AsyncHttpEffects(authority.url, ledger=ledger, effect=effect(authority.url), timeout=5)

    async def watched() -> str | None:
        call = asyncio.ensure_future(client.post("/deployments", json=BODY))
        while len(authority.requests()) < 2:  # it is looking now
            await asyncio.sleep(0.01)
        reference = ledger.list(limit=1)[0].reference
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return reference

    assert asyncio.run(watched()) == authority.operations()[0]["id"]


def test_202_is_not_followed_to_another_host(ledger: Ledger) -> None:
    """It would get this one's headers."""
    with Authority() as other, Authority("accept_async", seconds=0.0) as authority:
        client = effects_to(authority, ledger, headers={"Authorization": "Bearer secret"})
        from deadstop.effects.http_follow import place_from

        assert place_from(authority.url, f"{other.url}/operations/1") is None
        assert place_from(f"{authority.url}/a/b", "/operations/1") == f"{authority.url}/operations/1"
        assert client.post("/deployments", json=BODY).ok and other.requests() == []


# -- interrupted callers -------------------------------------------------------------------------------------------


def test_a_cancelled_call_records_how_far_it_had_come(ledger: Ledger) -> None:
    async def cancelled(url: str, ready: Any) -> None:
        client = AsyncHttpEffects(url, ledger=ledger, effect=effect(url), timeout=20)
        call = asyncio.ensure_future(client.post("/deployments", json=BODY))
        while not ready():
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    with Authority("accept_then_delay", seconds=None) as silent:
        asyncio.run(cancelled(silent.url, silent.committed.is_set))
        assert ledger.list(limit=1)[0].state is State.UNKNOWN
    with full_backlog() as url:
        before = ledger.list(limit=1)[0].op_id
        asyncio.run(cancelled(url, lambda: ledger.list(limit=1)[0].op_id != before))
        assert ledger.list(limit=1)[0].state is State.PREPARED


def test_an_answer_after_the_lease_is_evidence_and_no_success(
    authority: Authority, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "LEASE_SPARE_S", -1.5)
    authority.behave("accept_then_delay", seconds=0.8)
    swept: list[Any] = []

    def sweep() -> None:
        end = time.monotonic() + 5
        while not swept and time.monotonic() < end:
            swept.extend(ledger.sweep())
            time.sleep(0.02)

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    result = effects_to(authority, ledger).post("/deployments", json=BODY)
    sweeper.join()
    assert (result.status, result.effect, result.value) == (Status.UNKNOWN, "unknown", None)
    assert "attempt.late" in kinds(ledger, result) and authority.effects() == 1


def test_what_may_not_be_sent_any_more_is_not_sent(
    authority: Authority, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a long stop of the process between the claim and the first byte."""
    monkeypatch.setattr(http, "LEASE_SPARE_S", -2.0 + 1e-3)
    result = effects_to(authority, ledger).post("/deployments", json=BODY)
    assert authority.requests() == [] and result.effect in ("not_applied", "unknown")
    assert "the right to send it ended" in str(ledger.trail(operation(result)["id"]))


def test_a_success_that_cannot_be_written_down_is_none(
    authority: Authority, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any) -> Any:
        raise LedgerUnavailable("the disk", "no space left on device")

    monkeypatch.setattr(ledger, "finish", full)
    result = effects_to(authority, ledger).post("/deployments", json=BODY)
    assert (result.status, result.effect, result.value) == (Status.UNKNOWN, "unknown", None)
    assert "no space left" in str(result.error) and not result.retry_allowed and authority.effects() == 1
    monkeypatch.setattr(ledger, "begin", full)
    with pytest.raises(LedgerUnavailable):
        effects_to(authority, ledger).post("/deployments", json={**BODY, "revision": "ffff"})
    assert len(authority.requests()) == 1


CHILD = """
import sys
from deadstop.effects.http import HttpEffects
from deadstop.ledger.definition import Effect
from deadstop.ledger.queries import HttpQuery
from deadstop.ledger.ledger import Ledger
url, where = sys.argv[1:]
query = HttpQuery(url=url + "/operations/by-key/{key}", state="state")
client = HttpEffects(url, ledger=Ledger.open(where), effect=Effect(reconcile=query), timeout=5)
result = client.post("/deployments", json={"a": "x" * 1000}, key="task")
print(result.status.value, result.operation["state"])
"""


def test_deaths_at_every_place_of_a_request(tmp_path: Path) -> None:
    """Nothing is sent again by whoever comes after, and it is committed only where all of it had been written."""
    expected = {"http.connected": 0, "http.half_written": 0, "http.written": 1, "http.half_read": 1, "http.replied": 1}
    with contextlib.ExitStack() as stack:
        authorities = {point: stack.enter_context(Authority()) for point in (*expected, "none")}

        def start(point: str, env: dict[str, str] | None) -> subprocess.Popen[str]:
            command = [sys.executable, "-c", CHILD, authorities[point].url, str(tmp_path / f"{point}.db")]
            return stack.enter_context(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))

        children = {point: start(point, crash_at(point)) for point in expected}
        whole = start("none", note_points(tmp_path / "points"))
        for point, child in children.items():
            assert child.wait(30) == -9, point
        assert whole.communicate(timeout=30)[0].split() == ["completed", "SUCCEEDED"]
        for point, effects in expected.items():
            assert not effects or authorities[point].wait_until_committed()
            assert authorities[point].effects() == effects, point
            with Ledger.open(str(tmp_path / f"{point}.db")) as ledger:
                client = effects_to(authorities[point], ledger, declared={"retry": "never", "consistent": False})
                successor = client.post("/deployments", json={"a": "x" * 1000}, key="task")
            assert (successor.status, operation(successor)["state"]) == (Status.UNKNOWN, "UNKNOWN"), point
            assert authorities[point].effects() == effects and len(authorities[point].requests(writes=True)) <= 1
    assert [point for point in points_passed(tmp_path / "points") if point.startswith("http.")] == list(expected)


# -- what is written down, and what is refused before anything is --------------------------------------------------


def test_no_secret_is_written_down(authority: Authority, tmp_path: Path) -> None:
    canaries = ("canary-header", "canary-query", "canary-body", "canary-redacted")
    declared = {"fingerprint": ["name"], "redact": ["password"]}
    with Ledger.open(str(tmp_path / "ledger.db")) as ledger:
        client = effects_to(authority, ledger, declared=declared, headers={"Authorization": "Bearer canary-header"})
        body = {"name": "visible-name", "password": "canary-redacted", "other": "canary-body"}
        authority.behave("accept_then_drop", times=1)
        assert client.post("/users?token=canary-query", json=body).effect == "unknown"
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"visible-name" in written
    assert [canary for canary in canaries if canary.encode() in written] == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"method": "GET"}, "not one of DELETE, PATCH, POST, PUT"),
        ({"path": "../admin"}, "leads out of"),
        ({"path": "/a/%2e%2E/b"}, "leads out of"),
        ({"path": "/a/..%2F..%2Fadmin"}, "leads out of"),
        ({"path": "/a/..%5cadmin"}, "leads out of"),
        ({"path": "http://other.example/x"}, "is not below"),
        ({"path": "/a\nb"}, "is not the path of a URL"),
        ({"json": {"x": float("nan")}}, "this is not JSON"),
        ({"json": {}, "content": b""}, "not both"),
        ({"key": ""}, "key=''"),
        ({"correlation": "a\r\nX-Evil: 1"}, "printable ASCII"),
        ({"json": [1]}, "fingerprint names fields"),
        ({"json": {"other": 1}}, "there is no argument 'name'"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_it_is_recorded(
    authority: Authority, ledger: Ledger, wrong: dict[str, Any], message: str
) -> None:
    client = effects_to(authority, ledger, declared={"fingerprint": ["name"]})
    before = sum(ledger.counts().values())
    given = {"method": "POST", "path": "/deployments", "json": {"name": "x"}} | wrong
    if "content" in wrong:
        given["content"] = b"x"
    with pytest.raises(UsageError, match=message):
        client.request(given.pop("method"), given.pop("path"), **given)
    assert sum(ledger.counts().values()) == before and authority.requests() == []


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": None},
        {"timeout": -1},
        {"headers": {"Idempotency-Key": "x"}},
        {"headers": {"X": "a\nb"}},
        {"follow": -1},
    ],
)
def test_options_that_are_not_allowed(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        AsyncHttpEffects("http://127.0.0.1:1", **options)


@pytest.mark.parametrize(
    ("path", "url"),
    [("", "http://a/v1"), ("?x=1", "http://a/v1?x=1"), ("/b", "http://a/v1/b"), ("b/", "http://a/v1/b/"),
     ("//evil.example/b", "http://a/v1/evil.example/b"), ("http://a/v1/b", "http://a/v1/b"), ("/b#c", "http://a/v1/b")],
)  # fmt: skip
def test_paths_are_below_the_base(path: str, url: str) -> None:
    assert url_in(base_of("http://a/v1/"), path) == url


@pytest.mark.parametrize(
    "url", ["ftp://a", "127.0.0.1", "http://", "http://u:p@host", "http://a/?b=1", "http://[::1", "http://a:x"]
)
def test_base_urls_that_are_not_allowed(url: str) -> None:
    with pytest.raises(UsageError, match="base_url"):
        AsyncHttpEffects(url)


def test_what_is_redacted_is_in_no_digest_either(authority: Authority, ledger: Ledger) -> None:
    client = effects_to(authority, ledger, declared={"redact": ["pin"]})
    trails = []
    for pin in (1234, 5678):
        result = client.post("/cards", json={"name": "a", "pin": pin})
        trails.append([json.loads(each.body) for each in ledger.trail(operation(result)["id"])])
    assert [trail[0]["digest"] for trail in trails] == [trails[0][0]["digest"]] * 2
    assert [trail[0]["fingerprint"] for trail in trails] == [trails[0][0]["fingerprint"]] * 2


def test_the_body_of_a_request_can_be_fingerprinted_by_what_the_host_says(authority: Authority, ledger: Ledger) -> None:
    client = effects_to(authority, ledger, declared={"fingerprint": ["order"]})
    first = client.post("/orders", content=b"<order nr='1' at='12:00'/>", fields={"order": 1}, key="o1")
    again = client.post("/orders", content=b"<order nr='1' at='12:01'/>", fields={"order": 1}, key="o1")
    assert first.ok and again.value == first.value and authority.effects() == 1


# -- answers, without a socket -------------------------------------------------------------------------------------


def test_after_an_earlier_attempt_some_refusals_may_be_its_own_work() -> None:
    for status in sorted(REFUSALS):
        to = judge(Answer(status), key="k", again=True).outcome.to
        expected = State.UNKNOWN if status in AFTERMATH else State.PREPARED if status == 429 else State.FAILED
        assert to is expected, status


def test_409_about_this_very_operation_is_an_acceptance() -> None:
    headers = {"content-type": "application/problem+json"}
    own = Answer(409, headers, b'{"key": "k", "operation_id": "dep_1", "status_url": "/operations/dep_1"}')
    seen = judge(own, key="k")
    assert seen.accepted and (seen.place, seen.outcome.reference) == ("/operations/dep_1", "dep_1")
    assert not judge(own, key="other").accepted


def test_a_success_in_parts_is_none_of_the_whole() -> None:
    assert judge(Answer(207, {}, b"[]"), key="k").outcome.to is State.UNKNOWN


def test_where_to_look_is_the_services_word_and_need_not_be_a_place() -> None:
    assert place_from("http://a/v1/b", "../ops/7") == "http://a/ops/7"
    for word in ("http://[", "http://evil.example/ops/7", "//evil.example/x", "http://me@a/x", "https://a/ops/7"):
        assert place_from("http://a/v1/b", word) is None


@pytest.mark.parametrize("word", ["", "soon", "-1", "1e9", "9" * 40, "Mon, 99999999999 Jan 2024 00:00:00 GMT",
                                  "Mon, 01 Jan 2024 99999999999:00:00 GMT", "01 Jan 99999999 00:00:00"])  # fmt: skip
def test_a_wish_that_is_none_is_passed_over(word: str) -> None:
    assert judge(Answer(429, {"retry-after": word}), key="k").retry_after_s is None


def test_who_says_at_once_for_ever_is_not_asked_without_a_pause() -> None:
    assert next_pause(0.1, 0.0) >= 0.05 and next_pause(0.1, 3.0) == 3.0


def test_a_reference_is_only_taken_from_a_success() -> None:
    error = Answer(500, {"content-type": "application/json", "location": "/x"}, b'{"id": "error_17"}')
    assert judge(error, key="k").outcome.reference is None
    assert judge(Answer(201, {"location": "/deployments/7"}), key="k").outcome.reference == "/deployments/7"
    nested = Answer(201, {"content-type": "application/json"}, b'{"data": {"name": "dep_2"}}')
    assert judge(nested, key="k", reference="data.name").outcome.reference == "dep_2"
