# SPDX-License-Identifier: Apache-2.0
"""Many calls at once: one loop in the calling thread that watches every flight."""

from __future__ import annotations

import contextvars
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any

from .. import clock
from ..errors import UsageError
from ..results import FiredLimit, Status, ToolResult
from .admission import Admission
from .flight import Flight, State
from .function import TRIES, abandon, launch, with_token_error
from .in_thread import in_thread
from .inline import run_inline
from .prepare import DEFAULT, Default
from .refusals import cancelled_before, never_ran, over_before_start
from .tasks import call_key
from .tokens import POLL_S, AnyOf, Token
from .tool import Call
from .workers import MAX_WORKERS, Pool, Waiter, Worker, pool_of

if TYPE_CHECKING:
    OnResult = Callable[[int, ToolResult], None]

_monotonic = clock.monotonic


def batch(
    calls: Iterable[Call], *, parallel: int = 1, timeout: float | Default | None = DEFAULT,
    deadline: float | None = None, cancel: Any = None, on_result: OnResult | None = None,
) -> list[ToolResult]:  # fmt: skip
    """Run calls, up to `parallel` of them at once, and return their results in the order of the calls.

    `timeout` (seconds) is the limit of each call whose tool was given none, counted from that call's own start; the
    time it waited before is `queued_s`. `deadline` bounds the whole batch: what runs then is killed, what has not
    begun is refused. `cancel` (any cancel token) ends what runs and what is to come; results that are there are kept.
    Calls that write the same declared resource (`writes`) run one after another, in their order.
    `on_result(index, result)` is called in this thread as results come.

    Raises UsageError before anything runs for what is not allowed.
    """
    listed = checked_calls(calls, parallel, timeout, deadline)
    return Engine(listed, parallel, cancel, on_result).run()


async def batch_async(calls: Iterable[Call], **options: Any) -> list[ToolResult]:
    """The async twin of `batch`. Cancelling the task that awaits it cancels the batch and waits for its end.

    `on_result` is called in a thread.
    """
    found: list[ToolResult] = await in_thread(
        lambda token: batch(calls, **{**options, "cancel": token}), options.get("cancel")
    )
    return found


def checked_calls(
    calls: Iterable[Call], parallel: int, timeout: float | Default | None, deadline: float | None
) -> list[Call]:
    listed = list(calls)
    for each in listed:
        if not isinstance(each, Call):
            raise UsageError(f"a batch takes Call(function, ...) objects, not {each!r:.60}")
    if (clock.check_count("parallel", parallel) or MAX_WORKERS + 1) > MAX_WORKERS:
        raise UsageError(f"parallel={parallel!r} is not allowed: give a whole number from 1 to {MAX_WORKERS}")
    if not isinstance(timeout, Default):
        clock.check_limit("timeout", timeout)
        listed = [each if each.tool.source == "given" else each.limited(timeout) for each in listed]
    seconds = clock.check_limit("deadline", deadline)
    if seconds is not None:
        outer = (_monotonic() + seconds, FiredLimit("batch", seconds, "given"))
        listed = [each.within(outer) for each in listed]
    return listed


