# SPDX-License-Identifier: Apache-2.0
"""An operation's write from inside a tool function: `send`, and plain clients of httpx2 and httpx."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import importlib
import itertools
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from deadstop.effects.http import AsyncEffectTransport, AsyncHttpEffects, EffectTransport, send, send_async
from deadstop.errors import Accepted, EffectError, NotSent, Rejected, UsageError
from deadstop.ledger.definition import Effect
from deadstop.ledger.ledger import Ledger
from deadstop.operation import Operation
from deadstop.results import Status
from deadstop.testing import Authority

LIBRARIES = ["httpx2", "httpx"]
BODY = {"revision": "a1b2"}
NOWHERE = "http://127.0.0.1:1/deployments"

# Most of these declare less than a real client would.
pytestmark = pytest.mark.filterwarnings("ignore::deadstop.executor.declared.UnansweredEffect")


@pytest.fixture
def authority() -> Iterator[Authority]:
    with Authority() as made:
        yield made


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(request.param)


_numbers = itertools.count(1)


def op(**more: Any) -> Operation:
    return Operation(
        **{
            "id": f"op_{next(_numbers)}",
            "key": "dsk_1",
            "correlation": "run_1",
            "attempt": 1,
            "fence": 1,
            "tool": "deploy",
            **more,
        }
    )


def caught(kind: type[EffectError], work: Any, *arguments: Any, **more: Any) -> EffectError:
    with pytest.raises(EffectError) as problem:
        work(*arguments, **more)
    assert type(problem.value) is kind, repr(problem.value)
    return problem.value


# -- send ----------------------------------------------------------------------------------------------------------


def test_send_gives_the_answer(authority: Authority) -> None:
    reply = send(op(), "post", f"{authority.url}/deployments", json=BODY)
    assert (reply.status, reply.json()["request"], reply.reference) == (201, BODY, "dep_1001")
    assert [(each["key"], each["correlation"]) for each in authority.requests()] == [("dsk_1", "run_1")]
    assert send(op(key="dsk_2"), "PUT", f"{authority.url}/resources/1", json={}).etag == '"v1"'


@pytest.mark.parametrize("second", ["refused connection", "refused request"])
def test_after_a_write_that_may_be_there_the_next_one_of_the_attempt_speaks_for_itself_only(
    authority: Authority, second: str
) -> None:
    mine = op()
    send(mine, "POST", f"{authority.url}/deployments", json=BODY)
    if second == "refused request":
        authority.behave("reject_before", status=403)
    place = NOWHERE if second == "refused connection" else f"{authority.url}/deployments"
    with pytest.raises(EffectError, match="an earlier request of this attempt") as raised:
        send(mine, "POST", place, json={"other": 1})
    assert type(raised.value) is EffectError
    again = op(id=mine.id, fence=2, attempt=2)  # another attempt: what was shown of the first is not asked for here
    caught(NotSent, send, again, "POST", NOWHERE, json=BODY)


def test_what_was_refused_was_not_there(authority: Authority) -> None:
    mine = op()
    caught(NotSent, send, mine, "POST", NOWHERE, json=BODY)
    authority.behave("reject_before", times=1, status=403)
    caught(Rejected, send, mine, "POST", f"{authority.url}/deployments", json=BODY)
    caught(NotSent, send, mine, "POST", NOWHERE, json=BODY)


@pytest.mark.parametrize(
    ("word", "kind", "phase"),
    [
        ("accept_then_drop", EffectError, "await_response"), ("half_reply", EffectError, "read_response"),
        ("bad_json", EffectError, "decode"), ("unavailable", EffectError, "read_response"),
        ("too_many_requests", NotSent, "read_response"), ("redirect", Rejected, "read_response"),
    ],
)  # fmt: skip
def test_send_says_what_is_known(authority: Authority, word: str, kind: type[EffectError], phase: str) -> None:
    authority.behave(word, retry_after=4)
    problem = caught(kind, send, op(), "POST", f"{authority.url}/deployments", json=BODY)
    assert problem.phase == phase and len(authority.requests()) == 1
    assert problem.retry_after == (4.0 if word in ("unavailable", "too_many_requests") else None)


def test_send_keeps_its_deadline_and_the_operations(authority: Authority) -> None:
    authority.behave("accept_then_delay", seconds=None)
    began = time.monotonic()
    late = caught(EffectError, send, op(), "POST", f"{authority.url}/deployments", timeout=0.3)
    assert time.monotonic() - began < 0.8 and late.observation == "response deadline exceeded after request write"
    over = caught(NotSent, send, op(deadline=time.time() - 1), "POST", f"{authority.url}/deployments")
    assert "the right to send it ended" in str(over) and len(authority.requests()) == 1


def test_send_follows_what_was_accepted(authority: Authority) -> None:
    url = f"{authority.url}/deployments"
    authority.behave("accept_async", seconds=0.1)
    assert send(op(key="a"), "POST", url).json()["state"] == "succeeded"
    authority.behave("accept_async", seconds=0.0, ends="failed")
    assert "it was accepted and has failed" in str(caught(Rejected, send, op(key="b"), "POST", url))
    authority.behave("accept_async", seconds=None)
    pending = caught(Accepted, send, op(key="c"), "POST", url, timeout=0.3)
    assert pending.reference == "dep_1003" and "has not ended" in str(pending)


def test_send_refuses_what_cannot_be_sent() -> None:
    caught(NotSent, send, op(), "POST", NOWHERE)
    for wrong in ({"json": {1j}}, {"timeout": None}, {"headers": {"Host": "x"}}):
        with pytest.raises(UsageError):
            send(op(), "POST", NOWHERE, **wrong)
    with pytest.raises(UsageError, match="reads go by"):
        asyncio.run(send_async(op(), "GET", NOWHERE))


# -- transports of plain clients -----------------------------------------------------------------------------------


def client(library: Any, authority: Authority | None = None, operation: Operation | None = None, **more: Any) -> Any:
    transport = EffectTransport(operation or op(), **more)
    return library.Client(
        transport=transport, base_url=authority.url if authority else "http://127.0.0.1:1", timeout=2.0
    )


def test_a_plain_client_sends_the_operations_headers(authority: Authority, library: Any) -> None:
    with client(library, authority) as plain:
        response = plain.post("/deployments", json=BODY)
        assert (response.status_code, response.json()["request"]) == (201, BODY)
        assert plain.get("/operations/by-key/dsk_1").json()["state"] == "succeeded"
    write, look = authority.requests()
    assert (write["key"], write["correlation"], look["key"], look["correlation"]) == ("dsk_1", "run_1", None, "run_1")


@pytest.mark.parametrize(
    ("word", "kind", "phase"),
    [
        ("accept_then_drop", EffectError, "await_response"), ("half_reply", EffectError, "read_response"),
        ("accept_then_delay", EffectError, "await_response"), ("drip_reply", EffectError, "read_response"),
        ("too_many_requests", NotSent, "read_response"), ("accept_then_error", EffectError, "read_response"),
    ],
)  # fmt: skip
def test_a_plain_clients_failures_say_what_is_known(
    authority: Authority, library: Any, word: str, kind: type[EffectError], phase: str
) -> None:
    authority.behave(word, seconds=100)
    with client(library, authority) as plain:
        limit = 0.1 if word in ("accept_then_delay", "drip_reply") else 10.0  # the others end by themselves
        problem = caught(kind, plain.post, "/deployments", json=BODY, timeout=limit)
        assert problem.phase == phase
        again = caught(EffectError, plain.post, "/deployments", json=BODY)
        assert "not sent again" in str(again)
    assert len(authority.requests()) == 1


def test_a_plain_client_that_cannot_connect_may_try_again(library: Any) -> None:
    with client(library) as plain:
        for _ in range(2):
            assert caught(NotSent, plain.post, "/deployments").phase == "connect"


def test_answers_can_be_left_to_the_client(authority: Authority, library: Any) -> None:
    authority.behave("reject_before", status=422)
    with client(library, authority) as plain:
        caught(Rejected, plain.post, "/deployments")
    with client(library, authority, answers=False) as plain:
        assert plain.post("/deployments").status_code == 422


def test_a_redirect_is_not_a_second_write(authority: Authority, library: Any) -> None:
    authority.behave("redirect")
    with client(library, authority, answers=False) as plain:
        assert "not sent again" in str(caught(EffectError, plain.post, "/deployments", follow_redirects=True))
    assert len(authority.requests()) == 1


def test_an_asynchronous_client(authority: Authority, library: Any) -> None:
    async def work() -> None:
        async with library.AsyncClient(transport=AsyncEffectTransport(op())) as plain:
            response = await plain.post(f"{authority.url}/deployments", json=BODY)
            assert response.json()["request"] == BODY
            with pytest.raises(EffectError, match="not sent again"):
                await plain.put(f"{authority.url}/deployments")
        authority.behave("accept_then_drop")
        async with library.AsyncClient(
            transport=AsyncEffectTransport(op(key="k2"), library.AsyncHTTPTransport())
        ) as plain:
            with pytest.raises(EffectError) as problem:
                await plain.post(f"{authority.url}/deployments", json=BODY)
            assert problem.value.phase == "await_response"

    asyncio.run(work())
    assert len(authority.requests()) == 2


def test_a_packed_answer_and_the_clients_own_trace(library: Any) -> None:
    traced: list[str] = []
    packed = gzip.compress(b'{"a": 1}')
    inner = library.MockTransport(
        lambda request: (
            request.extensions["trace"]("http11.send_request_headers.started", {"request": request}),
            library.Response(
                201, headers={"content-encoding": "gzip", "content-type": "application/json"}, content=packed
            ),
        )[1]
    )
    with library.Client(transport=EffectTransport(op(), inner)) as plain:
        response = plain.post("http://x/", extensions={"trace": lambda name, info: traced.append(name)})
    assert response.json() == {"a": 1} and traced == ["http11.send_request_headers.started"]


# -- a transport of one's own for the client -----------------------------------------------------------------------


def posted(transport: Any, url: str = "http://service.invalid", timeout: float = 1.0) -> Any:
    async def work() -> Any:
        with Ledger.in_memory() as ledger:
            async with contextlib.AsyncExitStack() as stack:
                if hasattr(transport, "_pool"):  # a real one: it is its maker's to close
                    await stack.enter_async_context(transport)
                declared = Effect(retry="if_not_accepted")
                client = AsyncHttpEffects(url, ledger=ledger, transport=transport, effect=declared, timeout=timeout)
                return await client.post("/deployments", json=BODY)

    return asyncio.run(work())


def test_the_client_takes_transports_of_both_libraries(authority: Authority, library: Any) -> None:
    result = posted(library.AsyncHTTPTransport(), authority.url)
    assert result.ok and result.value["request"] == BODY and authority.effects() == 1
    authority.behave("accept_then_drop")
    result = posted(library.AsyncHTTPTransport(), authority.url)
    assert (result.status, result.operation["phase"], result.operation["phase_certain"]) == (
        Status.UNKNOWN,
        "await_response",
        True,
    )


@pytest.mark.parametrize(
    ("error", "phase", "certain", "state"),
    [
        ("ConnectError", "connect", True, "PREPARED"), ("ConnectTimeout", "connect", True, "PREPARED"),
        ("WriteError", "write_request", False, "NEEDS_HUMAN"), ("ReadTimeout", "await_response", False, "NEEDS_HUMAN"),
        (None, "await_response", False, "NEEDS_HUMAN"),
    ],
)  # fmt: skip
def test_a_transport_that_tells_no_phases_is_judged_by_its_errors(
    library: Any, error: str | None, phase: str, certain: bool, state: str
) -> None:
    """And what says nothing at all may have sent everything."""

    def fail(request: Any) -> Any:
        raise OSError("something") if error is None else getattr(library, error)("lost")

    result = posted(library.MockTransport(fail))
    assert (result.operation["phase"], result.operation["phase_certain"], result.operation["state"]) == (
        phase,
        certain,
        state,
    )


def test_a_transport_that_cannot_be_ended_is_left_alone_after_the_deadline() -> None:
    ends = time.monotonic() + 0.7

    class Hangs(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            while time.monotonic() < ends:  # not even a cancellation ends it
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.05)
            raise httpx2.ReadError("late")

    result = posted(Hangs(), timeout=0.1)
    assert (result.status, result.effect, result.operation["phase_certain"]) == (Status.TIMEOUT, "unknown", False)
    assert 0.1 <= result.duration_s < 0.6


def test_what_a_mock_answers_packed_is_unpacked_in_bounds(library: Any) -> None:
    def answers(content: bytes, packed: str) -> Any:
        headers = {"content-type": "application/json", "x-content-encoding": packed}
        return library.MockTransport(
            lambda request: library.Response(201, headers=headers, stream=Packed(content, packed))
        )

    class Packed(library.AsyncByteStream):  # type: ignore[misc]
        def __init__(self, content: bytes, packed: str) -> None:
            self.content = content

        async def __aiter__(self) -> Any:
            yield self.content

    assert posted(answers(b'{"a": 1}', "")).value == {"a": 1}
    exchange = importlib.import_module("deadstop.effects.http_exchange")
    unpacked = exchange._unpacked
    assert unpacked({"content-encoding": "gzip"}, gzip.compress(b"abc"), 100) == b"abc"
    for headers, body in (("gzip", gzip.compress(b"a" * 1000)), ("br", b"x"), ("gzip", b"no gzip")):
        with pytest.raises(ValueError, match="reply"):
            unpacked({"content-encoding": headers}, body, 100)
