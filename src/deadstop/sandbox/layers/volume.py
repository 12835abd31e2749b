# SPDX-License-Identifier: Apache-2.0
"""One sparse file with a btrfs in it, for hosts whose state lies on another file system. Needs root.

It is mounted in a mount namespace of the server's own, on a loop device that the kernel lets go of with the last mount:
so when the server and its sandboxes are gone, however they ended, neither is left. The loop device also holds the
lock on the file; a second mount of one btrfs would destroy it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import struct
import subprocess
import time

from ...boundary import syscalls
from ...errors import NotAllowed

__all__ = ["Volume", "VolumeUnavailable", "open_volume", "private_mounts"]

LARGEST, SHARE_OF_FREE, SMALLEST = 64 << 30, 0.8, 256 << 20
MOUNT_OPTIONS = "flushoncommit,commit=1"  # so that a snapshot finds little that is dirty: 3 ms against 400
MKFS = ("mkfs.btrfs", "--quiet", "--nodiscard", "--metadata", "single", "--data", "single")
PREDECESSOR_S = 10.0
_MS_NOATIME, _MS_SLAVE, _MNT_DETACH = 1024, 1 << 19, 2
_LOOP_CONFIGURE, _LOOP_FREE, _LOOP_AUTOCLEAR = 0x4C0A, 0x4C82, 4
_libc = ctypes.CDLL(None, use_errno=True)
_private_namespace = ""


class VolumeUnavailable(Exception):
    """Why this host cannot have one; nothing was made."""


def private_mounts() -> bool:
    """Give this process a mount namespace of its own; the host's later mounts still show in it, its own not outside.

    Needs root, else False and nothing happens. Only the calling thread and what it starts afterwards get it: call it
    before any other thread exists, and before the supervisor is started.
    """
    global _private_namespace
    if os.geteuid() != 0 or _libc.unshare(syscalls.CLONE_NEWNS) < 0:
        return False
    try:
        syscalls.mount("none", "/", None, syscalls.MS_REC | _MS_SLAVE)
    except OSError:
        return False
    _private_namespace = os.readlink("/proc/thread-self/ns/mnt")
    return True


class Volume:
    """A mounted one. `close` takes the mount away from here; it goes for good when no sandbox has it any more."""

    def __init__(self, place: str) -> None:
        self.place = place

    def close(self) -> None:
        _libc.umount2(os.fsencode(self.place), _MNT_DETACH)


def open_volume(image: str, place: str, size: int | None) -> Volume:
    """Make the file once, and mount it. Blocks. Raises VolumeUnavailable; NotAllowed if there is one that is broken."""
    if not _private_namespace or os.readlink("/proc/thread-self/ns/mnt") != _private_namespace:
        raise VolumeUnavailable("the server's mounts are not private")
    os.makedirs(place, mode=0o711, exist_ok=True)
    existed = os.path.exists(image)
    if not existed:
        _format(image, size or _default_size(image))
    try:
        _mount(image, place)
    except OSError as problem:
        if existed:
            text = (
                f"{image}, which has the files of sandboxes, cannot be mounted ({problem}): repair it or move it away"
            )
            raise NotAllowed(text) from problem
        os.unlink(image)
        raise VolumeUnavailable(f"{problem.filename or image}: {problem.strerror}") from problem
    return Volume(place)


def _default_size(image: str) -> int:
    free = shutil.disk_usage(os.path.dirname(image)).free
    return min(LARGEST, int(free * SHARE_OF_FREE)) & ~0xFFFFF


def _format(image: str, size: int) -> None:
    if size < SMALLEST:
        raise VolumeUnavailable(f"{size} bytes are too few for a volume; {SMALLEST} are the least")
    making = f"{image}.new"
    fd = os.open(making, os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, size)
        path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
        program = shutil.which(MKFS[0], path=path)
        if program is None:
            raise VolumeUnavailable("mkfs.btrfs is not installed (package btrfs-progs)")
        done = subprocess.run([program, *MKFS[1:], making], capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise VolumeUnavailable(f"mkfs.btrfs failed: {done.stderr.strip()[-200:]}")
        os.rename(making, image)
    except BaseException:
        os.unlink(making)
        raise
    finally:
        os.close(fd)


def _mount(image: str, place: str) -> None:
    file = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    try:
        _lock(file, image)
        device, name = _loop_device(file)
        try:
            flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | _MS_NOATIME
            syscalls.mount(name, place, "btrfs", flags, MOUNT_OPTIONS)
        finally:
            os.close(device)
    finally:
        os.close(file)  # the loop device keeps it, and the lock


def _lock(file: int, image: str) -> None:
    """The last server's loop device may outlive it by a moment, until its last sandbox is gone."""
    end = time.monotonic() + PREDECESSOR_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                raise OSError(errno.EBUSY, "another server has it", image) from None
            time.sleep(0.01)


def _loop_device(file: int) -> tuple[int, str]:
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(32):
            name = f"/dev/loop{fcntl.ioctl(control, _LOOP_FREE)}"
            device = os.open(name, os.O_RDWR | os.O_CLOEXEC)
            try:
                information = struct.pack("=40s4I176s", b"", 0, 0, 0, _LOOP_AUTOCLEAR, b"")
                fcntl.ioctl(device, _LOOP_CONFIGURE, struct.pack("=II232s64s", file, 0, information, b""))
                return device, name
            except OSError as problem:
                os.close(device)
                if problem.errno != errno.EBUSY:  # else somebody was quicker
                    raise
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "no free loop device", "/dev/loop-control")
