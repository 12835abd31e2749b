# SPDX-License-Identifier: Apache-2.0
"""How the library and its supervisor talk: frames on a stream socket, one socket per call.

A frame is a length (4 bytes, network order), a kind (1 byte) and that many bytes. Descriptors travel with the first
frame. Closing the socket is a message too: whoever asked for the call is gone, and the call is killed.

Caller to supervisor: RUN and OPEN (first frame, JSON), EXEC (in an opened boundary, with the new call's socket), POOL
(of call workers, with its own socket and the page of deadlines), CANCEL, HURRY, SIGNAL (its number), LIMIT (JSON:
another deadline for a running command, or none), KILL (the reason), PING; of an opened boundary EXTEND (JSON: the new
end of its life), TOUCH (it is in use), FREEZE ("1" or "0") and SWAP (JSON: another overlay for its files, while nothing
runs inside). Supervisor to caller: STARTED (with a pidfd of the boundary's root), OUTPUT (stream byte and data), DONE
(result JSON), OPENED, GONE (receipt JSON and why it ended), FAILED (JSON: the error's class name and arguments), PONG,
LIFE (JSON: the end of its life as it is now), FROZEN ("1" or "0": what it is now), SWAPPED (what went wrong, or "").
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

RUN, OPEN, EXEC, POOL, CANCEL, HURRY, KILL, PING = b"R", b"B", b"X", b"W", b"C", b"H", b"K", b"I"
SIGNAL, LIMIT, EXTEND, TOUCH, FREEZE, SWAP = b"N", b"Q", b"E", b"T", b"Z", b"V"
STARTED, OUTPUT, DONE, OPENED, GONE, FAILED, PONG = b"S", b"O", b"D", b"P", b"G", b"F", b"J"
LIFE, FROZEN, SWAPPED = b"L", b"Y", b"M"

STREAMS = {"stdout": b"1", "stderr": b"2"}
STREAM_NAMES = {1: "stdout", 2: "stderr", ord("1"): "stdout", ord("2"): "stderr"}
MAX_FRAME = 64 << 20
_HEADER = struct.Struct("!Ic")
_INT = struct.Struct("i")


def frame(kind: bytes, data: bytes = b"") -> bytes:
    return _HEADER.pack(len(data), kind) + data


def json_frame(kind: bytes, document: dict[str, Any]) -> bytes:
    return frame(kind, json.dumps(document).encode())


class Parser:
    """Cuts a byte stream into (kind, data). Raises ValueError on a frame that no peer of ours sends."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        self._buffer += data
        frames = []
        while len(self._buffer) >= _HEADER.size:
            size, kind = _HEADER.unpack_from(self._buffer)
            if size > MAX_FRAME:
                raise ValueError(f"a frame of {size} bytes")
            end = _HEADER.size + size
            if len(self._buffer) < end:
                break
            frames.append((kind, bytes(self._buffer[_HEADER.size : end])))
            del self._buffer[:end]
        return frames


def receive_fds(channel: socket.socket, size: int, descriptors: int) -> tuple[bytes, list[int]]:
    """One message with its descriptors, which do not survive an exec. socket.recv_fds cannot promise that (3.11)."""
    room = socket.CMSG_LEN(descriptors * _INT.size)
    data, ancillary, _, _ = channel.recvmsg(size, room, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, body in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds += [number for (number,) in _INT.iter_unpack(body[: len(body) - len(body) % _INT.size])]
    return data, fds


def receive(channel: socket.socket, size: int = 1 << 18, descriptors: int = 4) -> tuple[bytes, list[int]] | None:
    """What is there now: (data, descriptors), (b"", []) at the end, None when there is nothing yet."""
    try:
        return receive_fds(channel, size, descriptors)
    except BlockingIOError:
        return None
    except ConnectionError:
        return b"", []
