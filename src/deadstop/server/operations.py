# SPDX-License-Identifier: Apache-2.0
"""The ledger beside the sandboxes, and what works on it: reconciler, delivery, attention, in threads of their own.

Sandboxes do not depend on it: a ledger that cannot be opened, or stops answering, makes the server `degraded` and is
tried again, and nothing of it is ever waited for on the event loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from .. import clock
from ..errors import DeadstopError, LedgerBroken, MissingExtra, UsageError
from .logs import LOG
from .problems import Problem
from .settings import LedgerSettings

if TYPE_CHECKING:
    from ..effects.sinks import Sink
    from ..ledger.ledger import Ledger
    from ..ledger.store import Tx

__all__ = ["Figures", "Operations"]

T = TypeVar("T")

ANSWER_S = 10.0  # for what should take milliseconds
MOST_ASKED = 32  # at once, of what is quick, and of what waits for an authority; more than that is refused
LOOK_S = 2.0
AGAIN_S, LONGEST_AGAIN_S = 0.5, 30.0
STOP_S = 3.0


@dataclass(frozen=True, slots=True)
class Figures:
    """What was last seen in the ledger. `beat_ms` is the reconciler's last sign of life."""

    up: bool = False
    operations: Mapping[str, int] = field(default_factory=dict)
    outbox: Mapping[str, int] = field(default_factory=dict)
    alerts: int = 0
    beat_age_s: float | None = None
    at: float = 0.0


class _Part(Protocol):
    def start(self) -> Any: ...

    def stop(self, within: float = ..., /) -> bool: ...


class Operations:
    """Keeps one ledger open. `problem` is one line, or None while all is well.

    Raises UsageError and MissingExtra for settings that could never work; whatever else is wrong is tried again.
    """

    def __init__(self, settings: LedgerSettings) -> None:
        self.settings = settings
        self.ledger: Ledger | None = None
        self.problem: str | None = None
        self.off = False  # the packages are not there, and nobody has asked for it
        self.figures = Figures()
        self._sinks = _sinks(settings)
        self._check()
        self._parts: list[_Part] = []
        self._asked: Counter[bool] = Counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="deadstop-ledger", daemon=True)

    def _check(self) -> None:
        """What needs no ledger to be seen wrong."""
        try:
            from ..ledger import canonical
        except MissingExtra:
            if self.settings.required:
                raise
            self.off = True
            return
        del canonical
        kind, address, _ = self.settings.place.partition("://")
        if address and kind not in ("postgresql", "postgres"):
            raise UsageError(f"--ledger: {kind}:// is no kind of ledger: give a path or a postgresql:// URL")
        from ..ledger.outbox import check_keep, check_url

        check_keep(self.settings.keep_events_s)
        if self.settings.webhooks:
            from ..effects.posting import key_of

            key_of(self.settings.secret)
            for url in self.settings.webhooks:
                check_url(url)

    # -- its life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open it, in a thread."""
        if self.off:
            LOG.info("no ledger: its packages are not installed")
        else:
            self._thread.start()

    async def close(self) -> None:
        """Within some seconds: what is under way is taken up again by whoever is next."""
        self._stop.set()
        if self._thread.is_alive():
            try:
                await _in_thread(self._closed, 3 * STOP_S)
            except TimeoutError:
                LOG.warning("the ledger did not close in time")

    def _closed(self) -> None:
        self._thread.join(STOP_S)
        stopping = [threading.Thread(target=part.stop, args=(STOP_S,), daemon=True) for part in self._parts]
        for thread in stopping:
            thread.start()
        for thread in stopping:
            thread.join(STOP_S + 0.5)
        ledger, self.ledger = self.ledger, None
        if ledger is not None:
            try:
                ledger.close()
            except DeadstopError as problem:
                LOG.warning("the ledger did not close", extra={"facts": {"problem": str(problem)}})

    def _keep(self) -> None:
        """Until it is open, try to open it; then look whether it still answers."""
        pause = AGAIN_S
        while not self._stop.is_set():
            try:
                if self.ledger is None:
                    ledger = self._opened()
                    if self._stop.is_set():  # it took longer than anybody waits for
                        ledger.close()
                        return
                    self.ledger = ledger
                    self._start_parts(ledger)
                self._look(self.ledger)
                self._tell(None)
                pause = AGAIN_S
            except Exception as problem:
                if isinstance(problem, LedgerBroken) and _text(problem) != self.problem:
                    self._alarm(problem)  # no alert can be written into it
                self._tell(_text(problem))
                self.figures = Figures()
                pause = min(LONGEST_AGAIN_S, 2 * pause)
            self._stop.wait(LOOK_S if self.problem is None else pause)

    def _opened(self) -> Ledger:
        from ..ledger.ledger import Ledger

        ledger = Ledger.open(self.settings.place)
        if self.settings.webhooks:
            ledger.publish_ends()
        LOG.info("ledger", extra={"facts": {"where": ledger.where}})
        return ledger

    def _start_parts(self, ledger: Ledger) -> None:
        """What of it cannot be had is said, and holds up nothing else."""
        for make in (self._reconciler, self._deliverer, self._attention):
            try:
                part = make(ledger)
                part.start()
                self._parts.append(part)
            except Exception as problem:
                LOG.warning(
                    "not everything works on the ledger",
                    extra={"facts": {"problem": _text(problem)}},
                    exc_info=None if isinstance(problem, DeadstopError) else problem,
                )

    def _reconciler(self, ledger: Ledger) -> _Part:
        from ..effects.reconciler import Reconciler

        return Reconciler(ledger, every=self.settings.every_s, parallel=self.settings.parallel, on_problem=_warn)

    def _deliverer(self, ledger: Ledger) -> _Part:
        from ..effects.deliver import Deliverer

        settings = self.settings
        return Deliverer(ledger, settings.webhooks, settings.secret, settings.every_s, keep=settings.keep_events_s)

    def _attention(self, ledger: Ledger) -> _Part:
        from ..effects.attention import Attention
        from ..effects.sinks import LogSink

        log = LogSink(lambda event, **facts: LOG.warning(event, extra={"facts": facts}))
        return Attention(ledger, self._sinks, self.settings.every_s, log=log, watch_reconciler=True)

    def _look(self, ledger: Ledger) -> None:
        self.figures = ledger.read(_figures)
        broken = getattr(ledger.notary, "broken", None)
        if broken:
            raise broken if isinstance(broken, DeadstopError) else RuntimeError(str(broken))

    def _alarm(self, problem: LedgerBroken) -> None:
        from ..ledger.alerts import LEDGER
        from ..ledger.documents import alert_told
        from ..ledger.records import Alert

        now = round(time.time() * 1000)
        alert = Alert("ledger_broken", LEDGER, str(problem), now, now, 1, None, None, None)
        document = {**alert_told(alert), "ledger": LEDGER, "operation": None}
        for sink in self._sinks:
            try:
                sink.tell(document)
            except Exception as other:
                LOG.warning("an alert was not taken", extra={"facts": {"by": sink.name, "problem": str(other)}})

    def _tell(self, problem: str | None) -> None:
        """Once for each cause, and when it is over."""
        if problem is not None and problem != self.problem:
            LOG.warning("the ledger is not available", extra={"facts": {"problem": problem}})
        if problem is None and self.problem is not None:
            LOG.info("the ledger is available again")
        self.problem = problem

    # -- asking ------------------------------------------------------------------------------------------------------

    async def ask(self, work: Callable[[Ledger], T], seconds: float = ANSWER_S) -> T:
        """What `work` gives, from a thread. Raises Problem 503 where the ledger cannot be had, or does not answer."""
        ledger = self.ledger
        if ledger is None:
            raise Problem(503, "ledger_unavailable", self.problem or "the ledger is being opened", retry_after=2)
        quick = seconds <= ANSWER_S  # an authority that is dead keeps nobody from looking
        if self._asked[quick] >= MOST_ASKED:
            raise Problem(503, "ledger_busy", "too many ask the ledger at once", retry_after=1)
        self._asked[quick] += 1
        try:
            return await _in_thread(lambda: work(ledger), seconds, lambda: self._answered(quick))
        except TimeoutError:
            detail = f"the ledger has not answered within {seconds:g} s: what was asked may yet be done"
            raise Problem(503, "ledger_unavailable", detail, retry_after=5) from None

    def _answered(self, quick: bool) -> None:
        self._asked[quick] -= 1


