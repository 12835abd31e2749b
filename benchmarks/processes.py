# SPDX-License-Identifier: Apache-2.0
"""Who is really there: processes on the host found by a mark in their environment, watched and ended by pidfd."""

from __future__ import annotations

import os
import select
import signal
import time

MARK = "DEADSTOP_BENCH_MARK"


def marked(mark: str) -> list[int]:
    """Pids of live processes (no zombies) that carry this mark."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for name in os.listdir("/proc"):
        if name.isdigit() and _carries(int(name), wanted):
            found.append(int(name))
    return found


def _carries(pid: int, wanted: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            if wanted not in file.read().split(b"\0"):
                return False
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] != b"Z"
    except OSError:
        return False


def open_all(pids: list[int]) -> list[int]:
    """Their pidfds; those that are gone are left out."""
    opened = []
    for pid in pids:
        try:
            opened.append(os.pidfd_open(pid))
        except OSError:
            continue
    return opened


def all_ended(pidfds: list[int], seconds: float) -> float | None:
    """Seconds until every one of these has ended, or None; closes them."""
    poll, start = select.poll(), time.monotonic()
    for fd in pidfds:
        poll.register(fd, select.POLLIN)
    left = set(pidfds)
    while left and (rest := start + seconds - time.monotonic()) > 0:
        for fd, _ in poll.poll(rest * 1000):
            poll.unregister(fd)
            left.discard(fd)
    took = time.monotonic() - start
    for fd in pidfds:
        os.close(fd)
    return None if left else took


def end(pids: list[int]) -> None:
    """SIGKILL, checked: only processes that still are what was found."""
    for pidfd in open_all(pids):
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except OSError:
            pass
        os.close(pidfd)
