# SPDX-License-Identifier: Apache-2.0
"""A timer descriptor, which one process can arm and another watch (timerfd)."""

from __future__ import annotations

import ctypes
import os
import time

_ABSOLUTE = 1
_libc = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter lock: the calls are shorter than giving it away
_settime = _libc.timerfd_settime
_settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def create(which: int = time.CLOCK_MONOTONIC) -> int:
    fd: int = _libc.timerfd_create(which, os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "timerfd_create")
    return fd


class Timer:
    """The arming end. Not for two threads at once."""

    __slots__ = ("_address", "_cells", "armed", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.armed = 0.0  # when it fires; it has fired if that is over
        self._cells = (ctypes.c_int64 * 4)()
        self._address = ctypes.addressof(self._cells)

    def arm(self, when: float) -> None:
        """Fire once, at this point on the timer's clock; at once if it is over. Replaces what was armed before."""
        cells = self._cells
        seconds = int(when)
        cells[2], cells[3] = seconds, int((when - seconds) * 1e9) or 1
        if _settime(self.fd, _ABSOLUTE, self._address, None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")
        self.armed = when
