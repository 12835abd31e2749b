# SPDX-License-Identifier: Apache-2.0
"""For tool functions: one write over HTTP in the name of the operation that deadstop gave them.

@deadstop.tool(timeout=30, effect=Effect(...))
def create_deployment(op: Operation, repository: str, revision: str):
    return send(op, "POST", "https://api.example.org/deployments", json={...}).json()
"""

from __future__ import annotations

import asyncio
import json as _json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from .. import clock, deadlines
from ..client.portal import portal
from ..errors import Accepted, EffectError, NotSent, Rejected, UsageError
from ..ledger.definition import Definition
from ..ledger.states import Verdict
from ..operation import Operation
from .http_errors import error_of, until_of
from .http_exchange import Answer, Failed, Wire, exchange
from .http_follow import FIRST_S, LONGEST_S, look, next_pause, place_from
from .http_intent import Write, headers_of
from .http_verdict import Judged, judge, judge_failure, reference_of

__all__ = ["Reply", "send", "send_async"]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that says that it was done. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    @property
    def etag(self) -> str | None:
        return self.headers.get("etag")

    @property
    def reference(self) -> str | None:
        """The authority's own name for what was done."""
        return reference_of(self.json() if self.body[:1] in (b"{", b"[") else None, Answer(self.status, self.headers))

    def json(self) -> Any:
        """Raises ValueError for a body that is no JSON."""
        return _json.loads(self.body)


def send(op: Operation, method: str, url: str, **given: Any) -> Reply:
    """As send_async, for blocking code."""
    return portal.run(send_async(op, method, url, **given))


async def send_async(
    op: Operation, method: str, url: str, *, json: Any = None, content: bytes | str | None = None,
    timeout: float = 30.0, if_match: str | None = None, headers: Mapping[str, str] | None = None,
    refusals: Collection[int] = (), transport: Any = None,
) -> Reply:  # fmt: skip
    """Send it once, with the operation's key, and give the answer if it was done; 202 is followed to its end.

    All within `timeout` seconds, or the nearest outer deadline. Raises UsageError for what cannot be sent; NotSent
    where surely nothing was done and it may come again; Rejected where the authority refused it; Accepted where it was
    taken and has not ended in time; EffectError where nobody can say. Let them out of the tool function: they tell
    deadstop what is known. After one that may have been done, the next of the same attempt raises EffectError instead
    of NotSent or Rejected: they would speak for the whole operation.
    """
    write = Write(method=method.upper(), url=url, json=json, content=content, if_match=if_match)
    wire = write.wire(headers_of(headers), op.key, op.correlation)
    if clock.check_limit("timeout", timeout) is None:
        raise UsageError("timeout=None is not allowed: a request has a deadline")
    end, _, _ = deadlines.resolve(timeout, "given")
    assert end is not None
    earlier = _left.get(op.id) == op.fence
    try:
        return await _sent(op, wire, end, transport, refusals)
    except (NotSent, Rejected) as error:
        if not earlier:
            _left.pop(op.id, None)
            raise
        words = f"{error}; an earlier request of this attempt may have been done"
        raise EffectError(words, phase=error.phase, observation=words, reference=error.reference) from error


_left: dict[str, int] = {}  # operations of which something may have been done, and under which fence
_MOST = 256


async def _sent(op: Operation, wire: Wire, end: float, transport: Any, refusals: Collection[int]) -> Reply:
    if end <= clock.monotonic():
        raise NotSent("the deadline was over before anything was sent", phase="prepare")
    if len(_left) >= _MOST:
        del _left[next(iter(_left))]
    _left[op.id] = op.fence
    try:
        answer = await exchange(wire, end, transport=transport, until=until_of(op))
        judged = judge(answer, key=op.key, again=op.attempt > 1, refusals=refusals)
    except Failed as problem:
        answer, judged = Answer(0), judge_failure(problem.failure)
    error = error_of(judged)
    if error is not None:
        raise error
    if judged.accepted:
        return await _ended(op, wire, judged, end, transport)
    return Reply(answer.status, answer.headers, answer.body)


async def _ended(op: Operation, wire: Wire, judged: Judged, end: float, transport: Any) -> Reply:
    """Where it was accepted to be done later."""
    told: dict[str, Any] = {"phase": judged.outcome.phase, "reference": judged.outcome.reference}
    place, wait, pause = place_from(wire.url, judged.place), judged.retry_after_s, FIRST_S
    seen = judged.words
    while place is not None and (left := end - clock.monotonic()) > 0:
        await asyncio.sleep(min(next_pause(pause, wait), left))
        pause = min(2 * pause, LONGEST_S)
        found = await look(wire, place, Definition(op.tool), end, transport)
        seen, wait = f"{found.source} {found.detail}", found.retry_after_s
        if found.verdict is Verdict.APPLIED:
            body = b"" if found.value is None else _json.dumps(found.value).encode()
            return Reply(200, {"content-type": "application/json"}, body)
        if found.verdict is Verdict.APPLIED_FAILED:
            raise Rejected(f"it was accepted and has failed: {seen}", observation=seen, **told)
    raise Accepted(f"it was accepted and has not ended: {seen}", observation=seen, retry_after=wait, **told)
