# SPDX-License-Identifier: Apache-2.0
"""Bounded reads of /proc.

Nothing here raises because a process has vanished or may not be looked at: the answer is then empty, None or
"". Every read has a limit in bytes, so that a process with a million descriptors or a huge command line costs
no more.
"""

from __future__ import annotations

import os
import stat as modes
from typing import NamedTuple

TICK = 1 / os.sysconf("SC_CLK_TCK")


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that the rules use; times in seconds since boot or of CPU."""

    pid: int
    name: str
    state: str
    parent: int
    terminal: int
    minor_faults: int
    reaped_minor_faults: int
    major_faults: int
    cpu: float
    threads: int
    started: float


def read(path: str, limit: int = 8192) -> bytes:
    """The first `limit` bytes of a file, or nothing. One system call, so a longer /proc file is cut at a
    line.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return b""
    try:
        return os.read(descriptor, limit)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def read_whole(path: str, limit: int) -> bytes:
    """Up to `limit` bytes of a /proc file that hands out one page per read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    parts: list[bytes] = []
    left = limit
    try:
        while left > 0 and (part := os.read(descriptor, min(left, 1 << 16))):
            parts.append(part)
            left -= len(part)
    except OSError:
        pass
    finally:
        os.close(descriptor)
    return b"".join(parts)


def names(path: str, limit: int) -> list[str]:
    """At most `limit` names of a directory; none if it is gone or closed to us."""
    found: list[str] = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                found.append(entry.name)
                if len(found) >= limit:
                    break
    except OSError:
        pass
    return found


def stat(pid: int, thread: int | None = None) -> Stat | None:
    """The state of a process (or of one of its threads), or None if it is gone."""
    path = f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat"
    raw = read(path, 1024)
    opened, closed = raw.find(b"("), raw.rfind(b")")
    fields = raw[closed + 2 :].split()
    if opened < 0 or closed < opened or len(fields) < 20:
        return None
    return Stat(
        pid=pid,
        name=raw[opened + 1 : closed].decode("utf-8", "replace"),
        state=fields[0].decode(),
        parent=int(fields[1]),
        terminal=int(fields[4]),
        minor_faults=int(fields[7]),
        reaped_minor_faults=int(fields[8]),
        major_faults=int(fields[9]),
        cpu=(int(fields[11]) + int(fields[12])) * TICK,
        threads=int(fields[17]),
        started=int(fields[19]) * TICK,
    )


def namespace_pid(pid: int) -> int:
    """The number the process has inside its innermost pid namespace; `pid` itself if that cannot be read."""
    for line in read(f"/proc/{pid}/status", 2048).splitlines():
        if line.startswith(b"NSpid:"):
            last = line.split()[-1]
            return int(last) if last.isdigit() else pid
    return pid


def voluntary_switches(pid: int) -> int:
    """How often the main thread has gone to sleep by itself."""
    for line in read(f"/proc/{pid}/status", 4096).splitlines():
        if line.startswith(b"voluntary_ctxt_switches:"):
            return int(line.split()[1])
    return 0


def command_line(pid: int, limit: int = 200) -> str:
    """The command on one printable line, at most `limit` characters; "" for a kernel thread or a vanished
    process.
    """
    raw = read(f"/proc/{pid}/cmdline", 4 * limit).rstrip(b"\0").replace(b"\0", b" ")
    text = "".join(char if char.isprintable() else " " for char in raw.decode("utf-8", "replace"))
    return text[:limit].strip()


def wait_channel(pid: int, thread: int) -> str:
    """The kernel function a thread sleeps in; "" if it runs or we may not know."""
    text = read(f"/proc/{pid}/task/{thread}/wchan", 64).decode("ascii", "replace")
    return "" if text == "0" else text


def run_time(pid: int, threads: int = 1) -> tuple[int, int, int]:
    """(nanoseconds on a CPU, nanoseconds waiting for one, times scheduled) of at most 64 threads.

    Exact, where stat counts in ticks of 10 ms.
    """
    if threads <= 1:
        paths = [f"/proc/{pid}/schedstat"]
    else:
        paths = [f"/proc/{pid}/task/{name}/schedstat" for name in names(f"/proc/{pid}/task", 64)]
    spent = waited = turns = 0
    for path in paths:
        fields = read(path, 96).split()
        if len(fields) == 3:
            spent += int(fields[0])
            waited += int(fields[1])
            turns += int(fields[2])
    return spent, waited, turns


def reads_done(pid: int) -> tuple[int, int] | None:
    """(bytes read, read calls made) by a process so far, or None if that is closed to us."""
    fields = dict(line.split(b": ", 1) for line in read(f"/proc/{pid}/io", 512).splitlines() if b": " in line)
    if b"rchar" not in fields or b"syscr" not in fields:
        return None
    return int(fields[b"rchar"]), int(fields[b"syscr"])


def memory(pid: int, address: int, length: int) -> bytes:
    """`length` bytes of a process's memory, or nothing."""
    if not 0 < address < 1 << 63:
        return b""
    try:
        descriptor = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(descriptor, length, address)
    except (OSError, OverflowError):
        return b""
    finally:
        os.close(descriptor)


