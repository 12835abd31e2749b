# SPDX-License-Identifier: Apache-2.0
"""Where the server listens: a unix socket that only its own user can open, and TCP where that was asked for."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat

from ..errors import UsageError

__all__ = ["UnixListener", "tcp_listener"]

BACKLOG = 512
PATH_BYTES = 107  # of sockaddr_un, less the NUL


class UnixListener:
    """A bound and listening unix socket with mode 0600. Holds a lock: of two servers at one path the second is refused.

    Raises UsageError where the path cannot be had. What an earlier server left there is removed.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        if len(os.fsencode(self.path)) > PATH_BYTES:
            raise UsageError(f"socket: {self.path} is longer than the {PATH_BYTES} bytes that a socket's path may have")
        try:
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
            self._lock = self._locked()
            self.socket = self._bound()
        except OSError as problem:
            raise UsageError(f"socket: {self.path} cannot be listened on: {problem.strerror}") from problem

    def _locked(self) -> int:
        lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise UsageError(f"socket: another server listens at {self.path}") from None
        return lock

    def _bound(self) -> socket.socket:
        self._remove_stale()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(self.path)
            os.chmod(self.path, 0o600)  # before it listens: until then nobody can connect
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
        return listener

    def _remove_stale(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(self.path).st_mode):
                raise UsageError(f"socket: {self.path} exists and is no socket")
            os.unlink(self.path)

    def close(self) -> None:
        """Remove it, then let the lock go."""
        self.socket.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        with contextlib.suppress(OSError):
            os.unlink(f"{self.path}.lock")
        os.close(self._lock)


def tcp_listener(host: str, port: int) -> socket.socket:
    """A listening TCP socket; port 0 takes a free one. Raises UsageError."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )[0]
        # With its protocol named asyncio sets TCP_NODELAY on what it accepts; without, two writes cost 40 ms.
        listener = socket.socket(family, kind, proto)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
        return listener
    except OSError as problem:
        raise UsageError(f"listen: {host}:{port} cannot be listened on: {problem.strerror or problem}") from problem
