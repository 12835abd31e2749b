# SPDX-License-Identifier: Apache-2.0
"""The outbox, sent: webhooks get their events at least once, of each group in its order.

Every receiver is its own lane. One that is down, or slow, holds up its own events and nobody else's.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from .. import clock
from ..errors import DeadstopError
from ..ledger import crash, outbox
from .loops import Loop
from .posting import LIMIT_S, NotPosted, Posted, Poster, key_of

if TYPE_CHECKING:
    from ..ledger.ledger import Ledger

__all__ = ["Deliverer"]

T = TypeVar("T")
LOG = logging.getLogger("deadstop.outbox")

AT_ONCE = 8  # to one receiver, each of another group
LANES = 64
LEASE_SPARE_S = 30.0
STOP_S = 2.0  # for what is under way when it is to stop
_LONGEST_PAUSE_S = 30.0


class Deliverer:
    """Sends what the outbox of `ledger` holds: messages without a URL of their own to each of `urls`.

    Promised: an event is sent until its receiver answers 2xx or it is given up (410 at once, else after some 40 tries
    or a day), which raises the alert `outbox_dead`; its CloudEvents `source` and `id` stay the same, so a receiver can
    tell the same one again; of a group the next follows the one before. Not promised: that it comes only once, or that
    the order holds for one whose sender had stopped for longer than its lease. `every` is seconds between looks.

    Raises UsageError for what is no URL and no secret. Several may work on one ledger, in whatever processes.
    """

    def __init__(
        self, ledger: Ledger, urls: Sequence[str] = (), secret: str | None = None, every: float = 1.0, *,
        timeout: float = LIMIT_S,
    ) -> None:  # fmt: skip
        self.ledger, self.urls = ledger, tuple(dict.fromkeys(outbox.check_url(url) for url in urls))
        self.every, self.timeout = float(clock.check_limit("every", every) or 1.0), timeout
        self.problem: str | None = None  #: why it cannot look into the outbox, while it cannot
        self._secret = secret
        key_of(secret)
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
            return sum(await asyncio.gather(*(self._lane(poster, url) for url in found)))

    async def _serve(self) -> None:
        woken, loop = asyncio.Event(), asyncio.get_running_loop()
        self._wake = lambda: _quietly(loop, woken.set)
        lanes: dict[str, asyncio.Task[int]] = {}
        pause = self.every
        async with Poster(self._secret, self.timeout) as poster:
            while not self._stop.is_set():
                try:
                    await self._spread()
                    self._open_lanes(poster, lanes, await self._read(outbox.receivers), woken)
                    self.problem, pause = None, self.every
                except Exception as problem:
                    pause = min(_LONGEST_PAUSE_S, 2 * pause)
                    self._report(problem)
                await _sleep(woken, pause)
            await self._close_lanes(lanes)

    def _open_lanes(
        self, poster: Poster, lanes: dict[str, asyncio.Task[int]], urls: list[str], woken: asyncio.Event
    ) -> None:
        for url in [url for url, lane in lanes.items() if lane.done()]:
            if (problem := lanes.pop(url).exception()) is not None:
                self._report(problem)
        for url in urls:
            if url not in lanes and len(lanes) < LANES:
                lanes[url] = asyncio.ensure_future(self._lane(poster, url))

    async def _close_lanes(self, lanes: dict[str, asyncio.Task[int]]) -> None:
        if lanes:
            _, left = await asyncio.wait(lanes.values(), timeout=STOP_S)
            for lane in left:
                lane.cancel()
            await asyncio.gather(*lanes.values(), return_exceptions=True)

    def _report(self, problem: BaseException) -> None:
        text = str(problem) if isinstance(problem, DeadstopError) else f"{type(problem).__name__}: {problem}"
        if text != self.problem:  # once for each cause
            LOG.warning("the outbox cannot be delivered: %s", text)
        self.problem = text

    # -- sending -----------------------------------------------------------------------------------------------------

    async def _spread(self) -> int:
        if not self.urls or not await self._read(outbox.unspread):
            return 0
        return await self._write(outbox.spread, self.urls)

    async def _lane(self, poster: Poster, url: str) -> int:
        """Everything that is due to one receiver; how many it has taken."""
        count = 0
        lease_ms = round((self.timeout + LEASE_SPARE_S) * 1000)
        while not self._stop.is_set():
            taken = await self._write(outbox.take, url, AT_ONCE, lease_ms)
            if not taken:
                break
            crash.at("outbox.taken")
            count += sum(await asyncio.gather(*(self._send(poster, due) for due in taken)))
        return count

    async def _send(self, poster: Poster, due: outbox.Due) -> bool:
        try:
            posted = await poster.post(due.url, due.event_id, due.event)
        except NotPosted as problem:
            await self._write(outbox.failed, due.id, due.fence, str(problem))
            return False
        if posted.taken:
            crash.at("outbox.sent")
            await self._write(outbox.sent, due.id, due.fence)
            return True
        await self._write(outbox.failed, due.id, due.fence, f"the receiver answered {posted.status}",
                          _wish(posted), final=posted.gone)  # fmt: skip
        return False

    async def _read(self, work: Callable[..., T]) -> T:
        return await asyncio.to_thread(self.ledger.read, work)

    async def _write(self, work: Callable[..., T], *arguments: Any, **options: Any) -> T:
        return await asyncio.to_thread(self.ledger.write, lambda tx: work(tx, *arguments, **options))


def _wish(posted: Posted) -> float | None:
    return posted.retry_after if posted.status in (429, 503) else None


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
