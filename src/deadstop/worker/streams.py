# SPDX-License-Identifier: Apache-2.0
"""The standard streams of a worker: descriptors 1 and 2 are pipes to the supervisor, which keeps their last bytes."""

from __future__ import annotations

import fcntl
import io
import sys
import termios


class Written(io.FileIO):
    """Remembers whether anything was written since it was last asked."""

    wrote = False

    def write(self, data: object) -> int:
        Written.wrote = True
        return super().write(data)  # type: ignore[arg-type]


def install() -> None:
    """Unbuffered, as `python -u`: what is in a buffer dies with the process. Before user code can keep the old ones."""
    for number, name, errors in ((1, "stdout", "backslashreplace"), (2, "stderr", "backslashreplace")):
        raw = Written(number, "w", closefd=False)
        stream = io.TextIOWrapper(raw, encoding="utf-8", errors=errors, write_through=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")


_unread = bytearray(4)


def wrote() -> bool:
    """Whether anything was printed since the last call, as far as it can be seen here.

    By Python code, or past it if the pipes are not empty. What the supervisor has taken out of them is told by it
    (`Slot.printed`).
    """
    if Written.wrote:
        Written.wrote = False
        return True
    for number in (1, 2):
        fcntl.ioctl(number, termios.FIONREAD, _unread)
        if any(_unread):
            return True
    return False
