# SPDX-License-Identifier: Apache-2.0
"""Hooks of a sandbox: text is a command that the server runs inside, a callable is called in this process."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any

from .. import deadlines
from ..errors import UsageError

Hook = str | Callable[..., Any] | None
STOP_MOST_S = 2.0  # how long `kill` waits
LEAD_SHARE, LEAD_MOST_S = 0.3, 5.0  # of the buffer before the end, for `before_stop`


class Hooks:
    """Each callable runs in a daemon thread (an async one as a task), for `seconds` at most. What it raises is dropped.

    Calls that it makes of deadstop end with its time; Python code that hangs cannot be ended, and delays nothing: only
    `kill` waits for `before_stop`, for at most STOP_MOST_S. Before the TTL's end that begins as shortly before it as
    the server's own does; an extension calls it off.
    """

    def __init__(self, seconds: float, **hooks: Hook) -> None:
        self.seconds = seconds
        self._commands = {name: hook for name, hook in hooks.items() if isinstance(hook, str)}
        self._calls: dict[str, Callable[..., Any]] = {}
        for name, hook in hooks.items():
            if callable(hook):
                self._calls[name] = hook
            elif not isinstance(hook, str | None):
                raise UsageError(f"{name}: {hook!r:.60} is neither a command, something to call, nor None")
        self._stopping = False
        self._last_call: asyncio.TimerHandle | None = None

    @property
    def body(self) -> dict[str, Any] | None:
        """What the server runs."""
        return {**self._commands, "timeout_s": self.seconds} if self._commands else None

    @property
    def watching(self) -> bool:
        """Whether anything here waits for events."""
        return bool(self._calls)

    def heard(self, kind: str, document: dict[str, Any], sandbox: Any) -> None:
        """An event of the sandbox."""
        if kind == "expiring":
            self._start("on_timeout", sandbox)
            left = float(document.get("time_left_s") or 0.0)
            wait = left - min(left * LEAD_SHARE, LEAD_MOST_S)
            self._last_call = asyncio.get_running_loop().call_later(wait, self.stopping, sandbox)
        elif kind in ("extended", "ended"):
            self._call_off()
        if kind == "extended":
            self._stopping = False
            self._start("on_extended", sandbox, document.get("added_s"))

    def _call_off(self) -> None:
        if self._last_call is not None:
            self._last_call.cancel()
            self._last_call = None

    def stopping(self, sandbox: Any) -> asyncio.Event | None:
        """`before_stop`, once. Set when it has ended; None if there is nothing to wait for."""
        self._call_off()
        if self._stopping:
            return None
        self._stopping = True
        return self._start("before_stop", sandbox)

    def _start(self, name: str, *arguments: Any) -> asyncio.Event | None:
        function = self._calls.get(name)
        if function is None:
            return None
        done = asyncio.Event()
        if inspect.iscoroutinefunction(function):
            task = asyncio.get_running_loop().create_task(self._awaited(function, arguments, done))
            _tasks.add(task)
            task.add_done_callback(_tasks.discard)
        else:
            loop = asyncio.get_running_loop()
            body = (function, arguments, loop, done)
            threading.Thread(target=self._called, args=body, name=f"deadstop-{name}", daemon=True).start()
        return done

    async def _awaited(self, function: Callable[..., Any], arguments: Any, done: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(self.seconds):
                await function(*arguments)
        except Exception:
            pass
        finally:
            done.set()

    def _called(
        self, function: Callable[..., Any], arguments: Any, loop: asyncio.AbstractEventLoop, done: asyncio.Event
    ) -> None:
        try:
            with deadlines.deadline(self.seconds):
                function(*arguments)
        except BaseException:  # a thread's SystemExit is nobody's either
            pass
        finally:
            try:
                loop.call_soon_threadsafe(done.set)
            except RuntimeError:  # the loop has ended
                pass


_tasks: set[asyncio.Task[None]] = set()