def descriptor(pid: int, number: int) -> tuple[str, str]:
    """(kind, key) of an open descriptor.

    Kinds: tty, ptmx, pipe, socket, null, file, epoll, eventfd, timerfd, signalfd, inotify, fanotify, pidfd,
    other anonymous kinds by their own name, "closed", and "denied" where we may not look. The key tells two
    of a kind apart: an inode number or a path.
    """
    try:
        link = os.readlink(f"/proc/{pid}/fd/{number}")
    except PermissionError:
        return "denied", ""
    except OSError:
        return "closed", ""
    if link.startswith("pipe:["):
        return "pipe", link[6:-1]
    if link.startswith("socket:["):
        return "socket", link[8:-1]
    if link.startswith("anon_inode:"):
        kind = link[11:].strip("[]")
        return ("epoll" if kind == "eventpoll" else kind), ""
    if link == "/dev/null":
        return "null", link
    return _node(pid, number, link)


def _node(pid: int, number: int, link: str) -> tuple[str, str]:
    try:
        status = os.stat(f"/proc/{pid}/fd/{number}")
    except OSError:
        return "file", link
    if modes.S_ISFIFO(status.st_mode):
        return "pipe", f"{status.st_dev}:{status.st_ino}"
    if modes.S_ISCHR(status.st_mode):
        major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
        if (major, minor) == (5, 2):
            return "ptmx", link
        if major in (4, 5) or 136 <= major <= 143:
            return "tty", link
        if (major, minor) == (1, 3):
            return "null", link
    return "file", link


def access_mode(pid: int, number: int) -> int:
    """0 read, 1 write, 2 both (also where it cannot be read: the careful answer)."""
    for line in read(f"/proc/{pid}/fdinfo/{number}", 512).splitlines():
        if line.startswith(b"flags:"):
            return int(line.split()[1], 8) & 3
    return 2


def file_identity(pid: int, number: int) -> str:
    """The file behind a descriptor as /proc/locks writes it: major:minor:inode."""
    try:
        status = os.stat(f"/proc/{pid}/fd/{number}")
    except OSError:
        return ""
    return f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"


def children(pid: int) -> list[int] | None:
    """Direct children of all threads of a process; None where the kernel does not list them."""
    found: list[int] = []
    threads = names(f"/proc/{pid}/task", 256)
    for thread in threads:
        path = f"/proc/{pid}/task/{thread}/children"
        raw = read_whole(path, 1 << 18)
        if not raw and not found and not os.path.exists(path):
            return None if os.path.exists(f"/proc/{pid}/task/{thread}") else found
        found += [int(word) for word in raw.split()]
    return found


def descendants(root: int, limit: int = 4096) -> list[int]:
    """Host pids below `root`, itself not included, parents before children. A process that forks meanwhile
    may be missed.
    """
    found: list[int] = []
    level = [root]
    while level and len(found) < limit:
        below: list[int] = []
        for pid in level:
            listed = children(pid)
            if listed is None:
                return _scan(root, limit)
            below += listed
        found += below
        level = below
    return found[:limit]


def _scan(root: int, limit: int) -> list[int]:
    """The same from a look at every process: for kernels built without the children list."""
    below: dict[int, list[int]] = {}
    for name in names("/proc", 1 << 16):
        if name.isdigit() and (found := stat(int(name))):
            below.setdefault(found.parent, []).append(found.pid)
    out: list[int] = []
    level = list(below.get(root, ()))
    while level and len(out) < limit:
        out += level
        level = [child for pid in level for child in below.get(pid, ())]
    return out[:limit]


def uptime() -> float:
    """Seconds since boot, on the clock of Stat.started."""
    fields = read("/proc/uptime", 64).split()
    return float(fields[0]) if fields else 0.0
