# SPDX-License-Identifier: Apache-2.0
"""A receiver of webhooks on a real socket: it notes what comes, and answers as it is told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DRIP_S = 0.05


@dataclass
class Got:
    path: str
    headers: dict[str, str]
    body: bytes
    at: float

    @property
    def event(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


@dataclass
class Receiver:
    """`answers` are used up one by one, then it is 204: a status, (status, headers), "hang" or "drip". Events whose
    number is in `refused` get 500, in `hanging` none."""

    port: int = 0
    got: list[Got] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)
    hanging: set[int] = field(default_factory=set)
    ending: threading.Event = field(default_factory=threading.Event)
    changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def ids(self) -> list[str]:
        return [each.event["id"] for each in self.got]

    @property
    def numbers(self) -> list[int]:
        """What the tests number their events with."""
        return [each.event["data"]["n"] for each in self.got]

    def wait(self, count: int, seconds: float = 5.0) -> list[Got]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.got) >= count, seconds), f"{len(self.got)} of {count} came"
            return list(self.got)

    def note(self, got: Got) -> Any:
        with self.changed:
            self.got.append(got)
            self.changed.notify_all()
            if self.refused and got.event["data"]["n"] in self.refused:
                return 500
            if self.hanging and got.event["data"]["n"] in self.hanging:
                return "hang"
            return self.answers.pop(0) if self.answers else 204


@contextmanager
def receiver(*answers: Any) -> Iterator[Receiver]:
    """One that is there for the block."""
    made = Receiver(answers=list(answers))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer = made.note(Got(self.path, {k.lower(): v for k, v in self.headers.items()}, body, time.monotonic()))
            if answer == "hang":
                made.ending.wait(10)
                self.close_connection = True
            elif answer == "drip":
                self.drip()
            else:
                status, headers = answer if isinstance(answer, tuple) else (answer, {})
                self.send_response(status)
                for name, value in {**headers, "Content-Length": "0"}.items():
                    self.send_header(name, value)
                self.end_headers()

        def drip(self) -> None:
            self.close_connection = True
            try:
                for byte in b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 1000:
                    if made.ending.wait(DRIP_S):
                        return
                    self.wfile.write(bytes([byte]))
            except OSError:
                pass  # whoever asked has given up

        def log_message(self, *arguments: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 128

        def handle_error(self, *arguments: Any) -> None:
            pass  # a client that goes away in the middle is what some tests are about

    server = Server(("127.0.0.1", 0), Handler)
    made.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield made
    finally:
        made.ending.set()
        server.shutdown()
        thread.join(5)
        server.server_close()
