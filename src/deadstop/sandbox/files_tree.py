# SPDX-License-Identifier: Apache-2.0
"""Whole trees of a sandbox: walked, removed, and sent as a tar stream.

By descriptors, without recursion, with few of them open however deep a tree is, and with a payload that moves
directories about all the while.
"""

from __future__ import annotations

import errno
import os
import stat
import tarfile
from collections.abc import Callable, Generator, Iterator
from contextlib import closing

from ..clock import monotonic
from ..errors import FileProblem
from .files_view import raise_problem, shown

__all__ = ["CHUNK", "Descent", "Stream", "read_exactly", "remove_tree", "tar_one", "tar_tree", "walk"]

CHUNK = 1 << 20
DEPTH, WAITING = 100_000, 200_000
_OPEN_AT_ONCE, _AT_A_TIME, _PASSES = 32, 1000, 1000
_HARD_LINKS = 100_000
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_FOLDER = _FLAGS | os.O_DIRECTORY
_INSIDE_ID, _INSIDE_NAME = 1000, "agent"
_END = bytes(2 * tarfile.BLOCKSIZE)
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)


class Descent:
    """The way down from one directory, of which only the lowest part is open."""

    def __init__(self, fd: int) -> None:
        """Takes the descriptor over."""
        self._fds, self._known = [fd], [_identity(fd)]

    @property
    def fd(self) -> int:
        return self._fds[-1]

    def enter(self, fd: int) -> None:
        """Takes over the descriptor of a directory in this one."""
        if len(self._fds) >= DEPTH:
            os.close(fd)
            raise FileProblem("too_large", "/", f"directories more than {DEPTH} deep")
        self._fds.append(fd)
        self._known.append(_identity(fd))
        if len(self._fds) > _OPEN_AT_ONCE and (old := self._fds[-1 - _OPEN_AT_ONCE]) >= 0:
            os.close(old)
            self._fds[-1 - _OPEN_AT_ONCE] = -1

    def leave(self) -> None:
        """Up again. `..` is looked at before it is used: the directory may have been moved meanwhile."""
        if self._fds[-2] < 0:
            above = os.open("..", _FOLDER, dir_fd=self.fd)
            if _identity(above) != self._known[-2]:
                os.close(above)
                raise FileProblem("changed", "/", "directories were moved meanwhile")
            self._fds[-2] = above
        os.close(self._fds.pop())
        self._known.pop()

    def close(self) -> None:
        for fd in self._fds:
            if fd >= 0:
                os.close(fd)
        self._fds.clear()


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


class Stream(Iterator[bytes]):
    """Pieces made from a descriptor, which is closed at the end, at an error, by `close` and when it is forgotten."""

    def __init__(self, fd: int, make: Callable[[int], Generator[bytes, None, None]]) -> None:
        """`make` begins by taking the descriptor over."""
        self._fd, self._make = fd, make
        self._pieces: Generator[bytes, None, None] | None = None

    def __next__(self) -> bytes:
        if self._pieces is None:
            if self._fd < 0:
                raise StopIteration
            self._pieces, self._fd = self._make(self._fd), -1
        return next(self._pieces)

    def close(self) -> None:
        if self._pieces is not None:
            self._pieces.close()
        elif self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = close


def walk(descent: Descent, recursive: bool = True) -> Iterator[tuple[bytes, int, os.DirEntry[str]]]:
    """Everything below a directory: (path of its directory, that directory's descriptor, entry).

    A directory's entries come together, before what is below them; no link is followed. What disappears meanwhile may
    be missing. Raises FileProblem (denied; changed; too_large when more directories than memory should hold wait for
    their turn).
    """
    waiting: list[list[bytes]] = []
    names, total = [b""], 0
    try:
        while True:
            below: list[bytes] = []
            path = b"/".join(names[1:])
            with os.scandir(descent.fd) as entries:
                for entry in entries:
                    if recursive and entry.is_dir(follow_symlinks=False):
                        below.append(os.fsencode(entry.name))
                    yield path, descent.fd, entry
                    if total + len(below) > WAITING:
                        raise FileProblem("too_large", shown(path), "too many directories")
            waiting.append(below)
            total += len(below)
            while not _enter_next(descent, waiting[-1], names):
                waiting.pop()
                if not waiting:
                    return
                descent.leave()
                names.pop()
                total -= 1
    except OSError as problem:
        raise_problem(problem, b"/".join(names[1:]))


def _enter_next(descent: Descent, below: list[bytes], names: list[bytes]) -> bool:
    while below:
        name = below.pop()
        try:
            fd = os.open(name, _FOLDER, dir_fd=descent.fd)
        except OSError as problem:
            if problem.errno in _GONE:
                continue
            raise_problem(problem, b"/".join([*names[1:], name]))
        descent.enter(fd)
        names.append(name)
        return True
    return False


def remove_tree(folder: int, name: bytes, seconds: float = 120.0) -> None:
    """Remove `name` in the directory `folder` (descriptor), whatever it is. Raises OSError and FileProblem (changed).

    A link is removed, not what it leads to. Directories that their owner may not enter or change are opened up first.
    `seconds` are for a payload that fills the tree as fast as it is emptied.
    """
    until = monotonic() + seconds
    descent = Descent(os.open(".", _FOLDER, dir_fd=folder))
    waiting, passes = [[name]], [0]
    try:
        while waiting:
            if not waiting[-1]:
                waiting.pop()
                passes.pop()
                if waiting:
                    descent.leave()
            elif _removed(descent.fd, waiting[-1][-1]):
                waiting[-1].pop()
                passes[-1] = 0
            else:
                _look_below(descent, waiting, passes, until)
    finally:
        descent.close()


