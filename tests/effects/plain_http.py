# SPDX-License-Identifier: Apache-2.0
"""An HTTP server that says what a test tells it to, byte for byte, and keeps what it was asked."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Answer = bytes | Callable[[str, socket.socket], None]


def said(status: int, body: str = "", **headers: str) -> bytes:
    """A whole answer."""
    lines = [f"HTTP/1.1 {status} x", f"Content-Length: {len(body.encode())}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


class PlainServer:
    """`answer` is what it says; a callable gets the request's head and the socket, and says it itself."""

    def __init__(self) -> None:
        self.answer: Answer = said(404)
        self.heads: list[str] = []
        self.closing = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.place = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.url = f"http://{self.place}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                one, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(one,), daemon=True).start()

    def _serve(self, one: socket.socket) -> None:
        with one, suppress(OSError):
            one.settimeout(20)
            head = b""
            while b"\r\n\r\n" not in head:
                piece = one.recv(4096)
                if not piece:
                    return
                head += piece
            self.heads.append(head.decode())
            answer = self.answer
            if isinstance(answer, bytes):
                one.sendall(answer)
            else:
                answer(head.decode(), one)

    def paths(self) -> list[str]:
        return [head.split(" ")[1] for head in self.heads]

    def drip(self, start: bytes) -> Callable[[str, socket.socket], None]:
        """`start`, and then one byte every 50 ms for as long as somebody listens."""

        def dripping(_: str, one: socket.socket) -> None:
            one.sendall(start)
            while not self.closing.wait(0.05):
                one.sendall(b"x")

        return dripping

    def silent(self, _: str, one: socket.socket) -> None:
        """No answer, for as long as the server is there."""
        self.closing.wait(30)

    def close(self) -> None:
        self.closing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def plain_server() -> Iterator[PlainServer]:
    server = PlainServer()
    try:
        yield server
    finally:
        server.close()
