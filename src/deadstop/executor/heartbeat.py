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

__all__ = ["beating"]

EVERY_S = 5.0


class _Heart:
    def __init__(self) -> None:
        self._held: dict[int, tuple[Ledger, Claim]] = {}
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._some = threading.Event()

    def hold(self, ledger: Ledger, claim: Claim) -> int:
        with self._guard:
            number = id(claim)
            self._held[number] = ledger, claim
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="deadstop-leases", daemon=True)
                self._thread.start()
            self._some.set()
        return number

    def let_go(self, number: int) -> None:
        with self._guard:
            self._held.pop(number, None)
            if not self._held:
                self._some.clear()

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            self._some.wait()
            pause.wait(EVERY_S)
            with self._guard:
                late = [(number, *each) for number, each in self._held.items()
                        if each[1].until - clock.monotonic() < each[1].lease_s - EVERY_S / 2]  # fmt: skip
            for number, ledger, claim in late:
                self._renew(number, ledger, claim)

    def _renew(self, number: int, ledger: Ledger, claim: Claim) -> None:
        try:
            longer = ledger.heartbeat(claim, claim.lease_s)
        except StaleClaim:
            self.let_go(number)  # somebody else has settled it; the end of the call will be told so
        except Exception:  # this thread has to go on for all others
            pass  # tried again; without it the lease runs out, and that is the truth
        else:
            with self._guard:
                if number in self._held:
                    self._held[number] = ledger, longer


_heart = _Heart()


@contextmanager
def beating(ledger: Ledger, claim: Claim | None) -> Iterator[None]:
    """A block during which the lease of `claim` is kept, however long it takes."""
    if claim is None:
        yield
        return
    number = _heart.hold(ledger, claim)
    try:
        yield
    finally:
        _heart.let_go(number)


def _anew() -> None:
    global _heart
    _heart = _Heart()


os.register_at_fork(after_in_child=_anew)
