# SPDX-License-Identifier: Apache-2.0
"""Who holds a lease: a process, named so that another one on the same machine can see that it is gone."""

from __future__ import annotations

import os
import time
from functools import cache

from .. import clock

__all__ = ["is_gone", "of_this_process"]


@cache
def _of(pid: int) -> str:
    return "/".join((_host(), _boot(), _namespace(), str(pid), _started(pid) or "0"))


def of_this_process() -> str:
    """`host/boot/pid namespace/pid/start time`. It is for people and for `is_gone`; what fences is the fence."""
    return _of(os.getpid())


def is_gone(owner: str, since_ms: int = 0) -> bool:
    """True only if it is certain: the same machine, and booted again since or without that process.

    `since_ms`: when it was there for certain. If that was after this machine had started, an owner from another start
    is not from this machine, whatever it is called: copies of one image have one name.
    """
    words = owner.rsplit("/", 4)
    if len(words) != 5 or words[0] != _host():
        return False
    _, boot, namespace, pid, started = words
    if boot != _boot():
        started_ms = (time.time() - clock.boottime()) * 1000
        return bool(boot and _boot()) and since_ms < started_ms
    if namespace != _namespace() or not pid.isdigit():
        return False
    there = _started(int(pid))
    return there != started and (there is not None or not _hidden(int(pid)))


@cache
def _host() -> str:
    name = os.uname().nodename.replace("/", "_")
    try:
        with open("/etc/machine-id") as file:  # images are copied, with this file in them: the name belongs to it
            return f"{name}.{file.read().strip()}"
    except OSError:
        return name


@cache
def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


@cache
def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        return ""


def _hidden(pid: int) -> bool:
    """Whether another user's process, which is there, is kept out of sight (/proc with hidepid)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return False  # a zombie, or one of ours


def _started(pid: int) -> str | None:
    """In clock ticks since boot; None if there is no such process. A zombie is gone: it sends nothing any more."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()
