# SPDX-License-Identifier: Apache-2.0
"""Writes over HTTP whose outcome is known, or known to be unknown.

    deployments = HttpEffects("https://api.example.org", effect=Effect(
        retry="if_not_accepted", fingerprint=["repository", "revision"], consistent=True,
        reconcile=HttpQuery(url="https://api.example.org/operations/by-key/{key}", state="state")))
    result = deployments.post("/deployments", json={"repository": "api", "revision": "a1b2c3d4"})

Before the first byte leaves, the operation is durable in the ledger; every attempt of it carries its one
Idempotency-Key. Nothing is ever sent a second time by a call: `result.retry_allowed` says whether it may be, and the
next call of the same write then does so under the same key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from .. import clock, deadlines
from ..client.portal import portal
from ..errors import LedgerError, OperationConflict, UsageError
from ..executor.declared import tell_unanswered
from ..ledger.answers import key_conflict, not_sent_now, not_written_down
from ..ledger.definition import Definition, Effect
from ..ledger.ledger import Ledger, default
from ..ledger.queries import HttpQuery
from ..ledger.records import Begun, Claim, Outcome, Record
from ..ledger.states import TERMINAL, State
from ..results import ToolResult
from . import http_result
from .http_exchange import Failed, Wire, exchange
from .http_follow import follow as follow_to_its_end
from .http_follow import place_from
from .http_intent import Write, base_of, headers_of, intent_of, url_in
from .http_place import keep
from .http_result import Asked
from .http_send import Reply, send, send_async
from .http_transport import AsyncEffectTransport, EffectTransport
from .http_verdict import Judged, judge, judge_failure
from .settlement import may_have_arrived_before

__all__ = ["AsyncEffectTransport", "AsyncHttpEffects", "EffectTransport", "HttpEffects", "Reply", "send", "send_async"]

if TYPE_CHECKING:
    from typing import Unpack

    from .http_intent import WriteOptions

T = TypeVar("T")
LEASE_SPARE_S = 10.0
OTHERS_S = 0.02, 0.25  # between looks at an operation that somebody else is sending


class AsyncHttpEffects:
    """Writes to one service, from a running loop. Safe for many tasks; there is nothing to close.

    effect: what the service promises about these writes. The default promises nothing: a lost answer then stays unknown
        until a person decides.
    timeout: seconds for one request in all: looking up the name, connecting, writing, and the whole reply. An enclosing
        `deadstop.deadline` or task can only shorten it.
    tool: the name under which the ledger knows these writes. If None, the service's host and port and, where more than
        nothing is declared, a digest of `effect`: then another client of that host, which declares something else, does
        not tighten it, and nor does a later version of this one. Keys hold for the host, whatever is declared.
    refusals: further statuses (such as 503) by which this service itself says that it has done nothing. Never name one
        that a proxy in front of it may send.
    follow: what was accepted to be done later (202) is followed to its end: True, until its recovery deadline; seconds;
        or False, not at all. What has no end by then is left to whoever reconciles.
    headers: for every request. They are sent to this service alone, and never written down.
    transport: an asynchronous transport of httpx2 or httpx to be used instead of deadstop's own, and closed by whoever
        made it. It must not retry; one that keeps connections may lose a write on one that is just being closed.
    """

    def __init__(
        self, base_url: str, *, ledger: Ledger | None = None, effect: Effect | None = None, timeout: float = 30.0,
        transport: Any = None, headers: Mapping[str, str] | None = None, tool: str | None = None,
        refusals: Collection[int] = (), follow: bool | float = True,
    ) -> None:  # fmt: skip
        self.base_url, self.effect = base_of(base_url), effect or Effect()
        if clock.check_limit("timeout", timeout) is None:
            raise UsageError("timeout=None is not allowed: a request has a deadline")
        if not isinstance(follow, bool):
            clock.check_limit("follow", follow)
        self.timeout, self.follow, self.refusals = float(timeout), follow, frozenset(refusals)
        self._ledger, self._transport, self._headers = ledger, transport, headers_of(headers)
        self._name = tool or f"http {urlsplit(self.base_url).netloc}"
        self._definition = self.effect.define_named(tool, self._name)
        self.tool = self._definition.tool
        tell_unanswered(self.tool, self.effect.unanswered(whole=True))

    async def post(self, path: str, **given: Unpack[WriteOptions]) -> ToolResult:
        return await self.request("POST", path, **given)

    async def put(self, path: str, **given: Unpack[WriteOptions]) -> ToolResult:
        return await self.request("PUT", path, **given)

    async def patch(self, path: str, **given: Unpack[WriteOptions]) -> ToolResult:
        return await self.request("PATCH", path, **given)

    async def delete(self, path: str, **given: Unpack[WriteOptions]) -> ToolResult:
        return await self.request("DELETE", path, **given)

    async def request(
        self, method: str, path: str, *, json: Any = None, content: bytes | str | None = None, key: str | None = None,
        correlation: str | None = None, if_match: str | None = None, fields: Mapping[str, Any] | None = None,
        target: str | None = None, asked_by: str | None = None, authorised_by: str | None = None,
    ) -> ToolResult:  # fmt: skip
        """One write, sent at most once by this call. Its result's `operation` says how far it came.

        key: what binds all retries to one operation, for ever, such as the id of the task that wants it. It comes from
            the host program, never from a model. Without it the same request (the fields that the effect names) is the
            same operation as long as that one is open, and a new one after it.
        if_match: an ETag: it is done only if the resource has not changed since; else it is FAILED (412).
        fields: what makes two requests the same one, where the body cannot be looked into.
        correlation: the id of the run that wants it: within one run, the same request is not sent again once it has
            succeeded. Also of a `deadstop.acting` block or a task around the call.
        target, asked_by, authorised_by: for people, and for the log.

        Raises UsageError for what cannot be sent, LedgerError if the operation could not be made durable: then nothing
        was sent. Cancelling ends the request and records how far it had come.
        """
        write = Write(
            method=method.upper(), url=url_in(self.base_url, path), json=json, content=content, key=key,
            correlation=correlation, if_match=if_match, fields=fields, target=target, asked_by=asked_by,
            authorised_by=authorised_by,
        )  # fmt: skip
        end, _, limit = deadlines.resolve(self.timeout, "given")
        asked = Asked(self.tool, limit)
        if end is None or end <= clock.monotonic():
            return http_result.over_before(asked)
        return await _Attempt(self, write, asked, end).made()

    def ledger(self) -> Ledger:
        return self._ledger or default()


@dataclass(slots=True)
class _Attempt:
    """One call on its way."""

    client: AsyncHttpEffects
    write: Write
    asked: Asked
    end: float

    async def made(self) -> ToolResult:
        while True:
            try:
                (begun, definition, ledger), cancelled = await _durable(self._begun)
            except OperationConflict as problem:
                return await asyncio.to_thread(self._conflict, problem)
            if begun.claim is not None:
                return await self._attempted(ledger, begun.claim, definition, cancelled)
            if cancelled:
                raise cancelled
            record = await self._others(ledger, begun.record)
            if begun.why == "waiting" or record.state is not State.PREPARED or self.end <= clock.monotonic():
                return await asyncio.to_thread(self._found, ledger, record)

    async def _attempted(
        self, ledger: Ledger, claim: Claim, definition: Definition, cancelled: asyncio.CancelledError | None
    ) -> ToolResult:
        record = claim.record
        wire = self.write.wire(self.client._headers, record.key, record.correlation or record.op_id)
        judged, cancelled = await self._sent(wire, ledger, claim, definition, cancelled)
        result = http_result.seen_result(self.asked, judged)
        try:
            place = place_from(wire.url, judged.place) if judged.accepted else None
            if place is not None:
                cancelled = await _kept(ledger, claim, place) or cancelled
            followed = place is not None and self.client.follow is not False
            record, later = await _durable(ledger.finish, claim, replace(judged.outcome, followed=followed))
        except LedgerError as problem:
            if cancelled:
                raise cancelled from None
            record = await asyncio.to_thread(_as_it_is, ledger, record)
            return not_written_down(result, record, definition, problem)
        if cancelled or later:
            raise cancelled or later  # type: ignore[misc]
        if judged.accepted and record.state not in TERMINAL and (until := self._followed_until(record)):
            ended = await follow_to_its_end(ledger, record, definition, judged, wire, until, self.client._transport)
            result, record = http_result.followed_result(self.asked, ended), ended.record
        return http_result.recorded(result, record, definition, judged)

    def _conflict(self, problem: OperationConflict) -> ToolResult:
        ledger = self.client.ledger()
        record = ledger.get(problem.op_id)
        definition = ledger.definition(record.tool, record.definition)
        return self.asked.timed(key_conflict(self.asked.tool, self.asked.call_id, record, definition))

    def _found(self, ledger: Ledger, record: Record) -> ToolResult:
        """Nothing was sent: the operation is there already."""
        value = ledger.value(record.op_id) if record.state is State.SUCCEEDED else (False, None)
        definition = ledger.definition(record.tool, record.definition)
        return self.asked.timed(not_sent_now(self.asked.tool, self.asked.call_id, record, definition, value=value))

    def _begun(self) -> tuple[Begun, Definition, Ledger]:
        """In a thread, and not interrupted: whoever has a claim also has to give it up."""
        ledger, seconds = self.client.ledger(), max(0.001, self.end - clock.monotonic())
        definition = ledger.define(self.client._definition)
        intent = intent_of(self.write, definition, seconds, self.asked.call_id, self.client._name)
        begun = ledger.begin(intent, seconds + LEASE_SPARE_S)
        if begun.record.tool != definition.tool:  # it was made under another declaration, and keeps that
            definition = ledger.definition(begun.record.tool, begun.record.definition)
        return begun, definition, ledger

    async def _sent(
        self, wire: Wire, ledger: Ledger, claim: Claim, definition: Definition, cancelled: asyncio.CancelledError | None
    ) -> tuple[Judged, asyncio.CancelledError | None]:
        if cancelled:
            words = "cancelled before anything was sent"
            return Judged(Outcome(State.PREPARED, "prepare", True, words), words=words), cancelled
        try:
            answer = await exchange(wire, self.end, transport=self.client._transport, claim=claim)
        except Failed as problem:
            return judge_failure(problem.failure), None
        except asyncio.CancelledError as problem:
            return judge_failure(problem.failure), problem  # type: ignore[attr-defined]
        again = False
        if claim.attempt > 1:
            again, cancelled = await _durable(may_have_arrived_before, ledger, claim)
        query = definition.query
        reference = query.reference if isinstance(query, HttpQuery) else None
        key = claim.record.key
        return judge(answer, key=key, again=again, refusals=self.client.refusals, reference=reference), cancelled

    async def _others(self, ledger: Ledger, record: Record) -> Record:
        """What becomes of it in the hands of whoever has it, as far as our own deadline lets us see."""
        pause, longest = OTHERS_S
        while record.state is State.DISPATCHING and (left := self.end - clock.monotonic()) > 0:
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, longest)
            record = await asyncio.to_thread(_swept, ledger, record.op_id)
        return record

    def _followed_until(self, record: Record) -> float | None:
        follow, now = self.client.follow, clock.monotonic()
        if follow is False:
            return None
        left = (record.recovery_ms - record.updated_ms) / 1000
        left = left if follow is True else min(left, float(follow))
        outer = deadlines.remaining()
        return now + (left if outer is None else min(left, outer))


def _swept(ledger: Ledger, op_id: str) -> Record:
    ledger.sweep_one(op_id)
    return ledger.get(op_id)


def _as_it_is(ledger: Ledger, record: Record) -> Record:
    """What others have made of it; unknown where that cannot be read either."""
    try:
        return ledger.get(record.op_id)
    except LedgerError:
        return replace(record, state=State.UNKNOWN, owner=None, lease_ms=None)


async def _kept(ledger: Ledger, claim: Claim, place: str) -> asyncio.CancelledError | None:
    """Our cancellation meanwhile. What cannot be kept is no reason not to write down how the attempt ended."""
    with suppress(LedgerError):
        return (await _durable(keep, ledger, claim, place))[1]
    return None


async def _durable(function: Callable[..., T], *arguments: Any) -> tuple[T, asyncio.CancelledError | None]:
    """(its value, our cancellation while it ran). It is waited for in any case: what it writes must have an owner."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError as problem:
            cancelled = problem
    try:
        return work.result(), cancelled
    except Exception:
        if cancelled:
            raise cancelled from None
        raise


class HttpEffects:
    """The same for blocking code. What it is given and what it promises is AsyncHttpEffects's."""

    def __init__(self, base_url: str, **options: Any) -> None:
        self._effects = AsyncHttpEffects(base_url, **options)

    def request(self, method: str, path: str, **given: Unpack[WriteOptions]) -> ToolResult:
        return _run(self._effects.request(method, path, **given))

    def post(self, path: str, **given: Unpack[WriteOptions]) -> ToolResult:
        return self.request("POST", path, **given)

    def put(self, path: str, **given: Unpack[WriteOptions]) -> ToolResult:
        return self.request("PUT", path, **given)

    def patch(self, path: str, **given: Unpack[WriteOptions]) -> ToolResult:
        return self.request("PATCH", path, **given)

    def delete(self, path: str, **given: Unpack[WriteOptions]) -> ToolResult:
        return self.request("DELETE", path, **given)


def _run(work: Coroutine[Any, Any, T]) -> T:
    return portal.run(work)
