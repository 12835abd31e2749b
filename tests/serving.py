# SPDX-License-Identifier: Apache-2.0
"""A real server for the tests of its clients: `deadstop serve` in a process and a state folder of its own."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import hosts

START_S = 20.0
STOP_S = 20.0


@dataclass
class Served:
    """One server. `url` is as DEADSTOP_SERVER takes it."""

    process: subprocess.Popen[bytes]
    folder: Path
    mark: str
    announced: list[str]

    @property
    def url(self) -> str:
        return next(line.split()[-1] for line in self.announced if " on unix:" in line)

    @property
    def environment(self) -> dict[str, str]:
        """For a client in another process."""
        keep = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        return {**keep, "PYTHONPATH": str(hosts.SOURCE), "DEADSTOP_SERVER": self.url, "PYTHONDONTWRITEBYTECODE": "1"}

    def cli(self, *words: str, bound: float = 20, **options: object) -> subprocess.CompletedProcess[bytes]:
        """`deadstop` with these words, as a client of this server, to its end."""
        options.setdefault("stdin", subprocess.DEVNULL)
        command = [sys.executable, "-m", "deadstop", *words]
        return subprocess.run(command, env=self.environment, capture_output=True, timeout=bound, **options)  # type: ignore[call-overload,no-any-return]

    def start(self, *words: str, **options: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "deadstop", *words]
        return subprocess.Popen(command, env=self.environment, **options)  # type: ignore[call-overload,no-any-return]

    def script(self, text: str, **options: object) -> subprocess.Popen[bytes]:
        """Python text that is a client of this server."""
        return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
            [sys.executable, "-c", text], env=self.environment, stdout=subprocess.PIPE, **options
        )

    def survivors(self) -> list[str]:
        """Processes that came from this server and are still there."""
        wanted = f"{hosts.MARK}={self.mark}".encode()
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                environ = Path(f"/proc/{name}/environ").read_bytes()
                state = Path(f"/proc/{name}/stat").read_bytes().rpartition(b") ")[2][:1]
                if wanted in environ.split(b"\0") and state != b"Z":
                    found.append(Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return found


@contextmanager
def served(*words: str) -> Iterator[Served]:
    """A server for the block. After it nothing of it may be left."""
    folder = Path(tempfile.mkdtemp(prefix="deadstop-served-"))
    mark = uuid.uuid4().hex
    environment = {**os.environ, "PYTHONPATH": str(hosts.SOURCE), hosts.MARK: mark}
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "deadstop", "serve", "--state", str(folder / "state"), *words],
        env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
    )  # fmt: skip
    try:
        made = Served(process, folder, mark, _announced(process, folder))
        yield made
    finally:
        _stop(process)
        log.close()
    end = time.monotonic() + 5
    while (left := made.survivors()) and time.monotonic() < end:
        time.sleep(0.01)
    assert left == []
    shutil.rmtree(folder, ignore_errors=True)


def _announced(process: subprocess.Popen[bytes], folder: Path) -> list[str]:
    """What it says on stdout when it takes clients."""
    assert process.stdout is not None
    end, data = time.monotonic() + START_S, b""
    os.set_blocking(process.stdout.fileno(), False)
    while b" on unix:" not in data or not data.endswith(b"\n"):
        assert time.monotonic() < end and process.poll() is None, (folder / "log").read_text()[-4000:]
        select.select([process.stdout], [], [], 0.2)
        data += process.stdout.read() or b""
    return data.decode().splitlines()


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_S)
    assert process.stdout is not None
    process.stdout.close()
