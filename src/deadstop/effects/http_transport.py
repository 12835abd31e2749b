# SPDX-License-Identifier: Apache-2.0
"""For programs with a plain httpx2 or httpx client: a transport around its transport.

    with httpx.Client(transport=EffectTransport(op)) as client:      # op: what the tool function was given
        client.post("https://api.example.org/deployments", json={...})

It adds the operation's headers to the write, lets exactly one write go out, and makes of whatever goes wrong the error
that says what is known: NotSent, Rejected, or EffectError for what nobody can say. The whole answer is read before the
client gets it. Timeouts are the client's own, which hold for each step, not for all of them: for a total deadline use
`send` or the tool's own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any

from ..errors import EffectError
from ..operation import Operation
from .http_errors import error_of, until_of
from .http_exchange import MOST_BYTES, Answer, plain_transport
from .http_phase import Watch
from .http_verdict import judge, judge_failure

__all__ = ["AsyncEffectTransport", "EffectTransport"]

_READS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


class _Guard:
    """What both transports have in common: one operation, one write."""

    def __init__(self, op: Operation, refusals: Collection[int], answers: bool) -> None:
        self._op, self._refusals, self._answers = op, frozenset(refusals), answers
        until_of(op)  # while the wall clock is as it was when the operation was made
        self._lock = threading.Lock()
        self._left = False

    def begin(self, request: Any, trace: Callable[[Watch, Any], Any]) -> Watch | None:
        """None for a read. Raises EffectError for a second write."""
        request.headers["X-Correlation-ID"] = self._op.correlation
        if request.method in _READS:
            return None
        with self._lock:
            if self._left:
                raise EffectError("not sent again: a write of this operation has left already", phase="prepare")
            self._left = True
        request.headers.update(self._op.headers())
        watch = Watch(int(request.headers.get("content-length") or 0), until=until_of(self._op))
        request.extensions = {**request.extensions, "trace": trace(watch, request.extensions.get("trace"))}
        watch.handed = True
        return watch

    def failed(self, watch: Watch, problem: BaseException) -> EffectError:
        judged = judge_failure(watch.failed(problem))
        error = error_of(judged)
        assert error is not None
        if watch.failed(problem).not_sent:
            self._left = False
        return error

    def answered(self, watch: Watch, response: Any, body: bytes) -> Any:
        """The whole response as one of its own kind. Raises what it stands for."""
        extensions = {name: value for name, value in response.extensions.items() if name != "network_stream"}
        try:
            whole = type(response)(response.status_code, headers=response.headers, content=body, extensions=extensions)
        except Exception as problem:  # packed, and not as it says
            raise self.failed_in(watch, str(problem)) from problem
        answer = Answer(response.status_code, watch.headers or {}, whole.content)
        error = error_of(judge(answer, key=self._op.key, again=self._op.attempt > 1, refusals=self._refusals))
        if error is not None and self._answers:
            raise error
        return whole

    def failed_in(self, watch: Watch, words: str) -> EffectError:
        error = error_of(judge_failure(watch.undecodable(words)))
        assert error is not None
        return error


class EffectTransport:
    """Around a blocking transport of httpx2 or httpx; a new one of the client's own library if `inner` is None.

    refusals: as for AsyncHttpEffects. answers=False leaves answers such as 422 or 503 to the client as responses; then
    the tool function has to say what they mean.
    """

    def __init__(
        self, op: Operation, inner: Any = None, *, refusals: Collection[int] = (), answers: bool = True
    ) -> None:
        self._guard = _Guard(op, refusals, answers)
        self._inner = inner

    def handle_request(self, request: Any) -> Any:
        if self._inner is None:
            self._inner = plain_transport(request, "HTTPTransport")
        watch = self._guard.begin(request, _blocking)
        if watch is None:
            return self._inner.handle_request(request)
        try:
            response = self._inner.handle_request(request)
            watch.answered(response)
            body = bytearray()
            try:
                for piece in response.stream:
                    body += _counted(watch, len(body) + len(piece), piece)
            finally:
                response.close()
        except EffectError:
            raise
        except Exception as problem:
            raise self._guard.failed(watch, problem) from problem
        return self._guard.answered(watch, response, bytes(body))

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()

    def __enter__(self) -> EffectTransport:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()


class AsyncEffectTransport:
    """The same around an asynchronous transport."""

    def __init__(
        self, op: Operation, inner: Any = None, *, refusals: Collection[int] = (), answers: bool = True
    ) -> None:
        self._guard = _Guard(op, refusals, answers)
        self._inner = inner

    async def handle_async_request(self, request: Any) -> Any:
        if self._inner is None:
            self._inner = plain_transport(request, "AsyncHTTPTransport")
        watch = self._guard.begin(request, _awaited)
        if watch is None:
            return await self._inner.handle_async_request(request)
        try:
            response = await self._inner.handle_async_request(request)
            watch.answered(response)
            body = bytearray()
            try:
                async for piece in response.stream:
                    body += _counted(watch, len(body) + len(piece), piece)
            finally:
                await response.aclose()
        except EffectError:
            raise
        except Exception as problem:
            raise self._guard.failed(watch, problem) from problem
        return self._guard.answered(watch, response, bytes(body))

    async def aclose(self) -> None:
        if self._inner is not None:
            await self._inner.aclose()

    async def __aenter__(self) -> AsyncEffectTransport:
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        await self.aclose()


def _counted(watch: Watch, size: int, piece: bytes) -> bytes:
    watch.read = size
    if size > MOST_BYTES:
        raise EffectError(f"the reply is longer than {MOST_BYTES} bytes", phase="read_response")
    return piece


def _blocking(watch: Watch, before: Any) -> Callable[[str, dict[str, Any]], None]:
    """Our trace, and then the one that the client had."""

    def trace(name: str, info: dict[str, Any]) -> None:
        watch.note(name, info)
        if before is not None:
            before(name, info)

    return trace


def _awaited(watch: Watch, before: Any) -> Any:
    async def trace(name: str, info: dict[str, Any]) -> None:
        watch.note(name, info)
        if before is not None:
            await before(name, info)

    return trace
