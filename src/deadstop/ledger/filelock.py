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
_waiting: set[int] = set()  # of threads that wait


def _close_all() -> None:
    """A forked child has its parent's locks as long as it has these open, and would keep them when the parent dies."""
    for lock in list(_open):
        lock.close()
    for fd in list(_waiting):
        _waiting.discard(fd)
        with contextlib.suppress(OSError):
            os.close(fd)


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
            try:
                self._take(until, seconds)
                yield
            finally:
                fcntl.flock(self._main, fcntl.LOCK_UN)  # also where an interrupt came between
        finally:
            self._mine.release()

    def _take(self, until: float, seconds: float) -> None:
        while True:
            if not self._try():
                self._wait(until - clock.monotonic(), seconds)
            # Where somebody removed the file, others lock another one; without its folder nobody can.
            if self._is_there() or not self._reopen():
                return
            if clock.monotonic() > until:
                raise self._late(seconds)

    def _try(self) -> bool:
        try:
            fcntl.flock(self._gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(self._main, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            fcntl.flock(self._gate, fcntl.LOCK_UN)
        return True

    def _wait(self, left: float, seconds: float) -> None:
        """A thread of its own waits in the kernel: flock has no time limit, and a signal is not ours to use."""
        waiter = _Waiter(self.path)
        try:
            if not waiter.done.wait(left) and waiter.give_up():
                raise self._late(seconds)
            if waiter.problem is not None:
                raise LedgerUnavailable(self._ledger, f"its lock: {waiter.problem.strerror}") from waiter.problem
            # The lock belongs to what was opened, not to the number.
            os.dup2(waiter.main, self._main, inheritable=False)
        except BaseException:
            if not waiter.give_up():
                waiter.let_go(waiter.main)  # it has come, and nobody wants it any more
            raise
        _close(waiter.main)

    def _is_there(self) -> bool:
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return False
        own = os.fstat(self._main)
        return (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)

    def _reopen(self) -> bool:
        """False, and what is held stays so, if the folder is gone."""
        for path, old in ((f"{self.path}.gate", self._gate), (self.path, self._main)):
            try:
                new = _opened(path)
            except FileNotFoundError:
                return False
            except OSError as problem:
                raise LedgerUnavailable(self._ledger, f"its lock: {problem.strerror}") from problem
            fcntl.flock(old, fcntl.LOCK_UN)
            os.dup2(new, old, inheritable=False)
            _close(new)
        return True

    @property
    def _ledger(self) -> str:
        return self.path.removesuffix(".lock")

    def _late(self, seconds: float) -> LedgerUnavailable:
        return LedgerUnavailable(
            self._ledger, f"another process has held its lock for {seconds:g} s",
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
        self.problem: OSError | None = None
        self._guard = threading.Lock()
        self._unwanted = False
        threading.Thread(target=self._run, name="deadstop-ledger-lock", daemon=True).start()

    def _run(self) -> None:
        try:
            self._get()
        except OSError as problem:  # no more descriptors
            self.problem = problem
            self.done.set()

    def _get(self) -> None:
        gate = _opened(f"{self.path}.gate")
        try:
            main = _opened(self.path)
            fcntl.flock(gate, fcntl.LOCK_EX)
            fcntl.flock(main, fcntl.LOCK_EX)
        finally:
            self.let_go(gate)
        with self._guard:
            if self._unwanted:
                self.let_go(main)
                return
            self.main = main
        self.done.set()

    @staticmethod
    def let_go(fd: int) -> None:
        """Closing alone would not do: a child that was forked meanwhile has it, too."""
        if fd >= 0:
            fcntl.flock(fd, fcntl.LOCK_UN)
            _close(fd)

    def give_up(self) -> bool:
        """False if it has come meanwhile after all."""
        with self._guard:
            self._unwanted = self.main < 0
            return self._unwanted


def _opened(path: str) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _waiting.add(fd)
    return fd


def _close(fd: int) -> None:
    _waiting.discard(fd)
    os.close(fd)
