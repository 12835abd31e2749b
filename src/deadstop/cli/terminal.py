# SPDX-License-Identifier: Apache-2.0
"""Between our terminal and the payload's, for `--tty`: the window size, and with `--stdin` what is typed.

Nothing here waits. Modes are set with TCSANOW, since the other two wait until the terminal has shown all
output, which a stopped terminal never does. What the payload does not read stays in one small buffer, and
meanwhile our stdin is not read.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import termios
import tty
from collections.abc import Callable
from typing import Any

from .. import clock
from ..supervisor.call import Call
from ..supervisor.loop import Loop
from ..supervisor.output import Pump

CHUNK = 4096  # read from our stdin at once, and only when all before it was taken
RETRY_S = 0.01  # how often a payload's terminal that is full is tried again


def relay(loop: Loop, call: Call, *, with_input: bool) -> Callable[[], None]:
    """Pass on our window's size and, `with_input`, our stdin; what is returned ends that and may be repeated.

    If our stdin is a terminal it is in raw mode until then: every key, Ctrl-C too, goes to the payload as a
    byte, and only a signal from elsewhere or a limit ends the run. If it is not, its end is passed on as the
    end-of-file character of the payload's terminal. A payload in raw mode reads that as a byte, and one that
    discards what was typed before it asked (most password prompts) discards piped input as well.

    Not promised: input while this process is in its terminal's background; the modes after a SIGKILL of it.
    """
    pump = call.pumps[0]
    restore = [_set_signals(pump)]
    if with_input and not _in_background():
        source = Input(loop, pump)
        restore.append(source.close)
        if source.is_terminal:
            restore.append(_set_raw())

    def stop() -> None:
        while restore:
            restore.pop()()

    return stop


def _set_signals(pump: Pump) -> Callable[[], None]:
    """Follow SIGWINCH, and never be stopped by job control: a stopped supervisor keeps no deadline.

    A Python handler is soon enough: the signal writes to the wakeup descriptor that the loop watches.
    """
    handlers: dict[signal.Signals, Any] = {
        signal.SIGWINCH: lambda *_: _copy_size(pump),
        signal.SIGTTIN: signal.SIG_IGN,  # reading from the background fails instead
        signal.SIGTTOU: signal.SIG_IGN,  # and the modes can be put back from there
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    _copy_size(pump)  # it may have changed since the payload's terminal was made

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    return restore


def _copy_size(pump: Pump) -> None:
    """Give the payload's terminal the size of ours; the kernel tells the payload if that is a change."""
    for fd in (1, 2, 0):
        try:
            size = fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(8))
        except OSError:
            continue
        try:
            fcntl.ioctl(pump.fd, termios.TIOCSWINSZ, size)
        except (OSError, ValueError):  # closed: the payload has left its terminal
            pass
        return


def _in_background() -> bool:
    """Whether our stdin is our controlling terminal and belongs to another job just now."""
    try:
        return os.tcgetpgrp(0) != os.getpgrp()
    except OSError:
        return False


def _set_raw() -> Callable[[], None]:
    """Our stdin's terminal in raw mode; the returned function puts back what was."""
    before = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSANOW)

    def restore() -> None:
        try:
            termios.tcsetattr(0, termios.TCSANOW, before)
        except termios.error:
            pass  # it was hung up: nobody is left to type

    return restore


class Input:
    """Our stdin, copied to the payload's terminal. Reads on when the terminal took what was read before."""

    def __init__(self, loop: Loop, pump: Pump) -> None:
        self.loop, self.pump = loop, pump
        self.is_terminal = os.isatty(0)
        self.fd = _open_again()
        self._pollable = _is_pollable(self.fd)
        self._pending = bytearray()
        self._at_line_start = True
        self._ended = False
        self._timer = loop.at(clock.monotonic(), self._flush)

    def close(self) -> None:
        self._timer.cancel()
        self.loop.unwatch(self.fd)
        if self.fd > 0:
            os.close(self.fd)
        self.fd = -1

    def _read(self) -> None:
        try:
            data = os.read(self.fd, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # the terminal was hung up, or we are in its background
        if data:
            self._at_line_start = data.endswith(b"\n")
        else:
            self._ended = True
            data = b"" if self.is_terminal else self._end_of_file()
        self._pending += data
        self._flush()

    def _end_of_file(self) -> bytes:
        """After an unfinished line the first one only hands over that line."""
        try:
            key = termios.tcgetattr(self.pump.fd)[6][termios.VEOF]
        except (termios.error, ValueError):  # closed
            return b""
        return bytes(key) * (1 if self._at_line_start else 2)

    def _flush(self) -> None:
        self.loop.unwatch(self.fd)
        try:
            while self._pending and self.pump.open:
                del self._pending[: os.write(self.pump.fd, self._pending)]
        except BlockingIOError:
            # No watch for writing: the pump owns the descriptor and may close it at any time.
            self._timer = self.loop.at(clock.monotonic() + RETRY_S, self._flush)
            return
        except OSError:
            return  # nobody has the terminal open any more
        if self._ended or not self.pump.open:
            return
        if self._pollable:
            self.loop.watch(self.fd, self._read)
        else:
            self._timer = self.loop.at(clock.monotonic(), self._read)


def _open_again() -> int:
    """Our stdin as an open file of our own that does not block; itself where that is refused (a socket).

    O_NONBLOCK on the inherited one would change it for every program that shares it.
    """
    try:
        return os.open("/proc/self/fd/0", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return 0


def _is_pollable(fd: int) -> bool:
    """Regular files and /dev/null are not, and are always readable."""
    with select.epoll() as poll:
        try:
            poll.register(fd)
        except PermissionError:
            return False
    return True
