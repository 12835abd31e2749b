# SPDX-License-Identifier: Apache-2.0
"""The standard streams of a worker: descriptors 1 and 2 are pipes to the supervisor, which keeps their last bytes."""

from __future__ import annotations

import io
import os
import sys


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


_last = (0, 0)


def wrote() -> bool:
    """Whether anything was printed since the last call: by Python code, or past it, which the pipes' times tell.

    They are as coarse as the kernel's clock ticks: what is written past Python within a tick of what was told before
    may be told with the next call's.
    """
    global _last
    now = os.fstat(1).st_mtime_ns, os.fstat(2).st_mtime_ns
    if Written.wrote or now != _last:
        Written.wrote, _last = False, now
        return True
    return False
