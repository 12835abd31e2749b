# SPDX-License-Identifier: Apache-2.0
"""What function calls are compared with: floors made of system calls and pickle, and other process pools."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, NoReturn

from .functions_praison import Praison
from .harness import Bench, Series

Block = Callable[[int], list[float]]  #: so many calls, one after another: what each took, in microseconds
_LENGTH = struct.Struct("=Q")


def each(call: Callable[[], Any]) -> Block:
    """The calls of a block timed one by one."""

    def block(count: int) -> list[float]:
        values = []
        for _ in range(count):
            start = time.perf_counter()
            call()
            values.append((time.perf_counter() - start) * 1e6)
        return values

    return block


def together(call: Callable[[], Any]) -> Block:
    """The calls of a block timed as one: for calls that take no longer than reading the clock."""

    def block(count: int) -> list[float]:
        repeated = range(count)
        start = time.perf_counter()
        for _ in repeated:
            call()
        return [(time.perf_counter() - start) * 1e6 / count]

    return block


def in_blocks(bench: Bench, candidates: Mapping[str, Block], *, rounds: int, calls: int) -> dict[str, Series]:
    """Every candidate in turn, a block of calls at a time: single calls in turn would find one another's caches."""
    values: dict[str, list[float]] = {name: [] for name in candidates}
    for block in candidates.values():
        block(calls)  # thrown away
    for _ in range(max(5, rounds // 5) if bench.quick else rounds):
        for name, block in candidates.items():
            values[name] += block(calls)
    return {name: Series(tuple(series)) for name, series in values.items()}


# -- floors ------------------------------------------------------------------------------------------------------------


class PipePingPong:
    """One byte there and one back, between two processes."""

    def __init__(self) -> None:
        there, self._write = os.pipe()
        self._read, back = os.pipe()
        if os.fork() == 0:
            _child(self._echo, there, back)
        os.close(there)
        os.close(back)

    def _echo(self, there: int, back: int) -> None:
        os.close(self._write)
        while byte := os.read(there, 1):
            os.write(back, byte)

    def call(self) -> None:
        os.write(self._write, b"+")
        os.read(self._read, 1)

    def close(self) -> None:
        os.close(self._write)
        os.close(self._read)
        os.wait()


class PlainWorker:
    """The least that a worker can be: a function and its arguments pickled into a packet, its value back."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            self._ours.close()
            _child(self._serve, theirs)
        theirs.close()

    def _serve(self, theirs: socket.socket) -> None:
        while packet := theirs.recv(1 << 16):
            function, arguments = pickle.loads(packet)
            theirs.send(pickle.dumps(function(*arguments), 5))

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self._ours.send(pickle.dumps((function, arguments), 5))
        return pickle.loads(self._ours.recv(1 << 16))

    def close(self) -> None:
        self._ours.close()
        os.wait()


class PickleOverPipe:
    """An object there and back, however large: dumps, a pipe, loads, twice."""

    def __init__(self) -> None:
        there, self._write = os.pipe()
        self._read, back = os.pipe()
        if os.fork() == 0:
            os.close(self._write)
            _child(self._serve, there, back)
        os.close(there)
        os.close(back)

    def _serve(self, there: int, back: int) -> None:
        while (value := _read_object(there)) is not None:
            _write_object(back, value)

    def call(self, value: object) -> object:
        _write_object(self._write, value)
        return _read_object(self._read)

    def close(self) -> None:
        os.close(self._write)
        os.close(self._read)
        os.wait()


def _write_object(fd: int, value: object) -> None:
    packed = pickle.dumps(value, 5)
    os.write(fd, _LENGTH.pack(len(packed)))
    left = memoryview(packed)
    while left:
        left = left[os.write(fd, left) :]


def _read_object(fd: int) -> object:
    head = os.read(fd, _LENGTH.size)
    if not head:
        return None
    size, had = _LENGTH.unpack(head)[0], 0
    packed = bytearray(size)
    view = memoryview(packed)
    while had < size:
        had += os.readv(fd, [view[had:]])
    return pickle.loads(packed)


def _child(serve: Callable[..., None], *arguments: Any) -> NoReturn:
    try:
        serve(*arguments)
    finally:
        os._exit(0)


# -- other pools -------------------------------------------------------------------------------------------------------


class Rivals:
    """Those that are installed. `missing` says which are not; `with` ends them."""

    def __init__(self, *, workers: int = 1, praison: bool = True) -> None:
        self.missing: list[str] = []
        self.pebble = self._pebble(workers)
        self.executor = _executor(workers)
        self.praison = self._praison() if praison else None

    def _pebble(self, workers: int) -> Any:
        if find_spec("pebble") is None:
            self.missing.append("pebble")
            return None
        from pebble import ProcessPool

        return ProcessPool(max_workers=workers)

    def _praison(self) -> Praison | None:
        if Praison.missing():
            self.missing.append("PraisonAI")
            return None
        return Praison()

    @property
    def note(self) -> str:
        return f"not installed: {', '.join(self.missing)}" if self.missing else ""

    def __enter__(self) -> Rivals:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.pebble is not None:
            self.pebble.stop()
            self.pebble.join()
        if self.praison is not None:
            self.praison.close()
        self.executor.shutdown()


def _executor(workers: int) -> Any:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork"))


def python() -> str:
    return f"Python {sys.version_info.major}.{sys.version_info.minor}"
