# SPDX-License-Identifier: Apache-2.0
"""A real `deadstop serve` on a unix socket in a folder of its own, and the least client that can ask it something."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Any, cast

from deadstop.boundary.cgroup import Hierarchies
from deadstop.boundary.reaper import children_of, descendants
from deadstop.boundary.syscalls import die_with_parent

from . import processes
from .harness import Bench, milliseconds

START_S, STOP_S, ANSWER_S = 30.0, 30.0, 120.0
SILENT_S = 10.0
PACKAGES = ("aiohttp", "msgspec", "prometheus_client")


class Unavailable(Exception):
    """This host cannot serve sandboxes; what it lacks."""


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket, kept open."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=ANSWER_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Client:
    """One connection. Every answer that is no success is an error, unless its status is asked for."""

    def __init__(self, path: str) -> None:
        self._connection = UnixConnection(path)
        self._used = time.monotonic()

    def ask(self, method: str, path: str, body: object = None, *, also: int = 0) -> dict[str, Any]:
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body)
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        if time.monotonic() - self._used > SILENT_S:
            self._connection.close()  # the server may be about to; it is opened again by itself
        self._connection.request(method, f"/v1{path}", data, {} if data is None else {"Content-Type": kind})
        answer = self._connection.getresponse()
        text = answer.read()
        self._used = time.monotonic()
        if answer.status >= 300 and answer.status != also:
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:2000]!r}")
        return json.loads(text) if text else {}

    def create(self, **wish: Any) -> dict[str, Any]:
        return self.ask("POST", "/sandboxes", wish)

    def run(self, sandbox: str, cmd: str | list[str], **wish: Any) -> dict[str, Any]:
        return self.ask("POST", f"/sandboxes/{sandbox}/exec", {"cmd": cmd, **wish})

    def delete(self, sandbox: str) -> dict[str, Any]:
        return self.ask("DELETE", f"/sandboxes/{sandbox}")

    def close(self) -> None:
        self._connection.close()


class Served:
    """The server, its supervisor, and the records that it keeps on disk."""

    def __init__(self, *words: str) -> None:
        packages = _packages()
        if shutil.which("bwrap") is None:
            raise Unavailable("not measured: bubblewrap is not installed")
        self.folder = tempfile.mkdtemp(prefix="served-", dir=os.path.expanduser("~"))  # which goes with the benchmarks
        self.state, self.socket = f"{self.folder}/state", f"{self.folder}/socket"
        self._log = open(f"{self.folder}/log", "w+b")  # noqa: SIM115  (closed with the server)
        serve = ["serve", "--state", self.state, "--socket", self.socket, *words]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "deadstop", *serve], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=self._log, env={**os.environ, "PYTHONPATH": packages}, preexec_fn=die_with_parent,
        )  # fmt: skip
        try:
            self._await_start()
            self.client = self.connect()
        except BaseException:
            self.close()
            raise

    def _await_start(self) -> None:
        assert self.process.stdout
        if b"listening" not in self.process.stdout.readline():
            self._log.seek(0)
            raise RuntimeError(f"the server did not start: {self._log.read()[-600:]!r}")

    def connect(self) -> Client:
        return Client(self.socket)

    def __enter__(self) -> Served:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def supervisor(self) -> int:
        """Its pid. It exists from the first sandbox on."""
        return next(pid for pid in children_of(self.process.pid) if b"deadstop.supervisor" in _arguments(pid))

    def record(self, sandbox: str) -> dict[str, Any]:
        with open(f"{self.state}/sandboxes/{sandbox}.json") as file:
            return cast(dict[str, Any], json.load(file))

    def ours(self) -> list[int]:
        """The server, its supervisor and everything below them."""
        return [self.process.pid, *descendants(self.process.pid)]

    def groups(self) -> int:
        """Control groups that its supervisor has on this host."""
        return sum(len(list(_groups(folder, self.supervisor))) for folder in _hierarchies())

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _packages() -> str:
    """The PYTHONPATH for the server: with what the benchmarks' own virtualenv has, where this interpreter has less."""
    own = os.environ.get("PYTHONPATH", "")
    if all(importlib.util.find_spec(name) for name in PACKAGES):
        return own
    there = os.environ.get("DEADSTOP_BENCH_PACKAGES", "")
    same = f"python{sys.version_info[0]}.{sys.version_info[1]}" in there
    if missing := [name for name in PACKAGES if not (same and os.access(f"{there}/{name}", os.R_OK | os.X_OK))]:
        raise Unavailable(f"not measured: {missing[0]} is not installed for {sys.executable}")
    return f"{own}:{there}"


def _arguments(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _hierarchies() -> set[str]:
    found = Hierarchies()
    return {*found.v1.values(), *([found.v2] if found.v2 else [])}


def _groups(folder: str, supervisor: int) -> Iterator[str]:
    for name in os.listdir(folder):
        if name.startswith(f"deadstop-{supervisor}-"):
            yield from (path for path, _, _ in os.walk(f"{folder}/{name}"))


@contextmanager
def serving(bench: Bench, *words: str) -> Iterator[Served]:
    """A server; what it leaves behind is an error."""
    with Served(*words) as served:
        served.client.delete(served.client.create(ttl_seconds=60)["id"])  # its supervisor is there from now on
        supervisor = served.supervisor
        yield served
    if left := [path for folder in _hierarchies() for path in _groups(folder, supervisor)]:
        raise RuntimeError(f"groups are left behind: {left[:5]}")


def in_parallel(served: Served, count: int, clients: int, work: Callable[[Client, int], Any]) -> list[Any]:
    """`work(client, number)` for every number below `count`, by so many clients at once."""

    def some(first: int) -> list[Any]:
        client = served.connect()
        try:
            return [(number, work(client, number)) for number in range(first, count, clients)]
        finally:
            client.close()

    with ThreadPoolExecutor(clients) as pool:
        parts = list(pool.map(some, range(min(count, clients))))
    return [value for _, value in sorted((pair for part in parts for pair in part), key=lambda pair: pair[0])]


def timed(work: Callable[[], Any]) -> float:
    start = time.monotonic()
    work()
    return milliseconds(start)


def until(done: Callable[[], Any], seconds: float, what: str) -> Any:
    end = time.monotonic() + seconds
    while not (found := done()):
        if time.monotonic() > end:
            raise RuntimeError(f"{what}: not within {seconds:g} s")
        time.sleep(0.01)
    return found


def inside(mark: str, count: int, seconds: float = 20.0) -> list[int]:
    """Pids of so many processes with this mark in their environment."""
    return cast(list[int], until(lambda: _if_at_least(processes.marked(mark), count), seconds, f"{count} processes"))


def _if_at_least(found: list[int], count: int) -> list[int]:
    return found if len(found) >= count else []
