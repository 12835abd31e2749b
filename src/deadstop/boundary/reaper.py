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


def pid_of(pidfd: int) -> int:
    """The process behind a pidfd; 0 when it is gone."""
    try:
        with open(f"/proc/self/fdinfo/{pidfd}") as file:
            return max(0, next((int(line.split()[1]) for line in file if line.startswith("Pid:")), 0))
    except OSError:
        return 0


def parents() -> dict[int, int]:
    return {int(name): parent_of(int(name)) for name in os.listdir("/proc") if name.isdigit()}


def descendants(root: int, *, limit: int = 100_000, without: frozenset[int] = frozenset()) -> list[int]:
    """Every process below `root`, parents before children, without `root`; at most `limit`.

    Processes in `without` are left out with everything below them.
    """
    found: list[int] = []
    todo = [root]
    while todo and len(found) < limit:
        for child in children_of(todo.pop()):
            if child not in without:
                found.append(child)
                todo.append(child)
    return found


def tree(root: int) -> dict[int, int]:
    """Every process below `root` and its parent, parents before children: for who asks whose they are."""
    found: dict[int, int] = {}
    todo = [root]
    while todo:
        parent = todo.pop()
        for child in children_of(parent):
            if child not in found:
                found[child] = parent
                todo.append(child)
    return found


def signal_tree(
    root: int, number: int, *, spare: frozenset[int] = frozenset(), without: frozenset[int] = frozenset()
) -> int:
    """Send a signal to every descendant of `root` that is shown to be one; how many were sent.

    Those in `spare` get none, though what is below them does; `without` leaves out whole trees.
    """
    ours = {root}
    sent = 0
    for pid in descendants(root, without=without):
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


def drain(*, seconds: float = 30.0) -> bool:
    """Kill all descendants of this process until none is left; False if some were left after `seconds`. Blocks.

    What a pass missed is found by the next one, for it is still a descendant. If any were born after a pass they
    multiply, and all are stopped before the next kill: a killed process of a bomb makes room for another, a stopped one
    does not, and it leaves the processor to us.
    """
    end = time.monotonic() + seconds
    seen: set[int] = set()
    while time.monotonic() < end:
        now = set(descendants(os.getpid()))
        if seen and now - seen:
            while _stop_running() and time.monotonic() < end:
                pass
        seen |= now
        if sweep(frozenset()):
            return True
        time.sleep(0.0005)  # bounded by `end`; for killed processes to get on their way out
    return False


def _stop_running() -> int:
    """SIGSTOP to every descendant that could still do something; how many there were."""
    idle = frozenset(pid for pid in descendants(os.getpid()) if state_of(pid) in "TtZX")
    return signal_tree(os.getpid(), signal.SIGSTOP, spare=idle)


def state_of(pid: int) -> str:
    """The letter that /proc has for it; X when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read(1024).rpartition(b") ")[2][:1].decode()
    except OSError:
        return "X"


def sweep(known: frozenset[int]) -> bool:
    """One pass: kill and collect every descendant that is not in the tree of a `known` child; True if none was left."""
    signal_tree(os.getpid(), signal.SIGKILL, without=known)
    strangers = [pid for pid in children_of(os.getpid()) if pid not in known]
    for pid in strangers:
        _collect(pid)
    return not set(children_of(os.getpid())) - known


def _collect(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass
