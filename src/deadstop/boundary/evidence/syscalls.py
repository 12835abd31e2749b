# SPDX-License-Identifier: Apache-2.0
"""Which system call a thread sits in: numbers for two machines, and a fallback from the kernel's wait
channel.

x86_64 is tested. aarch64 is written from the generic table and NOT tested on such a machine. On others, for
32-bit programs on a 64-bit kernel, and for calls not listed, the wait channel decides.
"""

from __future__ import annotations

import os

X86_64 = {
    0: "read", 1: "write", 2: "open", 3: "close", 7: "poll", 16: "ioctl", 17: "pread64", 18: "pwrite64",
    19: "readv", 20: "writev", 23: "select", 26: "msync", 34: "pause", 35: "nanosleep", 40: "sendfile",
    42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 56: "clone",
    57: "fork", 58: "vfork", 59: "execve", 61: "wait4", 64: "semget", 65: "semop", 69: "msgsnd",
    70: "msgrcv", 72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync", 82: "rename", 87: "unlink",
    128: "rt_sigtimedwait", 130: "rt_sigsuspend", 162: "sync", 202: "futex", 208: "io_getevents",
    219: "restart_syscall", 220: "semtimedop", 230: "clock_nanosleep", 231: "exit_group", 232: "epoll_wait",
    242: "mq_timedsend", 243: "mq_timedreceive", 247: "waitid", 257: "openat", 270: "pselect6",
    271: "ppoll", 275: "splice", 276: "tee", 278: "vmsplice", 281: "epoll_pwait", 288: "accept4",
    295: "preadv", 296: "pwritev", 299: "recvmmsg", 307: "sendmmsg", 306: "syncfs", 327: "preadv2",
    328: "pwritev2", 426: "io_uring_enter", 435: "clone3", 437: "openat2", 441: "epoll_pwait2",
    449: "futex_waitv", 455: "futex_wait",
}  # fmt: skip
AARCH64 = {
    4: "io_getevents", 22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 35: "unlinkat",
    56: "openat", 57: "close", 63: "read", 64: "write", 65: "readv", 66: "writev", 67: "pread64",
    68: "pwrite64", 69: "preadv", 70: "pwritev", 71: "sendfile", 72: "pselect6", 73: "ppoll",
    75: "vmsplice", 76: "splice", 77: "tee", 81: "sync", 82: "fsync", 83: "fdatasync", 94: "exit_group",
    95: "waitid", 98: "futex", 101: "nanosleep", 115: "clock_nanosleep", 128: "restart_syscall",
    133: "rt_sigsuspend", 137: "rt_sigtimedwait", 182: "mq_timedsend", 183: "mq_timedreceive",
    188: "msgrcv", 189: "msgsnd", 192: "semtimedop", 193: "semop", 202: "accept", 203: "connect",
    206: "sendto", 207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 220: "clone", 221: "execve",
    227: "msync", 242: "accept4", 243: "recvmmsg", 260: "wait4", 267: "syncfs", 269: "sendmmsg",
    286: "preadv2", 287: "pwritev2", 426: "io_uring_enter", 435: "clone3", 437: "openat2",
    441: "epoll_pwait2", 449: "futex_waitv", 455: "futex_wait",
}  # fmt: skip
TABLES = {"x86_64": X86_64, "aarch64": AARCH64, "arm64": AARCH64}
NUMBERS = TABLES.get(os.uname().machine, {})

# What kind of waiting a call is. Names not listed stand for themselves.
OPERATIONS = {
    **dict.fromkeys(("pread64", "readv", "recvfrom", "recvmsg", "recvmmsg", "preadv", "preadv2"), "read"),
    **dict.fromkeys(
        ("pwrite64", "writev", "sendto", "sendmsg", "sendmmsg", "pwritev", "pwritev2", "sendfile"), "write"
    ),
    **dict.fromkeys(("splice", "tee", "vmsplice"), "read"),
    **dict.fromkeys(("ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2"), "poll"),
    **dict.fromkeys(("nanosleep", "clock_nanosleep"), "sleep"),
    **dict.fromkeys(("futex_waitv", "futex_wait"), "futex"),
    **dict.fromkeys(("wait4", "waitid"), "wait"),
    **dict.fromkeys(("fork", "vfork", "clone", "clone3"), "vfork"),
    **dict.fromkeys(("semop", "semtimedop"), "semaphore"),
    **dict.fromkeys(("msgrcv", "mq_timedreceive", "msgsnd", "mq_timedsend"), "message_queue"),
    **dict.fromkeys(("pause", "rt_sigsuspend", "rt_sigtimedwait"), "signal"),
    **dict.fromkeys(("fsync", "fdatasync", "msync", "sync", "syncfs", "io_getevents"), "disk"),
    **dict.fromkeys(("openat", "openat2"), "open"),
    "accept4": "accept",
}

# Part of a kernel function name -> the call it stands for, first match wins.
WAIT_CHANNELS = (
    ("pipe_read", "read"), ("pipe_write", "write"), ("wait_for_partner", "open"), ("n_tty_read", "read"),
    ("n_tty_write", "write"), ("wait_woken", "read"), ("do_wait", "wait4"), ("kernel_wait", "wait4"),
    ("ep_poll", "epoll_wait"), ("poll_schedule", "poll"), ("do_sys_poll", "poll"), ("do_select", "select"),
    ("nanosleep", "clock_nanosleep"), ("futex", "futex"), ("inet_csk_accept", "accept"), ("flock", "flock"),
    ("fcntl_setlk", "fcntl"), ("posix_lock", "fcntl"), ("sigsuspend", "rt_sigsuspend"),
    ("sigtimedwait", "rt_sigtimedwait"), ("unix_stream", "read"), ("sk_wait", "read"), ("skb_wait", "read"),
    ("do_signal_stop", "stopped"), ("ptrace_stop", "stopped"), ("io_schedule", "fsync"), ("folio", "fsync"),
    ("jbd2", "fsync"), ("percpu_rwsem", "fsync"), ("sb_start_write", "fsync"), ("msleep", "clock_nanosleep"),
)  # fmt: skip


def from_wait_channel(channel: str) -> str:
    """The call a wait channel stands for, or "" where it tells nothing."""
    for part, name in WAIT_CHANNELS:
        if part in channel:
            return name
    return ""


def name_of(fields: list[bytes], channel: str) -> str:
    """The call in a split /proc/PID/syscall line; from the wait channel where the number says nothing."""
    number = int(fields[0])
    name = NUMBERS.get(number, "")
    if _is_32bit(fields) or not name:
        return from_wait_channel(channel) or f"syscall{number}"
    return _restarted(fields) if name == "restart_syscall" else name


def _restarted(fields: list[bytes]) -> str:
    """The call that goes on after a stop and a continue. Its arguments are still there, its number is not.

    Only four calls are restarted this way: both sleeps (a clock number or two addresses), poll (an address and a
    count) and futex (an address and an operation, whose private flag is 128). The wait channel does not tell.
    """
    first, second = int(fields[1], 16), int(fields[2], 16)
    if first < 16:
        return "clock_nanosleep"
    if second == 0 or second > 1 << 16:
        return "nanosleep"
    return "futex" if second >= 128 else "poll"


def _is_32bit(fields: list[bytes]) -> bool:
    """A 32-bit program has other numbers; both its stack pointer and its program counter are below 4 GiB."""
    return len(fields) == 9 and int(fields[7], 16) < 1 << 32 and int(fields[8], 16) < 1 << 32
