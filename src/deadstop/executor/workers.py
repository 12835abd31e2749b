# SPDX-License-Identifier: Apache-2.0
"""The call workers of this process: taken for one call, given back, asked for when there are none free.

No thread of ours serves them: whoever waits for a worker reads what the supervisor delivers, and hands it to whoever
has waited longest.
"""

from __future__ import annotations

import atexit
import json
import marshal
import os
import signal
import socket
import struct
import sys
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from .. import clock, wire
from ..boundary import timers
from ..errors import BoundaryUnavailable, InternalError
from ..model import Place, place_to_dict
from ..packing import Port
from ..results import LimitReport
from ..slots import Page, Slot
from . import answers
from .client import Channel
from .private import supervisor, wait_readable
from .surroundings import about_this_interpreter, environment_now, folder_now

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_WORKERS = 64  # of one pool; calls beyond that wait
KEEP_IDLE = 8  # of one pool, beyond which a worker given back is ended
START_S = 60.0  # until a worker must have been delivered, nothing of the user's has run yet
LOOK_S = 0.25  # how often a blocking wait looks whether the supervisor has let a deadline pass

_LOOK = struct.pack("ll", 0, int(LOOK_S * 1e6))


_alive: weakref.WeakSet[Worker] = weakref.WeakSet()


