# SPDX-License-Identifier: Apache-2.0
"""One call worker, as the supervisor sees it: a boundary with a process in it that the caller talks to directly.

The supervisor sees no calls. It sees a page of memory that the caller writes each call's deadline into, and a timer
that the caller arms for a little before it. When the timer fires and the page still says that a call is running,
evidence is taken; when the deadline is over and the page still says so, the worker is killed. A caller that is
frozen, or holds its interpreter lock, therefore moves nothing. The caller reads the clock after it has cleared the
page, and we read the page after we have read the clock, and wait MARGIN_S longer than the deadline: so a call never
is both completed and killed.

What is left to the caller's request comes as packets on the report socket: a kill with its reason, what was printed,
a freeze. The report socket also carries the one result of a worker that was killed or died.
"""

from __future__ import annotations

import marshal
import os
import signal
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from .. import clock, wire
from ..boundary import timers
from ..boundary.reaper import pid_of, signal_tree
from ..packing import GONE, TOLD, Port
from ..results import FiredLimit, Status, ToolResult
from ..slots import Slot
from .loop import Timer
from .output import DRAIN_BYTES, Pump
from .report import leftover_names
from .room import Room
from .sight import DIAGNOSE_S, Sight
from .worker_result import result_of

if TYPE_CHECKING:
    from .pool import Pool

MARGIN_S = 0.0001
STACKS_S = 0.002  # how long a kill waits for the Python stacks
LOOK_S = 0.03  # how long somebody may look at a call that is to be frozen
LAST_WORD_S = 0.5  # how long the end of a worker that has fallen silent may take to be reported
TAIL = 65_536


