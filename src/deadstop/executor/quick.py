# SPDX-License-Identifier: Apache-2.0
"""The common call in one piece: a worker is free, knows the function, and answers in time with a value.

What has no such worker, or more than a limit of its own, goes the long way from the beginning; what gets another
answer, or none for a while, becomes a `Flight` there. Nothing is decided here in another way than in a flight. It
only costs half: most of a call of 30 microseconds is Python calling Python.
"""

from __future__ import annotations

from pickle import loads
from typing import TYPE_CHECKING

from .. import clock
from ..deferred import Deferred
from ..packing import RUN, VALUE, Damaged
from ..results import Status, ToolResult
from . import outcome
from .flight import BACKSTOP_S, LEAD_S, Flight
from .surroundings import surroundings

if TYPE_CHECKING:
    from .tool import Call
    from .workers import Pool, Worker

_new = object.__new__
_monotonic, _now_iso = clock.monotonic, clock.now_iso
_COMPLETED = Status.COMPLETED


def begin(asked: Call, pool: Pool) -> Flight | ToolResult | None:
    """Its result, the flight that it became, or None: then nothing has begun, and it goes the long way."""
    tool, queued = asked.tool, _monotonic()
    sent, timeout = tool._sent, tool.timeout
    if sent is None or timeout is None or tool.soft_timeout is not None or (worker := pool.take_free()) is None:
        return None
    try:
        number, target, _ = sent.target()
        if number in worker.known:
            started, started_at = _monotonic(), _now_iso()
            end = started + timeout
            flags, body = asked.pack(target, end, surroundings(worker))
            worker.number += 1
            lead = timeout * 0.25
            if lead > LEAD_S:
                lead = LEAD_S
            worker.slot.begin(end, lead)
            if not _monotonic() < worker.timer.armed <= end - lead:  # see Flight._arm
                worker.timer.arm(end - lead)
            return _answer(asked, pool, worker, (queued, started, end, started_at), flags, body)
    except Exception:
        worker.forget_surroundings()  # the long way meets it again, and says so
    except BaseException:
        pool.lose(worker)
        raise
    pool.give(worker)
    return None


def _answer(
    asked: Call, pool: Pool, worker: Worker, times: tuple[float, float, float, str], flags: int, body: bytes
) -> Flight | ToolResult:
    """Hand it over and read the first packet."""
    try:
        worker.port.send(RUN, flags, worker.number, body)
    except OSError:
        return _flight(asked, pool, worker, times).was_dead()
    try:
        packet = worker.port.receive()
    except BlockingIOError:
        return _flight(asked, pool, worker, times)
    except Damaged:
        packet = None
    queued, started, end, started_at = times
    if (
        packet is not None
        and packet[0] == VALUE
        and packet[2] == worker.number
        and not packet[1]
        and worker.slot.printed == worker.printed
    ):
        worker.slot.end()
        now = _monotonic()
        if now <= end and worker.level == "process":
            try:
                value = loads(packet[3])
            except Exception as problem:
                pool.give(worker)
                return outcome.unreadable(_flight(asked, pool, worker, times), problem, now)
            if type(value) is not Deferred and not pool.remarks:
                pool.give(worker)
                result = _new(ToolResult)
                vars(result).update(
                    tool=asked.tool.name, status=_COMPLETED, call_id=asked.call_id, value=value, started_at=started_at,
                    duration_s=now - started, queued_s=started - queued, effect=asked.tool.effect, limits=pool.limits,
                )  # fmt: skip
                return result
    flight = _flight(asked, pool, worker, times)
    return flight.take(packet) or flight


def _flight(asked: Call, pool: Pool, worker: Worker, times: tuple[float, float, float, str]) -> Flight:
    flight = Flight(asked, pool, worker, times[0])
    _, flight.started, flight.end, flight.started_at = times
    flight.overdue_at = flight.end + BACKSTOP_S
    flight.limit = asked.tool.limit
    return flight
