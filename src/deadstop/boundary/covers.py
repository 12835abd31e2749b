# SPDX-License-Identifier: Apache-2.0
"""Covers for what a sandbox's /proc would tell of the host and its kernel.

Put on by its pid 1, when it is inside and no payload exists: bubblewrap would read the list of all mounts for each one.
"""

from __future__ import annotations

import os

from . import syscalls

# Those that exist and that others or a group may read; what only root may read needs no cover.
FILES = """
allocinfo cmdline config.gz interrupts iomem ioports kallsyms kcore key-users keys kmsg kpagecgroup kpagecount
kpageflags latency_stats modules sched_debug slabinfo sysrq-trigger timer_list vmallocinfo
"""
FOLDERS = "acpi asound bus driver fs irq scsi sysvipc"


def cover_proc() -> None:
    """Needs the right to mount in the sandbox's mount namespace. Raises OSError: an uncovered sandbox is not opened."""
    read_only = syscalls.MS_BIND | syscalls.MS_REMOUNT | syscalls.MS_RDONLY
    syscalls.mount("/proc/sys", "/proc/sys", None, syscalls.MS_BIND)
    syscalls.mount("none", "/proc/sys", None, read_only | syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
    sealed = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC | syscalls.MS_RDONLY
    for name in FILES.split():
        if _readable(f"/proc/{name}"):
            syscalls.mount("/dev/null", f"/proc/{name}", None, syscalls.MS_BIND)
            syscalls.mount("none", f"/proc/{name}", None, syscalls.MS_BIND | syscalls.MS_REMOUNT | sealed)
    for name in FOLDERS.split():
        if os.path.isdir(f"/proc/{name}"):
            syscalls.mount("none", f"/proc/{name}", "tmpfs", sealed, "size=4k,mode=555")


def _readable(path: str) -> bool:
    try:
        return bool(os.stat(path).st_mode & 0o044)
    except OSError:
        return False
