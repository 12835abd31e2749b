# SPDX-License-Identifier: Apache-2.0
"""The file of checkpoints, outside the database: signed notes one after another, each followed by an empty line.

It is only ever appended to, so it may be one that the system lets nobody shorten (chattr +a), or be copied elsewhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

from .. import clock, places
from ..errors import LedgerUnavailable
from .signing import Checkpoint, parse_note

__all__ = [
    "CHECKPOINTS_VARIABLE",
    "KEY_VARIABLE",
    "AnchorFile",
    "Anchored",
    "checkpoints_path",
    "key_path",
    "read_anchors",
]

KEY_VARIABLE = "DEADSTOP_LEDGER_KEY"
CHECKPOINTS_VARIABLE = "DEADSTOP_CHECKPOINTS"
_TAIL = 1 << 16
_RETRY_S = 0.01
_SIGNATURE = 92  # characters of a whole one
# The text up to a signature line; anything between two of these is a piece of one, or not ours.
_ONE = re.compile(r"[^\n]+\n[0-9]+\n[^\n]+\n\n(?:\u2014 [^\n]+\n)+")


def key_path(where: str, dialect: str, ledger_id: str) -> str:
    """DEADSTOP_LEDGER_KEY, else beside the ledger's file, and for PostgreSQL in this machine's state folder."""
    return os.environ.get(KEY_VARIABLE) or f"{_beside(where, dialect, ledger_id)}.key"


def checkpoints_path(where: str, dialect: str, ledger_id: str) -> str:
    """DEADSTOP_CHECKPOINTS, else where `key_path` is."""
    return os.environ.get(CHECKPOINTS_VARIABLE) or f"{_beside(where, dialect, ledger_id)}.checkpoints"


def _beside(where: str, dialect: str, ledger_id: str) -> str:
    return os.path.join(places.state_folder(), "keys", ledger_id) if dialect == "postgresql" else where


@dataclass(frozen=True, slots=True)
class Anchored:
    """One piece of the file: a checkpoint, or None for what is none. `torn`: as a power loss while writing leaves."""

    line: int
    checkpoint: Checkpoint | None
    torn: bool = False


def read_anchors(text: str) -> list[Anchored]:
    found, position, line = list[Anchored](), 0, 1
    for match in _ONE.finditer(text):
        found += _piece(text[position : match.start()], line)
        line += text.count("\n", position, match.start())
        found.append(_one(match[0], line))
        line += match[0].count("\n")
        position = match.end()
    return found + _piece(text[position:], line)


def _one(note: str, line: int) -> Anchored:
    try:
        return Anchored(line, parse_note(note))
    except ValueError:
        return Anchored(line, None, torn=_is_torn(note))


def _piece(text: str, line: int) -> list[Anchored]:
    stripped = text.strip("\n")
    if not stripped:
        return []
    return [Anchored(line + len(text) - len(text.lstrip("\n")), None, torn=_is_torn(stripped))]


def _is_torn(text: str) -> bool:
    """Whether it is the beginning of one, or of its second signature, and not what a change of a whole one leaves."""
    lines = text.rstrip("\n").split("\n")
    short = len(lines[-1].rpartition(" ")[2]) < _SIGNATURE
    if text.startswith(("\u2014", "\ufffd")):
        return short and len(lines) == 1
    return text.startswith("deadstop/"[: len(text)]) and (len(lines) < 5 or (short and len(lines) <= 6))


class AnchorFile:
    """The file, for one that appends to it. Everything but opening is done while it is held."""

    def __init__(self, path: str) -> None:
        self.path, self._fd = path, -1

    @contextlib.contextmanager
    def held(self, seconds: float) -> Iterator[None]:
        """No other process appends meanwhile. Raises LedgerUnavailable if it cannot be had in that time."""
        until = clock.monotonic() + seconds
        try:
            self._fd = self._open()
            while not self._lock():
                if clock.monotonic() > until:
                    raise LedgerUnavailable(self.path, f"another process has held this file for {seconds:g} s")
                time.sleep(_RETRY_S)
            yield
        except OSError as problem:
            raise LedgerUnavailable(self.path, f"checkpoints: {problem.strerror or problem}") from problem
        finally:
            if self._fd >= 0:
                os.close(self._fd)  # which also lets go of the lock
                self._fd = -1

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
        try:
            return os.open(self.path, flags)
        except FileNotFoundError:
            folder = os.path.dirname(os.path.abspath(self.path))
            os.makedirs(folder, mode=0o700, exist_ok=True)
            made = os.open(self.path, flags | os.O_CREAT, 0o644)
            parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(parent)
            finally:
                os.close(parent)
            return made

    def _lock(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def last(self) -> Checkpoint | None:
        """The last checkpoint in it; what is torn or no checkpoint is passed over, verifying reports it."""
        for each in reversed(read_anchors(self._tail())):
            if each.checkpoint is not None:
                return each.checkpoint
        return None

    def append(self, checkpoint: Checkpoint) -> None:
        """On the disk when this returns."""
        tail = self._tail(2)
        gap = "" if not tail or tail == "\n\n" else "\n\n"
        data = f"{gap}{checkpoint.note}\n".encode()
        while data:
            data = data[os.write(self._fd, data) :]
        os.fsync(self._fd)

    def _tail(self, most: int = _TAIL) -> str:
        size = os.fstat(self._fd).st_size
        begin = max(0, size - most)
        return os.pread(self._fd, size - begin, begin).decode("utf-8", "replace")
