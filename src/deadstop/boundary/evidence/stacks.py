# SPDX-License-Identifier: Apache-2.0
"""Python stacks of a process that is no worker of ours, by py-spy (extra `stacks`), if that is installed."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from functools import cache

SECONDS = 0.06
SHOWN_BYTES = 16_384


@cache
def py_spy() -> str | None:
    """Where it is: beside this interpreter, or on the path."""
    folders = [os.path.dirname(sys.executable or ""), *os.environ.get("PATH", os.defpath).split(":")]
    candidates = [os.path.join(folder, "py-spy") for folder in folders if folder.startswith("/")]
    return next((path for path in candidates if os.access(path, os.X_OK)), None)


def is_python(pid: int) -> bool:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")
    except OSError:
        return False


def shows_stacks(pid: int) -> bool:
    """Whether it is worth asking."""
    return py_spy() is not None and is_python(pid)


def python_stacks(pid: int) -> tuple[str | None, bool]:
    """The stacks, without stopping the process, and whether that was over in time.

    None if it is no Python, may not be looked into, or does not tell in time.
    """
    program = py_spy()
    if program is None or not is_python(pid):
        return None, True
    reading, writing = os.pipe2(os.O_CLOEXEC)
    actions = [(os.POSIX_SPAWN_DUP2, writing, 1), (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)]
    try:
        child = os.posix_spawn(program, [program, "dump", "--nonblocking", "--pid", str(pid)], {}, file_actions=actions)
    except OSError:
        os.close(reading)
        return None, True
    finally:
        os.close(writing)
    end = time.monotonic() + SECONDS
    text = _read(reading, end)
    in_time = time.monotonic() < end
    os.close(reading)
    os.kill(child, signal.SIGKILL)  # not collected yet: the number is its own
    os.waitpid(child, 0)
    at = text.find("\nThread ")
    return (text[at + 1 :].strip() if at >= 0 else None), in_time


def _read(reading: int, end: float) -> str:
    data = b""
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    while len(data) < SHOWN_BYTES and poll.poll(max(0.0, end - time.monotonic()) * 1000):
        chunk = os.read(reading, 65536)
        if not chunk:
            break
        data += chunk
    return data[:SHOWN_BYTES].decode("utf-8", "replace")