class Worker:
    """The caller's ends of one worker. `known` are the numbers of the functions it has loaded."""

    __slots__ = (
        "__weakref__", "closed", "cwd", "environ", "exit_fd", "known", "level", "namespace", "number", "path", "pool",
        "port", "printed", "reports", "slot", "timer", "warm",
    )  # fmt: skip

    def __init__(self, pool: Pool, about: tuple[Any, ...], fds: list[int]) -> None:
        _, slot, self.level, _, self.namespace, _ = about
        self.pool, self.closed = pool, False
        data = socket.socket(fileno=fds[0])
        data.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _LOOK)
        self.port = Port(data, pool.max_body)
        self.reports = Port(socket.socket(fileno=fds[1]))
        self.timer, self.exit_fd = timers.Timer(fds[2]), fds[3]
        self.slot = Slot(pool.page, slot)
        self.printed = 0.0  # bytes, as far as calls have been told of them
        self.known: set[int] = set()
        self.environ, self.cwd, self.path = pool.environ, pool.cwd, pool.path
        self.number = 0
        self.warm = pool.warm_when_asked.popleft() if pool.warm_when_asked else 0
        _alive.add(self)

    def order(self, *message: Any) -> None:
        """To the supervisor, about this worker. Lost if it is gone: that is found out by whoever waits."""
        try:
            self.reports.socket.send(marshal.dumps(message), socket.MSG_DONTWAIT)
        except OSError:
            pass

    def forget_surroundings(self) -> None:
        """They may not have been sent: the next call brings them all."""
        self.environ, self.cwd, self.path = {}, "", []

    def kill_from_here(self) -> None:
        """Without the supervisor. A worker without a namespace is ended by its lifeline, which the supervisor holds."""
        try:
            if self.namespace:
                signal.pidfd_send_signal(self.exit_fd, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def close(self) -> None:
        """The supervisor sees it and ends the worker."""
        if self.closed:
            return
        self.closed = True
        _alive.discard(self)
        self.port.socket.close()
        self.reports.socket.close()
        timer, exit_fd = self.timer.fd, self.exit_fd
        self.timer.fd = self.exit_fd = -1
        os.close(timer)
        os.close(exit_fd)

    def __del__(self) -> None:
        """An interrupt can leave one that nobody owns."""
        if not getattr(self, "closed", True):
            self.pool.lose(self)


class Waiter:
    """Somebody in the queue: readable once it has a worker, or there is none to be had."""

    __slots__ = ("event", "worker")

    def __init__(self) -> None:
        self.event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.worker: Worker | None = None

    def served(self) -> bool:
        return self.worker is not None

    def close(self) -> None:
        os.close(self.event)


class Pool:
    """The workers of one place. Raises BoundaryUnavailable or InternalError where none can be had."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.max_body = 1 << 40 if place.isolation == "process" else answers.SANDBOX_BYTES
        # What a sandbox has run may have changed it: the next call is not to be at its mercy.
        self.serves_once = place.isolation == "sandbox"
        self.page = Page()
        self.free: list[Worker] = []
        self.queue: deque[Waiter] = deque()
        self.alive, self.asked = 0, 0
        self.problem: Exception | None = None
        self.closed = False
        self.limits: Mapping[str, LimitReport | None] = {}
        self.remarks: tuple[str, ...] = ()
        self.cold: set[str] = set()  # modules that workers have to load themselves
        self.warm: dict[str, int] = {}  # module -> how many were warmed before it
        self.warm_when_asked: deque[int] = deque()  # for each worker that is on its way
        self._lock = threading.RLock()  # a collected object may give its worker back in the midst of it
        self.environ: dict[bytes, bytes] = dict(environment_now())
        self.cwd, self.path = folder_now(), list(sys.path)
        connection, self.process = supervisor.connect()
        self.channel = Channel(connection, self.process)
        self.orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self.orders.setblocking(False)
        with theirs:
            document = {"place": place_to_dict(place), **about_this_interpreter(self, place)}
            self.channel.send(wire.POOL, document, [theirs.fileno(), self.page.fd])

    # -- taking ------------------------------------------------------------------------------------------------------

    def take_free(self) -> Worker | None:
        """A worker if one is free and nobody waits for it."""
        if self.queue:
            return None
        try:
            worker = self.free.pop()
            while worker.closed:  # an interrupt came between its being free and its being ended
                worker = self.free.pop()
        except IndexError:
            return None
        if not self.free and not self.asked:
            self.ask()  # one to spare: the next call, or the one after a kill, finds it ready
        return worker

    def ask(self, count: int = 1) -> None:
        """Have more workers made, as far as there may be more."""
        with self._lock:
            self._ask(count)

    def _ask(self, count: int) -> None:
        self.problem = None  # what kept the last one from being made may be over
        for _ in range(min(count, MAX_WORKERS - self.alive - self.asked)):
            self.asked += 1
            self.warm_when_asked.append(len(self.warm))
            try:
                self.orders.send(marshal.dumps(("more",)))
            except OSError:
                return  # its end is read in `harvest`

    def enqueue(self) -> Waiter:
        """Get in line. The waiter is to be closed with `leave`."""
        waiter = Waiter()
        with self._lock:
            self.queue.append(waiter)
            if len(self.queue) > self.asked:
                self._ask(len(self.queue) - self.asked)
            self._serve()
        return waiter

    def leave(self, waiter: Waiter) -> None:
        with self._lock:
            try:
                self.queue.remove(waiter)
            except ValueError:
                pass
        waiter.close()

    def harvest(self) -> None:
        """Take what the supervisor has delivered, and give it to those who have waited longest."""
        with self._lock:
            while not self.closed and (got := self._delivered()) is not None:
                message, fds = got
                if message[0] == "worker" and len(fds) == 4:
                    self.asked, self.alive = max(0, self.asked - 1), self.alive + 1
                    self._learn(message[5])
                    self.free.append(Worker(self, message, fds))
                    self.problem = None
                elif message[0] == "worker":  # this process is out of descriptors
                    for fd in fds:
                        os.close(fd)
                    self._fail(InternalError("a worker could not be taken over: out of descriptors?"))
                else:
                    self._fail(BoundaryUnavailable(*message[1:]))
            self._serve()

    def _delivered(self) -> tuple[tuple[Any, ...], list[int]] | None:
        got = wire.receive(self.orders, 1 << 16)
        if got is None:
            return None
        if not got[0]:
            self.closed = True
            self._hopeless(self._why_lost())
            return None
        return marshal.loads(got[0]), got[1]

    def _why_lost(self) -> Exception:
        for kind, body in self.channel.read() or ():
            if kind == wire.FAILED:
                from .client import failure

                return failure(body)
        return InternalError("the supervisor ended")

    def _learn(self, about: str) -> None:
        document = json.loads(about)
        self.cold.update(document["cold"])
        if not self.limits:
            self.limits = {name: LimitReport(**report) for name, report in document["limits"].items()}
            self.remarks = tuple(document["remarks"])

    def _fail(self, problem: Exception) -> None:
        """One that was asked for cannot be had. Whoever waits goes on waiting as long as there are any others."""
        self.asked = max(0, self.asked - 1)
        if not self.alive and not self.asked:
            self._hopeless(problem)

    def _hopeless(self, problem: Exception) -> None:
        self.problem = problem
        for waiter in self.queue:
            os.eventfd_write(waiter.event, 1)

    def _serve(self) -> None:
        while self.queue:
            try:
                worker = self.free.pop()  # others take from it without the lock
            except IndexError:
                return
            if not worker.closed:
                waiter = self.queue.popleft()
                waiter.worker = worker
                os.eventfd_write(waiter.event, 1)

    # -- giving back -------------------------------------------------------------------------------------------------

    def let_go(self, flight: Any) -> None:
        """A call goes on without its caller. Its worker comes back as any other."""

    def give(self, worker: Worker) -> None:
        """It has answered and left nothing behind."""
        if self.closed or self.serves_once or len(self.free) >= KEEP_IDLE:
            self.lose(worker, replace=self.serves_once)
            return
        self.free.append(worker)
        if self.queue:
            with self._lock:
                self._serve()

    def lose(self, worker: Worker, *, replace: bool = False) -> None:
        """It is gone, or is to go. Harmless if it is already."""
        with self._lock:
            if worker.closed:
                return
            worker.close()
            self.alive -= 1
            if replace or self.queue:
                self._ask(max(1 - len(self.free) - self.asked, len(self.queue) - self.asked, 0))

    def has_loaded(self, worker: Worker, module: str | None) -> bool:
        """Whether the worker was forked after the module had been loaded."""
        return module not in self.cold and self.warm.get(module or "", worker.warm) < worker.warm

    def warm_up(self, modules: list[str]) -> None:
        """Have these loaded before workers are made: a worker has loaded them without harm."""
        new = [name for name in modules if name not in self.warm]
        if new and self.place.isolation == "process":
            self.warm.update(zip(new, range(len(self.warm), len(self.warm) + len(new)), strict=True))
            for start in range(0, len(new), 200):
                try:
                    self.orders.send(marshal.dumps(("warm", new[start : start + 200])))
                except OSError:
                    return

    keeps_remains = False  # what a call leaves running in a worker ends with the call

    def give_up(self) -> None:
        """Its supervisor is gone, and its workers with it: the next call opens another."""
        with self._lock:
            self.closed = True
            for worker in self.free:
                worker.close()
            self.free.clear()
            self.channel.close()
            if self.page.fd >= 0:
                os.close(self.page.fd)
                self.page.fd = -1
            self.problem = self.problem or InternalError("the supervisor ended")
            for waiter in self.queue:
                os.eventfd_write(waiter.event, 1)


_pools: dict[Place, Pool] = {}
_opening = threading.RLock()  # a signal handler may make a call, too


def pool_of(place: Place) -> Pool:
    """The pool for a place; a new one if its supervisor was lost."""
    found = _pools.get(place)
    if found is None or found.closed:
        with _opening:
            found = _pools.get(place)
            if found is None or found.closed:
                found = _pools[place] = Pool(place)
                found.ask(2)
    return found


def _after_fork() -> None:
    """In a forked child: the workers are the parent's."""
    global _opening
    _opening = threading.RLock()
    for worker in list(_alive):
        worker.close()
    for pool in _pools.values():
        pool.closed = True
        pool.orders.close()
    _pools.clear()


def _at_exit() -> None:
    """Before the supervisor is waited for: what is idle needs no kill."""
    for pool in _pools.values():
        pool.give_up()
        pool.orders.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)


def wait_for(pool: Pool, waiter: Waiter, until: float, token: int | None) -> bool:
    """Block until the waiter has a worker, `until` is over, or the token can be read (then False)."""
    while not waiter.served():
        pool.harvest()
        if waiter.served():
            break
        if pool.problem is not None:
            raise pool.problem
        left = until - clock.monotonic()
        if left <= 0:
            return False
        sources = [pool.orders.fileno(), waiter.event] + ([token] if token is not None else [])
        if token in wait_readable(sources, left):
            return False
    return True
