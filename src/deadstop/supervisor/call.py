# SPDX-License-Identifier: Apache-2.0
"""One command from its start to its one verdict.

The order of an end: evidence (taken in another process, begun a little before a deadline so that the deadline itself
is kept), then SIGTERM and `grace` if asked for, then the kill, then the proof, then the result. `decide` is the one
line that gives a call its status, once; whatever comes later is evidence. A command that ended before its deadline by
the clock of the process that collected it has completed, even if this process noticed late.
"""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import clock
from ..model import Command
from ..results import FiredLimit, Status, ToolResult
from . import order, verdict
from .collector import Report
from .leader import Leader
from .loop import Loop, Timer
from .output import Pump, Sink, Source
from .part import Ending, Part, join_descriptor
from .phase import Phase
from .report import Record, build
from .witness import Witness

if TYPE_CHECKING:
    from .room import Room

EVIDENCE_S = 0.08  # evidence begins this long before a time limit, and an unforeseen end waits this long for it
PREPARE_S = 1.0  # what reading evidence needs is loaded this long before a time limit
TICK_S = 0.05  # how often the counters of memory and disk are looked at
GRACE_LOOK_S = 0.003
STATUS_LOST_S = 3.0  # how long after the first process ended its exit status may take: on a full host init waits, too


class Call:
    """A command in a room. `done` is called once, with the result."""

    def __init__(
        self, loop: Loop, room: Room, number: int, command: Command, stdio: list[int], sources: list[Source],
        *, owns_room: bool, sink: Sink | None, done: Callable[[ToolResult], None],
    ) -> None:  # fmt: skip
        self.loop, self.room, self.number, self.command = loop, room, number, command
        self.owns_room, self.done = owns_room, done
        self.stdio: list[int] | None = stdio
        self.record = Record(command, started=clock.monotonic(), started_at=clock.now_iso(), gap_before=loop.gap_s)
        self.last_output = self.record.started
        self.handed_over = False
        # What it ends by: the whole boundary, unless it has a part of its own in one that lives on.
        self.part = Part(loop, room, number, command.call_id) if command.own_part else None
        self.ending: Ending = self.part or room
        self.memory_kills = room.memory_kills() if self.part else 0
        if self.part is None and all(call.part for call in room.calls):
            room.forgive()
        self.leader = Leader(loop, self._leader_gone)
        self.witness = Witness(self)
        self.evidence_due: float | None = None  # the time limit that the evidence is being taken for
        self.phase = Phase.RUNNING
        self.phase_due: float | None = None
        self.grace = 0.0
        self.finished = False
        self.output_over = False
        self.timer: Timer | None = None
        self.preparing: Timer | None = None
        self.pumps = [Pump(loop, source, command.tail, sink, self._output) for source in sources]
        room.listeners[number] = self._message
        room.calls.add(self)
        if room.ready:
            self._begin()
        self._arm()

    # -- start -------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self.record.status or self.stdio is None:
            return
        request = order.of(self.command, self.room.boundary.applied, joins=bool(self.part and self.part.group))
        try:
            self.stdio += join_descriptor(self.part)
            self.room.boundary.run(self.number, request, self.stdio)
            self.handed_over = True  # init takes orders one after another: a SIGTERM sent now finds it started
        except OSError as problem:
            self._not_started(problem.errno or 0, "start")
        self._close_stdio()

    def _close_stdio(self) -> None:
        """Our copies of the payload's ends: kept open they would keep its pipes open."""
        for fd in self.stdio or []:
            os.close(fd)
        self.stdio = None

    def _message(self, message: tuple[Any, ...], fds: list[int]) -> None:
        kind = message[0]
        if kind == "ready":
            self._begin()
        elif kind == "started":
            self._started(fds)
        elif kind == "not_started":
            self._not_started(message[2], message[3])
        elif kind == "ended":
            self._ended(message[2], message[3])
        elif kind == "gone":
            self._boundary_lost()

    def _started(self, fds: list[int]) -> None:
        if not fds:
            return
        self.leader.found(fds[0])
        if self.part:
            self.part.leader, self.part.born = self.leader.pid, True
        self.record.spawned = clock.monotonic()
        due = min(self._time_limits(), default=None)
        if due is not None:
            self.preparing = self.loop.at(due - PREPARE_S, self.witness.prepare)
        if self.command.on_input_wait == "kill" or (self.command.stdin != "null" and not self.part):
            self.witness.watch_input(self._input_report)

    def _not_started(self, number: int, step: str) -> None:
        """Nothing ran. Only a program that is missing or cannot be run is the command's own fault (126, 127)."""
        self.record.start_failed = (number, step)
        if self.part:
            self.part.born = True
        own_fault = step == "exec" and number != errno.E2BIG
        status, reason = (Status.ERROR, None) if own_fault else (Status.REFUSED, "policy")
        if self.owns_room:
            self.stop(status, reason=reason, grace=0, wait=False)
        elif self.decide(status, reason=reason):
            self._finish()

    # -- the limits --------------------------------------------------------------------------------------------------

    def set_limit(self, deadline: float | None, limit: FiredLimit | None) -> None:
        """Another end for what it is doing now, or none: one command can be many runs of a session."""
        self.command = dataclasses.replace(self.command, deadline=deadline, limit=limit)
        self.evidence_due = self.record.evidence_at = None
        self._arm()

    def _arm(self) -> None:
        """One timer: the next moment at which something could be due."""
        if self.timer:
            self.timer.cancel()
        times = [self.phase_due]
        if not self.record.status:
            times += [due if self.evidence_due == due else self._lead(due) for due in self._time_limits()]
            times.append(clock.monotonic() + TICK_S if self._watches_resources else None)
        pending = [when for when in times if when is not None]
        if pending and not self.finished:
            self.timer = self.loop.at(min(pending), self._on_time)

    def _time_limits(self) -> list[float]:
        idle = self.command.idle_timeout
        limits = [self.command.deadline, self.last_output + idle if idle else None]
        return [when for when in limits if when is not None]

    @property
    def _watches_resources(self) -> bool:
        """A full disk or a memory limit ends a boundary of one's own at once. In a shared one it is everybody's."""
        alone = self.part is None and not any(call.part for call in self.room.calls)
        return alone and self.room.watches_resources

    def _lead(self, due: float) -> float:
        """When evidence for this limit begins: earlier, but never so early that a short call is mostly evidence."""
        return due - min(EVIDENCE_S, max(0.0, due - self.record.started) / 2)

    def _on_time(self) -> None:
        self.room.receive()
        now = clock.monotonic()
        if self.phase_due is not None and now >= self.phase_due:
            if self.phase is Phase.EVIDENCE:
                self._after_evidence()
            elif self.phase is Phase.GRACE:
                self._kill()
            else:
                self._close()
        elif not self.record.status:
            self._check_limits(now)
        self._arm()

    def _check_limits(self, now: float) -> None:
        if self._watches_resources and (exceeded := self.room.resource_exceeded()):
            self.stop(Status.RESOURCE_LIMIT, limit=FiredLimit(exceeded, None, "given"), grace=0)
            return
        due = min(self._time_limits(), default=None)
        if due is None:
            return
        if self.evidence_due is not None and now < self._lead(due):
            self.evidence_due = self.record.evidence_at = None  # output came after all: what was read is of the past
        if now >= due:
            self._time_out(due)
        elif now >= self._lead(due) and self.evidence_due != due:
            self.evidence_due = due
            self.witness.read(self._evidence_complete)

    def _time_out(self, due: float) -> None:
        self.record.deadline = due
        idle = self.command.idle_timeout
        if due == self.command.deadline:
            limit = self.command.limit
        else:
            limit = FiredLimit("idle", idle, "given")
        self.stop(Status.TIMEOUT, limit=limit, wait=False)

    # -- output ------------------------------------------------------------------------------------------------------

    def _output(self, size: int) -> None:
        self.last_output = clock.monotonic()
        self.record.flow(self.last_output, size)
        limit = self.command.output_limit
        if limit is not None and sum(pump.tail.total for pump in self.pumps) > limit:
            self.output_over = True
            for pump in self.pumps:
                pump.pause()  # it may block in its writes while evidence is taken
            self.stop(Status.RESOURCE_LIMIT, limit=FiredLimit("output", None, "given"), grace=0)

    def resume_output(self) -> None:
        for pump in self.pumps if not self.output_over else ():
            pump.resume()

    # -- evidence ----------------------------------------------------------------------------------------------------

    def _evidence_complete(self) -> None:
        if self.phase is Phase.EVIDENCE:
            self._after_evidence()

    def _input_report(self, report: Report) -> None:
        """The watcher saw the command begin, or cease, to wait for an answer that cannot come."""
        self.record.input_wait = report if report.get("waiting") else None
        if self.record.input_wait and self.command.on_input_wait == "kill" and not self.record.status:
            self.stop(Status.CANCELLED, reason="input_wait", grace=0)

    # -- the end -----------------------------------------------------------------------------------------------------

    def decide(self, status: Status, reason: str | None = None, limit: FiredLimit | None = None) -> bool:
        """Give the call its one status; False if it has one."""
        if self.record.status:
            return False
        self.record.status, self.record.reason, self.record.limit = status, reason, limit
        self.record.decided = clock.monotonic()
        return True

    def stop(
        self, status: Status, *, reason: str | None = None, limit: FiredLimit | None = None,
        grace: float | None = None, wait: bool = True,
    ) -> None:  # fmt: skip
        """Decide, take evidence, end.

        With `wait` the evidence gets its budget now; a time limit has taken it before.
        """
        if not self.decide(status, reason=reason, limit=limit):
            return
        self.grace = self.command.grace if grace is None else grace
        if wait and self.leader.pid and self.record.evidence_at is None:
            self._enter(Phase.EVIDENCE, EVIDENCE_S)
            self.witness.read(self._evidence_complete)
        else:
            self._after_evidence()

    def overtaken(self, limit: FiredLimit, deadline: float) -> None:
        """The life of the whole boundary is over, and with it this call: the kill is the boundary's."""
        if self.decide(Status.TIMEOUT, limit=limit):
            self.record.deadline = deadline
            self.phase, self.phase_due = Phase.KILLING, None
            self.witness.stop()

    def hurry(self) -> None:
        """Skip what is left of evidence and grace (a second interrupt, or our own parent is ending us)."""
        if self.phase in (Phase.EVIDENCE, Phase.GRACE):
            self._kill()

    def _enter(self, phase: Phase, seconds: float) -> None:
        self.phase, self.phase_due = phase, clock.monotonic() + seconds
        if phase is Phase.GRACE and self.record.deadline is not None:
            self.phase_due = min(self.phase_due, self.record.deadline + seconds)  # also when we noticed late
        if self.command.hard_end is not None:
            self.phase_due = min(self.phase_due, self.command.hard_end)
        self._arm()

    def _after_evidence(self) -> None:
        self.witness.stop()
        if self.grace and self.handed_over and self.record.leader_status is None:
            self._count()
            self.ending.terminate()
            self.record.methods.append("SIGTERM")
            self._enter(Phase.GRACE, self.grace)
        else:
            self._kill()

    def _kill(self) -> None:
        if self.phase in (Phase.KILLING, Phase.FILES):
            return
        members = self._count() if self.record.processes == 0 or self.phase is Phase.GRACE else 0
        self.record.escalated = self.phase is Phase.GRACE and members > 0
        self.phase, self.phase_due = Phase.KILLING, None
        self.witness.stop()
        self.record.killed_at = clock.monotonic()
        self.ending.kill(self._finish)

    def _count(self) -> int:
        """How many there are now, counted only as far as it delays nothing."""
        members = self.ending.count(limit=64)
        self.record.processes = max(self.record.processes, members)
        return members

    def _ended(self, status: int, when: float) -> None:
        """Init collected the command's first process."""
        self.record.leader_status, self.record.leader_ended = status, when
        self.leader.close()
        overran = self.command.deadline is not None and when > self.command.deadline
        if self.phase is Phase.GRACE:
            self._kill_if_empty()
        elif self.record.status is None and overran:
            self.record.deadline = self.command.deadline
            self.stop(Status.TIMEOUT, limit=self.command.limit, grace=0, wait=False)
        elif self.record.status is None and self.room.terminating:
            self.decide(Status.CANCELLED, reason="shutdown")  # our signal, for another call; the boundary ends soon
        elif self.record.status is None:
            self._completed(status)

    def _kill_if_empty(self) -> None:
        """In the grace, after the first process: the others may be a moment behind it."""
        if self.phase is Phase.GRACE and not self.ending.members(limit=1):
            self._kill()
        elif self.phase is Phase.GRACE:
            self.loop.at(clock.monotonic() + GRACE_LOOK_S, self._kill_if_empty)

    def _completed(self, status: int) -> None:
        if self.command.output_limit is not None:
            for pump in self.pumps:
                while self.record.status is None and pump.read():
                    pass  # what is still in the pipe counts; exceeding the limit decides in `_output`
            if self.record.status is not None:
                return
        self.decide(*verdict.of_completed(self, status))
        self.witness.stop()
        if not self.owns_room:
            if self.part:
                self.record.leave_behind(self.part.members(limit=512))
            self._finish()
            return
        self.record.leave_behind(self.room.boundary.members(limit=512))
        self._kill()

    def _leader_gone(self) -> None:
        """The first process is dead. Its status comes from init; if init does not say, it is lost, and we say so."""
        self.room.receive()
        if self.record.leader_status is None:
            self.loop.at(clock.monotonic() + STATUS_LOST_S, self._status_lost)

    def _status_lost(self) -> None:
        self.room.receive()
        if self.record.leader_status is None and not self.record.status:
            self.stop(Status.UNKNOWN, grace=0, wait=False)

    def _boundary_lost(self) -> None:
        """The boundary ended and this call did not ask for it: killed for another call, or its holder died."""
        if self.part and self.room.gone:
            self.part.boundary_gone(self.room.gone)  # finishes it if it was being killed
        self.decide(*verdict.of_lost(self))
        self._finish()

    def _finish(self) -> None:
        """All is over but the files named as evidence, which get the same small time as all evidence."""
        if self.finished or self.phase is Phase.FILES:
            return
        self.witness.stop()
        if self.command.evidence_paths:
            self._enter(Phase.FILES, EVIDENCE_S)
            self.witness.read_files(self._close)
        else:
            self._close()

    def _close(self) -> None:
        if self.finished:
            return
        self.finished = True
        for timer in (self.timer, self.preparing):
            if timer:
                timer.cancel()
        self.witness.stop()
        self.leader.close()
        self._close_stdio()
        self.room.listeners.pop(self.number, None)
        self.room.calls.discard(self)
        self.room.left_at = clock.monotonic()
        if self.part:
            self.part.close()
            self.room.forgive()
        for pump in self.pumps:
            pump.drain()
        self.done(build(self))
