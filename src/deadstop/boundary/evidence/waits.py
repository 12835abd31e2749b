# SPDX-License-Identifier: Apache-2.0
"""One thread: what does it wait for. Reads its system call with arguments, so nothing is guessed where that
is allowed.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass, field

from . import proc, syscalls

_READABLE = 0x1 | 0x4  # EPOLLIN and EPOLLOUT: a descriptor watched for hang-ups alone does not make anybody wait
_LOCK_COMMANDS = (7, 38)  # F_SETLKW, F_OFD_SETLKW


@dataclass
class Wait:
    """operation: read, write, poll, sleep, futex, wait, flock, ... "running", "denied", "fault" or "unknown".

    timeout: seconds left or asked for, None if endless or unknown. target: child pid (inner number), lock
    address. absolute: the sleep has a fixed end, so `timeout` is what is left of it.
    """

    operation: str
    name: str = ""
    descriptors: list[int] = field(default_factory=list)
    timeout: float | None = None
    target: int = -1
    absolute: bool = False
    channel: str = ""


def of_thread(pid: int, thread: int) -> Wait:
    """What a thread waits for now. Never raises; "unknown" or "denied" where it cannot be told."""
    fields = proc.read(f"/proc/{pid}/task/{thread}/syscall", 256).split()
    if fields and fields[0] == b"running":
        return Wait("running")
    channel = proc.wait_channel(pid, thread)
    if not fields or fields[0] == b"-1":
        return _without_arguments(channel, denied=not fields)
    try:
        name = syscalls.name_of(fields, channel)
        return _decoded(pid, name, [int(word, 16) for word in fields[1:7]], channel)
    except (ValueError, IndexError, struct.error):
        return Wait("unknown", channel=channel)


def name_only(pid: int) -> str:
    """The call the main thread is in, for the process list; "" when it runs."""
    fields = proc.read(f"/proc/{pid}/syscall", 256).split()
    if fields and fields[0] == b"running":
        return ""
    channel = proc.wait_channel(pid, pid)
    if not fields or fields[0] == b"-1":
        return channel
    return syscalls.name_of(fields, channel)


def _without_arguments(channel: str, denied: bool) -> Wait:
    name = syscalls.from_wait_channel(channel)
    if name:
        return Wait(syscalls.OPERATIONS.get(name, name), name, channel=channel)
    if denied:
        return Wait("denied" if not channel else "unknown", channel=channel)
    return Wait("fault", channel=channel)


def _decoded(pid: int, name: str, a: list[int], channel: str) -> Wait:
    operation = syscalls.OPERATIONS.get(name, name)
    wait = Wait(operation, name, channel=channel)
    if operation == "poll":
        wait.descriptors, wait.timeout = _polled(pid, name, a)
    elif operation == "sleep":
        _decode_sleep(pid, name, a, wait)
    elif operation == "futex":
        _decode_futex(pid, name, a, wait)
    elif operation == "wait":
        wait.target = _signed(a[0]) if name == "wait4" else (_signed(a[1]) if a[0] == 1 else -1)
        if name == "waitid" and a[0] == 3:  # P_PIDFD: any child will do for the graph
            wait.target = -1
    elif name == "fcntl":
        wait.operation, wait.descriptors = ("flock" if a[1] in _LOCK_COMMANDS else "fcntl"), [a[0]]
    elif operation in ("read", "write", "accept", "connect", "flock", "disk", "ioctl"):
        wait.descriptors = [a[1] if name == "sendfile" and "pipe_read" in channel else a[0]]
    return wait


def _polled(pid: int, name: str, a: list[int]) -> tuple[list[int], float | None]:
    if name in ("poll", "ppoll"):
        raw = proc.memory(pid, a[0], 8 * min(a[1], 256))
        entries = struct.iter_unpack("=iHH", raw[: len(raw) // 8 * 8])
        timeout = _milliseconds(a[2]) if name == "poll" else _timespec(pid, a[2])
        return [number for number, _events, _seen in entries if number >= 0], timeout
    if name in ("select", "pselect6"):
        found: set[int] = set()
        for address in a[1:3]:
            raw = proc.memory(pid, address, (min(a[0], 1024) + 63) // 64 * 8)
            found |= {i for i in range(min(len(raw) * 8, a[0])) if raw[i // 8] >> (i % 8) & 1}
        return sorted(found), _timespec(pid, a[4], 1e6 if name == "select" else 1e9)
    timeout = _timespec(pid, a[3]) if name == "epoll_pwait2" else _milliseconds(a[3])
    return epoll_targets(pid, a[0]), timeout


def epoll_targets(pid: int, number: int) -> list[int]:
    """The descriptors an epoll set watches for data, at most some thousand of them."""
    found: list[int] = []
    for line in proc.read_whole(f"/proc/{pid}/fdinfo/{number}", 1 << 16).splitlines():
        words = line.split()
        if len(words) >= 4 and words[0] == b"tfd:" and words[2] == b"events:" and int(words[3], 16) & _READABLE:
            found.append(int(words[1]))
    return found


def _decode_sleep(pid: int, name: str, a: list[int], wait: Wait) -> None:
    wait.timeout = _timespec(pid, a[0] if name == "nanosleep" else a[2])
    if name == "clock_nanosleep" and a[1] & 1:  # TIMER_ABSTIME
        wait.absolute = True
        if wait.timeout is not None:
            wait.timeout = max(0.0, wait.timeout - _now(a[0]))


def _decode_futex(pid: int, name: str, a: list[int], wait: Wait) -> None:
    wait.target = a[0]
    if name != "futex":
        return
    wait.timeout = _timespec(pid, a[3])
    if wait.timeout is not None and a[1] & 0x7F in (9, 11, 6, 13):  # these take a point in time, not a span
        realtime = a[1] & 256 or a[1] & 0x7F == 6
        wait.timeout = max(0.0, wait.timeout - _now(0 if realtime else 1))


def _now(clock: int) -> float:
    try:
        return time.clock_gettime(_signed(clock))
    except (OSError, OverflowError):
        return time.clock_gettime(time.CLOCK_MONOTONIC)


def _signed(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def _milliseconds(value: int) -> float | None:
    number = _signed(value)
    return None if number < 0 else number / 1000


def _timespec(pid: int, address: int, unit: float = 1e9) -> float | None:
    raw = proc.memory(pid, address, 16)
    if len(raw) < 16:
        return None
    seconds, rest = struct.unpack("=qq", raw)
    return float(seconds + rest / unit)
