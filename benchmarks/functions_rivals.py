# SPDX-License-Identifier: Apache-2.0
"""Function calls in turn with what they are compared with: floors made of system calls and pickle, and other pools."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

from .functions_served import Block, Served, installed
from .harness import Bench, Series

_LENGTH = struct.Struct("=Q")


def in_blocks(bench: Bench, candidates: Mapping[str, Block], *, rounds: int, calls: int) -> dict[str, Series]:
    """Every candidate in turn, a block of calls at a time: single calls in turn would find one another's caches."""
    values: dict[str, list[float]] = {name: [] for name in candidates}
    for block in candidates.values():
        block(calls)  # thrown away
    for _ in range(max(5, rounds // 5) if bench.quick else rounds):
        for name, block in candidates.items():
            values[name] += block(calls)
    return {name: Series(tuple(series)) for name, series in values.items()}


class Rivals:
    """Those of these that are installed, each in a process of its own. `note` says which are not; `with` ends them."""

    def __init__(self, *names: str) -> None:
        self._served = [Served(name) for name in names if installed(name)]
        missing = [name for name in names if not installed(name)]
        self.note = f"not installed: {', '.join(missing)}" if missing else ""

    def blocks(self, what: str) -> dict[str, Block]:
        return {served.name: served.block(what) for served in self._served}

    def __enter__(self) -> Rivals:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for served in self._served:
            served.close()


# -- floors ------------------------------------------------------------------------------------------------------------


class Child:
    """A forked process; its descriptors are inherited by every later fork, so that only a kill is sure to end it."""

    def start(self, serve: Callable[..., None], *arguments: Any) -> None:
        self._pid = os.fork()
        if self._pid == 0:
            try:
                serve(*arguments)
            finally:
                os._exit(0)

    def close(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


class PipePingPong(Child):
    """One byte there and one back, between two processes."""

    def __init__(self) -> None:
        there, self._write = os.pipe()
        self._read, back = os.pipe()
        self.start(self._echo, there, back)

    def _echo(self, there: int, back: int) -> None:
        while byte := os.read(there, 1):
            os.write(back, byte)

    def call(self) -> None:
        os.write(self._write, b"+")
        os.read(self._read, 1)


class PlainWorker(Child):
    """The least that a worker can be: a function and its arguments pickled into a packet, its value back."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.start(self._serve, theirs)

    def _serve(self, theirs: socket.socket) -> None:
        while packet := theirs.recv(1 << 16):
            function, arguments = pickle.loads(packet)
            theirs.send(pickle.dumps(function(*arguments), 5))

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self._ours.send(pickle.dumps((function, arguments), 5))
        return pickle.loads(self._ours.recv(1 << 16))


class PickleOverPipe(Child):
    """An object there and back, however large: dumps, a pipe, loads, twice."""

    def __init__(self) -> None:
        there, self._write = os.pipe()
        self._read, back = os.pipe()
        self.start(self._serve, there, back)

    def _serve(self, there: int, back: int) -> None:
        while True:
            _write_object(back, _read_object(there))

    def call(self, value: object) -> object:
        _write_object(self._write, value)
        return _read_object(self._read)


def _write_object(fd: int, value: object) -> None:
    packed = pickle.dumps(value, 5)
    os.write(fd, _LENGTH.pack(len(packed)))
    left = memoryview(packed)
    while left:
        left = left[os.write(fd, left) :]


def _read_object(fd: int) -> object:
    size, had = _LENGTH.unpack(os.read(fd, _LENGTH.size))[0], 0
    packed = bytearray(size)
    view = memoryview(packed)
    while had < size:
        had += os.readv(fd, [view[had:]])
    return pickle.loads(packed)
