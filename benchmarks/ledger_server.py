# SPDX-License-Identifier: Apache-2.0
"""A PostgreSQL server of our own, as it comes: nothing is set but where it listens. And pgbench against it."""

from __future__ import annotations

import glob
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from deadstop.boundary.syscalls import PR_SET_PDEATHSIG, prctl

START_S, STOP_S = 30.0, 20.0
TABLE = "CREATE TABLE pgbench_row (id bigserial PRIMARY KEY, body text NOT NULL)"
INSERT = "INSERT INTO pgbench_row (body) VALUES (repeat('x', 300));\n"


class Missing(Exception):
    """No server can be started here; what is missing."""


@dataclass(frozen=True)
class Server:
    programs: str
    place: str
    port: int
    password: str

    @property
    def url(self) -> str:
        return f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/postgres"

    def make(self, database: str) -> str:
        """A new database; its URL."""
        self._run("psql", "-qc", f"CREATE DATABASE {database}", self.url)
        return self.url.removesuffix("postgres") + database

    def prepare_pgbench(self) -> None:
        self._run("psql", "-qc", TABLE, self.url)
        with open(f"{self.place}/insert.sql", "w") as file:
            file.write(INSERT)

    def pgbench(self, clients: int, seconds: int) -> float:
        """Milliseconds per inserted row, by so many clients at once, each row a transaction."""
        words = ["-n", "-f", f"{self.place}/insert.sql", "-c", str(clients), "-j", "2", "-T", str(seconds), self.url]
        found = re.search(r"^tps = ([0-9.]+)", self._run("pgbench", *words), re.MULTILINE)
        if found is None:
            raise RuntimeError("pgbench gave no rate")
        return 1000 / float(found[1])

    def _run(self, program: str, *words: str) -> str:
        path = f"{self.programs}/{program}"
        return subprocess.run([path, *words], check=True, capture_output=True, text=True, timeout=60).stdout


def programs() -> str:
    """The folder of the server's programs, the newest version. Raises Missing."""
    packaged = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[4]), reverse=True)
    on_path = [os.path.dirname(os.path.realpath(found))] if (found := shutil.which("initdb")) else []
    for folder in (*packaged, *on_path):
        if all(os.access(f"{folder}/{name}", os.X_OK) for name in ("initdb", "postgres", "pgbench", "psql")):
            return folder
    raise Missing("not measured: PostgreSQL's server is not installed")


@contextmanager
def running(parent: str) -> Iterator[Server]:
    """The server, in a new folder below this one; stopped afterwards. Raises Missing."""
    found, user = programs(), _user()
    place, password = f"{parent}/postgresql", secrets.token_hex(12)
    os.mkdir(place, 0o700)
    with open(f"{place}/password", "w") as file:
        file.write(password)
    if user:
        shutil.chown(place, user["user"], user["group"])
        shutil.chown(f"{place}/password", user["user"])
    words = ["-D", f"{place}/data", "-U", "postgres", "-A", "scram-sha-256", "--pwfile", f"{place}/password"]
    make = [f"{found}/initdb", *words, "--no-sync", "--locale=C.UTF-8"]
    subprocess.run(make, check=True, capture_output=True, timeout=60, cwd="/", **user)
    server = Server(found, place, _free_port(), password)
    with open(f"{place}/log", "wb") as log:
        process = subprocess.Popen(
            [f"{found}/postgres", "-D", f"{place}/data", "-k", place, "-p", str(server.port), "-h", "127.0.0.1"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", preexec_fn=_end_with_us, **user,
        )  # fmt: skip
    try:
        _await(server, process)
        yield server
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGQUIT)
            process.wait()


def _end_with_us() -> None:
    prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)


def _user() -> dict[str, Any]:
    """Whom it runs as: the server refuses to be root's."""
    if os.geteuid() != 0:
        return {}
    try:
        entry = pwd.getpwnam("postgres")
    except KeyError:
        raise Missing("not measured: there is no user postgres") from None
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await(server: Server, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S
    ready = [f"{server.programs}/pg_isready", "-q", "-h", "127.0.0.1", "-p", str(server.port)]
    while subprocess.run(ready, timeout=20).returncode != 0:
        if process.poll() is not None or time.monotonic() > end:
            with open(f"{server.place}/log", errors="replace") as log:
                raise RuntimeError(f"PostgreSQL did not start: {log.read()[-600:]}")
        time.sleep(0.05)
