# SPDX-License-Identifier: Apache-2.0
"""The standard streams of a worker: descriptors 1 and 2 are pipes to the supervisor, which keeps their last bytes."""

from __future__ import annotations

import io
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


def wrote() -> bool:
    """Whether Python code printed anything since the last call."""
    if Written.wrote:
        Written.wrote = False
        return True
    return False
