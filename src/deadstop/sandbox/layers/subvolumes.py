# SPDX-License-Identifier: Apache-2.0
"""Subvolumes of btrfs by system call: made, snapshotted, bounded and removed in milliseconds, without its tools.

Numbers and structures are those of linux/btrfs.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

__all__ = [
    "change_limit",
    "create",
    "destroy",
    "enable_quota",
    "is_btrfs",
    "limit",
    "remove_stale_groups",
    "snapshot",
    "usage",
]

_READ_ONLY = 1 << 1
_FIRST_INODE = 256  # of every subvolume, and of nothing else
_CREATE_V2, _SNAPSHOT_V2, _DESTROY = 0x5000_9418, 0x5000_9417, 0x5000_940F
_QUOTA_CTL, _QGROUP_ASSIGN, _QGROUP_CREATE, _QGROUP_LIMIT = 0xC010_9428, 0x4018_9429, 0x4010_942A, 0x8030_942B
_INO_LOOKUP, _FS_INFO = 0xD000_9412, 0x8400_941F
_ENABLE_SIMPLE, _ENABLE = 4, 1  # simple: since Linux 6.7; does not slow snapshots down
_LIMIT_MAX_REFERENCED = 1
_LEVEL_1 = 1 << 48
_NO_LIMIT = (1 << 64) - 1
_MAGIC = 0x9123_683E
_libc = ctypes.CDLL(None, use_errno=True)


def is_btrfs(path: str) -> bool:
    buffer = (ctypes.c_long * 32)()
    return _libc.statfs(os.fsencode(path), buffer) == 0 and buffer[0] == _MAGIC


def create(folder: str, name: str) -> None:
    _call(folder, _CREATE_V2, _arguments(0, 0, name))


def snapshot(source: str, folder: str, name: str, *, read_only: bool) -> None:
    """A copy of the subvolume `source` as it is at one moment. Writes out what is dirty in it first."""
    fd = _open(source)
    try:
        _call(folder, _SNAPSHOT_V2, _arguments(fd, _READ_ONLY if read_only else 0, name))
    finally:
        os.close(fd)


def destroy(folder: str, name: str) -> None:
    """Remove a subvolume with all in it; subvolumes that a payload made inside go first. The kernel frees it later."""
    arguments = struct.pack("=q4088s", 0, os.fsencode(name))
    try:
        _call(folder, _DESTROY, arguments)
        return
    except FileNotFoundError:
        return
    except OSError as problem:
        if problem.errno != errno.ENOTEMPTY:
            raise
    try:
        change_limit(f"{folder}/{name}", _NO_LIMIT)  # at its limit nothing can be taken out of it, either
    except OSError:
        pass  # it has none
    _destroy_inner(f"{folder}/{name}")
    _call(folder, _DESTROY, arguments)


def _destroy_inner(path: str) -> None:
    for here, folders, _ in os.walk(path):
        for name in list(folders):
            status = os.lstat(f"{here}/{name}")
            if status.st_ino == _FIRST_INODE:
                destroy(here, name)
                folders.remove(name)


def enable_quota(path: str) -> str:
    """Count bytes by subvolume; "" or why that is not possible."""
    reason = ""
    for command in (_ENABLE_SIMPLE, _ENABLE):
        try:
            _call(path, _QUOTA_CTL, bytearray(struct.pack("=QQ", command, 0)))
            return ""
        except OSError as problem:
            if problem.errno == errno.EEXIST:
                return ""
            reason = str(problem.strerror)
    return reason


def limit(path: str, size: int) -> None:
    """Bound a subvolume's bytes: EDQUOT for whoever writes more.

    With simple quotas, what it inherited is free, and what it wrote counts for as long as any snapshot has it. The
    bound is that of a group above the subvolume's own: subvolumes that a payload makes inside are born into it, too.
    """
    number = _subvolume_id(path)
    _call(path, _QGROUP_CREATE, struct.pack("=QQ", 1, _LEVEL_1 | number))
    _call(path, _QGROUP_ASSIGN, struct.pack("=QQQ", 1, number, _LEVEL_1 | number))
    change_limit(path, size)


def change_limit(path: str, size: int) -> None:
    """Of a subvolume that has one."""
    group = _LEVEL_1 | _subvolume_id(path)
    _call(path, _QGROUP_LIMIT, struct.pack("=QQQQQQ", group, _LIMIT_MAX_REFERENCED, size, 0, 0, 0))


def usage(path: str) -> int | None:
    """Bytes that count against the limit, as of the last commit; None where they are not counted or not bounded."""
    try:
        with open(f"{_groups_folder(path)}/1_{_subvolume_id(path)}/referenced") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def remove_stale_groups(path: str, live: list[str]) -> None:
    """Forget the counts of all subvolumes but these. One that still counts something, or has members, stays."""
    keep = {_subvolume_id(folder) for folder in live}
    try:
        names = os.listdir(_groups_folder(path))
    except OSError:
        return
    for name in sorted(names):  # those of single subvolumes first
        level, _, digits = name.partition("_")
        number = int(digits) if digits.isdigit() else 0
        if level in ("0", "1") and number >= _FIRST_INODE and number not in keep:
            try:
                _call(path, _QGROUP_CREATE, struct.pack("=QQ", 0, int(level) << 48 | number))
            except OSError:
                continue


def _groups_folder(path: str) -> str:
    info = bytearray(1024)
    _call(path, _FS_INFO, info)
    digits = bytes(info[16:32]).hex()
    uuid = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    return f"/sys/fs/btrfs/{uuid}/qgroups"


def _subvolume_id(path: str) -> int:
    found = bytearray(struct.pack("=QQ4080s", 0, _FIRST_INODE, b""))
    _call(path, _INO_LOOKUP, found)
    number: int = struct.unpack_from("=Q", found)[0]
    return number


def _arguments(fd: int, flags: int, name: str) -> bytes:
    return struct.pack("=qQQ32s4040s", fd, 0, flags, b"", os.fsencode(name))


def _call(path: str, request: int, arguments: bytes | bytearray) -> None:
    """ioctl on a folder; a bytearray gets the answer."""
    buffer = (ctypes.c_char * len(arguments)).from_buffer(
        arguments if isinstance(arguments, bytearray) else bytearray(arguments)
    )
    fd = _open(path)
    try:
        if _libc.ioctl(fd, ctypes.c_ulong(request), buffer) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
    finally:
        os.close(fd)


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