def _look_below(descent: Descent, waiting: list[list[bytes]], passes: list[int], until: float) -> None:
    """Empty a directory of all but its directories, of which some are to be next."""
    passes[-1] += 1
    if passes[-1] > _PASSES or monotonic() > until:
        raise FileProblem("changed", shown(waiting[-1][-1]), "it is filled again as fast as it is emptied")
    try:
        fd = _open_to_change(descent.fd, waiting[-1][-1])
    except OSError as problem:
        if problem.errno in _GONE:
            return
        raise
    descent.enter(fd)
    waiting.append(_strip(fd))
    passes.append(0)


def _strip(fd: int) -> list[bytes]:
    found: list[bytes] = []
    with os.scandir(fd) as entries:
        for entry in entries:
            name = os.fsencode(entry.name)
            if entry.is_dir(follow_symlinks=False) or not _unlinked(fd, name):
                found.append(name)
                if len(found) >= _AT_A_TIME:
                    break
    return found


def _removed(folder: int, name: bytes) -> bool:
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError as problem:
        if problem.errno == errno.ENOTDIR:
            return _unlinked(folder, name)
        if problem.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        if problem.errno != errno.ENOENT:
            raise
    return True


def _unlinked(folder: int, name: bytes) -> bool:
    """False if it is a directory."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass
    except IsADirectoryError:
        return False
    return True


def _open_to_change(folder: int, name: bytes) -> int:
    """A directory with all rights of its owner, who may have taken them from himself."""
    try:
        fd = os.open(name, _FOLDER, dir_fd=folder)
        if os.fstat(fd).st_mode & 0o700 != 0o700 and os.geteuid() != 0:
            os.fchmod(fd, 0o700)
        return fd
    except PermissionError:
        fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
        return os.open(".", _FOLDER, dir_fd=fd)
    finally:
        os.close(fd)


def read_exactly(fd: int, size: int) -> Iterator[bytes]:
    """`size` bytes from here on in pieces, and fewer only if the file ends before. Never more, though it may grow."""
    while size > 0 and (data := os.read(fd, min(CHUNK, size))):
        size -= len(data)
        yield data


def tar_tree(fd: int, limit: int | None) -> Generator[bytes, None, None]:
    """A directory (descriptor, taken over) as a pax tar stream, in pieces of at most 1 MiB and some.

    Owners are the sandbox's user; hard links within the tree stay such; sockets, devices and FIFOs are left out. A
    file that grows meanwhile is cut to its first size, one that shrinks is filled with zeros. Raises FileProblem
    (denied; too_large for more than `limit` bytes), in the middle of the stream.
    """
    linked: dict[tuple[int, int], bytes] = {}
    with closing(Descent(fd)) as descent:
        yield _header(b"./", os.fstat(fd), tarfile.DIRTYPE)
        for path, folder, entry in walk(descent):
            name = os.fsencode(entry.name)
            for piece in _member(folder, name, path + b"/" + name if path else name, linked):
                if limit is not None:
                    limit -= len(piece)
                    if limit < 0:
                        raise FileProblem("too_large", shown(path), "more than may be sent")
                yield piece
    yield _END


def tar_one(fd: int, name: bytes) -> Generator[bytes, None, None]:
    """One regular file (descriptor, taken over) as a tar stream."""
    try:
        yield from _file(fd, name, {})
    finally:
        os.close(fd)
    yield _END


def _member(folder: int, name: bytes, path: bytes, linked: dict[tuple[int, int], bytes]) -> Iterator[bytes]:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            yield _header(path + b"/", found, tarfile.DIRTYPE)
        elif stat.S_ISLNK(found.st_mode):
            yield _header(path, found, tarfile.SYMTYPE, os.readlink(name, dir_fd=folder))
        elif stat.S_ISREG(found.st_mode):
            fd = os.open(name, _FLAGS, dir_fd=folder)
            try:
                yield from _file(fd, path, linked)
            finally:
                os.close(fd)
    except OSError as problem:
        if problem.errno not in (*_GONE, errno.EINVAL):
            raise_problem(problem, path)


def _file(fd: int, path: bytes, linked: dict[tuple[int, int], bytes]) -> Iterator[bytes]:
    """One regular file as a member, or as a link to where it was sent before."""
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        return
    if found.st_nlink > 1:
        if before := linked.get((found.st_dev, found.st_ino)):
            yield _header(path, found, tarfile.LNKTYPE, before)
            return
        if len(linked) < _HARD_LINKS:
            linked[found.st_dev, found.st_ino] = path
    yield _header(path, found, tarfile.REGTYPE)
    sent = 0
    for data in read_exactly(fd, found.st_size):
        sent += len(data)
        yield data
    while sent < found.st_size:
        zeros = min(CHUNK, found.st_size - sent)
        sent += zeros
        yield bytes(zeros)
    yield bytes(-found.st_size % tarfile.BLOCKSIZE)


def _header(path: bytes, found: os.stat_result, kind: bytes, target: bytes = b"") -> bytes:
    info = tarfile.TarInfo(path.decode("utf-8", "surrogateescape"))
    info.type, info.linkname = kind, target.decode("utf-8", "surrogateescape")
    info.mode, info.mtime = found.st_mode & 0o777, int(found.st_mtime)
    info.uid = info.gid = _INSIDE_ID
    info.uname = info.gname = _INSIDE_NAME
    info.size = found.st_size if kind == tarfile.REGTYPE else 0
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
