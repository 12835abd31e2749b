# SPDX-License-Identifier: Apache-2.0
"""Budgets of a whole task: wall clock, steps, tokens and cost, drawn on by every call that is made in it."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

from . import clock, deadlines, narrate
from .amounts import LARGEST, RESOURCES, real_amount, short_name, shown, spent_words, whole_amount, whole_limit
from .errors import UsageError
from .results import FiredLimit, Status, ToolResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Left", "Refusal", "Task", "current", "key_of", "refused_result"]

KEPT_FAILURES = 100  # different failing calls that are counted: those that failed last
USED_UP_HINT = "no further call will be started in this task: finish with what there is"
REPEAT_HINT = "change the arguments or do something else"

_lock = threading.RLock()  # one for all tasks: a call draws on its task and all outer ones at once, or on none


@dataclass(frozen=True, slots=True)
class Left:
    """What may still be used, the least of a task and its outer ones; None where there is no limit. Never below 0."""

    wall_clock_s: float | None
    steps: int | None
    tokens: int | None
    cost: float | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call must not start. `which` is wall_clock, steps, tokens, cost or repeat; `task_id` the call's task."""

    which: str
    message: str
    limit: float
    used: float
    task_id: str | None = None


class Task:
    """A budget for all calls made inside its `with` block: commands, functions and executions in a kept boundary.

    Promised: no call starts once the wall clock, steps, tokens or cost are used up, and a call that runs ends when
    the wall clock is over. Each call that starts takes one step; of many threads exactly `steps` calls start. A task
    made inside another one's block draws on that too, and ends no later. With `repeat_limit`, the same call with the
    same arguments is refused after it has failed that often with no success in between.

    Not promised: that Python code of your own in the block is interrupted, or that tokens and cost stay below their
    limits: they are reported by `use` after they were used, and then no further call starts.

    `wall_clock` is in seconds and begins now, when the task is made, not when it is entered; `cost` has the unit you
    report it in. A block may be entered again, by other threads (which inherit none) and async tasks too. The counts
    belong to this process: a forked child counts for itself. Raises InvalidLimit for what is no limit.
    """

    def __init__(
        self,
        *,
        wall_clock: float | None = None,
        steps: int | None = None,
        tokens: int | None = None,
        cost: float | None = None,
        repeat_limit: int | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(name, str | None):
            raise UsageError(f"name: {name!r:.60} is not a name")
        self._limits: dict[str, float | None] = {
            "wall_clock": clock.check_limit("wall_clock", wall_clock),
            "steps": whole_limit("steps", steps),
            "tokens": whole_limit("tokens", tokens),
            "cost": clock.check_limit("cost", cost),
        }
        self.repeat_limit = whole_limit("repeat_limit", repeat_limit)
        self.name = name
        self.task_id = f"task_{os.urandom(10).hex()}"
        self._used: dict[str, float] = {"steps": 0, "tokens": 0, "cost": 0.0}
        self._failing: dict[str, tuple[str, int]] = {}  # digest of a call: its tool, how often it failed in a row
        outer = current()
        self._chain: tuple[Task, ...] = (self, *(outer._chain if outer else ()))
        self._begin(self._limits["wall_clock"])

    def _begin(self, left: float | None) -> None:
        self._own_end = None if left is None else clock.monotonic() + left
        ends = [(task._own_end, task._limits["wall_clock"]) for task in self._chain if task._own_end is not None]
        nearest = min(ends, key=lambda end: end[0], default=(None, None))
        self.end: float | None = nearest[0]  # on CLOCK_MONOTONIC, that of an outer task if it is nearer
        self.end_seconds: float | None = nearest[1]  # the limit that this end comes from

    # -- the block ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Task:
        inside = current()
        if inside is not None and inside not in self._chain and self not in inside._chain:
            text = "this task was made outside of the one it is entered in, and would not draw on it"
            raise UsageError(f"{text}: make it inside that one's block")
        deadlines.entered.set((*deadlines.entered.get(), self))
        return self

    def __exit__(self, *exc_info: object) -> None:
        stack = deadlines.entered.get()
        for place in reversed(range(len(stack))):  # a generator may be closed in another context than it began in
            if stack[place] is self:
                deadlines.entered.set(stack[:place] + stack[place + 1 :])
                return

    def __reduce__(self) -> Any:
        raise TypeError("a Task belongs to its process: move it with save() and Task.resume()")

    # -- drawing on it -----------------------------------------------------------------------------------------------

    def use(self, *, tokens: int = 0, cost: float = 0.0, steps: int = 0) -> None:
        """Report what was used, here and in all outer tasks. Never refused: it has happened already.

        Raises UsageError for what is not an amount; then nothing is drawn.
        """
        drawn = {
            "tokens": whole_amount("tokens", tokens),
            "cost": real_amount("cost", cost),
            "steps": whole_amount("steps", steps),
        }
        with _lock:
            for task in self._chain:
                for which, amount in drawn.items():
                    task._used[which] = min(task._used[which] + amount, LARGEST)

    def admit(self, tool: str, key: bytes | str | None = None) -> Refusal | None:
        """Ask before a call starts: None, and one step is taken here and in all outer tasks; or why it must not start.

        `key` stands for the arguments; None for a call that cannot be compared with others. A refusal takes no step.
        """
        digest = None if key is None else _digest(tool, key)
        with _lock:
            refusal = self._used_up(clock.monotonic()) or self._repeated(digest)
            if refusal is None:
                self._take(1)
        return refusal

    def note(self, tool: str, key: bytes | str | None, failed: bool) -> str | None:
        """Tell how an admitted call ended. Words for the model if it has failed at least twice in a row, else None."""
        if key is None:
            return None
        digest = _digest(tool, key)
        with _lock:
            counted = [(task.repeat_limit, task._counted(digest, tool, failed)) for task in self._chain]
        times = max(count for _, count in counted)
        if times < 2:
            return None
        refused = any(limit is not None and count >= limit for limit, count in counted)
        advice = (
            f"made again it will be refused: {REPEAT_HINT}"
            if refused
            else f"if nothing it depends on has changed, {REPEAT_HINT}"
        )
        return f"this same call has failed {times} times in a row; {advice}"

    def give_back(self) -> None:
        """Return the step of an admitted call that was found out never to have started."""
        with _lock:
            self._take(-1)

    def used_up(self) -> Refusal | None:
        """Which limit is used up now, without asking for a step."""
        with _lock:
            return self._used_up(clock.monotonic())

    def _take(self, steps: int) -> None:
        for task in self._chain:
            task._used["steps"] = min(task._used["steps"] + steps, LARGEST)

    def _used_up(self, now: float) -> Refusal | None:
        for task in self._chain:
            for which, limit in task._limits.items():
                if limit is not None and not task._left(which, limit, now):
                    used = task._spent(which, limit, now)
                    words = f"{self._budget_of(task)} is used up: {spent_words(which, used, limit)}"
                    return Refusal(which, words, limit, used, self.task_id)
        return None

    def _repeated(self, digest: str | None) -> Refusal | None:
        for task in self._chain if digest is not None else ():
            times = task._failing[digest][1] if digest in task._failing else 0
            if task.repeat_limit is not None and times >= task.repeat_limit:
                words = f"this same call has failed {times} of {task.repeat_limit} times that the task allows in a row"
                return Refusal("repeat", words, task.repeat_limit, times, self.task_id)
        return None

    def _counted(self, digest: str, tool: str, failed: bool) -> int:
        before = self._failing.pop(digest, ("", 0))[1]
        if not failed:
            return 0
        self._failing[digest] = (short_name(tool), before + 1)
        if len(self._failing) > KEPT_FAILURES:
            del self._failing[next(iter(self._failing))]
        return before + 1

    # -- what is left ------------------------------------------------------------------------------------------------

    def left(self) -> Left:
        """What may still be used now."""
        found = {which: tight[0] for which, tight in self._tightest().items()}
        steps, tokens = found.get("steps"), found.get("tokens")
        return Left(
            found.get("wall_clock"),
            None if steps is None else int(steps),
            None if tokens is None else int(tokens),
            found.get("cost"),
        )

    def for_model(self) -> str:
        """A few short lines for the model: what is left, what is used up, and which calls keep failing."""
        tightest = self._tightest()
        left = [
            f"{shown(which, amount)} of {shown(which, limit)} {RESOURCES[which]}"
            for which, (amount, _, limit) in tightest.items()
            if amount
        ]
        gone = [spent_words(which, used, limit) for which, (amount, used, limit) in tightest.items() if not amount]
        with _lock:
            failing = sorted(self._failing.values(), key=lambda call: -call[1])
        often = [f"{tool} ({times} times in a row)" for tool, times in failing[:5] if times > 1]
        lines = [f"left of the task's budget: {', '.join(left)}"] if left else []
        lines += [f"used up: {', '.join(gone)}; {USED_UP_HINT}"] if gone else []
        lines += [f"the same call keeps failing: {', '.join(often)}"] if often else []
        return "\n".join(lines) or "the task has no limits of its own"

    def _tightest(self) -> dict[str, tuple[float, float, float]]:
        """What is left, used and allowed of each limited resource, in the task where the least is left."""
        found: dict[str, tuple[float, float, float]] = {}
        now = clock.monotonic()
        with _lock:
            for which in RESOURCES:
                limited = [(task, limit) for task in self._chain if (limit := task._limits[which]) is not None]
                rows = [(task._left(which, each, now), task._spent(which, each, now), each) for task, each in limited]
                if rows:
                    found[which] = min(rows, key=lambda row: row[0])
        return found

    def _spent(self, which: str, limit: float, now: float) -> float:
        if which != "wall_clock":
            return self._used[which]
        assert self._own_end is not None
        return limit - (self._own_end - now)

    def _left(self, which: str, limit: float, now: float) -> float:
        left = limit - self._spent(which, limit, now)
        # Ten times 0.1 is a hair below 1.0: what is left of a cost must be more than what adding floats leaves.
        return left if left > (limit * 1e-9 if which == "cost" else 0.0) else 0.0

    def _budget_of(self, task: Task) -> str:
        if task is self:
            return "the task's budget"
        return "the budget of the outer task" + (f" {short_name(task.name)!r}" if task.name else "")

    # -- save and resume ---------------------------------------------------------------------------------------------

    def save(self) -> str:
        """Everything about this task as JSON, for `resume` in another process; also when it is used up.

        Only its own numbers: of outer tasks nothing is saved. What is used after this is not in it.
        """
        from . import saving

        with _lock:
            numbers: dict[str, Any] = {
                "task_id": self.task_id,
                "name": self.name,
                "limits": {**self._limits, "repeat_limit": self.repeat_limit},
                "used": dict(self._used),
                "left_s": None if self._own_end is None else self._own_end - clock.monotonic(),
                "failing": [[digest, tool, times] for digest, (tool, times) in self._failing.items()],
            }
        return saving.save(numbers)

    @classmethod
    def resume(cls, saved: str) -> Task:
        """The task that was saved, with the same id. The time since then is taken off; what is left never grows.

        That time is CLOCK_BOOTTIME while the host has not been started anew, the wall clock otherwise (one that was
        set back counts as no time). Inside another task's block it draws on that task as well. Raises UsageError for
        a text that is not one of `save`, or was changed: that guards against accidents, it is no signature.
        """
        from . import saving

        numbers, passed = saving.load(saved)
        try:
            return cls._from(numbers, passed)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):  # UsageError is a ValueError
            raise UsageError("this saved task holds values that no task can have") from None

    @classmethod
    def _from(cls, numbers: dict[str, Any], passed: float) -> Task:
        task = cls(name=numbers["name"], **numbers["limits"])
        used, left, identity = numbers["used"], numbers["left_s"], numbers["task_id"]
        task._used = {
            "steps": whole_amount("steps", used["steps"]),
            "tokens": whole_amount("tokens", used["tokens"]),
            "cost": real_amount("cost", used["cost"]),
        }
        task._failing = {str(digest): (str(tool), whole_amount("times", n)) for digest, tool, n in numbers["failing"]}
        limit = task._limits["wall_clock"]
        if (left is None) != (limit is None) or not isinstance(identity, str) or len(task._failing) > KEPT_FAILURES:
            raise UsageError("not a saved task")
        task.task_id = identity
        if limit is not None:
            task._begin(min(float(left), limit) - passed)
        return task


