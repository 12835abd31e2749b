# SPDX-License-Identifier: Apache-2.0
"""One call on a worker, from its first byte to its one result, for whoever waits for it and however.

A face (blocking, event loop, batch) watches `fd`, and calls `step` when that can be read until there is a result.
The deadline is not kept here: it stands in the worker's slot, and the supervisor keeps it. What is kept here is the
line that decides: a call has completed if its answer was read, the slot cleared and the clock looked at before the
deadline; a later answer is evidence.
"""

from __future__ import annotations

import json
import marshal
from enum import Enum
from pickle import dumps
from typing import TYPE_CHECKING, Any

from .. import clock, messages
from ..packing import (
    GONE,
    LEFT_PROCESSES,
    LEFT_THREADS,
    LOAD,
    LOADED,
    PROGRESS,
    RAISED,
    RUN,
    TOLD,
    VALUE,
    WROTE,
    Damaged,
)
from ..results import FiredLimit, Progress, Status, ToolResult
from . import answers, outcome
from .private import supervisor, wait_readable
from .workers import Pool, Worker, surroundings

if TYPE_CHECKING:
    from .functions import Target
    from .kept import KeptWorker
    from .tool import Call

BACKSTOP_S = 0.5  # how long after a deadline the supervisor's report may take before this process acts itself
SIGN_OF_LIFE_S = 0.5  # how much longer, once this process has acted
PROOF_S = 5.0
SPAWN_S = 60.0  # loading a function: importing what it needs, before its own limit begins
LEAD_S = 0.08
_INFINITE = float("inf")
_monotonic = clock.monotonic


class State(Enum):
    RUNNING = "running"
    FREEZING = "freezing"  #: the soft limit is over: what it is doing is being read
    PRINTED = "printed"  #: it has answered; what it printed is being asked for
    ENDING = "ending"  #: it was, or is to be, killed, or died: the report is awaited


