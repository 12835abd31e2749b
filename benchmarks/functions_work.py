# SPDX-License-Identifier: Apache-2.0
"""What is called in the measurements of functions: importable, so that every candidate sends it by its name."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable
from pickle import loads
from typing import Any


def nothing(value: object = None) -> object:
    """A no-op, and with 10 MB as its argument the echo of it."""
    return value


def call_packed(packed: bytes, *arguments: Any) -> Any:
    """What a rival that takes no closures has to be given instead."""
    return loads(packed)(*arguments)


def over_list() -> Callable[[int], int]:
    """Something that may change: it is serialised for each call."""
    held = [1, 2, 3]
    return lambda number: number + len(held)


def over_number() -> Callable[[int], int]:
    """Nothing in it can change: it is serialised once."""
    held = 3
    return lambda number: number + held


def hang(seconds: float) -> None:
    time.sleep(seconds)


def hang_stubborn(seconds: float) -> None:
    """Does not end on SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(left)


def hang_with_mark(path: str, number: int, seconds: float) -> None:
    """Holds a lock for as long as the process lives: how many still hang can be asked without asking them."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.lockf(fd, fcntl.LOCK_EX, 1, number)
    os.pwrite(fd, b"+", number)
    time.sleep(seconds)


def marks(path: str, count: int) -> tuple[int, int]:
    """(how many began, how many of their processes live)."""
    alive = 0
    with open(path, "r+b") as file:
        for number in range(count):
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
            except OSError:
                alive += 1
        return file.read().count(b"+"), alive