def _figures(tx: Tx) -> Figures:
    from ..ledger import alerts, outbox

    beat = next((each for each in alerts.beats(tx) if each.name == alerts.RECONCILER), None)
    return Figures(
        up=True, operations=alerts.open_operations(tx), outbox=outbox.counts(tx),
        alerts=sum(alerts.counts(tx).values()),
        beat_age_s=None if beat is None else max(0.0, (tx.now - beat.at_ms) / 1000), at=clock.monotonic(),
    )  # fmt: skip


def _sinks(settings: LedgerSettings) -> list[Sink]:
    from ..effects.sinks import AppriseSink, CommandSink, WebhookSink

    sinks: list[Sink] = [WebhookSink(url, settings.secret) for url in settings.alert_webhooks]
    sinks += [CommandSink(argv) for argv in settings.alert_commands]
    sinks += [AppriseSink(url) for url in settings.alert_urls]
    return sinks


def _text(problem: BaseException) -> str:
    return str(problem) if isinstance(problem, DeadstopError) else f"{type(problem).__name__}: {problem}"


def _warn(text: str) -> None:
    LOG.warning("the ledger", extra={"facts": {"problem": text}})


async def _in_thread(work: Callable[[], T], seconds: float, ended: Callable[[], None] = lambda: None) -> T:
    """`work` in a thread that ends with the process, whatever it waits for; `ended` is called when it has ended.

    Raises TimeoutError, and leaves it alone.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(result: Any, problem: BaseException | None) -> None:
        ended()
        if future.done():
            return
        if problem is None:
            future.set_result(result)
        else:
            future.set_exception(problem)

    def run() -> None:
        result, problem = None, None
        try:
            result = work()
        except BaseException as found:
            problem = found
        try:
            loop.call_soon_threadsafe(tell, result, problem)
        except RuntimeError:
            pass  # the loop has been closed

    threading.Thread(target=run, name="deadstop-ledger-ask", daemon=True).start()
    async with asyncio.timeout(seconds):
        return await future