class Engine:
    """The loop. `results` has an entry for every call at the end."""

    def __init__(self, calls: list[Call], parallel: int, cancel: Any, on_result: OnResult | None) -> None:
        self.calls, self.parallel, self.on_result = calls, parallel, on_result
        self.token = Token(cancel) if cancel is not None else None
        self.results: list[ToolResult | None] = [None] * len(calls)
        self.admissions: dict[int, Admission] = {}
        self.waiting = deque(range(len(calls)))
        self.begun = _monotonic()
        self.flights: dict[int, tuple[int, Flight]] = {}  # watched descriptor -> (index, flight)
        self.tokens = {index: Token(call.cancel) for index, call in enumerate(calls) if call.cancel is not None}
        self.resources = [_resources(call) for call in calls]
        self.busy: set[str] = set()
        self.running = 0
        self.tries = [1] * len(calls)
        self.over: str | None = None  # the reason for which no more are started
        self.poll = select.poll()
        self.pools: dict[int, Pool] = {}
        self.lines: dict[Pool, Waiter] = {}  # where it waits for a worker
        self.elsewhere: deque[tuple[int, Flight | None, ToolResult | None]] = deque()
        self.ringing = threading.Lock()
        self.bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.poll.register(self.bell, select.POLLIN)
        if self.token is not None and self.token.source is not None:
            self.poll.register(self.token.source, select.POLLIN)

    def run(self) -> list[ToolResult]:
        try:
            while self.waiting or self.running:
                self._check_tokens()
                self._start_more()
                if self.running or self.waiting:
                    self._wait()
            return [result for result in self.results if result is not None]
        finally:
            for pool in list(self.lines):
                self._leave_line(pool)
            for _, flight in self.flights.values():
                abandon(flight)
            with self.ringing:
                os.close(self.bell)
                self.bell = -1

    # -- starting ----------------------------------------------------------------------------------------------------

    def _start_more(self) -> None:
        claimed = set(self.busy)
        skipped: list[int] = []
        while self.waiting and self.running < self.parallel:
            index = self.waiting.popleft()
            free = not self.resources[index] & claimed
            claimed |= self.resources[index]  # also by one that has to wait: the order is kept
            if not free:
                skipped.append(index)
            elif not self._start(index):
                skipped.append(index)
                break
        self.waiting.extendleft(reversed(skipped))

    def _start(self, index: int) -> bool:
        """False if it has to wait for a worker."""
        call = self.calls[index]
        result = self._before(index, call) or self._admit(index, call)
        if result is not None:
            self._finished(index, result)
        elif call.tool.declared is not None:
            self._run_effect(index, call)
        elif call.tool.place is None:
            self._run_inline(index, call)
        else:
            pool = pool_of(call.tool.place)
            worker = self._from_line(pool) or pool.take_free() or self._ask(pool)
            if worker is None:
                return False
            found = launch(call, pool, worker, self.begun)
            if isinstance(found, ToolResult):
                self._finished(index, found)
            else:
                self._watch(index, found)
        return True

    def _before(self, index: int, call: Call) -> ToolResult | None:
        """The result of a call that must not start."""
        token = self.tokens.get(index)
        if self.over is not None and self.token is not None and self.over == self.token.reason:
            return cancelled_before(call, self.token)
        if self.over is not None:
            return never_ran(call, Status.CANCELLED, self.over, None)
        if token is not None and token.is_set():
            return cancelled_before(call, token)
        end, limit = call.resolve()
        if end > _monotonic() or (limit is not None and limit.which == "task" and index not in self.admissions):
            return None  # a task that is over says so itself
        return over_before_start(call, limit)

    def _admit(self, index: int, call: Call) -> ToolResult | None:
        if index in self.admissions:
            return None  # it has waited for a worker since
        admission = Admission()
        refused = admission.refusal(call.tool.name, call.call_id, lambda: call_key(call))
        if refused is None:
            self.admissions[index] = admission
        return refused

    def _ask(self, pool: Pool) -> Worker | None:
        descriptor = pool.orders.fileno()
        if self.pools.get(descriptor) is not pool:
            self.pools[descriptor] = pool
            self.poll.register(descriptor, select.POLLIN)
        wanted = min(self.parallel - self.running, len(self.waiting) + 1)
        if wanted > pool.asked:
            pool.ask(wanted - pool.asked)
        pool.harvest()
        if pool.problem is not None:
            raise pool.problem
        if pool not in self.lines:  # others read the same socket, and would not wake us
            self.lines[pool] = waiter = pool.enqueue()
            self.poll.register(waiter.event, select.POLLIN)
        return self._from_line(pool)

    def _from_line(self, pool: Pool) -> Worker | None:
        waiter = self.lines.get(pool)
        if waiter is None or waiter.worker is None:
            return None
        worker, waiter.worker = waiter.worker, None
        self._leave_line(pool)
        return worker

    def _leave_line(self, pool: Pool) -> None:
        waiter = self.lines.pop(pool)
        self.poll.unregister(waiter.event)
        if waiter.worker is not None:
            pool.give(waiter.worker)
        pool.leave(waiter)

    def _watch(self, index: int, flight: Flight) -> None:
        self.busy |= self.resources[index]
        self.running += 1
        self._register(index, flight)

    def _register(self, index: int, flight: Flight) -> None:
        self.flights[flight.fd] = (index, flight)
        self.poll.register(flight.fd, select.POLLIN)

    def _run_inline(self, index: int, call: Call) -> None:
        if self.parallel == 1:
            self._finished(index, run_inline(call))
        else:
            self.busy |= self.resources[index]
            self.running += 1
            context = contextvars.copy_context()
            self._elsewhere(index, None, lambda: context.run(run_inline, call))

    def _run_effect(self, index: int, call: Call) -> None:
        """In a thread: the ledger is waited for. Cancelling the batch reaches it as its own token does."""
        from .effects import result_of

        self.busy |= self.resources[index]
        self.running += 1
        context = contextvars.copy_context()
        if self.token is not None:
            own = self.tokens.get(index)
            token = self.token.given if own is None else AnyOf(self.token, own)
            call = call.options(cancel=token, call_id=call.call_id)
        self._elsewhere(index, None, lambda: context.run(result_of, call))

    def _elsewhere(self, index: int, flight: Flight | None, work: Callable[[], ToolResult | None]) -> None:
        def body() -> None:
            try:
                result = work()
            except BaseException as problem:
                result = never_ran(self.calls[index], Status.UNKNOWN, None, repr(problem))
            self.elsewhere.append((index, flight, result))
            self._ring()

        threading.Thread(target=body, name="deadstop-batch", daemon=True).start()

    def _ring(self) -> None:
        """From another thread, which may be later than the end of it all."""
        with self.ringing:
            if self.bell >= 0:
                os.eventfd_write(self.bell, 1)

    # -- waiting -----------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        for descriptor, _ in self.poll.poll(max(0.0, self._next_time() - _monotonic()) * 1000):
            if descriptor in self.flights:
                self._step(descriptor)
            elif descriptor == self.bell:
                os.eventfd_read(self.bell)
                self._take_elsewhere()
            elif descriptor in self.pools:
                self._harvest(descriptor)
            else:
                for waiter in self.lines.values():
                    if waiter.event == descriptor:
                        os.eventfd_read(descriptor)
        self._look_at_times()

    def _harvest(self, descriptor: int) -> None:
        pool = self.pools[descriptor]
        pool.harvest()
        if pool.closed:
            self.poll.unregister(descriptor)
            del self.pools[descriptor]

    def _next_time(self) -> float:
        now = _monotonic()
        times = [now + 60.0]
        for _, flight in self.flights.values():
            times.append(flight.overdue_at)
            if flight.soft_at is not None:
                times.append(flight.soft_at)
        tokens = [*self.tokens.values(), *([self.token] if self.token else [])]
        if any(token.source is None for token in tokens) or self.tokens:
            times.append(now + POLL_S)
        if self.waiting and not self.running:
            times.append(now + 1.0)
        if self.waiting:
            times.append(self.calls[self.waiting[0]].outer()[0])
        return min(times)

    def _step(self, descriptor: int) -> None:
        index, flight = self.flights.pop(descriptor)
        self.poll.unregister(descriptor)
        try:
            result = flight.step(socket.MSG_DONTWAIT)
        except BlockingIOError:
            result = None
        self._settle(index, flight, result)

    def _settle(self, index: int, flight: Flight, result: ToolResult | None) -> None:
        if result is None and flight.question is not None:
            self._question(index, flight)
        elif result is None:
            self._register(index, flight)
        elif flight.died_unsent and self.tries[index] < TRIES:
            self.tries[index] += 1
            self._done(index)
            self.waiting.appendleft(index)
        else:
            self._done(index)
            token = self.tokens.get(index) or self.token
            self._finished(index, with_token_error(result, token) if token and token.error else result)

    def _question(self, index: int, flight: Flight) -> None:
        from .soft import question

        self._elsewhere(index, flight, lambda: question(flight))

    def _take_elsewhere(self) -> None:
        while self.elsewhere:
            index, flight, result = self.elsewhere.popleft()
            if flight is not None:
                self._settle(index, flight, result)
            elif result is not None:
                self._done(index)
                self._finished(index, result)

    def _done(self, index: int) -> None:
        self.running -= 1
        self.busy -= self.resources[index]

    def _finished(self, index: int, result: ToolResult) -> None:
        admission = self.admissions.pop(index, None)
        if admission is not None:
            result = admission.settled(result)
        self.results[index] = result
        if self.on_result is not None:
            self.on_result(index, result)

    def _look_at_times(self) -> None:
        now = _monotonic()
        for descriptor, (index, flight) in list(self.flights.items()):
            if flight.soft_at is not None and now >= flight.soft_at and flight.state is State.RUNNING:
                self._change(descriptor, partial(flight.freeze, now + flight.call.tool.soft_answer))
            elif now > flight.overdue_at and isfinite(flight.overdue_at):
                del self.flights[descriptor]
                self.poll.unregister(descriptor)
                self._settle(index, flight, flight.lost("the supervisor did not answer in time"))

    # -- ending ------------------------------------------------------------------------------------------------------

    def _check_tokens(self) -> None:
        if self.over is None and self.token is not None and self.token.is_set():
            self.stop(self.token.reason)
        for descriptor, (index, flight) in list(self.flights.items()):
            token = self.tokens.get(index)
            if token is not None and flight.cancel_reason is None and token.is_set():
                self._change(descriptor, partial(flight.cancel, token.reason))

    def stop(self, reason: str) -> None:
        """Kill what runs, start nothing more."""
        self.over = reason
        if self.token is not None and self.token.source is not None and reason != "race_lost":
            self.poll.unregister(self.token.source)
        for descriptor, (_, flight) in list(self.flights.items()):
            self._change(descriptor, partial(flight.cancel, reason))

    def _change(self, descriptor: int, change: Callable[[], None]) -> None:
        """Something that may make the flight watch another descriptor."""
        index, flight = self.flights.pop(descriptor)
        self.poll.unregister(descriptor)
        change()
        self._register(index, flight)


def _resources(call: Call) -> set[str]:
    writes = call.tool.writes
    return set(writes(*call.args, **call.kwargs) if callable(writes) else writes)
