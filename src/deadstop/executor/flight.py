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
from ..boundary.reaper import state_of
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
from .refusals import cannot_be_sent, lease_is_over, over_before_start
from .surroundings import surroundings
from .workers import Pool, Worker

if TYPE_CHECKING:
    from .functions import Target
    from .kept import KeptWorker
    from .tool import Call

BACKSTOP_S = 0.5  # how long after a deadline the supervisor's report may take before this process acts itself
SIGN_OF_LIFE_S = 0.5  # how much longer, once this process has acted
SWEEP_S = 3.5  # the same where a kill is a sweep: nothing but the supervisor can do it
PROOF_S = 5.0
LOAD_S = 60.0  # loading a function: importing what it needs, before its own limit begins
LEAD_S = 0.08
_INFINITE = float("inf")
_LEFT = LEFT_PROCESSES | LEFT_THREADS
_monotonic = clock.monotonic


class State(Enum):
    LOADING = "loading"  #: the worker makes the function its own; the call has not begun
    RUNNING = "running"
    FREEZING = "freezing"  #: the soft limit is over: what it is doing is being read
    PRINTED = "printed"  #: it has answered; what it printed is being asked for
    ENDING = "ending"  #: it was, or is to be, killed, or died: the report is awaited


class Flight:
    """A call that is being run. Not for two threads at once."""

    __slots__ = (
        "answer", "call", "cancel_reason", "died_unsent", "end", "fd", "in_time", "limit", "messages", "number",
        "overdue_at", "pool", "question", "queued", "soft_at", "started", "started_at", "state", "target",
        "threads_left", "worker",
    )  # fmt: skip

    def __init__(self, call: Call, pool: Pool | KeptWorker, worker: Worker, queued: float) -> None:
        self.call, self.pool, self.worker = call, pool, worker
        self.queued = self.started = queued  # when it got in line, and when it began
        self.started_at = ""
        self.number = worker.number
        self.target: tuple[int, Target] = (0, b"")
        self.messages: list[Progress] = []
        self.limit: FiredLimit | None = None
        self.end = self.overdue_at = _INFINITE  # its deadline, and when to stop waiting for the supervisor
        self.answer: tuple[int, Any] | None = None
        self.in_time = False  # the answer was
        self.cancel_reason: str | None = None
        self.question: tuple[str, list[bytes]] | None = None
        self.soft_at: float | None = None
        self.died_unsent = False
        self.threads_left = False
        self.state = State.RUNNING
        self.fd = worker.port.socket.fileno()

    # -- start -------------------------------------------------------------------------------------------------------

    def load(self, number: int, target: Target, body: bytes) -> None:
        """Have the worker make the function its own, then begin. Not part of the call's own time."""
        worker = self.worker
        self.target, self.state = (number, target), State.LOADING
        self.started_at = clock.now_iso()
        until, self.limit = self.call.outer()
        if (own := _monotonic() + LOAD_S) < until:
            until, self.limit = own, FiredLimit("call", LOAD_S, "default")
        self._until(until)
        changed = surroundings(worker)
        first = dumps(changed, 5) if changed else b""
        self._send(LOAD, 0, len(first).to_bytes(4, "little") + first + body)

    def begin(self, target: Target) -> None:
        """Write the deadline, and hand the call over."""
        call = self.call
        end, self.limit = call.resolve()
        self.started, self.started_at = _monotonic(), clock.now_iso()
        if call.tool.soft_timeout is not None:
            self.soft_at = self.started + call.tool.soft_timeout
        flags, body = call.pack(target, end, surroundings(self.worker))
        self._until(end)
        self._send(RUN, flags, body)

    def _until(self, end: float) -> None:
        """From here on the supervisor kills it at `end`."""
        self.end, self.overdue_at = end, end + BACKSTOP_S
        worker = self.worker
        if end == _INFINITE:
            worker.slot.begin(_INFINITE, 0.0)
            return
        lead = min((end - self.started) * 0.25, LEAD_S)
        worker.slot.begin(end, lead)
        # Armed for an earlier call it fires too early, and the supervisor finds this one in the slot. To be read in
        # this order: what is armed and not over yet fires after the slot was written.
        if not _monotonic() < worker.timer.armed <= end - lead:
            worker.timer.arm(end - lead)

    def _send(self, kind: int, flags: int, body: bytes) -> None:
        worker = self.worker
        worker.number = self.number = worker.number + 1
        try:
            worker.port.send(kind, flags, self.number, body)
        except OSError:
            self.was_dead()

    def was_dead(self) -> Flight:
        """The worker had ended before it was handed the call: nothing has run."""
        self.died_unsent = True
        self._expect_end()
        return self

    # -- what comes --------------------------------------------------------------------------------------------------

    def step(self, flags: int = 0) -> ToolResult | None:
        """`fd` can be read: read it. Raises BlockingIOError if it cannot after all."""
        if self.state not in (State.RUNNING, State.LOADING):
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
        if number != self.number:
            return None  # an answer to something older is never a result
        if self.state is State.LOADING:
            return self._loaded(kind, bits, body) if kind in (LOADED, RAISED) else None
        return self._answered(kind, bits, body) if kind in (VALUE, RAISED) else None

    def _loaded(self, kind: int, bits: int, body: Any) -> ToolResult | None:
        worker = self.worker
        worker.slot.end()
        if kind == RAISED:
            result = outcome.answered(self, RAISED, body, _monotonic())
            if bits & _LEFT:
                self.pool.lose(worker, replace=True)
            else:
                self.pool.give(worker)
            return result
        self._learn(bytes(body).decode("utf-8", "replace"), bits)
        number, target = self.target
        self.state = State.RUNNING
        refused = hand_over(self, target)
        if refused is None:
            worker.known.add(number)
        return refused

    def _learn(self, imported: str, flags: int) -> None:
        """A module that a worker has imported without starting anything may be loaded before the fork from now on."""
        modules = [name for name in imported.split("\n") if name]
        own = self.call.tool.sent.module
        if own and own not in modules:
            modules.append(own)
        if modules and not flags & _LEFT:
            self.pool.warm_up(modules)

    def _answered(self, kind: int, bits: int, body: Any) -> ToolResult | None:
        worker = self.worker
        now = _monotonic()
        if now <= self.end:
            worker.slot.end()
            now = _monotonic()
        if now > self.end or self.cancel_reason is not None:
            self.answer = (kind, bytes(body))
            self._order_end("timeout" if self.cancel_reason is None else "cancelled", self.cancel_reason)
            return None
        if worker.slot.printed != worker.printed:
            bits |= WROTE
        if bits & _LEFT and not self.pool.keeps_remains:
            self._keep(kind, body, now)
            self.threads_left = bool(bits & LEFT_THREADS)
            self._order_end("completed", None)
            return None
        if bits & WROTE:
            self._keep(kind, body, now)
            worker.order("printed")
            self.state, self.fd, self.overdue_at = State.PRINTED, worker.reports.socket.fileno(), now + BACKSTOP_S
            return None
        result = outcome.answered(self, kind, body, now)
        self.pool.give(worker)
        return result

    def _keep(self, kind: int, body: Any, now: float) -> None:
        """It has completed; the supervisor knows more about it."""
        self.answer, self.in_time = (kind, bytes(body)), True
        self.limit, self.end = None, now

    def _progress(self, number: int, body: Any) -> None:
        if number != self.number:
            return
        if len(body) > answers.MESSAGE_BYTES[self.worker.level]:
            raise Damaged("a message that is too long")
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
        if self.cancel_reason is None and self.state in (State.LOADING, State.RUNNING, State.FREEZING):
            self.cancel_reason = reason
            self._order_end("cancelled", reason)

    def end_by_limit(self) -> None:
        """The soft limit's answer is to kill it."""
        self._order_end("timeout", None, end=None)

    def freeze(self, answer_by: float) -> None:
        self.worker.order("freeze", answer_by)
        self.state, self.fd = State.FREEZING, self.worker.reports.socket.fileno()
        self.soft_at = None

    def thaw(self) -> None:
        self.worker.order("thaw")
        self.state, self.fd, self.question = State.RUNNING, self.worker.port.socket.fileno(), None

    def _expect_end(self) -> None:
        """It is gone, or does not talk any more: then it is to go."""
        self._order_end("crashed", None)

    def _order_end(self, status: str, reason: str | None, end: float | None = _INFINITE) -> None:
        if end == _INFINITE:
            end = None if self.end == _INFINITE else self.end
        self.worker.order("kill", status, reason, end)
        self.state, self.fd = State.ENDING, self.worker.reports.socket.fileno()
        self.overdue_at = _monotonic() + BACKSTOP_S + SIGN_OF_LIFE_S

    # -- the end -----------------------------------------------------------------------------------------------------

    def _step_report(self, flags: int) -> ToolResult | None:
        try:
            packet = self.worker.reports.receive(flags)
        except Damaged:
            packet = None
        if packet is None:
            return self.lost("the supervisor ended")
        kind, _, _, body = packet
        if kind == GONE:
            return self._gone(bytes(body))
        if kind == TOLD and self.state is State.FREEZING:
            document, tails = marshal.loads(bytes(body))
            self.question = (document, tails)
        elif kind == TOLD and self.state is State.PRINTED:
            return self._printed(marshal.loads(bytes(body)))
        return None  # an answer that was asked for before something else happened

    def _printed(self, told: list[tuple[bytes, int, int]]) -> ToolResult:
        assert self.answer is not None
        result = outcome.answered(self, *self.answer, self.end)
        self.worker.printed = self.worker.slot.printed
        self.pool.give(self.worker)
        return outcome.with_output(result, told)

    def _gone(self, body: bytes) -> ToolResult:
        """The worker's one report: it was killed, or died."""
        died_at, document = marshal.loads(body)
        report = ToolResult.from_dict(json.loads(document))
        self._drop_worker()
        if report.status is Status.CRASHED and died_at is not None and died_at <= self.started and self.answer is None:
            self.died_unsent = True
        return outcome.reported(self, report)

    def _drop_worker(self) -> None:
        self.pool.lose(self.worker, replace=True)

    def lost(self, why: str) -> ToolResult:
        """No report has come in time: end the worker from here. If none comes even then, the supervisor goes, too.

        A call that had its answer in time keeps it: only what the supervisor knows of it is missing.
        """
        worker = self.worker
        worker.kill_from_here()
        if self.in_time:
            result = outcome.untold(self, why)
            self._drop_worker()
            return result
        late = self._late_report()
        if late is not None:
            return ToolResult.made({**vars(late), "degraded": (*late.degraded, f"{why}: the caller ended it")})
        supervisor.kill(self.pool.process)
        gone = bool(wait_readable([worker.exit_fd], PROOF_S))
        result = outcome.unreported(self, why, gone=gone)
        self._drop_worker()
        self.pool.give_up()
        return result

    def _late_report(self) -> ToolResult | None:
        """A supervisor that lives reports the end that we made, when it has come."""
        worker = self.worker
        reports, gone = worker.reports.socket.fileno(), False
        until = _monotonic() + (PROOF_S + SIGN_OF_LIFE_S if worker.namespace else SWEEP_S)
        if state_of(self.pool.process.pid) in "TtZX":
            until = _monotonic()  # the supervisor is stopped, or dead
        while (left := until - _monotonic()) > 0:
            ready = wait_readable([reports] if gone else [reports, worker.exit_fd], left)
            if reports in ready:
                try:
                    packet = worker.reports.receive()
                except Damaged:
                    return None
                if packet is None or packet[0] == GONE:
                    return None if packet is None else self._gone(bytes(packet[3]))
            elif ready:
                gone, until = True, min(until, _monotonic() + SIGN_OF_LIFE_S)
        return None


def hand_over(flight: Flight, target: Target) -> ToolResult | None:
    """Begin, unless it is too late or what it takes cannot be sent: then the result, and the worker is free again."""
    call, worker, pool = flight.call, flight.worker, flight.pool
    end, limit = call.resolve()
    if end <= _monotonic():
        pool.give(worker)
        return over_before_start(call, limit)
    if (refused := lease_is_over(call)) is not None:
        pool.give(worker)
        return refused
    try:
        flight.begin(target)
    except Exception as problem:  # whatever pickling somebody's objects may raise
        worker.slot.end()
        worker.forget_surroundings()
        pool.give(worker)
        return cannot_be_sent(call, problem)
    return None
