# SPDX-License-Identifier: Apache-2.0
"""A lock between processes that is waited for without polling, within a bound, and in turns."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import weakref
from collections.abc import Iterator

from .. import clock
from ..errors import LedgerUnavailable

__all__ = ["FileLock"]

_open: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _close_all() -> None:
    """A forked child has its parent's locks as long as it has these open, and would keep them when the parent dies."""
    for lock in list(_open):
        lock.close()


os.register_at_fork(after_in_child=_close_all)


class FileLock:
    """flock(2) on a file beside the ledger. Let go by the kernel when the process dies.

    Two locks: whoever waits holds the gate, so that the one who has just let go cannot take it again before the one
    who waited (which is what starves the clients of a busy timeout). One thread of a process at a time.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._gate = os.open(f"{path}.gate", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._main = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._mine = threading.Lock()
        _open.add(self)

    @contextlib.contextmanager
    def held(self, seconds: float) -> Iterator[None]:
        """Raises LedgerUnavailable if it cannot be had within that time."""
        until = clock.monotonic() + seconds
        if not self._mine.acquire(timeout=seconds):
            raise self._late(seconds)
        try:
            if not self._try():
                self._wait(until - clock.monotonic(), seconds)
            try:
                yield
            finally:
                fcntl.flock(self._main, fcntl.LOCK_UN)
        finally:
            self._mine.release()

    def _try(self) -> bool:
        try:
            fcntl.flock(self._gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            fcntl.flock(self._main, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            fcntl.flock(self._gate, fcntl.LOCK_UN)
        return True

    def _wait(self, left: float, seconds: float) -> None:
        """A thread of its own waits in the kernel: flock has no time limit, and a signal is not ours to use."""
        waiter = _Waiter(self.path)
        if not waiter.done.wait(left) and waiter.give_up():
            raise self._late(seconds)
        os.dup2(waiter.main, self._main, inheritable=False)  # the lock belongs to what was opened, not to the number
        os.close(waiter.main)

    def _late(self, seconds: float) -> LedgerUnavailable:
        return LedgerUnavailable(
            self.path.removesuffix(".lock"), f"another process has held its lock for {seconds:g} s",
            "see who has the file open; a stopped process holds it until it goes on or ends",
        )  # fmt: skip

    def close(self) -> None:
        _open.discard(self)
        os.close(self._gate)
        os.close(self._main)


class _Waiter:
    def __init__(self, path: str) -> None:
        self.path = path
        self.done = threading.Event()
        self.main = -1
        self._guard = threading.Lock()
        self._unwanted = False
        threading.Thread(target=self._run, name="deadstop-ledger-lock", daemon=True).start()

    def _run(self) -> None:
        gate = os.open(f"{self.path}.gate", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        main = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(main, fcntl.LOCK_EX)
        os.close(gate)
        with self._guard:
            if self._unwanted:
                os.close(main)
                return
            self.main = main
        self.done.set()

    def give_up(self) -> bool:
        """False if it has come meanwhile after all."""
        with self._guard:
            self._unwanted = self.main < 0
            return self._unwanted
