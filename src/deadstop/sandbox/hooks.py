# SPDX-License-Identifier: Apache-2.0
"""What a server does around the end of a life: the buffer before it, the hooks, a snapshot if one is to be taken.

All of it happens before an end that the supervisor keeps by itself. A hook is a command inside with a limit of its own;
one that fails, hangs or cannot be started delays nothing. A server that is frozen in the buffer runs no hook and takes
no snapshot; the end comes on time all the same.

    expires_at - buffer   expiring; `on_timeout` begins, at most half of the buffer
    expires_at - lead     `before_stop` begins, then the snapshot: the last moment at which both have time
    expires_at            the supervisor ends it
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..clock import boottime
from .states import End, State
from .wishes import ExecWish

if TYPE_CHECKING:
    from .sandbox import Sandbox

BUFFER_SHARE = 0.1  # of the whole life, at most: a short one is not all buffer
LEAD_SHARE = 0.3  # of the buffer
LEAD_LEAST_S, LEAD_MOST_S = 0.3, 5.0
STOP_MOST_S = 2.0  # what `before_stop` may take before an end that somebody waits for
IDLE_MARGIN_S = 3.0
MARGIN_S = 0.05
HOOK_MARGIN_S = 1.0  # for its result, after its own limit


class Hooked:
    """The timers and hooks of one sandbox. `schedule` after every change of its end."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._timers: list[asyncio.TimerHandle] = []
        self._idle: asyncio.TimerHandle | None = None
        self._stopping: asyncio.Task[None] | None = None  # `before_stop`, under way or done
        self._used = boottime()

    @property
    def buffer_s(self) -> float:
        return min(self.sandbox.wish.buffer_s, self.sandbox.record.ttl_s * BUFFER_SHARE)

    @property
    def lead_s(self) -> float:
        """What is kept for `before_stop` and the snapshot: even of a short life as much as a snapshot takes."""
        least = min(LEAD_LEAST_S, self.sandbox.record.ttl_s / 4)
        return max(least, min(self.buffer_s * LEAD_SHARE, LEAD_MOST_S))

    @property
    def _ends_idle(self) -> bool:
        """Whether something is to be done before an end for idleness."""
        return bool(self.sandbox.wish.hooks.before_stop) or self.sandbox.snapshots_at_end

    def supervised_idle(self) -> float | None:
        """The idle time that the supervisor keeps: ours is a little shorter, so that hooks can run before the end."""
        idle = self.sandbox.wish.idle_s
        return idle if idle is None or not self._ends_idle else idle + IDLE_MARGIN_S

    def schedule(self) -> None:
        """Arm what is to happen before the end, as that is now."""
        for timer in self._timers:
            timer.cancel()
        left = self.sandbox.record.expires_boot - boottime()
        loop = self.sandbox.host.loop
        self._timers = [loop.call_later(max(0.0, left - self.buffer_s), self._expiring)]
        if self.sandbox.snapshots_at_end or self.sandbox.wish.hooks.before_stop:
            self._timers.append(loop.call_later(max(0.0, left - self.lead_s), self._last_call))
        self.touched()

    def cancel(self) -> None:
        for timer in (*self._timers, *([self._idle] if self._idle else [])):
            timer.cancel()

    def _expiring(self) -> None:
        sandbox = self.sandbox
        if not sandbox.record.live or sandbox.record.expires_boot - boottime() > self.buffer_s + MARGIN_S:
            return  # extended meanwhile
        if sandbox.status in (State.RUNNING, State.PAUSED):
            paused = sandbox.status is State.PAUSED
            sandbox.record.move(State.EXPIRING)
            sandbox.host.save(sandbox.record)
            sandbox.host.events.tell("expiring", sandbox.id, time_left_s=round(sandbox.record.time_left(), 3))
            if sandbox.wish.hooks.on_timeout and not paused:
                sandbox.host.spawn(self._run(sandbox.wish.hooks.on_timeout, self.buffer_s / 2))

    def _last_call(self) -> None:
        if self.sandbox.record.live and self.sandbox.record.expires_boot - boottime() <= self.lead_s + MARGIN_S:
            self.sandbox.host.spawn(self._prepare_end())

    async def _prepare_end(self) -> None:
        sandbox = self.sandbox
        await self._stop_hook(self.lead_s / 2)
        if sandbox.snapshots_at_end and sandbox.record.live:
            try:
                await sandbox.host.snapshots.take(sandbox, name=None)
            except Exception as problem:  # its end does not wait for that
                sandbox.host.log("snapshot_failed", sandbox=sandbox.id, problem=str(problem))

    async def before_stop(self) -> None:
        """Before an end that somebody asked for: the hook, once, for at most STOP_MOST_S."""
        await self._stop_hook(STOP_MOST_S)

    async def _stop_hook(self, seconds: float) -> None:
        """Who comes second waits for the end of what the first began."""
        hook = self.sandbox.wish.hooks.before_stop
        if hook and self._stopping is None:
            self._stopping = self.sandbox.host.loop.create_task(self._run(hook, seconds))
        if self._stopping is not None:
            await asyncio.wait({self._stopping})

    def extended(self) -> None:
        self._stopping = None
        if self.sandbox.wish.hooks.on_extended and self.sandbox.status is not State.PAUSED:
            self.sandbox.host.spawn(self._run(self.sandbox.wish.hooks.on_extended, self.sandbox.wish.hooks.seconds))

    async def _run(self, hook: str, most: float) -> None:
        """One hook, bounded by its own limit and by what there is time for. Never raises."""
        seconds = max(0.05, min(most, self.sandbox.wish.hooks.seconds))
        argv = ("/bin/sh", "-c", hook)
        try:
            async with asyncio.timeout(seconds + HOOK_MARGIN_S):  # also if nothing may be started in it just now
                wish = ExecWish(argv, timeout_s=seconds, background=True, shown=f"hook: {hook}")
                await (await self.sandbox.exec(wish)).wait()
        except Exception as problem:
            self.sandbox.host.log("hook_failed", sandbox=self.sandbox.id, problem=str(problem) or "it took too long")

    # -- the idle clock ----------------------------------------------------------------------------------------------

    def touched(self) -> None:
        """Something was done in it."""
        self._used = boottime()
        if self.sandbox.wish.idle_s is not None and self._ends_idle and self._idle is None:
            self._look_idle()

    async def _end_idle(self) -> None:
        await self._prepare_end()
        if self.sandbox.running():  # somebody came while that took its time
            self._stopping = None
            self._look_idle()
            return
        await self.sandbox.kill(End.IDLE, "nothing was done in it for its idle time")

    def _look_idle(self) -> None:
        sandbox, idle = self.sandbox, self.sandbox.wish.idle_s
        if idle is None or not sandbox.record.live:
            return
        if sandbox.running():
            self._used = boottime()
        left = self._used + idle - boottime()
        if left <= 0:
            sandbox.host.spawn(self._end_idle())
        else:
            self._idle = sandbox.host.loop.call_later(left, self._look_idle)