class Flight:
    """A call that is being run. Not for two threads at once."""

    __slots__ = (
        "answer",
        "call",
        "cancel_reason",
        "died_unsent",
        "end",
        "ended",
        "fd",
        "limit",
        "messages",
        "pool",
        "question",
        "queued",
        "soft_at",
        "started",
        "started_at",
        "state",
        "threads_left",
        "worker",
    )  # fmt: skip

    def __init__(self, call: Call, pool: Pool | KeptWorker, worker: Worker, queued: float) -> None:
        self.call, self.pool, self.worker = call, pool, worker
        self.queued = queued  # when it got in line
        self.messages: list[Progress] = []
        self.limit: FiredLimit | None = None
        self.end = _INFINITE
        self.started = queued
        self.started_at = ""
        self.answer: tuple[int, Any] | None = None
        self.cancel_reason: str | None = None
        self.question: tuple[str, list[bytes]] | None = None
        self.soft_at: float | None = None
        self.ended: ToolResult | None = None
        self.died_unsent = False
        self.threads_left = False
        self.state = State.RUNNING
        self.fd = worker.port.socket.fileno()

    # -- start -------------------------------------------------------------------------------------------------------

    def load(self, number: int, body: bytes) -> ToolResult | None:
        """Make the function known to the worker. Not part of the call's own time; a result if that ends it."""
        worker = self.worker
        worker.number += 1
        self.started_at = clock.now_iso()
        until, self.limit = self.call.outer()
        if (own := _monotonic() + SPAWN_S) < until:
            until, self.limit = own, FiredLimit("call", SPAWN_S, "default")
        self.end = until
        self._arm(worker, until)
        try:
            changed = surroundings(worker)
            first = dumps(changed, 5) if changed else b""
            worker.port.send(LOAD, 0, worker.number, len(first).to_bytes(4, "little") + first + body)
        except OSError:
            self.died_unsent = True
            return self._settled()
        while True:
            try:
                packet = worker.port.receive()
            except BlockingIOError:
                if _monotonic() > until + BACKSTOP_S:
                    return self.lost("the supervisor did not answer in time")
                continue
            except Damaged:
                packet = None
            if packet is None:
                return self._settled()
            kind, flags, _, answered = packet
            if kind in (LOADED, RAISED):
                break
        worker.slot.end()
        if kind == RAISED:
            return self._keep_or_lose(flags, outcome.answered(self, RAISED, answered, _monotonic()))
        worker.known.add(number)
        self._learn(bytes(answered).decode(), flags)
        return None

    def _learn(self, imported: str, flags: int) -> None:
        """A module that a worker has imported without starting anything may be loaded before the fork from now on."""
        modules = [name for name in imported.split("\n") if name]
        own = self.call.tool.sent.module
        if own and own not in modules:
            modules.append(own)
        if modules and not flags & (LEFT_THREADS | LEFT_PROCESSES):
            self.pool.warm_up(modules)

    def _settled(self) -> ToolResult:
        """The worker is gone, or is to go: wait for the report. Bounded."""
        self._expect_end()
        while True:
            if not wait_readable([self.fd], PROOF_S + BACKSTOP_S):
                return self.lost("the supervisor did not answer in time")
            if (result := self.step()) is not None:
                return result

    def begin(self, target: Target) -> None:
        """Write the deadline, and hand the call over."""
        call, worker = self.call, self.worker
        worker.number += 1
        self.end, self.limit = call.resolve()
        self.started = started = _monotonic()
        self.started_at = clock.now_iso()
        if call.tool.soft_timeout is not None:
            self.soft_at = started + call.tool.soft_timeout
        flags, body = call.pack(target, self.end, surroundings(worker))
        self._arm(worker, self.end)
        try:
            worker.port.send(RUN, flags, worker.number, body)
        except OSError:
            self.was_dead()

    def was_dead(self) -> Flight:
        """The worker had ended before it was handed the call: nothing has run."""
        self.died_unsent = True
        self._expect_end()
        return self

    def _arm(self, worker: Worker, end: float) -> None:
        if end == _INFINITE:
            worker.slot.begin(_INFINITE, 0.0)
            return
        lead = (end - self.started) * 0.25
        if lead > LEAD_S:
            lead = LEAD_S
        worker.slot.begin(end, lead)
        # Armed for an earlier call it fires too early, and the supervisor finds this one in the slot. To be read in
        # this order: what is armed and not over yet fires after the slot was written.
        if not _monotonic() < worker.timer.armed <= end - lead:
            worker.timer.arm(end - lead)

    # -- what comes --------------------------------------------------------------------------------------------------

    def step(self, flags: int = 0) -> ToolResult | None:
        """`fd` can be read: read it. Raises BlockingIOError if it cannot after all."""
        if self.state is not State.RUNNING:
            return self._step_report(flags)
        try:
            packet = self.worker.port.receive(flags)
        except Damaged:
            packet = None
        return self.take(packet)

    def take(self, packet: tuple[int, int, int, Any] | None) -> ToolResult | None:
        """What came from the worker; None if it is gone or does not talk as it should."""
        try:
            if packet is not None and packet[0] == PROGRESS:
                self._progress(packet[2], packet[3])
                return None
        except Damaged:
            packet = None
        if packet is None:
            self._expect_end()
            return None
        kind, bits, number, body = packet
        if number != self.worker.number or kind not in (VALUE, RAISED):
            return None  # an answer to something older is never a result
        return self._answered(kind, bits, body)

    def _answered(self, kind: int, bits: int, body: Any) -> ToolResult | None:
        self.worker.slot.end()
        now = _monotonic()
        if now > self.end or self.cancel_reason is not None:
            self.answer = (kind, bytes(body))
            self._order_end("timeout" if self.cancel_reason is None else "cancelled", self.cancel_reason)
            return None
        if self.worker.slot.printed != self.worker.printed:
            bits |= WROTE
        if bits:
            return self._with_remains(kind, bits, bytes(body), now)
        result = outcome.answered(self, kind, body, now)
        self.pool.give(self.worker)
        return result

    def _with_remains(self, kind: int, bits: int, body: bytes, now: float) -> ToolResult | None:
        """It left something running, or printed: the supervisor knows the rest."""
        self.answer = (kind, body)
        self.limit, self.end = None, now
        if bits & (LEFT_PROCESSES | LEFT_THREADS) and not self.pool.keeps_remains:
            self.threads_left = bool(bits & LEFT_THREADS)
            self._order_end("completed", None)
        elif bits & WROTE:
            self.worker.order("printed")
            self.state, self.fd = State.PRINTED, self.worker.reports.socket.fileno()
        else:
            result = outcome.answered(self, kind, body, now)
            self.pool.give(self.worker)
            return result
        return None

    def _expect_end(self) -> None:
        """It is gone, or does not talk any more: then it is to go."""
        self._order_end("crashed", None)

    def _order_end(self, status: str, reason: str | None) -> None:
        self.worker.order("kill", status, reason, None if self.end == _INFINITE else self.end)
        self.state, self.fd = State.ENDING, self.worker.reports.socket.fileno()

    def _step_report(self, flags: int) -> ToolResult | None:
        packet = self.worker.reports.receive(flags)
        if packet is None:
            return self.lost("the supervisor ended")
        kind, _, _, body = packet
        if kind == TOLD:
            told = marshal.loads(bytes(body))
            if self.state is State.FREEZING:
                self.question = (told[0], told[1])
                return None
            return self._printed(told)
        return self._gone(bytes(body)) if kind == GONE else None

    def _progress(self, number: int, body: Any) -> None:
        if number != self.worker.number:
            return
        try:
            message = Progress(*answers.load(self.worker.level, body))
        except Exception as problem:
            raise Damaged(f"a message that cannot be loaded: {problem}") from problem
        messages.add(self.messages, message)
        if self.call.on_progress is not None:
            self.call.on_progress(message)

    # -- asking ------------------------------------------------------------------------------------------------------

    def cancel(self, reason: str = "caller") -> None:
        """Have it killed. The result comes as always."""
        if self.cancel_reason is None and self.state in (State.RUNNING, State.FREEZING):
            self.cancel_reason = reason
            self._order_end("cancelled", reason)

    def end_by_limit(self) -> None:
        """The soft limit's answer is to kill it."""
        self.worker.order("kill", "timeout", None, None)
        self.state, self.fd = State.ENDING, self.worker.reports.socket.fileno()

    def freeze(self, answer_by: float) -> None:
        self.worker.order("freeze", answer_by)
        self.state, self.fd = State.FREEZING, self.worker.reports.socket.fileno()
        self.soft_at = None

    def thaw(self) -> None:
        self.worker.order("thaw")
        self.state, self.fd, self.question = State.RUNNING, self.worker.port.socket.fileno(), None

    @property
    def overdue_at(self) -> float:
        """When to stop waiting for the supervisor."""
        return self.end + BACKSTOP_S if self.state is not State.ENDING else _monotonic() + PROOF_S + BACKSTOP_S

    # -- the end -----------------------------------------------------------------------------------------------------

    def _printed(self, told: list[tuple[bytes, int, int]]) -> ToolResult:
        assert self.answer is not None
        result = outcome.answered(self, *self.answer, self.end)
        self.worker.printed = self.worker.slot.printed
        self.pool.give(self.worker)
        return outcome.with_output(result, told)

    def _keep_or_lose(self, flags: int, result: ToolResult) -> ToolResult:
        if flags & (LEFT_PROCESSES | LEFT_THREADS):
            self.pool.lose(self.worker, replace=True)
        else:
            self.pool.give(self.worker)
        return result

    def _gone(self, body: bytes) -> ToolResult:
        """The worker's one report: it was killed, or died."""
        died_at, document = marshal.loads(body)
        report = ToolResult.from_dict(json.loads(document))
        self._drop_worker()
        if report.status is Status.CRASHED and died_at is not None and died_at <= self.started and self.answer is None:
            self.died_unsent = True
        return outcome.reported(self, report)

    def _drop_worker(self) -> None:
        self.pool.lose(self.worker, replace=True)  # its slot is the supervisor's again, and may have a new call in it

    def lost(self, why: str) -> ToolResult:
        """No report has come in time: end the worker from here. If none comes even then, the supervisor goes, too."""
        self.worker.kill_from_here()
        result = self._late_report()
        if result is not None:
            return ToolResult.made({**vars(result), "degraded": (*result.degraded, f"{why}: the caller ended it")})
        supervisor.kill(self.pool.process)
        gone = bool(wait_readable([self.worker.exit_fd], PROOF_S))
        result = outcome.unreported(self, why, gone=gone)
        self._drop_worker()
        self.pool.give_up()
        return result

    def _late_report(self) -> ToolResult | None:
        """A supervisor that lives reports the end that we made."""
        until = _monotonic() + SIGN_OF_LIFE_S
        while (left := until - _monotonic()) > 0 and wait_readable([self.worker.reports.socket.fileno()], left):
            packet = self.worker.reports.receive()
            if packet is None:
                return None
            if packet[0] == GONE:
                return self._gone(bytes(packet[3]))
        return None
