# SPDX-License-Identifier: Apache-2.0
"""How far a request has come, told by the trace events of httpcore, or by the error where there are none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import clock
from ..ledger import crash
from ..ledger.records import Claim
from ..ledger.states import Phase

__all__ = ["Failure", "Watch", "phase_by_name"]

# Classes of httpx and httpx2 alike, by their names.
_BY_NAME = {
    "ConnectError": Phase.CONNECT, "ConnectTimeout": Phase.CONNECT, "PoolTimeout": Phase.CONNECT,
    "UnsupportedProtocol": Phase.CONNECT, "WriteError": Phase.WRITE_REQUEST, "WriteTimeout": Phase.WRITE_REQUEST,
    "ReadError": Phase.AWAIT_RESPONSE, "ReadTimeout": Phase.AWAIT_RESPONSE, "RemoteProtocolError": Phase.AWAIT_RESPONSE,
    "DecodingError": Phase.DECODE,
}  # fmt: skip
_RESET = frozenset({"ReadError", "WriteError"})
_OVER = "response deadline exceeded"


@dataclass(frozen=True, slots=True)
class Failure:
    """Where a request without a whole answer ended, as seen from here. `late`: by the deadline.

    `status` and `headers` are those of an answer whose body did not come. In the phase `connect` nothing of the request
    has left; in every other one its server may have had it all, or nothing.
    """

    phase: Phase
    certain: bool
    observation: str
    late: bool = False
    status: int | None = None
    headers: dict[str, str] | None = None

    @property
    def not_sent(self) -> bool:
        return self.phase is Phase.CONNECT and self.certain


class TooLateToSend(Exception):
    """The right to send ended before the first byte was written."""


def phase_by_name(problem: BaseException) -> Phase | None:
    return next((_BY_NAME[each.__name__] for each in type(problem).__mro__ if each.__name__ in _BY_NAME), None)


class Watch:
    """One request. Nothing of it is written after `until` on CLOCK_MONOTONIC, or once `claim` is over."""

    def __init__(self, total: int, *, until: float | None = None, claim: Claim | None = None) -> None:
        self.phase, self.total, self.until, self.claim = Phase.CONNECT, total, until, claim
        self.traced = self._tunnel = self._broken = False
        self.handed = False  # to a transport that may not tell what it does
        self.written = self.read = 0
        self.expected: int | None = None
        self.status: int | None = None
        self.headers: dict[str, str] | None = None

    async def trace(self, name: str, info: dict[str, Any]) -> None:
        """The `trace` extension of an asynchronous transport."""
        self.note(name, info)

    def note(self, name: str, info: dict[str, Any]) -> None:
        """The same for a blocking one. Raises TooLateToSend."""
        event = name.rpartition(".")[0].rpartition(".")[2]  # http11.send_request_body.complete
        end = name.rpartition(".")[2]
        self.traced = True
        if end == "started" and "request" in info:
            self._tunnel = info["request"].method == b"CONNECT"  # to a proxy, not to the one who is to act
        if self._tunnel:
            return
        match event, end:
            case "send_request_headers", "started":
                crash.at("http.connected")
                if self._is_too_late():
                    raise TooLateToSend("the right to send it ended before it could be written")
                self.phase = Phase.WRITE_REQUEST
            case "send_request_headers", "failed" if type(info["exception"]).__name__ == "LocalProtocolError":
                self.phase = Phase.CONNECT  # it was never made into bytes
            case "send_request_headers" | "send_request_body", "failed":
                self._broken = True
            case "send_request_body", "complete":
                self.phase = Phase.AWAIT_RESPONSE
                crash.at("http.written")
            case "receive_response_headers", "complete":
                self.phase = Phase.READ_RESPONSE

    def _is_too_late(self) -> bool:
        late = self.until is not None and clock.monotonic() >= self.until
        return late or (self.claim is not None and self.claim.is_over())

    def answered(self, response: Any) -> None:
        """Its head is there."""
        self.phase, self.status = Phase.READ_RESPONSE, response.status_code
        self.headers = {name.lower(): value for name, value in response.headers.multi_items()}
        length = self.headers.get("content-length", "")
        self.expected = int(length) if length.isdecimal() and len(length) < 18 else None

    def late(self) -> Failure:
        """The deadline is over now."""
        if self.phase is Phase.CONNECT:
            if self.handed and not self.traced:
                return self._failure(Phase.AWAIT_RESPONSE, False, _OVER, late=True)
            return self._failure(Phase.CONNECT, True, "the deadline was over before a connection was there", late=True)
        return self._failure(self.phase, True, f"{_OVER} {self._after()}", late=True)

    def failed(self, problem: BaseException) -> Failure:
        """It ended by this error."""
        words = f"{type(problem).__name__}: {problem}".rstrip(": .")
        phase, certain = self._phase(problem)
        if phase is Phase.CONNECT:
            return self._failure(phase, certain, f"nothing was sent: {words}")
        lost = "the connection was reset" if type(problem).__name__ in _RESET else "the answer was lost"
        return self._failure(phase, certain, f"{lost} {self._after(phase)}: {words}")

    def undecodable(self, words: str) -> Failure:
        """The answer is there, and cannot be read."""
        return self._failure(Phase.DECODE, True, f"status {self.status}, and {words}")

    def _phase(self, problem: BaseException) -> tuple[Phase, bool]:
        named = phase_by_name(problem)
        if not self.traced and self.phase is Phase.CONNECT:
            if named is not None:
                return named, named is Phase.CONNECT
            return (Phase.AWAIT_RESPONSE, False) if self.handed else (Phase.CONNECT, True)
        # A reset while waiting: how much of the request the other side had read, nobody here can say.
        return self.phase, not self._broken and not (
            type(problem).__name__ in _RESET and self.phase is not Phase.CONNECT
        )

    def _after(self, phase: Phase | None = None) -> str:
        match phase or self.phase:
            case Phase.WRITE_REQUEST:
                return f"after {self.written} of {self.total} bytes of the request's body"
            case Phase.READ_RESPONSE:
                whole = "an unknown number" if self.expected is None else self.expected
                return f"after {self.read} of {whole} bytes of the response's body (status {self.status})"
            case _:
                return "after request write"

    def _failure(self, phase: Phase, certain: bool, words: str, *, late: bool = False) -> Failure:
        text = words if len(words) <= 400 else f"{words[:400]}..."
        return Failure(phase, certain, text, late, self.status, self.headers)
