# SPDX-License-Identifier: Apache-2.0
"""A service that does what services do to their clients, and remembers what it has really done.

    with Authority("accept_then_drop", times=1) as authority:
        ...  # let the program under test write to authority.url
        assert authority.effects() == 1

Or as a process of its own, which no death of a client touches:

    python -m deadstop.testing.authority --port 0 --record authority.db accept_then_drop

It prints its URL. Its behaviour can be changed while it runs (`behave`, or POST /-/behaviour), and it is asked about
what it did in the same ways: `effects()`, GET /-/effects?key=..., or the record's file.

    POST, PUT, PATCH, DELETE any path        a write; Idempotency-Key and X-Correlation-ID are kept with it
    GET /operations/by-key/{key}             what was accepted under a key; 404; a list if there are several
    GET /operations/{id}                     the same by the authority's own name
    GET, PUT /resources/{id}                 ETag, If-Match (412), X-Version, X-Consistency-Token

Only for tests: it listens on the loopback interface, and keeps what it is sent.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .behaviour import WORDS, Behaviour
from .record import AuthorityRecord
from .serving import AuthorityHandler

__all__ = ["Authority", "main"]

CLOSING_S = 2.0


class Authority:
    """Starts to serve when it is made; `close()`, or the end of the with block, ends every connection.

    `words` and `figures` are those of `behaviour.WORDS` and `Behaviour`: Authority("accept_async", seconds=0.2).
    `record` names a file for what it commits; without one it is kept in memory.
    """

    def __init__(
        self, *words: str, record: str | Path | None = None, port: int = 0, host: str = "127.0.0.1", **figures: Any
    ) -> None:
        self.behaviour = Behaviour().but(*words, **figures)
        self.record = AuthorityRecord(record)
        self.closing, self.committed = threading.Event(), threading.Event()
        self._changing, self.committing = threading.Lock(), threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._listener = socket.create_server((host, port), backlog=256)
        self.host, self.port = self._listener.getsockname()[:2]
        self._thread = threading.Thread(target=self._accept, name="authority", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def behave(self, *words: str, **figures: Any) -> None:
        """From the next request on. Figures that are not named stay, except that new words count `times` anew."""
        with self._changing:
            self.behaviour = self.behaviour.but(*words, **{"times": None, **figures})

    def effects(self, key: str | None = None) -> int:
        """How many effects have happened, by its own record, whatever its clients were told."""
        return self.record.effects(key)

    def operations(self) -> list[dict[str, Any]]:
        """All that it has accepted, also what has not ended: id, key, correlation, method, path, body, state."""
        return self.record.operations()

    def requests(self, *, writes: bool = False) -> list[dict[str, Any]]:
        """All that arrived, as far as it did, with `did`: the word for what was done with it."""
        return [each for each in self.record.requests() if not writes or each["method"] not in ("GET", "HEAD")]

    def finish(self, key: str, state: str = "succeeded") -> None:
        """End now what was accepted under a key as "accept_async"."""
        self.record.finish(key, state)

    def wait_until_committed(self, timeout: float = 5.0) -> bool:
        """Whether anything has been committed, as soon as it has been, within `timeout` seconds."""
        return self.committed.wait(timeout)

    def close(self) -> None:
        if self.closing.is_set():
            return
        self.closing.set()
        with suppress(OSError):  # wakes accept(); close() alone would not
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(CLOSING_S)
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in list(self._open.values()):
            thread.join(CLOSING_S)
        self.record.close()

    def __enter__(self) -> Authority:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def next_write(self) -> Behaviour:
        """How the write that has just arrived is treated."""
        with self._changing:
            now = self.behaviour
            if now.times is not None:
                left = max(0, now.times - 1)
                self.behaviour = now.but(times=left) if left else now.but("normal", times=None)
            return now

    def _accept(self) -> None:
        while not self.closing.is_set():
            try:
                connection, peer = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection, peer), name="authority", daemon=True)
            self._open[connection] = thread
            thread.start()

    def _serve(self, connection: socket.socket, peer: Any) -> None:
        try:
            AuthorityHandler(connection, peer, self)  # type: ignore[arg-type]
        except Exception:
            if not self.closing.is_set():
                raise
        finally:
            self._open.pop(connection, None)
            connection.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser("python -m deadstop.testing.authority", description="A service for tests.")
    parser.add_argument("words", nargs="*", metavar="WORD", help=", ".join(WORDS))
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--record", help="the file in which it notes what it commits")
    parser.add_argument("--figures", type=json.loads, default={}, help='as JSON: {"seconds": 0.2, "times": 1}')
    asked = parser.parse_args(arguments)
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # before any thread: all of them inherit it
    with Authority(*asked.words, record=asked.record, port=asked.port, **asked.figures) as authority:
        sys.stdout.write(f"{authority.url}\n")
        sys.stdout.flush()
        signal.sigwait(signals)
    return 0


if __name__ == "__main__":
    sys.exit(main())
