# SPDX-License-Identifier: Apache-2.0
"""Whether there is room for another sandbox: asked before anything of it exists."""

from __future__ import annotations

import os

from ..boundary.cgroup import read
from ..errors import CapacityError, UsageError
from .settings import Settings
from .wishes import MIB, Wish

RETRY_S = 1.0


def free_memory() -> int | None:
    """Bytes that the host says are available, or None."""
    for line in read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def admit(settings: Settings, wish: Wish, count: int, wanted: int, memory_in_use: int) -> None:
    """Raise CapacityError if `wanted` more like this do not fit beside the `count` there are.

    A refusal that will hold whatever ends meanwhile carries no time to retry after.
    """
    if settings.max_memory is not None and wish.memory * wanted > settings.max_memory:
        raise UsageError(f"memory: {wish.memory * wanted} bytes, and this server has {settings.max_memory} in all")
    if wanted > settings.max_sandboxes:
        raise UsageError(f"count: {wanted} sandboxes, and this server keeps {settings.max_sandboxes} at most")
    if count + wanted > settings.max_sandboxes:
        text = f"{count} sandboxes are running, of at most {settings.max_sandboxes}"
        raise CapacityError(text, "sandboxes", RETRY_S)
    if settings.max_memory is not None and memory_in_use + wish.memory * wanted > settings.max_memory:
        text = f"memory: {memory_in_use >> 20} MiB of {settings.max_memory >> 20} are promised to running sandboxes"
        raise CapacityError(text, "memory", RETRY_S)
    free = free_memory()
    if free is not None and free < settings.spare_memory + wanted * 16 * MIB:
        raise CapacityError(f"memory: the host has {free >> 20} MiB left", "memory", RETRY_S)
    disk = os.statvfs(settings.state)
    if disk.f_bavail * disk.f_frsize < settings.spare_disk or (disk.f_files and disk.f_favail < 1024):
        raise CapacityError(f"disk: {settings.state} has {disk.f_bavail * disk.f_frsize >> 20} MiB left", "disk", None)