class Worker:
    """From its boundary to its one report. `pool` is told when it is ready and when it is gone."""

    def __init__(self, pool: Pool, slot: Slot, room: Room) -> None:
        self.pool, self.loop, self.slot, self.room = pool, pool.loop, slot, room
        self.status: Status | None = None
        self.reason: str | None = None
        self.limit: FiredLimit | None = None
        self.deadline: float | None = None
        self.killed_at: float | None = None
        self.leader, self.leader_fd = 0, -1
        self.handed_over = False
        self.leader_status: int | None = None
        self.leader_ended: float | None = None
        self.leftover: tuple[str, ...] = ()
        self.processes = 0
        self.frozen = False
        self.over = False
        self._timers: list[Timer] = []
        self._again: Timer | None = None
        self._answer_due: Timer | None = None
        self._open_channels()
        room.listeners[1] = self._message
        if room.ready:
            self._begin()

    def _open_channels(self) -> None:
        """Raises OSError where there are no more descriptors; then nothing is left open."""
        kind = socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC
        with ExitStack() as undo:
            self.data, self._inner_data = socket.socketpair(socket.AF_UNIX, kind)
            self.reports, self._callers_reports = socket.socketpair(socket.AF_UNIX, kind)
            for end in (self.data, self._inner_data, self.reports, self._callers_reports):
                undo.callback(end.close)
            self.timer = timers.create()
            undo.callback(os.close, self.timer)
            pipes = [os.pipe2(os.O_CLOEXEC)]
            undo.callback(_close, pipes)
            pipes.append(os.pipe2(os.O_CLOEXEC))
            self.sight = Sight(self.loop, self._stacks_complete)
            undo.pop_all()
        (out_read, self._out), (err_read, self._err) = pipes
        self.pumps = [
            Pump(self.loop, (name, fd, None), TAIL, None, self.slot.print)
            for name, fd in (("stdout", out_read), ("stderr", err_read))
        ]
        self.reports.setblocking(False)
        self.loop.watch(self.reports.fileno(), self._ordered)
        self.loop.watch(self.timer, self._timer_fired)

    # -- start -------------------------------------------------------------------------------------------------------

    def _message(self, message: tuple[Any, ...], fds: list[int]) -> None:
        kind = message[0]
        if kind == "ready":
            self._begin()
        elif kind == "started" and fds:
            self._started(fds[0])
        elif kind == "not_started":
            self.stop(Status.REFUSED, reason="policy")
        elif kind == "ended":
            self._ended(message[2], message[3])
        elif kind == "gone":
            self._boundary_lost()

    def _begin(self) -> None:
        own_pids = bool(self.room.boundary.facts.get("own_proc"))
        settings = {**self.pool.settings, "own_pids": own_pids}
        try:
            self._hand_settings(marshal.dumps(settings))
            stdio = [self._inner_data.fileno(), self._out, self._err]
            self.room.boundary.run(1, self.pool.request(self.room.boundary.applied), stdio)
        except OSError:
            self.stop(Status.REFUSED, reason="policy")
        self._close_inner()

    def _hand_settings(self, settings: bytes) -> None:
        memory = os.memfd_create("deadstop-settings", os.MFD_CLOEXEC)
        try:
            while settings:
                settings = settings[os.write(memory, settings) :]
            socket.send_fds(self.data, [b"settings"], [memory, self.sight.workers_end])
        finally:
            os.close(memory)

    def _close_inner(self) -> None:
        if self._out >= 0:
            self._inner_data.close()
            self.sight.let_go()
            for fd in (self._out, self._err):
                os.close(fd)
            self._out = -1

    def _started(self, pidfd: int) -> None:
        self.leader_fd = pidfd
        try:
            self.leader = pid_of(pidfd)
        except OSError:  # no descriptor to be had for it
            self.stop(Status.REFUSED, reason="policy")
            return
        self.loop.watch(self.data.fileno(), self._ready)

    def _ready(self) -> None:
        """Its first packet says that it has settled; one that ends before then is never handed over."""
        self.loop.unwatch(self.data.fileno())
        try:
            settled = bool(self.data.recv(64))
        except OSError:
            settled = False
        if settled and self.status is None:
            self.handed_over = True
            fds = [self.data.fileno(), self._callers_reports.fileno(), self.timer, self.room.boundary.exit_fd]
            self.pool.deliver(self, fds)
            self._let_go()

    def _let_go(self) -> None:
        """The caller's ends are the caller's alone: its death closes them."""
        if self.data.fileno() >= 0:
            self.loop.unwatch(self.data.fileno())
        self.data.close()
        self._callers_reports.close()

    # -- the deadline ------------------------------------------------------------------------------------------------

    def _timer_fired(self) -> None:
        try:
            os.read(self.timer, 8)
        except BlockingIOError:
            pass  # armed anew before we looked
        deadline, lead = self.slot.read()
        now = clock.monotonic()
        if deadline == 0.0 or self.status:
            return  # nothing is running
        if now >= deadline + MARGIN_S:
            self._time_out(deadline)
        elif now >= deadline - lead:
            self._look(lead)
            self._at(deadline + MARGIN_S, lambda: self._due(deadline))
        else:  # it was meant for an earlier call
            if self._again:
                self._again.cancel()
            self._again = self.loop.at(deadline - lead, self._timer_fired)

    def _due(self, deadline: float) -> None:
        if self.slot.read()[0] == deadline:
            self._time_out(deadline)
        else:
            self.sight.forget()  # it ended in time after all

    def _time_out(self, deadline: float) -> None:
        self.deadline = deadline
        self.stop(Status.TIMEOUT)

    def _look(self, seconds: float) -> None:
        if seconds >= DIAGNOSE_S:
            self.sight.diagnose(self.room.boundary, self.leader, self.pumps)

    def _stacks_complete(self) -> None:
        if self.status and self.killed_at is None:
            self._kill()

    def _at(self, when: float, callback: Any) -> None:
        self._timers = [timer for timer in self._timers if timer.callback is not None]
        self._timers.append(self.loop.at(when, callback))

    # -- the end -----------------------------------------------------------------------------------------------------

    def stop(self, status: Status, *, reason: str | None = None) -> None:
        """Decide, once; take the stacks if they have not been taken; kill."""
        if self.status:
            return
        self.status, self.reason = status, reason
        if status is Status.COMPLETED and self.sight.look_at_memory(self.room.boundary, self.leader, self._kill):
            self._at(clock.monotonic() + LOOK_S, self._kill)
            return
        alive = self.leader_fd >= 0 and self.leader_status is None and not self.frozen
        worth_it = status in (Status.TIMEOUT, Status.CANCELLED) and reason != "unused"
        if alive and worth_it and self.sight.ask_for_stacks(self.leader_fd):
            self._at(clock.monotonic() + STACKS_S, self._kill)
        else:
            self._kill()

    def _kill(self) -> None:
        if self.killed_at is not None:
            return
        self.killed_at = clock.monotonic()
        for timer in [*self._timers, *filter(None, (self._again, self._answer_due))]:
            timer.cancel()
        if self.status is Status.COMPLETED:
            self._count_leftover()
        self.sight.stop()
        self.processes = max(self.sight.count, self.room.boundary.count(limit=64))
        self.room.kill(self._gone)

    def _count_leftover(self) -> None:
        left = [pid for pid in self.room.boundary.members(limit=512) if pid != self.leader]
        self.leftover = leftover_names(left)

    def _ended(self, status: int, when: float) -> None:
        self.leader_status, self.leader_ended = status, when
        group = self.room.boundary.group
        if self.status is None and group and "memory" in group.enforced and group.out_of_memory_kills():
            self.limit = FiredLimit("memory", None, "given")
            self.stop(Status.RESOURCE_LIMIT)
        self.stop(Status.CRASHED)

    def _boundary_lost(self) -> None:
        if self.over:
            return
        deadline, _ = self.slot.read()
        if self.status is None and 0.0 < deadline <= clock.monotonic():
            self.status, self.deadline = Status.TIMEOUT, deadline  # its caller was quicker than we
        self.status = self.status or Status.CRASHED
        self.killed_at = self.killed_at or clock.monotonic()
        self._gone()

    def _gone(self) -> None:
        if self.over:
            return
        self.over = True
        self.sight.read_stacks()
        for pump in self.pumps:
            pump.drain()
        result = result_of(self)
        try:
            Port(self.reports).send(GONE, 0, 0, marshal.dumps((self.leader_ended, result.to_json())))
        except OSError:
            pass  # nobody waits for it
        self._close()
        self.pool.gone(self)
        if self.pool.closing or not self.handed_over:
            self.release()

    def release(self) -> None:
        """The caller has read the report, or is gone: only now may another worker have the slot."""
        if self.reports.fileno() >= 0:
            self.loop.unwatch(self.reports.fileno())
            self.reports.close()
            self.pool.free_slot(self.slot)

    def _close(self) -> None:
        self._close_inner()
        self._let_go()
        self.sight.close()
        self.loop.unwatch(self.timer)
        os.close(self.timer)
        if self.leader_fd >= 0:
            os.close(self.leader_fd)
        self.room.listeners.pop(1, None)

    def abandon(self) -> None:
        """The caller is gone."""
        if self.killed_at is None:
            self.status, self.reason = self.status or Status.CANCELLED, self.reason or "owner_gone"
            self._kill()

    # -- what the caller asks for ------------------------------------------------------------------------------------

    def _ordered(self) -> None:
        got = wire.receive(self.reports, 4096)
        if got is None:
            return
        if not got[0] and self.over:
            self.release()
            return
        if not got[0]:
            self.loop.unwatch(self.reports.fileno())
            self.stop(Status.CANCELLED, reason="owner_gone" if self.pool.closing else "unused")
            return
        order = marshal.loads(got[0])
        if self.over:
            return
        if order[0] == "kill":
            self._ordered_end(Status(order[1]), order[2], order[3])
        elif order[0] == "printed":
            self._tell_printed()
        elif order[0] == "freeze":
            self._freeze(order[1])
        elif order[0] == "thaw":
            self._thaw()

    def _ordered_end(self, status: Status, reason: str | None, end: float | None) -> None:
        if status is Status.CRASHED:  # it does not talk any more: most often because it ended, which init will say
            self._at(clock.monotonic() + LAST_WORD_S, lambda: self.stop(status))
            return
        self.deadline = end if status is Status.TIMEOUT else None
        self.stop(status, reason=reason)

    def _tell_printed(self) -> None:
        """What was printed since the last time somebody asked: nobody writes any more."""
        for pump in self.pumps:
            limit = pump.tail.total + DRAIN_BYTES
            while pump.tail.total < limit and pump.read():
                pass
        texts = [pump.tail.output() for pump in self.pumps]
        for pump in self.pumps:
            pump.restart()
        self._send([(output.raw, output.bytes_total, output.bytes_dropped) for output in texts])

    def _send(self, message: Any) -> None:
        try:
            Port(self.reports).send(TOLD, 0, 0, marshal.dumps(message))
        except OSError:
            pass

    def _freeze(self, answer_by: float) -> None:
        """Stop everything inside and say what it was doing; without a thaw by `answer_by` it is killed."""
        self.sight.forget()
        self._look(DIAGNOSE_S)
        self.sight.ask_for_stacks(self.leader_fd)
        self._at(clock.monotonic() + LOOK_S, lambda: self._frozen(answer_by))

    def _frozen(self, answer_by: float) -> None:
        if self.status or self.frozen:
            return
        self.frozen = True
        self.sight.stop()
        self.sight.read_stacks()
        group = self.room.boundary.group
        if not (group and group.freeze(True)):
            signal_tree(self.room.boundary.pid, signal.SIGSTOP)
        self._answer_due = self.loop.at(answer_by, self._unanswered)
        evidence = ToolResult(tool="", status=Status.TIMEOUT, evidence=self.sight.evidence()).to_json()
        self._send([evidence, [(pump.tail.last(2000)) for pump in self.pumps]])

    def _unanswered(self) -> None:
        if self.frozen:
            self.limit = FiredLimit("soft", None, "given")
            self.stop(Status.TIMEOUT)

    def _thaw(self) -> None:
        if self.frozen:
            self.frozen = False
            if self._answer_due:
                self._answer_due.cancel()
            self.sight.forget()
            group = self.room.boundary.group
            if not (group and group.freeze(False)):
                signal_tree(self.room.boundary.pid, signal.SIGCONT)


def _close(pipes: list[tuple[int, int]]) -> None:
    for pipe in pipes:
        for fd in pipe:
            os.close(fd)
