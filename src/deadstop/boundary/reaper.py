# SPDX-License-Identifier: Apache-2.0
"""Ending a tree of processes without a namespace: kill every descendant until waiting says that no child is left.

This is the weaker way, for hosts that refuse namespaces. The caller is a subreaper, so whatever its descendants leave
behind becomes its own child; when `waitpid` answers "no child", nothing it started is left. What it cannot promise: a
process of the same user may kill the reaper itself (the supervisor, a subreaper too, then finishes the work).

A pid is only signalled through a pidfd that was checked after it was opened: between reading a list and sending a
signal the number may have passed to a stranger.
"""

from __future__ import annotations

import os
import signal
import time


def children_of(pid: int) -> list[int]:
    """Direct children. Empty when the process is gone (or the kernel does not tell: then see `parents`)."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += map(int, file.read().split())
    except FileNotFoundError:
        if os.path.exists(f"/proc/{pid}") and not os.path.exists("/proc/thread-self/children"):
            return [child for child, parent in parents().items() if parent == pid]
    except (OSError, ValueError):
        pass
    return found


def parent_of(pid: int) -> int:
    """0 when the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b") ")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def parents() -> dict[int, int]:
    return {int(name): parent_of(int(name)) for name in os.listdir("/proc") if name.isdigit()}


def descendants(root: int, *, limit: int = 100_000) -> list[int]:
    """Every process below `root`, parents before children, without `root`; at most `limit`."""
    found: list[int] = []
    todo = [root]
    while todo and len(found) < limit:
        for child in children_of(todo.pop()):
            found.append(child)
            todo.append(child)
    return found


def signal_tree(root: int, number: int, *, spare: frozenset[int] = frozenset()) -> int:
    """Send a signal to every descendant of `root` that is shown to be one; how many were sent."""
    ours = {root}
    sent = 0
    for pid in descendants(root):
        if pid in spare:
            ours.add(pid)
            continue
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            if parent_of(pid) in ours:
                ours.add(pid)
                signal.pidfd_send_signal(pidfd, number)
                sent += 1
        except OSError:
            pass
        finally:
            os.close(pidfd)
    return sent


def terminate_descendants(spare: frozenset[int]) -> None:
    signal_tree(os.getpid(), signal.SIGTERM, spare=spare)
    signal_tree(os.getpid(), signal.SIGCONT, spare=spare)


def drain(*, seconds: float = 30.0, spare: frozenset[int] = frozenset()) -> bool:
    """Kill all descendants of this process but `spare` until none is left; False if some were left after `seconds`.

    A killed process can fork no more, so each pass over a fork bomb leaves fewer that can; what a pass missed has
    become our child by the next one. Only for a process that has no other children to wait for.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        signal_tree(os.getpid(), signal.SIGKILL, spare=spare)
        if _none_left(spare):
            return True
    return False


def _none_left(spare: frozenset[int]) -> bool:
    """Collect what is dead; wait a moment for the next death when something still lives."""
    try:
        if spare:
            mine = set(children_of(os.getpid())) - spare
            left = [pid for pid in mine if os.waitpid(pid, os.WNOHANG)[0] == 0]
            if not mine:
                return True
        else:
            left = _collect_all()
    except ChildProcessError:
        return not spare
    if left:
        time.sleep(0.0005)  # bounded by `drain`; only reached while a killed process is still on its way out
    return False


def _collect_all() -> list[int]:
    """Collect every dead child; non-empty if some live. Raises ChildProcessError when there is none at all."""
    while os.waitpid(-1, os.WNOHANG)[0]:
        pass
    return [0]
