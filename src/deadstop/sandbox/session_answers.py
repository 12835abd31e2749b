# SPDX-License-Identifier: Apache-2.0
"""What a session's driver writes, taken apart: the output of each run, and the answer at its end. No I/O.

Both streams carry whatever the code prints; what belongs to a run lies between two marks that nobody could know before
(see drivers/). What comes after the second mark and before the next first one was printed by something that a run left
behind. Everything here is written by a sandbox, and bounded.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from ..results import Output
from ..supervisor.output import Tail

FRAME_BYTES = 4096
ANSWER_BYTES = 16 << 20
TEXT_CHARS = 10_000_000  # of one result
RESULTS = 256
TYPE_CHARS = 100


class Damaged(Exception):
    """The driver sent what no driver of ours sends."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Of one run: where its output begins and where it ends."""

    begin: bytes
    end: bytes

    @classmethod
    def new(cls) -> Marks:
        return cls(secrets.token_hex(16).encode("ascii"), secrets.token_hex(16).encode("ascii"))


class _Stream:
    """One of the two. `heads` are the frames it waits for, in their order; `parts` has an entry for each so far."""

    def __init__(self, tail: int) -> None:
        self.tail = tail
        self.heads: list[bytes] = []
        self.parts = [Tail(tail)]
        self.payload = bytearray()
        self._held = b""

    def expect(self, marks: Marks, tail: int) -> None:
        self.tail = tail
        self.heads = [b"\x1e" + mark + b" " for mark in (marks.begin, marks.end)]
        self.parts, self.payload = self.parts[-1:], bytearray()

    @property
    def done(self) -> bool:
        return not self.heads and len(self.parts) == 3

    def feed(self, data: bytes) -> None:
        data = self._held + data if self._held else data
        self._held, at = b"", 0
        while self.heads:
            head = self.heads[0]
            start = data.find(head, at)
            if start < 0:
                end = max(at, len(data) - _begun(data, head))
                self.parts[-1].feed(data[at:end])
                self._held = data[end:]
                return
            self.parts[-1].feed(data[at:start])
            end = data.find(b"\n", start, start + FRAME_BYTES)
            if end < 0:
                if len(data) - start >= FRAME_BYTES:
                    raise Damaged("a frame without an end")
                self._held = data[start:]
                return
            self._frame(data[start + len(head) : end])
            at = end + 1
        self.parts[-1].feed(data[at:])

    def _frame(self, text: bytes) -> None:
        sign, rest = text[:1], text[1:]
        if sign not in (b"+", b"."):
            raise Damaged("a frame of no kind")
        if len(self.payload) + len(rest) > ANSWER_BYTES:
            raise Damaged(f"an answer of more than {ANSWER_BYTES} bytes")
        self.payload += rest
        if sign == b".":
            del self.heads[0]
            self.parts.append(Tail(self.tail))

    def flush(self) -> None:
        """No more will come: what looked like the beginning of a frame was none."""
        self.parts[-1].feed(self._held)
        self._held = b""


def _begun(data: bytes, head: bytes) -> int:
    """How many bytes at the end of `data` may be the beginning of `head`, which has its first byte only once."""
    start = data.rfind(head[:1], max(0, len(data) - len(head)))
    return len(data) - start if start >= 0 and head.startswith(data[start:]) else 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a driver says at the end of a run."""

    exit: int
    error: str | None = None
    results: tuple[dict[str, str], ...] = field(default=())


class Reading:
    """The two streams of a driver, run after run."""

    def __init__(self, tail: int) -> None:
        self._streams = {"stdout": _Stream(tail), "stderr": _Stream(tail)}

    def expect(self, marks: Marks, tail: int) -> None:
        """The next run has these marks. What came since the last one is its `before`."""
        for stream in self._streams.values():
            stream.expect(marks, tail)

    def feed(self, stream: str, data: bytes) -> None:
        """Raises Damaged."""
        self._streams[stream].feed(data)

    @property
    def begun(self) -> bool:
        """Whether the driver has taken the run up."""
        return any(len(stream.parts) > 1 for stream in self._streams.values())

    @property
    def done(self) -> bool:
        return all(stream.done for stream in self._streams.values())

    def answer(self) -> Answer:
        """Of a run that is done. Raises Damaged."""
        return answer_of(bytes(self._streams["stdout"].payload))

    def before(self) -> tuple[Output, Output]:
        """What was printed since the last run, by what that and others left behind."""
        out, err = (stream.parts[0].output() for stream in self._streams.values())
        return out, err

    def output(self) -> tuple[Output, Output]:
        """What was printed during the run, so far."""
        out, err = (
            stream.parts[1].output() if len(stream.parts) > 1 else Output() for stream in self._streams.values()
        )
        return out, err

    def flush(self) -> None:
        """The driver is gone."""
        for stream in self._streams.values():
            stream.flush()


def taken_out(data: bytes, mark: bytes) -> tuple[bytes, bytes | None]:
    """What was printed, without the frames that have this mark; and the text of these, if they are all there."""
    stream = _Stream(len(data))
    stream.heads = [b"\x1e" + mark + b" "]
    stream.feed(data)
    stream.flush()
    printed = b"".join(part.output().raw for part in stream.parts)
    return printed, None if stream.heads else bytes(stream.payload)


def answer_of(text: bytes) -> Answer:
    """An exit status alone, or an object. Raises Damaged for anything else."""
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise Damaged(f"an answer that cannot be read: {problem}"[:200]) from None
    if isinstance(found, int):
        found = {"exit": found}
    if not isinstance(found, dict) or not _is_small(found.get("exit")):
        raise Damaged("an answer without an exit status")
    error, results = found.get("error"), found.get("results") or []
    if not isinstance(error, str | None) or not isinstance(results, list) or len(results) > RESULTS:
        raise Damaged("an answer with other fields")
    return Answer(found["exit"], error, tuple(_result(each) for each in results))


def _is_small(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 255


def _result(given: Any) -> dict[str, str]:
    if isinstance(given, dict):
        kind, data = given.get("type"), given.get("data")
        if isinstance(kind, str) and len(kind) <= TYPE_CHARS and isinstance(data, str) and len(data) <= TEXT_CHARS:
            return {"type": kind, "data": data}
    raise Damaged("a result with other fields")
