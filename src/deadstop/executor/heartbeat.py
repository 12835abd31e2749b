# SPDX-License-Identifier: Apache-2.0
"""One thread that keeps the leases of this process's running calls: who dies or is stopped loses them by himself."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .. import clock
from ..errors import StaleClaim
from ..ledger.ledger import Ledger
from ..ledger.records import Claim

__all__ = ["Lease", "beating"]

EVERY_S = 5.0


class Lease:
    """Of one running call."""

    def __init__(self, ledger: Ledger, claim: Claim) -> None:
        self._ledger, self._claim = ledger, claim
        self._lost = False

    def is_over(self) -> bool:
        """Somebody else may act on the operation: nothing may be sent any more."""
        return self._lost or self._claim.is_over()

    def is_due(self) -> bool:
        claim = self._claim
        return not self._lost and claim.until - clock.boottime() < claim.lease_s - EVERY_S / 2

    def renew(self) -> None:
        try:
            self._claim = self._ledger.heartbeat(self._claim, self._claim.lease_s)
        except StaleClaim:
            self._lost = True  # somebody else has settled it; the end of the call will be told so
        except Exception:  # the thread has to go on for all others
            pass  # tried again; without it the lease runs out, and that is the truth


class _Heart:
    def __init__(self) -> None:
        self._held: set[Lease] = set()
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._some = threading.Event()

    def hold(self, lease: Lease) -> None:
        with self._guard:
            self._held.add(lease)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="deadstop-leases", daemon=True)
                self._thread.start()
            self._some.set()

    def let_go(self, lease: Lease) -> None:
        with self._guard:
            self._held.discard(lease)
            if not self._held:
                self._some.clear()

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            self._some.wait()
            pause.wait(EVERY_S)
            with self._guard:
                due = [lease for lease in self._held if lease.is_due()]
            for lease in due:
                lease.renew()


_heart = _Heart()


@contextmanager
def beating(ledger: Ledger, claim: Claim | None) -> Iterator[Lease | None]:
    """A block during which the lease of `claim` is kept, however long it takes."""
    if claim is None:
        yield None
        return
    lease = Lease(ledger, claim)
    _heart.hold(lease)
    try:
        yield lease
    finally:
        _heart.let_go(lease)


def _anew() -> None:
    global _heart
    _heart = _Heart()


os.register_at_fork(after_in_child=_anew)
