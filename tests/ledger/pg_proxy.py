# SPDX-License-Identifier: Apache-2.0
"""Stands between a client and a PostgreSQL server, and breaks the connection at a chosen moment."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

COMMIT = b"\0_commit_"  # how the ledger's statement is called on the wire


class Proxy:
    """`fault` is what happens to the next COMMIT: "lose_request", "lose_reply", or "stall" (no reply ever)."""

    def __init__(self, port: int, listen: int = 0) -> None:
        self.fault = ""
        self.refusing = False  # new connections, from the next fault on
        self.silent = False  # nothing passes any more
        self.commits = 0
        self._to = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", listen))
        self._open: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing and not self.fault:
                client.close()
                continue
            server = socket.create_connection(self._to)
            self._open += [client, server]
            fate: list[str] = []
            threading.Thread(target=self._requests, args=(client, server, fate), daemon=True).start()
            threading.Thread(target=self._replies, args=(client, server, fate), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, fate: list[str]) -> None:
        while data := _received(client):
            if COMMIT in data:
                self.commits += 1
                if self.fault:
                    fate.append(self.fault)
                    self.fault = ""
            if fate == ["lose_request"]:
                break
            _pass_on(server, data)
        _end(client, server)

    def _replies(self, client: socket.socket, server: socket.socket, fate: list[str]) -> None:
        while data := _received(server):
            if not fate and not self.silent:
                _pass_on(client, data)
            elif fate == ["lose_reply"] and b"COMMIT" in data:  # it is done, and nobody hears of it
                break
        _end(client, server)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # or accept() would keep it open
        self._listener.close()
        self._accepting.join(5)
        _end(*self._open)


def _received(source: socket.socket) -> bytes:
    try:
        return source.recv(65536)
    except OSError:
        return b""


def _pass_on(target: socket.socket, data: bytes) -> None:
    try:
        target.sendall(data)
    except OSError:
        pass  # gone: the other thread ends both


def _end(*sockets: socket.socket) -> None:
    for each in sockets:
        try:
            each.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        each.close()


@contextmanager
def proxy(port: int, listen: int = 0) -> Iterator[Proxy]:
    made = Proxy(port, listen)
    try:
        yield made
    finally:
        made.close()
