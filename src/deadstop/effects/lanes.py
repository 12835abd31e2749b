# SPDX-License-Identifier: Apache-2.0
"""One receiver's events: taken, posted several at once, and how each ended written down, until nothing is due.

A slow one holds up those behind it in its own group and no others. How they ended is written in one transaction with
the taking of the next, so that a busy lane waits for the disk once for several events.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from .. import clock
from ..ledger import crash, outbox
from ..ledger.outbox import Due, End
from .pace import Pace, Try
from .posting import NotPosted, Posted, Poster

if TYPE_CHECKING:
    from .deliver import Deliverer

__all__ = ["Lane"]

_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0  # until the ledger is asked again
_TOO_MUCH = (429, 502, 503, 504)
_ASKS_FOR_REST = (429, 503)


class Lane:
    """`patient`: a ledger that is away is waited for, as long as there is something that has to be written down.

    It ends when nothing is due and nothing under way, or at `leave`.
    """

    def __init__(
        self, hub: Deliverer, poster: Poster, url: str, pace: Pace, spare_s: float, *, patient: bool = False
    ) -> None:
        self.url, self.pace = url, pace
        self.count = 0  #: how many its receiver has taken
        self.since = clock.monotonic()
        self.leaving = False
        self._hub, self._poster, self._patient = hub, poster, patient
        self._spare_s, self._lease_ms = spare_s, round((hub.timeout + spare_s) * 1000)
        self._under_way: dict[asyncio.Task[None], Due] = {}
        self._ends: list[End] = []
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Look whether there is more."""
        self._woken.set()

    def leave(self) -> None:
        """Take nothing more, and end with what is under way."""
        self.leaving = True
        self._woken.set()

    async def run(self) -> int:
        try:
            while await self._turn():
                await self._woken.wait()
        finally:
            await self._let_go()
        return self.count

    async def _turn(self) -> bool:
        """Whether there is anything to wait for."""
        pause = _PAUSE_S
        while True:
            self._woken.clear()
            room = 0 if self.leaving else self.pace.room()
            if not room and not self._ends:
                return bool(self._under_way)
            try:
                taken = await self._write(room)
            except Exception as problem:
                if not self._patient or self.leaving or not (self._ends or self._under_way):
                    raise
                self._hub.report(problem)
                await asyncio.sleep(pause)
                pause = min(_LONGEST_PAUSE_S, 2 * pause)
                continue
            if taken < room and not self._ends:  # nothing more is due
                return bool(self._under_way)

    async def _write(self, room: int) -> int:
        """How many were taken."""
        asked = clock.boottime()
        ends, self._ends = self._ends, []
        try:
            taken = await self._hub.write(outbox.turn, self.url, ends, room, self._lease_ms)
        except BaseException:
            self._ends = ends + self._ends
            raise
        if taken:
            crash.at("outbox.taken")
        for due in taken:
            task = asyncio.ensure_future(self._send(due, self.pace.begin(), asked))
            self._under_way[task] = due
            task.add_done_callback(self._ended)
        return len(taken)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.pop(task, None)
        self._woken.set()

    # -- one event ---------------------------------------------------------------------------------------------------

    async def _send(self, due: Due, one: Try, asked: float) -> None:
        timer = asyncio.get_running_loop().call_later(self.pace.patience, self._is_slow, one)
        try:
            if 0 < self._spare_s < clock.boottime() - asked:
                return  # this process was stopped: somebody else may have it before this would be over
            end = await self._post(due, one)
            self._ends.append(end)  # the list may have become another one meanwhile
        finally:
            timer.cancel()
            self.pace.forget(one)

    async def _post(self, due: Due, one: Try) -> End:
        try:
            posted = await self._poster.post(due.url, due.event_id, due.event)
        except NotPosted as problem:
            self.pace.end(one, busy=True, rest_s=0.0 if problem.unreached else None)
            return End(due, str(problem))
        except Exception as problem:  # what nobody has thought of holds up nobody else
            return End(due, type(problem).__name__)
        if posted.taken:
            crash.at("outbox.sent")
            self.count += 1
            self.pace.end(one, taken=True)
            return End(due)
        wish = _wish(posted)
        self.pace.end(one, busy=posted.status in _TOO_MUCH, rest_s=wish)
        return End(due, f"the receiver answered {posted.status}", wish, posted.gone)

    def _is_slow(self, one: Try) -> None:
        self.pace.slow(one)
        self._woken.set()

    async def _let_go(self) -> None:
        """What is under way has no answer: the next one sends it, and has not to wait for the end of a lease."""
        left = dict(self._under_way)
        for task in left:
            task.cancel()
        if left:
            await asyncio.gather(*left, return_exceptions=True)
        self._ends += [End(due, returned=True) for due in left.values()]
        if self._ends:
            with contextlib.suppress(Exception):  # then their leases have to run out
                await self._write(0)


def _wish(posted: Posted) -> float | None:
    return posted.retry_after if posted.status in _ASKS_FOR_REST else None
