# SPDX-License-Identifier: Apache-2.0
"""Writing a file of a sandbox from outside: whole, or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Sequence
from types import TracebackType

from ..errors import FileProblem
from .files_view import raise_problem, shown
from .openat2 import open_beneath

__all__ = ["Owner", "Writer", "give", "make_folder", "make_folders", "mode_of_old"]

Owner = tuple[int, int]
"""Who owns on the host's disk what a sandbox owns: (uid, gid). Only root can give anything to another."""

_FOLDER = os.O_PATH | os.O_DIRECTORY
_TRIES = 16


class Writer:
    """A file on its way: it appears under its name, in place of what had that name, at `commit` and not before.

    Until then it has no name at all where the file system can do that (O_TMPFILE), so that nothing is left if the
    server dies. As a context manager it commits, or after an exception aborts. What `write` and `commit` raise:
    FileProblem no_space, too_large (`limit` bytes), changed (its directory was removed meanwhile), is_a_directory.
    """

    def __init__(
        self, folder: int, name: bytes, *, owner: Owner, mode: int, limit: int | None, path: str | bytes
    ) -> None:
        """Takes `folder`, a descriptor, over. Of `mode` the permission bits count."""
        self._folder, self._name, self._path, self._limit = folder, name, path, limit
        self.size = 0
        self._fd, self._temporary = -1, b""
        try:
            self._open()
            give(self._fd, owner)
            os.fchmod(self._fd, mode & 0o777)
        except OSError:
            self.abort()
            raise

    def _open(self) -> None:
        try:
            flags = os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC
            self._fd = os.open(".", flags, 0o600, dir_fd=self._folder)
        except OSError as problem:
            if problem.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                raise
            name = _random_name()
            flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY | os.O_CLOEXEC
            self._fd = os.open(name, flags, 0o600, dir_fd=self._folder)
            self._temporary = name

    def write(self, data: bytes | bytearray | memoryview) -> None:
        rest = memoryview(data).cast("B")
        self.size += len(rest)
        if self._limit is not None and self.size > self._limit:
            raise FileProblem("too_large", shown(self._path), f"more than {self._limit} bytes")
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as problem:
            raise_problem(problem, self._path)

    def set_time(self, seconds: float) -> None:
        os.utime(self._fd, (seconds, seconds))

    def commit(self) -> None:
        """Give the file its name."""
        try:
            if not self._temporary and not self._link(self._name):
                self._temporary = next(name for name in (_random_name() for _ in range(_TRIES)) if self._link(name))
            if self._temporary:
                os.rename(self._temporary, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
                self._temporary = b""
        except OSError as problem:
            if problem.errno == errno.ENOENT:
                raise FileProblem("changed", shown(self._path), "its directory was removed meanwhile") from None
            raise_problem(problem, self._path)
        finally:
            self.abort()

    def _link(self, name: bytes) -> bool:
        try:
            os.link(f"/proc/self/fd/{self._fd}", name, dst_dir_fd=self._folder, follow_symlinks=True)
        except FileExistsError:
            return False
        return True

    def abort(self) -> None:
        """Drop what was written, unless it was committed. Any number of times."""
        if self._temporary:
            try:
                os.unlink(self._temporary, dir_fd=self._folder)
            except OSError:
                pass  # the payload was quicker
        for fd in (self._fd, self._folder):
            if fd >= 0:
                os.close(fd)
        self._fd, self._folder, self._temporary = -1, -1, b""

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.abort() if kind else self.commit()


def make_folders(folder: int, names: Sequence[bytes], owner: Owner) -> int:
    """Open (O_PATH) the directory `names` beneath `folder`, making what is missing. OSError as open_beneath."""
    try:
        return open_beneath(folder, names, _FOLDER)
    except FileNotFoundError:
        pass
    at = os.dup(folder)
    for name in names:
        try:
            below = make_folder(at, name, owner)
        finally:
            os.close(at)
        at = below
    return at


def make_folder(folder: int, name: bytes, owner: Owner, mode: int = 0o755) -> int:
    """Make one directory, unless it is there, and open it (O_PATH)."""
    for _ in range(_TRIES):
        try:
            return open_beneath(folder, [name], _FOLDER)
        except FileNotFoundError:
            pass
        try:
            os.mkdir(name, mode & 0o700, dir_fd=folder)
            fd = open_beneath(folder, [name], os.O_RDONLY | os.O_DIRECTORY)
        except FileExistsError:
            continue
        except FileNotFoundError:
            raise OSError(errno.ESTALE, "") from None  # removed as fast as it is made, or its parent was
        try:
            give(fd, owner)
            os.fchmod(fd, mode)
        finally:
            os.close(fd)
    raise OSError(errno.ELOOP, "")


def give(fd: int, owner: Owner) -> None:
    if os.geteuid() == 0:
        os.fchown(fd, *owner)


def _random_name() -> bytes:
    return b".deadstop-" + secrets.token_hex(8).encode()


def mode_of_old(folder: int, name: bytes) -> int:
    """The mode that a file has which is to be replaced. Raises ELOOP for a link, EISDIR for a directory."""
    try:
        old = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return 0o644
    if stat.S_ISLNK(old.st_mode):
        raise OSError(errno.ELOOP, "")
    if stat.S_ISDIR(old.st_mode):
        raise OSError(errno.EISDIR, "")
    return old.st_mode if stat.S_ISREG(old.st_mode) else 0o644
