# SPDX-License-Identifier: Apache-2.0
"""A real `deadstop serve` process to test against: started, asked, ended, and looked at when it is gone.

Everything a server starts carries the mark of its host in its environment, commands inside sandboxes included, so that
what is left can be found on the real machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hosts

TOKEN = "a-token-for-tests-0123456789"
READY_S = 20.0
STOP_S = 20.0
# `deadstop serve` with other patience than its own, which nobody may set from outside.
IMPATIENT = """
import functools, json, sys
from deadstop.sandbox import settings as kept
from deadstop.server import settings as served
given = json.loads(sys.argv.pop(1))
for module in (kept, served):
    names = module.Settings.__dataclass_fields__
    module.Settings = functools.partial(module.Settings, **{key: given[key] for key in given if key in names})
from deadstop.cli import main
raise SystemExit(main())
"""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def is_problem(self) -> bool:
        return self.headers.get_content_type() == "application/problem+json"


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@dataclass
class Serving:
    """One server. `patience` are settings in seconds that the command line has no word for."""

    host: hosts.Host
    state: Path
    words: tuple[str, ...] = ()
    patience: dict[str, float] = field(default_factory=dict)
    token: str = TOKEN
    process: subprocess.Popen[bytes] | None = None
    port: int = 0
    logs: list[Path] = field(default_factory=list)
    pids: set[int] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def socket(self) -> str:
        return str(self.state / "deadstop.sock")

    # -- its life ----------------------------------------------------------------------------------------------------

    def start(self) -> Serving:
        """Start it on a free port; return when it has said that it listens."""
        words = ["serve", "--state", str(self.state), "--listen", f"127.0.0.1:{self.port}", *self.words]
        first = ["-c", IMPATIENT, json.dumps(self.patience)] if self.patience else ["-m", "deadstop"]
        log = self.state.parent / f"{self.state.name}.{len(self.logs)}.log"
        self.logs.append(log)
        with open(log, "wb") as stderr:
            self.process = self.host.popen(
                [self.host.python, *first, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr,
                env={"DEADSTOP_TOKEN": self.token},
            )  # fmt: skip
        try:
            self._read_ready_lines()
        except BaseException:
            self.kill()
            raise
        return self

    def _read_ready_lines(self) -> None:
        process, end, seen = self.process, time.monotonic() + READY_S, b""
        assert process is not None and process.stdout is not None
        descriptor = process.stdout.fileno()
        while b"http://" not in seen or not seen.endswith(b"\n"):
            ready, _, _ = select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
            data = os.read(descriptor, 4096) if ready else b""
            assert data, f"no ready line: {seen!r}; {self.log()[-4000:]}"
            seen += data
        for line in seen.decode().splitlines():
            if " on http://" in line:
                self.port = int(line.rpartition(":")[2])
        self.pids.add(process.pid)

    def stop(self) -> int:
        """SIGTERM, as an init system does it; its exit status."""
        assert self.process is not None
        self._note_processes()
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it did not stop within {STOP_S} s: {self.log()[-4000:]}") from None
        self._close()
        return status

    def kill(self) -> None:
        assert self.process is not None
        self._note_processes()
        self.process.kill()
        self.process.wait(STOP_S)
        self._close()

    def _close(self) -> None:
        assert self.process is not None and self.process.stdout is not None
        self.process.stdout.close()

    # -- what is asked of it -----------------------------------------------------------------------------------------

    def connection(self, timeout: float = 20.0, *, unix: bool = False) -> http.client.HTTPConnection:
        if unix:
            return UnixConnection(self.socket, timeout)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def ask(
        self, method: str, path: str, document: Any = None, *, body: bytes | None = None, timeout: float = 20.0,
        unix: bool = False, **headers: str,
    ) -> Answer:  # fmt: skip
        """One request on a connection of its own."""
        sent = {"Authorization": f"Bearer {self.token}", **{key.replace("_", "-"): headers[key] for key in headers}}
        if document is not None:
            body = json.dumps(document).encode()
            sent.setdefault("Content-Type", "application/json")
        with contextlib.closing(self.connection(timeout, unix=unix)) as connection:
            connection.request(method, path, body, sent)
            with connection.getresponse() as response:
                return Answer(response.status, response.headers, response.read())

    def get(self, path: str) -> Any:
        answer = self.ask("GET", path)
        assert answer.status == 200, answer.body
        return answer.document

    def create(self, **document: Any) -> str:
        """A new sandbox's id."""
        answer = self.ask("POST", "/v1/sandboxes", document)
        assert answer.status == 201, answer.body
        found: str = answer.document["id"]
        return found

    def exec(self, sandbox: str, cmd: str, timeout_seconds: float = 10, **document: Any) -> Answer:
        document = {"cmd": cmd, "timeout_seconds": timeout_seconds, **document}
        return self.ask("POST", f"/v1/sandboxes/{sandbox}/exec", document, timeout=timeout_seconds + 20)

    def delete(self, sandbox: str) -> Any:
        answer = self.ask("DELETE", f"/v1/sandboxes/{sandbox}")
        assert answer.status == 200, answer.body
        return answer.document

    def live(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("/v1/sandboxes?state=live")["items"]
        return found

    def raw(self, data: bytes = b"", timeout: float = 10.0) -> socket.socket:
        """A TCP connection to it, `data` sent; the caller closes it."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=timeout)
        if data:
            connection.sendall(data)
        return connection

    def works(self) -> None:
        """A sandbox can be made, used, and ended with proof."""
        sandbox = self.create()
        answer = self.exec(sandbox, "echo fine")
        assert (answer.status, answer.document["stdout"]) == (200, "fine\n")
        end = self.delete(sandbox)["end"]
        assert end["reason"] == "killed" and end["receipt"]["survivors"] == 0, end

    # -- what is seen of it ------------------------------------------------------------------------------------------

    def log(self) -> str:
        return "\n".join(log.read_text("utf-8", "replace") for log in self.logs)

    def defects(self) -> list[str]:
        """Lines of its log that speak of a defect of ours, and what is no line of the log at all (tracebacks)."""
        found = []
        for line in self.log().splitlines():
            try:
                bad = json.loads(line)["level"] in ("error", "critical")
            except (ValueError, KeyError, TypeError):
                bad = bool(line.strip())
            if bad:
                found.append(line)
        return found

    def running(self, word: str) -> list[int]:
        """Live processes, inside sandboxes or out, with `word` on their command line."""
        found = []
        for pid in _processes():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if word.encode() in words and pid not in (os.getpid(), *self.pids):
                found.append(pid)
        return found

    def _note_processes(self) -> None:
        """Whose cgroups would be left."""
        assert self.process is not None
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            self.pids |= {int(pid) for pid in children}

    def leftovers(self) -> dict[str, list[str]]:
        """Everything of a server that has ended which is still on this machine."""
        state = str(self.state)
        mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if state in line]
        return {
            "processes": self.host.survivors(),
            "mounts": mounts,
            "cgroups": [str(folder) for folder in _groups(self.pids)],
            "loop devices": [name for name, file in _loop_devices() if file.startswith(state)],
        }

    def nothing_left(self, within: float = 3.0) -> None:
        """Assert that nothing of it is left. The kernel lets go of a loop device a moment after its last mount."""
        end = time.monotonic() + within
        while any(left := self.leftovers().values()) and time.monotonic() < end:
            time.sleep(0.01)
        assert not any(left), self.leftovers()


@contextlib.contextmanager
def serving(
    host: hosts.Host, *words: str, clean: bool = True, patience: dict[str, float] | None = None
) -> Iterator[Serving]:
    """A server for the length of the block. Afterwards nothing may be left of it, and its log is free of defects."""
    host = dataclasses.replace(host, mark=uuid.uuid4().hex)
    folder = host.folder / f"serve-{host.mark[:8]}"
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, host.uid, host.uid)
    config = folder / "templates.json"
    config.write_text(json.dumps({"*": {"env": {hosts.MARK: host.mark}}}))
    config.chmod(0o644)
    server = Serving(host, folder / "state", ("--template-config", str(config), *words), patience or {})
    try:
        yield server.start()
    finally:
        try:
            if server.process is not None and server.process.poll() is None:
                assert server.stop() == 0, server.log()[-4000:]
            server.nothing_left()
            assert not (clean and server.port) or server.defects() == [], "\n".join(server.defects())[-4000:]
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def eventually(seconds: float, happened: Callable[[], Any]) -> Any:
    """What `happened` gives when it gives something; fails when that does not come."""
    end = time.monotonic() + seconds
    while not (found := happened()):
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.01)
    return found


def reset(connection: socket.socket) -> None:
    """Close it with a RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def _processes() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _groups(pids: set[int]) -> Iterator[Path]:
    names = tuple(f"deadstop-{pid}-" for pid in pids)
    for folder, below, _ in os.walk("/sys/fs/cgroup"):
        for name in below:
            if name.startswith(names):
                yield Path(folder, name)


def _loop_devices() -> Iterator[tuple[str, str]]:
    for name in os.listdir("/sys/block"):
        with contextlib.suppress(OSError):
            yield name, Path(f"/sys/block/{name}/loop/backing_file").read_text().strip()
