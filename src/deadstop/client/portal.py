# SPDX-License-Identifier: Apache-2.0
"""The loop behind the blocking face: one daemon thread for a process, started when it is first needed."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Generator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from ..errors import InternalError
from . import connection

T = TypeVar("T")
CLOSING_S = 2.0


class Portal:
    """Runs coroutines for threads that wait for them. What the caller has set in its context holds in them too."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Its value. An exception in the waiting thread, such as Ctrl-C, ends the work first, within a bound."""
        if threading.current_thread() is self._thread:
            work.close()
            raise InternalError("a blocking call in the thread that answers blocking calls")
        ended = threading.Event()
        future = asyncio.run_coroutine_threadsafe(_until_ended(work, ended), self._started())
        try:
            return future.result()
        except BaseException:
            if not future.done():
                future.cancel()
                ended.wait(CLOSING_S)
            raise

    def spawn(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._started())

    def iterate(self, items: AsyncIterator[T]) -> Generator[T, None, None]:
        """One at a time, so that a slow reader slows down the sender."""
        try:
            while True:
                more, item = self.run(_step(items))
                if not more:
                    return
                yield item
        finally:
            close = getattr(items, "aclose", None)
            if close is not None:
                self._closed(close())

    def _closed(self, closing: Coroutine[Any, Any, None]) -> None:
        if threading.current_thread() is self._thread:  # the collector runs in any thread
            self.spawn(closing)
        else:
            self.run(closing)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(loop,), name="deadstop-client", daemon=True)
                self._thread.start()
            return self._loop

    def close(self) -> None:
        """End what runs and close all connections. A later call starts anew."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSING_S)

    def forget(self) -> None:
        """In a forked child: the thread is not there, and its loop is the parent's."""
        _left_behind.append(self._loop)
        self.__init__()  # type: ignore[misc]


async def _until_ended(work: Coroutine[Any, Any, T], ended: threading.Event) -> T:
    try:
        return await work
    finally:
        ended.set()


async def _step(items: AsyncIterator[T]) -> tuple[bool, Any]:
    try:
        return True, await items.__anext__()
    except StopAsyncIteration:
        return False, None


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.wait_for(asyncio.gather(*left, return_exceptions=True), CLOSING_S))
        loop.run_until_complete(loop.shutdown_asyncgens())
    except TimeoutError:
        pass
    finally:
        loop.close()


portal = Portal()
_left_behind: list[object] = []
# Sockets that hold attached sandboxes: a forked child must not hold them in its parent's place.
held: set[int] = set()


def _after_fork() -> None:
    portal.forget()
    connection.forget_all()
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in held:  # replaced, not closed: an object that will be collected still has the number
        with suppress(OSError):
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
    held.clear()


atexit.register(portal.close)
os.register_at_fork(after_in_child=_after_fork)
