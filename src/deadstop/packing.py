# SPDX-License-Identifier: Apache-2.0
"""How a caller and its call worker talk: packets on a SEQPACKET socket, so that nothing can be cut in the middle.

A packet is a kind (1 byte), flags (1 byte), the number of the call it belongs to (8 bytes) and a body. A body of more
than INLINE bytes travels as a sealed memory file whose descriptor comes in a second packet: it is copied once, and
whoever reads it cannot have it shrunk under its hands.

Caller to worker: LOAD (a function, by reference or by value, to be called by number from now on), RUN. Worker to
caller: LOADED, VALUE, RAISED, PROGRESS. What the bodies hold is said where they are made.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Body = bytes | memoryview | mmap.mmap

LOAD, RUN, LOADED, VALUE, RAISED, PROGRESS = 1, 2, 3, 4, 5, 6
# Flags of an answer: what the tool left behind or did, as far as it can be seen from inside.
LEFT_PROCESSES, LEFT_THREADS, WROTE = 1, 2, 4
BY_PARTS = 2  # flag of a RUN: the same with what a function that was loaded holds at the moment
BY_VALUE = 1  # flag of a RUN: the function's length (4 bytes) and its pickled form stand before the rest

# Supervisor to caller, on a worker's report socket: its one result, and the answer to an order.
GONE, TOLD = 1, 2
# The supervisor asks a worker for its Python stacks with this signal: no program has a use of its own for it.
STACKS_SIGNAL = signal.SIGRTMAX - 1

INLINE = 64 << 10  # below what a packet may have with the kernel's default buffers
_LARGE = 128
_HEADER = struct.Struct("=BBQ")
_SIZE = _HEADER.size
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_pack: Callable[..., bytes] = _HEADER.pack
_unpack = _HEADER.unpack_from


class Damaged(Exception):
    """The peer sent what no peer of ours sends."""


class Port:
    """One end. Sends whole packets; `receive` gives (kind, flags, number, body), the body only until the next one."""

    __slots__ = ("_buffer", "_max_body", "_recv_into", "_send", "_view", "socket")

    def __init__(self, connection: socket.socket, max_body: int = 1 << 40) -> None:
        self.socket = connection
        self._buffer = bytearray(INLINE + _SIZE)
        self._view = memoryview(self._buffer)
        self._send, self._recv_into = connection.send, connection.recv_into
        self._max_body = max_body

    def send(self, kind: int, flags: int, number: int, body: Body) -> None:
        """Raises OSError when the other side is gone."""
        if len(body) <= INLINE:
            self._send(_pack(kind, flags, number) + body)
        else:
            self._send_large(kind, flags, number, body)

    def _send_large(self, kind: int, flags: int, number: int, body: Body) -> None:
        memory = os.memfd_create("deadstop-body", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            left = memoryview(body)
            while left:
                left = left[os.write(memory, left) :]
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
            self._send(_pack(kind | _LARGE, flags, number))
            socket.send_fds(self.socket, [b"+"], [memory])
        finally:
            os.close(memory)

    def receive(self, flags: int = 0) -> tuple[int, int, int, Body] | None:
        """The next packet; None when the other side is gone. Raises BlockingIOError as the socket does."""
        try:
            size = self._recv_into(self._buffer, 0, flags)
        except ConnectionError:
            try:  # said once, when the other side went with something unread; what it had sent is still there
                size = self._recv_into(self._buffer, 0, flags)
            except ConnectionError:
                return None
        if size < _SIZE:
            if size:
                raise Damaged(f"a packet of {size} bytes")
            return None
        kind, bits, number = _unpack(self._buffer)
        if kind & _LARGE:
            return kind & ~_LARGE, bits, number, self._receive_large()
        return kind, bits, number, self._view[_SIZE:size]

    def _descriptor(self) -> list[tuple[int, int, bytes]]:
        return self.socket.recvmsg(1, socket.CMSG_LEN(4), socket.MSG_CMSG_CLOEXEC)[1]

    def _receive_large(self) -> Body:
        self.socket.setblocking(True)  # the descriptor was sent with the same breath
        try:
            ancillary = self._descriptor()
        except ConnectionError:
            ancillary = self._descriptor()
        except OSError as problem:
            raise Damaged("a large packet without its memory") from problem
        fds = [struct.unpack("i", data[:4])[0] for _, _, data in ancillary]
        try:
            if len(fds) != 1:
                raise Damaged("a large packet without its memory")
            size = os.fstat(fds[0]).st_size
            if size > self._max_body or fcntl.fcntl(fds[0], fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise Damaged(f"a body of {size} bytes that is too large or not sealed")
            return mmap.mmap(fds[0], size, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ) if size else b""
        except (OSError, ValueError) as problem:
            raise Damaged(f"a large packet with something else than memory: {problem}") from problem
        finally:
            for fd in fds:
                os.close(fd)
