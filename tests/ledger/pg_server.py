# SPDX-License-Identifier: Apache-2.0
"""A real PostgreSQL server for the tests, in a folder of its own: on a socket there and on a free loopback port.

One for all workers of a test run. Whoever uses it holds the writing end of a pipe; when the last one is gone, however
it went, its keeper stops the server and removes the folder. So nothing is left behind by a run that was killed.

Ordinary suites run it with fsync off: that only matters when the machine itself dies, which no test here brings about,
and it spares the disk thousands of flushes. Benchmarks ask for a durable one.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

START_S = 30.0
ROLE = "deadstop"


@dataclass
class PgServer:
    """A running server. `password` is the one of ROLE, who may do anything."""

    folder: str
    port: int
    password: str
    _hold: int = field(default=-1, repr=False)

    def url(self, database: str = "postgres", *, tcp: int | None = None, **options: str) -> str:
        """Through its socket, or through TCP on that port of this host."""
        more = options if tcp else {"host": self.folder, "port": str(self.port), **options}
        place = f"127.0.0.1:{tcp}" if tcp else ""
        words = "&".join(f"{name}={quote(value, safe='')}" for name, value in more.items())
        return f"postgresql://{ROLE}:{self.password}@{place}/{database}" + (f"?{words}" if words else "")

    def connect(self, database: str = "postgres") -> Any:
        """An autocommit connection of psycopg, for looking behind the ledger's back."""
        import psycopg

        return psycopg.connect(self.url(database), autocommit=True)

    def sql(self, text: str, *values: Any, database: str = "postgres") -> list[tuple[Any, ...]]:
        with self.connect(database) as connection:
            cursor = connection.execute(text, values or None)
            return cursor.fetchall() if cursor.description else []

    def create(self, template: str | None = None) -> str:
        """A new database, a copy of that one if it is given (nobody may be connected to it). Its name."""
        name = f"t{secrets.token_hex(6)}"
        self.sql(f"CREATE DATABASE {name} TEMPLATE {template or 'template0'}")
        return name

    def drop(self, database: str) -> None:
        self.sql(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")

    @property
    def pid(self) -> int:
        return int(Path(self.folder, "data", "postmaster.pid").read_text().split()[0])

    def release(self) -> None:
        """This process needs it no more."""
        if self._hold >= 0:
            os.close(self._hold)
            self._hold = -1


def programs() -> str | None:
    """The folder of initdb and postgres, the newest there is."""
    found = glob.glob("/usr/lib/postgresql/*/bin/initdb") + glob.glob("/usr/pgsql-*/bin/initdb")
    found.sort(key=lambda path: int("".join(filter(str.isdigit, path.split("/bin/")[0])) or 0))
    initdb = found[-1] if found else shutil.which("initdb")
    return None if initdb is None else os.path.dirname(os.path.realpath(initdb))


def why_not() -> str | None:
    """Why there can be no server here; None if there can."""
    if programs() is None:
        return "there is no PostgreSQL server on this machine (initdb)"
    try:
        _account()
    except KeyError:
        return "PostgreSQL does not run for a user without a name"
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is not installed"
    return None


def shared(place: Path) -> PgServer:
    """The server of this run, started by the first who asks. `place` is a folder that all of its workers share."""
    place.mkdir(parents=True, exist_ok=True)
    with open(place / "pg.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        note = place / "pg.json"
        if note.exists():
            server = PgServer(**json.loads(note.read_text()))
            try:
                server._hold = os.open(f"{server.folder}/users", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                return server
            except OSError:
                pass  # its keeper has gone
        server = start(lock=str(place / "pg.lock"))
        note.write_text(json.dumps({"folder": server.folder, "port": server.port, "password": server.password}))
        return server


@contextmanager
def running(**settings: Any) -> Iterator[PgServer]:
    """A server of one's own, gone at the end of the block."""
    server = start(**settings)
    try:
        yield server
    finally:
        server.release()
        _await_gone(server.folder)


def start(*, durable: bool = False, lock: str = "", **settings: Any) -> PgServer:
    """Make and start one. `settings` are those of postgresql.conf."""
    bin_folder = programs()
    assert bin_folder is not None, why_not()
    account = _account()
    folder = tempfile.mkdtemp(prefix="deadstop-pg-")
    try:
        os.chmod(folder, 0o711)  # its clients may be other users
        os.chown(folder, account.pw_uid, account.pw_gid)
        password = secrets.token_hex(16)
        _make_cluster(bin_folder, folder, password, account)
        port = _free_port()
        server = PgServer(folder, port, password)
        os.mkfifo(f"{folder}/users", 0o600)
        reading = os.open(f"{folder}/users", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        server._hold = os.open(f"{folder}/users", os.O_WRONLY | os.O_CLOEXEC)
        try:
            _start_keeper(bin_folder, folder, port, account, reading, lock, {**_settings(durable), **settings})
        finally:
            os.close(reading)
        _await_ready(server)
        return server
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _settings(durable: bool) -> dict[str, Any]:
    quick = {} if durable else {"fsync": "off", "full_page_writes": "off"}
    return {"max_connections": 100, "shared_buffers": "64MB", "jit": "off", "log_min_messages": "fatal", **quick}


def _account() -> pwd.struct_passwd:
    """PostgreSQL refuses to run as root: then it is postgres, or else nobody."""
    if os.geteuid():
        return pwd.getpwuid(os.geteuid())
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def _identity(account: pwd.struct_passwd) -> dict[str, Any]:
    return {} if os.geteuid() else {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _make_cluster(bin_folder: str, folder: str, password: str, account: pwd.struct_passwd) -> None:
    secret = Path(folder, "password")
    secret.write_text(password)
    os.chown(secret, account.pw_uid, account.pw_gid)
    os.chmod(secret, 0o600)
    words = [f"{bin_folder}/initdb", "-D", f"{folder}/data", "-U", ROLE, "-A", "scram-sha-256", "--pwfile", str(secret)]
    words += ["-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"]
    done = subprocess.run(
        words, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, **_identity(account)
    )
    secret.unlink()
    assert done.returncode == 0, done.stderr


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start_keeper(
    bin_folder: str,
    folder: str,
    port: int,
    account: pwd.struct_passwd,
    reading: int,
    lock: str,
    settings: dict[str, Any],
) -> None:
    """Its keeper is a process of its own session, so that no signal for the tests reaches it."""
    words = [f"{bin_folder}/postgres", "-D", f"{folder}/data", "-k", folder, "-p", str(port), "-h", "127.0.0.1"]
    for name, value in settings.items():
        words += ["-c", f"{name}={value}"]
    task = json.dumps(
        {"words": words, "folder": folder, "users": reading, "lock": lock, "uid": account.pw_uid, "gid": account.pw_gid}
    )
    subprocess.run(
        [sys.executable, "-S", __file__, task],
        check=True,
        timeout=START_S,
        pass_fds=[reading],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _await_ready(server: PgServer) -> None:
    import psycopg

    end = time.monotonic() + START_S
    while True:
        try:
            server.connect().close()
            return
        except psycopg.OperationalError as problem:
            if time.monotonic() > end or not os.path.exists(server.folder):
                log = Path(server.folder, "log")
                said = log.read_text()[-2000:] if log.exists() else ""
                raise RuntimeError(f"PostgreSQL did not start: {problem}; {said}") from problem
        time.sleep(0.02)


def _await_gone(folder: str, within: float = 20.0) -> None:
    end = time.monotonic() + within
    while os.path.exists(folder):
        assert time.monotonic() < end, f"the keeper of {folder} did not stop its server"
        time.sleep(0.02)


# --- The keeper -------------------------------------------------------------------------------------------------------


def _keep(task: dict[str, Any]) -> None:
    if os.fork():  # nobody has to wait for it
        os._exit(0)
    as_user = {} if os.geteuid() else {"user": task["uid"], "group": task["gid"], "extra_groups": []}
    with open(f"{task['folder']}/log", "wb") as log:
        server = subprocess.Popen(task["words"], cwd=task["folder"], stdout=log, stderr=log, **as_user)
    try:
        while server.poll() is None and not _is_left(task["users"], task["lock"]):
            pass
    finally:
        server.send_signal(signal.SIGQUIT)  # at once: nothing of it is wanted any more
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        shutil.rmtree(task["folder"], ignore_errors=True)


def _is_left(users: int, lock: str) -> bool:
    """Wait a little for the last user to go. Under the lock nobody comes while the answer is being found."""
    import select

    poller = select.poll()
    poller.register(users, 0)  # only POLLHUP: nobody writes
    if not poller.poll(500):
        return False
    if not lock or not os.path.exists(lock):
        return True
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if poller.poll(0):
            os.unlink(os.path.join(os.path.dirname(lock), "pg.json"))
            return True
    return False


if __name__ == "__main__":
    _keep(json.loads(sys.argv[1]))
