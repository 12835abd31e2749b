# SPDX-License-Identifier: Apache-2.0
"""A real server in a process of its own, and requests to it as plain as they can be."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from server_process import UnixConnection

from hosts import Host, available, make

TOKEN = "test-token-of-no-value"
PROGRAM = """
import asyncio, json, sys
from deadstop.sandbox.settings import Settings as HostSettings
from deadstop.server.logs import log_to
from deadstop.server.serve import serve
from deadstop.server.settings import Settings

given = json.loads(sys.argv[1])
log_to(open(given.pop("log"), "a", buffering=1))
host = HostSettings(**given.pop("host"))
if given.get("listen"):
    given["listen"] = tuple(given["listen"])
def ready(listening):
    told = {"socket": listening.socket, "address": listening.address, "token": listening.made_token}
    print(json.dumps(told), flush=True)
asyncio.run(serve(Settings(host=host, **given), ready))
"""


@dataclass
class Answer:
    status: int
    headers: http.client.HTTPMessage
    data: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    def problem(self, status: int, kind: str | None = None) -> Any:
        """The problem document, which it must be."""
        assert self.status == status, (self.status, self.data[:2000])
        assert self.headers["Content-Type"].startswith("application/problem+json"), self.headers
        document = self.json
        assert document["status"] == status and document["error"] == document["detail"] and document["title"]
        assert "Traceback" not in document["detail"] and 'File "' not in document["detail"]
        if kind is not None:
            assert document["kind"] == kind, document
        return document


@dataclass
class Front:
    """A running server."""

    process: subprocess.Popen[bytes]
    host: Host
    folder: Path
    ready: dict[str, Any]
    made: list[str] = field(default_factory=list)

    @property
    def socket(self) -> str:
        return str(self.ready["socket"])

    @property
    def port(self) -> int:
        return int(self.ready["address"][1])

    def connection(self, *, tcp: bool = False, seconds: float = 20.0) -> http.client.HTTPConnection:
        if tcp:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        return UnixConnection(self.socket, seconds)

    def ask(
        self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None, tcp: bool = False,
        seconds: float = 20.0,
    ) -> Answer:  # fmt: skip
        """One request on a connection of its own. A body that is no bytes goes as JSON."""
        headers = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers.setdefault("Content-Type", "application/json")
        connection = self.connection(tcp=tcp, seconds=seconds)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def create(self, **body: Any) -> str:
        """A sandbox; its id."""
        answer = self.ask("POST", "/v1/sandboxes", {"ttl_seconds": 120, **body})
        assert answer.status == 201, answer.data
        return str(answer.json["id"])

    def run(self, ref: str, cmd: Any, **body: Any) -> Answer:
        return self.ask("POST", f"/v1/sandboxes/{ref}/exec", {"cmd": cmd, **body}, seconds=30)

    def raw(self, data: bytes, *, tcp: bool = False, seconds: float = 10.0) -> bytes:
        """Send bytes as they are; all that comes back until the other end closes."""
        sock = self.connect(tcp=tcp, seconds=seconds)
        try:
            sock.sendall(data)
            return read_all(sock)
        finally:
            sock.close()

    def connect(self, *, tcp: bool = False, seconds: float = 10.0) -> socket.socket:
        if tcp:
            return socket.create_connection(("127.0.0.1", self.port), timeout=seconds)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(seconds)
        sock.connect(self.socket)
        return sock

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]

    def stop(self, number: int = signal.SIGTERM, within: float = 20.0) -> tuple[int, str]:
        """End it; its exit status and what it said on stderr."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            _, said = self.process.communicate(timeout=within)
            return self.process.returncode, said.decode()
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate(timeout=10)
            raise


def alive(mark: str) -> bool:
    """Whether a process has `mark` in its command line: sandboxes do not inherit what `no_survivors` looks for."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                return True
        except OSError:
            continue
    return False


def read_all(sock: socket.socket) -> bytes:
    data = b""
    try:
        while chunk := sock.recv(65536):
            data += chunk
    except ConnectionResetError:
        pass
    return data


def start(on: Host, folder: Path, *, env: dict[str, str] | None = None, state: str = "state", **settings: Any) -> Front:
    """A server with these settings; it is ready. RuntimeError with what it said if it is not."""
    folder.mkdir(exist_ok=True)
    if os.geteuid() == 0:
        os.chown(folder, on.uid, on.uid)
    given = {"socket": str(folder / "s.sock"), "log": str(folder / "log"), "token": TOKEN, **settings}
    given["host"] = {"state": str(folder / state), "layers": "folder", **given.get("host", {})}
    process = on.popen(
        [on.python, "-c", PROGRAM, json.dumps(given)], env=env, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    if not line:
        _, told = process.communicate(timeout=10)
        raise RuntimeError(told.decode()[-3000:])
    return Front(process, on, folder, json.loads(line))


@pytest.fixture(scope="module")
def root_host(_made_hosts: dict[str, Host | str]) -> Host:
    name = next(iter(available()))
    host = _made_hosts.setdefault(name, make(name)) if name not in _made_hosts else _made_hosts[name]
    if isinstance(host, str):
        pytest.skip(host)
    return host


@pytest.fixture(scope="module")
def front(root_host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """One server for a module, on its socket and on TCP. It must end by itself, and leave nothing."""
    running = start(
        root_host, root_host.folder / f"front-{time.monotonic_ns()}", listen=["127.0.0.1", 0], interim_s=0.3
    )
    try:
        yield running
    finally:
        code, said = running.stop()
        root_host.no_survivors(within=3)
    assert code == 0 and said == "", (code, said[-3000:])
    assert [line for line in running.log() if line["level"] in ("error", "warning")] == []


@pytest.fixture(scope="module")
def sandbox(front: Front) -> str:
    """A sandbox that the tests of a module share."""
    return front.create(ttl_seconds=600)
