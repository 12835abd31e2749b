# SPDX-License-Identifier: Apache-2.0
"""Tells people what needs one: once for each cause, by whichever way there is, and never for ever.

It also notices what nobody else would: that the reconciler is silent, that an attempt has no end.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import clock
from ..errors import DeadstopError
from ..ledger import alerts, entries
from ..ledger.alerts import LEDGER, RECONCILER
from ..ledger.documents import alert_told, iso
from ..ledger.records import Alert
from .sinks import LogSink, Sink

if TYPE_CHECKING:
    from ..ledger.ledger import Ledger
    from ..ledger.store import Tx

__all__ = ["Attention"]

LOG = logging.getLogger("deadstop.attention")
AT_ONCE = 20  # alerts in one round
GRACE_S = 10.0  # for whoever should have done it first
_LONGEST_PAUSE_S = 60.0


class Attention:
    """Tells the alerts of `ledger` to `sinks` (see `sinks.py`), every `every` seconds as far as there are new ones.

    Promised: every alert goes to the log once, and to the sinks until one of them took it, some 20 times within half a
    day, further and further apart; then it is only listed. Its repeats are not told. Where a sink does not answer it
    costs its own time limit, once in a round. Not promised: that it is told only once where this process dies between
    the telling and the writing down. Several may work on one ledger.

    With `watch_reconciler` one that has never given a sign of life is missed, too; otherwise only one that has.
    """

    def __init__(
        self, ledger: Ledger, sinks: Sequence[Sink] = (), every: float = 5.0, *, log: Sink | None = None,
        watch_reconciler: bool = False, grace: float = GRACE_S,
    ) -> None:  # fmt: skip
        self.ledger, self.sinks, self.log = ledger, tuple(sinks), log or LogSink()
        self.every = float(clock.check_limit("every", every) or 5.0)
        self.problem: str | None = None  #: why it cannot look, while it cannot
        self._grace_ms, self._expected = round(grace * 1000), watch_reconciler
        self._since = clock.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # -- its life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Go on looking in a thread. Whatever goes wrong is tried again."""
        if self._thread is None:
            self._stop.clear()
            self._since = clock.monotonic()
            self._thread = threading.Thread(target=self._run, name="deadstop-attention", daemon=True)
            self._thread.start()

    def stop(self, within: float = 5.0) -> bool:
        """Stop; False if a sink or the database has not answered within so many seconds (it ends when they do)."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(within)
            if self._thread.is_alive():
                return False
            self._thread = None
        return True

    def _run(self) -> None:
        pause, next_look = self.every, 0.0
        while not self._stop.wait(pause):
            try:
                if clock.monotonic() >= next_look:
                    next_look = clock.monotonic() + self._grace_ms / 4000  # it reads what is open, which may be much
                    self.look()
                self.tell()
                self.problem, pause = None, self.every
            except Exception as problem:
                pause = min(_LONGEST_PAUSE_S, 2 * pause)
                text = str(problem) if isinstance(problem, DeadstopError) else f"{type(problem).__name__}: {problem}"
                if text != self.problem:
                    LOG.warning("alerts cannot be told: %s", text)
                self.problem = text

    def run_once(self) -> int:
        """Look, and tell what is new; how many alerts somebody took. Raises LedgerError."""
        self.look()
        return self.tell()

    def tell(self) -> int:
        """Tell what is new, without looking."""
        if not self.ledger.read(alerts.pending):
            return 0
        taken = self.ledger.write(partial(alerts.take, limit=AT_ONCE))
        broken: set[Sink] = set()  # in this round
        return sum(self._tell(each, broken) for each in taken)

    # -- looking -----------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Write down what nobody has said: silence, and attempts without an end."""
        found = self.ledger.read(self._unsaid)
        ended = self.ledger.read(self._ended)
        if found or ended:
            self.ledger.write(lambda tx: _write_down(tx, found, ended))

    def _unsaid(self, tx: Tx) -> list[tuple[str, str, str]]:
        found = [("started_without_end", *each) for each in alerts.unended(tx, self._grace_ms)]
        found += [("recovery_deadline_passed", *each) for each in alerts.overdue(tx, self._grace_ms)]
        silence = self._silence(tx)
        if silence and not _stands(tx, "reconciler_silent"):
            found.append(("reconciler_silent", LEDGER, silence))
        return found

    def _silence(self, tx: Tx) -> str:
        beat = next((each for each in alerts.beats(tx) if each.name == RECONCILER), None)
        if beat is not None:
            if not beat.late(tx.now):
                return ""
            return f"its last sign of life came {(tx.now - beat.at_ms) / 1000:.0f} s ago, from {beat.owner}"
        if self._expected and (clock.monotonic() - self._since) * 1000 > self._grace_ms:
            return "it has never given a sign of life"
        return ""

    def _ended(self, tx: Tx) -> list[tuple[str, str]]:
        heard = _stands(tx, "reconciler_silent") and not self._silence(tx)
        return [*([("reconciler_silent", LEDGER)] if heard else []), *alerts.past(tx)]

    # -- telling -----------------------------------------------------------------------------------------------------

    def _tell(self, each: alerts.Pending, broken: set[Sink]) -> int:
        alert = each.alert
        document = self.ledger.read(partial(document_of, ledger_id=self.ledger.id, alert=alert))
        if each.tries == 1:
            self.log.tell(document)
        took = [sink for sink in self.sinks if sink not in broken and self._told(sink, document, broken)]
        if not took and self.sinks:
            return 0
        self.ledger.write(partial(alerts.delivered, kind=alert.kind, op_id=alert.op_id))
        return 1

    def _told(self, sink: Sink, document: dict[str, Any], broken: set[Sink]) -> bool:
        if self._stop.is_set():
            return False
        try:
            sink.tell(document)
            return True
        except Exception as problem:
            broken.add(sink)
            LOG.warning(
                "the alert %s of %s did not go to %s: %s", document["kind"], document["op_id"], sink.name, problem
            )
            return False


def document_of(tx: Tx, ledger_id: str, alert: Alert) -> dict[str, Any]:
    """An alert with what a person needs to act on it: the operation, as it stands now, and where to look."""
    document: dict[str, Any] = {**alert_told(alert), "ledger": ledger_id, "operation": None}
    if tx.one("operation", op_id=alert.op_id) is not None:
        record = entries.read(tx, alert.op_id)
        document["operation"] = {
            "id": record.op_id, "tool": record.tool, "target": record.target, "state": record.state.value,
            "attempts": record.attempts, "reference": record.reference, "correlation_id": record.correlation,
            "recovery_deadline": iso(record.recovery_ms), "ver": record.ver,
        }  # fmt: skip
        document["look"] = f"deadstop ops show {record.op_id}"
    return document


def _stands(tx: Tx, kind: str) -> bool:
    """It was raised, and its cause has not ended; acknowledged or not."""
    return tx.one("alert_stands", kind=kind, op_id=LEDGER) is not None


def _write_down(tx: Tx, found: Sequence[tuple[str, str, str]], ended: Sequence[tuple[str, str]]) -> None:
    for kind, op_id, detail in found:
        alerts.raise_alert(tx, kind, op_id, detail)
    for kind, op_id in ended:
        alerts.over(tx, kind, op_id)