def current() -> Task | None:
    """The innermost task whose block this thread or async task is in."""
    stack = deadlines.entered.get()
    return stack[-1] if stack else None


def refused_result(refusal: Refusal, tool: str, call_id: str = "") -> ToolResult:
    """The result of a call that its task refused. For a repeated one it is a rule that refuses ("policy")."""
    repeated, timed = refusal.which == "repeat", refusal.which == "wall_clock"
    return ToolResult(
        tool=tool,
        status=Status.REFUSED,
        call_id=call_id,
        task_id=refusal.task_id,
        reason="policy" if repeated else "budget",
        limit=FiredLimit("task", refusal.limit, "inherited") if timed else None,
        started_at=clock.now_iso(),
        environment="nothing was started",
        hint=REPEAT_HINT if repeated else USED_UP_HINT,
        error_message=refusal.message,
    )


def key_of(*parts: bytes | str) -> bytes:
    """One short key for many parts; the same only for the same parts in the same order."""
    from hashlib import blake2b

    state = blake2b(digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        state.update(b"%d:" % len(data))
        state.update(data)
    return state.digest()


def _digest(tool: str, key: bytes | str) -> str:
    return key_of(tool, key).hex()


def _left_for_narrate() -> tuple[float | None, int | None]:
    task = current()
    left = task.left() if task else None
    return (left.wall_clock_s, left.steps) if left else (None, None)


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # another thread of the parent may have held it


narrate.left_of_task = _left_for_narrate
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
