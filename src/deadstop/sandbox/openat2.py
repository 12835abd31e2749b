# SPDX-License-Identifier: Apache-2.0
"""Opening what lies beneath a directory that somebody hostile changes at the same time.

Neither `..` nor a symbolic link is ever followed here, by the kernel or by us (openat2(2), since Linux 5.6): a rename
in the middle of a path can make an open fail, never lead it elsewhere. Links are read and followed by files_view.py.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence

__all__ = ["open_beneath"]

_OPENAT2 = 437  # the same on every architecture
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 2, 4, 8
_ALWAYS = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_PATH_BYTES = 4000  # of the kernel's 4096
_HOW = ctypes.c_uint64 * 3

# CDLL: the interpreter lock is free while a disk is slow.
_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t]


def open_beneath(folder: int, names: Sequence[bytes], flags: int) -> int:
    """Open the path `names` beneath the directory `folder`; no names are that directory itself.

    Never waits for the other end of a FIFO or for a lease. With O_PATH alone a symbolic link as the last name is opened
    as itself. Raises OSError: ELOOP for a symbolic link anywhere else and for a directory that is moved away during the
    walk, what open(2) says for the rest.
    """
    path = b"/".join(names) or b"."
    if len(path) < _PATH_BYTES:
        return _open(folder, path, flags)
    return _open_far(folder, list(names), flags)


def _open_far(folder: int, names: list[bytes], flags: int) -> int:
    """In steps: a tree can be deeper than a path may be long."""
    at, start = os.dup(folder), 0
    try:
        while True:
            end, length = start, 0
            while end < len(names) and length < _PATH_BYTES - 256:
                length += len(names[end]) + 1
                end += 1
            last = end == len(names)
            step = _open(at, b"/".join(names[start:end]), flags if last else os.O_PATH | os.O_DIRECTORY)
            if last:
                return step
            os.close(at)
            at, start = step, end
    finally:
        os.close(at)


def _open(folder: int, path: bytes, flags: int) -> int:
    if not flags & os.O_PATH:
        flags |= _ALWAYS
    elif flags & os.O_DIRECTORY:
        flags |= os.O_CLOEXEC  # without O_NOFOLLOW: a link is ELOOP, not ENOTDIR
    else:
        flags |= os.O_CLOEXEC | os.O_NOFOLLOW
    how = _HOW(flags, 0, _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS)
    while True:
        fd: int = _syscall(_OPENAT2, folder, path, how, 24)
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        if number == errno.EXDEV:
            number = errno.ELOOP  # moved out of `folder` during the walk: as unlucky as a link, and no reason to follow
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
