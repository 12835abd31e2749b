# SPDX-License-Identifier: Apache-2.0
"""The Linux calls that Python does not offer; the only place with raw system call numbers on the kill path.

Numbers from 424 on are the same on every architecture, so none of these needs a table. `PyDLL` keeps the interpreter
lock during a call: the raw `clone3` below must not let another thread run between fork and bookkeeping.
"""

from __future__ import annotations

import ctypes
import os
import signal

CLONE_NEWNS = 0x0002_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_PARENT = 0x0000_8000
CLONE_PIDFD = 0x0000_1000
CLONE_INTO_CGROUP = 0x2_0000_0000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME = 1, 4, 15
PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 24, 36, 38

NS_GET_USERNS = 0xB701

_CLONE = {"x86_64": 56, "aarch64": 220}
_MOVE_MOUNT, _OPEN_TREE, _CLONE3, _CLOSE_RANGE, _MOUNT_SETATTR = 429, 428, 435, 436, 442
_OPENAT2, _RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS = 437, 2, 4
_AT_EMPTY_PATH, _AT_RECURSIVE = 0x1000, 0x8000
_OPEN_TREE_CLONE = 1
_MOUNT_ATTR_IDMAP = 0x0010_0000
_MOVE_MOUNT_F_EMPTY_PATH = 4

_libc = ctypes.PyDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def clone3(flags: int, *, cgroup_fd: int = -1) -> tuple[int, int]:
    """Fork with namespaces: (0, -1) in the child, (pid, pidfd) in the parent.

    Only for single-threaded callers. With `cgroup_fd` (a cgroup v2 folder) the child is born inside that group, so that
    nothing it forks can be outside. With CLONE_PARENT it is a sibling, and ends with the signal that we end with.
    """
    pidfd = ctypes.c_int(-1)
    flags |= CLONE_PIDFD | (CLONE_INTO_CGROUP if cgroup_fd >= 0 else 0)
    where = ctypes.addressof(pidfd)
    exit_signal = 0 if flags & CLONE_PARENT else signal.SIGCHLD
    arguments = (ctypes.c_uint64 * 11)(flags, where, 0, 0, exit_signal, 0, 0, 0, 0, 0, max(cgroup_fd, 0))
    return _fork(ctypes.c_long(_CLONE3), arguments, ctypes.c_size_t(88)), pidfd.value


def fork_sibling() -> int:
    """Fork a child of this process's parent. By the older call, which a sandbox's filter lets through."""
    number = _CLONE[os.uname().machine]
    return _fork(ctypes.c_long(number), ctypes.c_ulong(CLONE_PARENT | signal.SIGCHLD), 0, 0, 0, 0)


def _fork(*call: object) -> int:
    """0 in the child, which the interpreter is told of, as by os.fork."""
    ctypes.pythonapi.PyOS_BeforeFork()
    pid: int = _libc.syscall(*call)
    number = ctypes.get_errno()
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(number, os.strerror(number), "clone")
    return pid


def close_all_except(keep: set[int]) -> None:
    """Close every descriptor but these. A forked init that kept another call's lifeline would keep that call alive."""
    low = 0
    for fd in [*sorted(keep), 1 << 31]:
        if fd > low:
            _libc.syscall(ctypes.c_long(_CLOSE_RANGE), ctypes.c_uint(low), ctypes.c_uint(fd - 1), ctypes.c_uint(0))
        low = fd + 1


def prctl(option: int, argument: int | bytes) -> None:
    value = argument if isinstance(argument, bytes) else ctypes.c_ulong(argument)
    _check(_libc.prctl(option, value, ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)), f"prctl {option}")


def set_process_name(name: str) -> None:
    prctl(PR_SET_NAME, name.encode()[:15])


def die_with_parent() -> None:
    """SIGKILL for this process when the thread that forked it ends."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def hide_from_peers() -> None:
    """Not dumpable: processes of the same user can neither attach to this one nor read its /proc files."""
    prctl(PR_SET_DUMPABLE, 0)


def show_to_peers() -> None:
    """Undo `hide_from_peers` in a child that runs what the user gave us: it is to be as any process of the user's."""
    prctl(PR_SET_DUMPABLE, 1)


def become_subreaper() -> None:
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def drop_capabilities(*, bounding: bool = False) -> None:
    """Give up every capability for good (with `bounding`, what a later exec could regain, too)."""
    if bounding:
        for number in range(64):
            if _libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0) < 0:
                break
    header = (ctypes.c_uint32 * 2)(0x2008_0522, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    _check(_libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]), f"mount {target}")


def open_without_links(path: str) -> int:
    """Open for reading; ELOOP if any part of the path is a symbolic link. Never waits for a pipe's writer."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    how = (ctypes.c_uint64 * 3)(flags, 0, _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS)
    number, where, size = ctypes.c_long(_OPENAT2), ctypes.c_int(-100), ctypes.c_size_t(24)
    return _check(_libc.syscall(number, where, os.fsencode(path), how, size), path)


def setns(fd: int) -> None:
    _check(_libc.setns(fd, 0), "setns")


def erase_own_arguments() -> None:
    """Empty this process's command line and environment, as /proc shows them: a fork of ours has its caller's."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b") ")[2].split()
    for start, end in ((int(fields[45]), int(fields[46])), (int(fields[47]), int(fields[48]))):
        if 0 < start < end:
            ctypes.memset(start, 0, end - start)


def clone_mount(path: str) -> int:
    """A detached copy of the mount at `path`, everything below included."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE
    number, where = ctypes.c_long(_OPEN_TREE), ctypes.c_int(-100)
    return _check(_libc.syscall(number, where, os.fsencode(path), ctypes.c_uint(flags)), f"open_tree {path}")


def map_mount_owner(mount_fd: int, user_namespace_fd: int) -> None:
    """Show the files of a detached mount under the ids that the user namespace maps them to."""
    attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_IDMAP, 0, 0, user_namespace_fd)
    flags = ctypes.c_uint(_AT_EMPTY_PATH | _AT_RECURSIVE)
    number, size = ctypes.c_long(_MOUNT_SETATTR), ctypes.c_size_t(32)
    _check(_libc.syscall(number, ctypes.c_int(mount_fd), b"", flags, attributes, size), "mount_setattr")


def attach_mount(mount_fd: int, target: str) -> None:
    number, flags = ctypes.c_long(_MOVE_MOUNT), ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH)
    source, where = ctypes.c_int(mount_fd), ctypes.c_int(-100)
    _check(_libc.syscall(number, source, b"", where, os.fsencode(target), flags), f"move_mount {target}")
