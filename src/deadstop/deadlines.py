# SPDX-License-Identifier: Apache-2.0
"""Deadlines: points on CLOCK_MONOTONIC that only shrink on the way down.

Three ways in which an outer limit reaches an inner call: a `with deadstop.deadline(10):` block and the end of a task
in this process, and the variable DEADSTOP_DEADLINE that every command is given, so that a `deadstop run` inside a
command ends before its parent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from . import clock
from .errors import InvalidLimit, UsageError
from .results import FiredLimit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .budget import Task

VARIABLE = "DEADSTOP_DEADLINE"
NESTED_MARGIN_S = 0.1  # a nested call ends this long before its parent's deadline, so that it can still report
NESTED_KILL_MARGIN_S = 0.05

_block: ContextVar[tuple[float, float] | None] = ContextVar("deadstop_deadline", default=None)
# The tasks that are entered, the innermost last. Kept here, so that nothing of a budget is loaded where none is used.
entered: ContextVar[tuple[Task, ...]] = ContextVar("deadstop_tasks", default=())


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Every call made inside the block ends within `seconds` of entering it, whatever its own limit is.

    Blocks nest and only shrink. The block does not interrupt Python code of its own: it limits the calls made in it.
    Raises InvalidLimit for anything but a finite number above zero.
    """
    checked = clock.check_limit("deadline", seconds)
    if checked is None:
        raise InvalidLimit("deadline: None is not a limit for a block: leave the block out")
    end = clock.monotonic() + checked
    outer = _block.get()
    token = _block.set((end, checked) if outer is None or end < outer[0] else outer)
    try:
        yield
    finally:
        _block.reset(token)


def enter(end: float, seconds: float) -> None:
    """In a context of its own: everything from here on ends by `end`, if nothing ends it before."""
    outer = _block.get()
    if outer is None or end < outer[0]:
        _block.set((end, seconds))


def remaining() -> float | None:
    """Seconds left until the nearest outer deadline or the end of the task, never below 0; None without one."""
    ends = [end for end in (_block_end(), _task_end(), inherited()) if end is not None]
    return max(0.0, min(ends) - clock.monotonic()) if ends else None


def _block_end() -> float | None:
    block = _block.get()
    return block[0] if block else None


_call_end: float | None = None


def enter_call(end: float | None) -> None:
    """In a call worker, which runs one call at a time: every call made from now on is nested in one with this end."""
    global _call_end
    _call_end = end


def _task_end() -> float | None:
    tasks = entered.get()
    return tasks[-1].end if tasks else None


def inherited() -> float | None:
    """The end of the call that this process is, or runs. 0 or a time gone by means: already over."""
    text = os.environ.get(VARIABLE)
    if text is None:
        return _call_end
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise UsageError(f"{VARIABLE}: {text!r} is not a point on the monotonic clock in seconds")
    return value if _call_end is None else min(value, _call_end)


# What os.environ keeps its values in: asking it itself takes as long as the rest of an inline call.
_environ: dict[bytes, bytes] = getattr(os.environ, "_data", {})
_VARIABLE = VARIABLE.encode()


def nested() -> bool:
    """Whether any limit holds here besides a call's own."""
    return _block.get() is not None or bool(entered.get()) or _call_end is not None or _VARIABLE in _environ


def resolve(timeout: float | None, source: str) -> tuple[float | None, float | None, FiredLimit | None]:
    """Deadline, hard end and the limit that would fire for a call that begins now: the nearest of all that hold."""
    now = clock.monotonic()
    candidates: list[tuple[float, float | None, FiredLimit]] = []
    if timeout is not None:
        candidates.append((now + timeout, None, FiredLimit("call", timeout, source)))
    if (block := _block.get()) is not None:
        candidates.append((block[0], None, FiredLimit("parent", block[1], "inherited")))
    if (task_end := _task_end()) is not None:
        candidates.append((task_end, None, FiredLimit("task", entered.get()[-1].end_seconds, "inherited")))
    if (parent := inherited()) is not None:
        end = parent - NESTED_MARGIN_S
        limit = FiredLimit("parent", round(max(0.0, end - now), 3), "inherited")
        candidates.append((end, parent - NESTED_KILL_MARGIN_S, limit))
    if not candidates:
        return None, None, None
    nearest = min(candidates, key=lambda candidate: candidate[0])
    hard_ends = [hard for _, hard, _ in candidates if hard is not None]
    return nearest[0], min(hard_ends, default=None), nearest[2]
