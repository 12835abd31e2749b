# SPDX-License-Identifier: Apache-2.0
"""A real sshd of our own: its own port on the loopback, host key and configuration, in a folder of the test's."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

HELPER = Path(__file__).resolve().parents[2] / "src/deadstop/effects/remote/deadstop_remote.py"
RUN = Path("/run/sshd")  # compiled into sshd: what root's runs in before a login
OURS = RUN / "deadstop-tests"
FORGETS = {"tmpfs", "ramfs"}


def why_not() -> str | None:
    """What is missing for a server here; None if nothing is."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [name for name in ("ssh", "ssh-keygen", "sshd") if shutil.which(name, path=path) is None]
    if missing:
        return f"no {', '.join(missing)} (packages openssh-client and openssh-server)"
    if not HELPER.is_file():
        return "the helper's source is not here"
    if not Path("/etc/machine-id").is_file() or not Path("/etc/machine-id").read_text().strip():
        return "this machine has no machine id, so absence of a marker would prove nothing here"
    if (account := no_login()) is not None:
        return account
    return None if folder_that_lasts() else "no folder here is on a disk that outlives a restart"


def no_login() -> str | None:
    """Why sshd would not let us in as who we are."""
    try:
        user = pwd.getpwuid(os.geteuid())
    except KeyError:
        return "whoever runs this has no account to log in to"
    if not os.access(user.pw_shell or "/bin/sh", os.X_OK) or user.pw_shell.endswith(("nologin", "false")):
        return f"the account {user.pw_name} has no shell"
    with contextlib.suppress(OSError):  # only root can see it
        lines = Path("/etc/shadow").read_text().splitlines()
        if any(line.startswith(f"{user.pw_name}:!") for line in lines):
            return f"the account {user.pw_name} is locked"
    return None


def folder_that_lasts() -> str | None:
    for folder in (tempfile.gettempdir(), "/var/tmp", str(Path(__file__).resolve().parents[2])):
        kind = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, timeout=5).stdout
        if kind.strip() not in FORGETS and os.access(folder, os.W_OK):
            return folder
    return None


def until(condition: Callable[[], object], bound: float = 5.0) -> None:
    end = time.monotonic() + bound
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


@dataclass
class Sshd:
    """`options` are for the client. `folder` is also where the helper and its markers are."""

    folder: Path
    process: subprocess.Popen[bytes]
    port: int

    @property
    def options(self) -> tuple[str, ...]:
        known = self.folder / "known_hosts"
        return ("-F", "none", "-p", str(self.port), "-i", str(self.folder / "user"), "-o", "IdentitiesOnly=yes",
                "-o", f"UserKnownHostsFile={known}", "-o", "StrictHostKeyChecking=yes")  # fmt: skip

    @property
    def host(self) -> str:
        return f"{pwd.getpwuid(os.geteuid()).pw_name}@127.0.0.1"

    def sessions(self) -> list[int]:
        """Its processes but the first: one or two for each connection."""
        found, wave = [], [self.process.pid]
        while wave:
            wave = [child for parent in wave for child in children(parent) if "sshd" in name_of(child)]
            found += wave
        return found

    def kill_sessions(self) -> None:
        """As a network that goes away: nobody says anything any more, on either side."""
        for pid in self.sessions():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@contextlib.contextmanager
def server() -> Iterator[Sshd]:
    folder = Path(tempfile.mkdtemp(prefix="deadstop-sshd-", dir=folder_that_lasts()))
    held = held_run() if os.geteuid() == 0 else None
    try:
        for key in ("host", "user"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(folder / key)]
            subprocess.run(words, check=True, timeout=10, stdin=subprocess.DEVNULL)
        shutil.copy(folder / "user.pub", folder / "authorized")
        with started(folder) as running:
            yield running
    finally:
        if held is not None:
            let_run_go(held)
        shutil.rmtree(folder, ignore_errors=True)


def held_run() -> int:
    """A descriptor that keeps sshd's folder there, also from whoever else runs these tests now."""
    while True:
        with contextlib.suppress(FileExistsError):
            RUN.mkdir(mode=0o755)
            OURS.touch()
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(RUN, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(fd, fcntl.LOCK_SH)
            if os.fstat(fd).st_nlink:  # it was not taken away meanwhile
                return fd
            os.close(fd)


def let_run_go(fd: int) -> None:
    """The last one removes what one of us has made."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if OURS.exists():
            OURS.unlink()
            RUN.rmdir()
    os.close(fd)


@contextlib.contextmanager
def started(folder: Path) -> Iterator[Sshd]:
    port = free_port()
    (folder / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile none\nStrictModes no\nUsePAM no\n"
        f"AuthorizedKeysFile {folder}/authorized\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        f"PermitRootLogin prohibit-password\nPrintMotd no\nKexAlgorithms curve25519-sha256\nUseDNS no\nMaxStartups 50\n"
        f'SetEnv "HOME={folder}" "PATH={folder}/bin:{Path(sys.executable).parent}:{os.environ["PATH"]}"\n'
    )
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    assert sshd is not None
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [sshd, "-D", "-e", "-f", str(folder / "config")], stdin=subprocess.DEVNULL, stderr=log, stdout=log
        )
    running = Sshd(folder, process, port)
    try:
        until(lambda: answers(port) or process.poll() is not None)
        assert process.poll() is None, (folder / "log").read_text()
        yield running
    finally:
        running.kill_sessions()
        process.kill()
        process.wait(5)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
