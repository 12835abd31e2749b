# SPDX-License-Identifier: Apache-2.0
"""Folders as tar archives. Packing is ours; what is unpacked comes from a sandbox and is not trusted."""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from ..errors import FileProblem

CHUNK = 256 << 10
DEEPEST = 100
MOST = 1_000_000  # entries


def umask() -> int:
    from ..executor.prepare import current_umask

    return current_umask()


def pack(folder: str, target: IO[bytes]) -> None:
    """The contents of a folder. Sockets, devices and FIFOs are left out; owners are not kept."""
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(folder, arcname=".", filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode &= 0o777
    return member


def unpack(source: IO[bytes], folder: str, max_bytes: int) -> list[str]:
    """Into a folder, which is made if it is missing; the names of what was left out.

    Each name is opened step by step from the folder's own descriptor, and no step follows a link: neither one that
    the archive made before nor one that was there. Raises FileProblem for an archive that is broken or too large.
    """
    os.makedirs(folder, exist_ok=True)
    left_out: list[str] = []
    root = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with tarfile.open(fileobj=source, mode="r:") as archive:
            left = max_bytes
            for number, member in enumerate(archive):
                left -= max(0, member.size)
                if left < 0 or number >= MOST:
                    raise FileProblem("too_large", folder, f"the archive holds more than {max_bytes} bytes")
                if not _take(archive, member, root):
                    left_out.append(member.name)
    except (tarfile.TarError, EOFError, UnicodeError) as problem:
        raise FileProblem("changed", folder, f"the archive is broken: {problem}") from None
    finally:
        os.close(root)
    return left_out


def _take(archive: tarfile.TarFile, member: tarfile.TarInfo, root: int) -> bool:
    words = [word for word in member.name.split("/") if word not in ("", ".")]
    if member.name.startswith("/") or ".." in words or len(words) > DEEPEST or "\0" in member.name:
        return False
    if not words:
        return member.isdir()
    try:
        with _folder(root, words[:-1]) as parent:
            return _put(archive, member, parent, words)
    except NotADirectoryError:  # a link or a file stands where the archive wants a folder
        return False


@contextmanager
def _folder(root: int, words: list[str]) -> Iterator[int]:
    """The folder of that name below the root, made if it is missing."""
    current = os.dup(root)
    try:
        for word in words:
            inner = _entered(current, word)
            os.close(current)
            current = inner
        yield current
    finally:
        os.close(current)


def _entered(parent: int, name: str) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        os.mkdir(name, 0o777, dir_fd=parent)
    except FileExistsError:
        pass
    try:
        return os.open(name, flags, dir_fd=parent)
    except OSError as problem:
        raise NotADirectoryError(problem.errno, name) from None


def _put(archive: tarfile.TarFile, member: tarfile.TarInfo, parent: int, words: list[str]) -> bool:
    name = words[-1]
    if member.isdir():
        os.close(_entered(parent, name))
        return True
    if member.issym():
        if not _stays_inside(member.linkname, len(words) - 1):
            return False
        return _cleared(parent, name) and _linked(member.linkname, name, parent)
    if not member.isreg() or not _cleared(parent, name):
        return False
    _write(archive, member, name, parent)
    return True


def _stays_inside(target: str, depth: int) -> bool:
    """Whether a link from a folder this deep leads to somewhere below the root.

    Steps up may only stand in front: after a name, which may be a link itself, they could lead anywhere.
    """
    if not target or target.startswith("/"):
        return False
    words = [word for word in target.split("/") if word not in ("", ".")]
    ups = next((number for number, word in enumerate(words) if word != ".."), len(words))
    return ups <= depth and ".." not in words[ups:]


def _cleared(parent: int, name: str) -> bool:
    """Make room for a file: what is there is replaced, a folder is not."""
    try:
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            return False
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        pass
    return True


def _linked(target: str, name: str, parent: int) -> bool:
    os.symlink(target, name, dir_fd=parent)
    return True


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, name: str, parent: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    mode = (member.mode & 0o777) | stat.S_IRUSR | stat.S_IWUSR  # the umask applies, and no setuid
    descriptor = os.open(name, flags, mode, dir_fd=parent)
    with os.fdopen(descriptor, "wb") as file:
        content = archive.extractfile(member)
        if content is not None:
            shutil.copyfileobj(content, file, CHUNK)
