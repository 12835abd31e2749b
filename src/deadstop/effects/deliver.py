# SPDX-License-Identifier: Apache-2.0
"""The outbox, sent: webhooks get their events at least once, of each group in its order.

Every receiver is its own lane. One that is down, or slow, holds up its own events and nobody else's. What was sent is
pruned some time later.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from .. import clock
from ..errors import DeadstopError
from ..ledger import outbox
from .lanes import Lane
from .loops import Loop
from .pace import Pace, Slots
from .posting import LIMIT_S, Poster, key_of

if TYPE_CHECKING:
    from ..ledger.ledger import Ledger

__all__ = ["Deliverer"]

T = TypeVar("T")
LOG = logging.getLogger("deadstop.outbox")

LANES = 64  # receivers at once, each with some POSTs at once (pace.py)
MOST_SLOW = 128  # POSTs that are not answered for long, of all of them
TURN_S = 10.0  # for one receiver while others wait for a lane
PACES = 1000  # that are remembered
LEASE_SPARE_S = 30.0
SPREAD, PRUNED = 200, 200  # messages, and rows, in one transaction
PRUNE_EVERY_S, PRUNE_PAUSE_S = 60.0, 0.05
STOP_S = 2.0  # for what is under way when it is to stop
_LONGEST_PAUSE_S = 30.0


class Deliverer:
    """Sends what the outbox of `ledger` holds: messages without a URL of their own to each of `urls`.

    Promised: an event is sent until its receiver answers 2xx or it is given up (410 at once, else after some 40 tries
    or a day), which raises the alert `outbox_dead`; its CloudEvents `source` and `id` stay the same, so a receiver can
    tell the same one again; of a group the next follows the one before. Not promised: that it comes only once, or that
    the order holds for one whose sender had stopped for longer than its lease. `every` is seconds between looks.

    What was sent is forgotten `keep` seconds later (None: never; an hour at least). Until then the same `dedup` is the
    same event; published again after that, it is sent again under its old id.

    Raises UsageError for what is no URL and no secret. Several may work on one ledger, in whatever processes.
    """

    def __init__(
        self, ledger: Ledger, urls: Sequence[str] = (), secret: str | None = None, every: float = 1.0, *,
        timeout: float = LIMIT_S, keep: float | None = outbox.KEEP_S,
    ) -> None:  # fmt: skip
        self.ledger, self.urls = ledger, tuple(dict.fromkeys(outbox.check_url(url) for url in urls))
        self.every, self.timeout = float(clock.check_limit("every", every) or 1.0), timeout
        self.problem: str | None = None  #: why it cannot look into the outbox, while it cannot
        self._keep_ms = outbox.check_keep(keep)
        self._secret = secret
        key_of(secret)
        self._slots = Slots(MOST_SLOW)
        self._paces: dict[str, Pace] = {}
        self._lanes: dict[str, asyncio.Task[int]] = {}
        self._lane_of: dict[str, Lane] = {}
        self._stop = threading.Event()
        self._wake: Callable[[], object] = lambda: None
        self._thread: threading.Thread | None = None

    # -- its life ----------------------------------------------------------------------------------------------------

    def run_once(self) -> int:
        """Send what is due now; how many were taken by their receivers. Bounded by `timeout` for each round of each
        receiver. Raises LedgerError."""
        with asyncio.Runner(loop_factory=Loop) as runner:
            return runner.run(self._once())

    def start(self) -> None:
        """Go on sending in a thread. Whatever goes wrong with the ledger is tried again."""
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, name="deadstop-deliver", daemon=True)
            self._thread.start()

    def stop(self, within: float = 5.0) -> bool:
        """Stop within so many seconds; what was under way and has no answer is sent again by the next one.

        False if it has not ended by then (the database does not answer): it ends when that does.
        """
        thread = self._thread
        if thread is None:
            return True
        self._stop.set()
        self._wake()
        thread.join(within)
        if not thread.is_alive():
            self._thread = None
        return self._thread is None

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=Loop) as runner:
            runner.run(self._serve())

    # -- looking -----------------------------------------------------------------------------------------------------

    async def _once(self) -> int:
        async with Poster(self._secret, self.timeout) as poster:
            while await self._spread():
                pass
            found = await self._read(outbox.receivers)
            count = sum(await asyncio.gather(*(self._lane(poster, url).run() for url in found)))
        await self._prune()
        return count

    async def _serve(self) -> None:
        woken, loop = asyncio.Event(), asyncio.get_running_loop()
        self._wake = lambda: _quietly(loop, woken.set)
        pause = self.every
        pruning = asyncio.ensure_future(self._keep_pruning())
        async with Poster(self._secret, self.timeout) as poster:
            while not self._stop.is_set():
                more = False
                try:
                    more = await self._spread() >= SPREAD
                    self._open_lanes(poster, await self._read(outbox.receivers))
                    self.problem, pause = None, self.every
                except Exception as problem:
                    pause = min(_LONGEST_PAUSE_S, 2 * pause)
                    self.report(problem)
                await _sleep(woken, 0 if more else pause)
            pruning.cancel()
            await self._close_lanes()

    def report(self, problem: BaseException) -> None:
        """Why it cannot go on just now; logged once for each cause."""
        text = _text(problem)
        if text != self.problem:
            LOG.warning("the outbox cannot be delivered: %s", text)
        self.problem = text

    async def _spread(self) -> int:
        if not self.urls or not await self._read(outbox.unspread):
            return 0
        return await self.write(outbox.spread, self.urls, SPREAD)

    # -- lanes -------------------------------------------------------------------------------------------------------

    def _lane(self, poster: Poster, url: str, *, patient: bool = False) -> Lane:
        pace = self._paces.pop(url, None) or Pace(self._slots)
        self._paces[url] = pace  # the one that was used last is the last
        for old in [each for each in self._paces if each not in self._lanes][: max(0, len(self._paces) - PACES)]:
            del self._paces[old]
        return Lane(self, poster, url, pace, LEASE_SPARE_S, patient=patient)

    def _open_lanes(self, poster: Poster, urls: Sequence[str]) -> None:
        """For each that something is due to. Where there are too many, they take turns: who had none for longest."""
        self._forget_ended()
        waiting = []
        for url in urls:
            if url in self._lanes:
                self._lane_of[url].wake()
            elif url not in self._paces or not self._paces[url].rests():
                waiting.append(url)
        turns = {url: turn for turn, url in enumerate(self._paces)}
        for url in sorted(waiting, key=lambda each: turns.get(each, -1)):
            if len(self._lanes) >= LANES:
                self._make_room()
                return
            lane = self._lane_of[url] = self._lane(poster, url, patient=True)
            self._lanes[url] = asyncio.ensure_future(lane.run())

    def _make_room(self) -> None:
        for lane in self._lane_of.values():
            if clock.monotonic() - lane.since > TURN_S:
                lane.leave()

    def _forget_ended(self) -> None:
        for url in [url for url, task in self._lanes.items() if task.done()]:
            self._lane_of.pop(url)
            if (problem := self._lanes.pop(url).exception()) is not None:
                self.report(problem)

    async def _close_lanes(self) -> None:
        for lane in self._lane_of.values():
            lane.leave()
        if self._lanes:
            _, left = await asyncio.wait(self._lanes.values(), timeout=STOP_S)
            for task in left:
                task.cancel()
            await asyncio.gather(*self._lanes.values(), return_exceptions=True)
        self._lanes, self._lane_of = {}, {}

    # -- pruning -----------------------------------------------------------------------------------------------------

    async def _keep_pruning(self) -> None:
        told = ""
        while True:
            try:
                while await self._prune() == PRUNED:
                    await asyncio.sleep(PRUNE_PAUSE_S)
                told = ""
            except Exception as problem:  # delivery goes on
                if (text := _text(problem)) != told:
                    LOG.warning("what was sent cannot be pruned: %s", text)
                told = text
            await asyncio.sleep(PRUNE_EVERY_S)

    async def _prune(self) -> int:
        """One small transaction, where there is anything: others wait for it."""
        if self._keep_ms is None or not await self._read(lambda tx: outbox.prunable(tx, self._keep_ms or 0)):
            return 0
        return await self.write(outbox.prune, self._keep_ms, PRUNED)

    # -- the ledger --------------------------------------------------------------------------------------------------

    async def _read(self, work: Callable[..., T]) -> T:
        return await asyncio.to_thread(self.ledger.read, work)

    async def write(self, work: Callable[..., T], *arguments: Any, **options: Any) -> T:
        return await asyncio.to_thread(self.ledger.write, lambda tx: work(tx, *arguments, **options))


def _text(problem: BaseException) -> str:
    return str(problem) if isinstance(problem, DeadstopError) else f"{type(problem).__name__}: {problem}"


def _quietly(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        pass  # closed


async def _sleep(woken: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await woken.wait()
    except TimeoutError:
        pass
