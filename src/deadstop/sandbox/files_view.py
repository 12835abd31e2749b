# SPDX-License-Identifier: Apache-2.0
"""Paths as they are inside a sandbox, and where on the host's disk they lead.

A path is resolved by us, in the sandbox's own view: an absolute link starts again at the sandbox's `/`, `..` goes up
in that view. What comes out is a root and names beneath it without a link in them. Whoever opens those opens them
with links refused; a link that appears in between is an ELOOP, and the path is resolved again.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from ..errors import FileProblem, UsageError
from .openat2 import open_beneath

__all__ = ["Root", "Spot", "View", "raise_problem", "shown"]

_Result = TypeVar("_Result")

HOME = (b"home", b"agent")
SYSTEM_FOLDERS = (b"usr", b"bin", b"sbin", b"lib", b"lib32", b"lib64", b"libx32")
LINKS, TRIES, PATH_BYTES = 40, 64, 64 << 10
KINDS = {
    errno.ENOENT: ("not_found", "no such file or directory"),
    errno.ENOTDIR: ("not_a_directory", "not a directory"),
    errno.EISDIR: ("is_a_directory", "it is a directory"),
    errno.EACCES: ("denied", "permission denied"),
    errno.EPERM: ("denied", "not permitted"),
    errno.EROFS: ("denied", "read-only"),
    errno.ETXTBSY: ("denied", "a program that runs"),
    errno.EBUSY: ("denied", "busy"),
    errno.EAGAIN: ("denied", "a process inside holds a lease on it"),
    errno.EINVAL: ("denied", "the file system does not allow that"),
    errno.EMLINK: ("denied", "too many links"),
    errno.EEXIST: ("exists", "it exists"),
    errno.ENOTEMPTY: ("not_empty", "the directory is not empty"),
    errno.ENOSPC: ("no_space", "the disk of the sandbox is full"),
    errno.EDQUOT: ("no_space", "the disk of the sandbox is full"),
    errno.EFBIG: ("too_large", "the file would be too large"),
    errno.ENAMETOOLONG: ("too_large", "the name is too long"),
    errno.ENXIO: ("not_a_file", "not a regular file"),
    errno.ENODEV: ("not_a_file", "not a regular file"),
    errno.EXDEV: ("denied", "on another file system"),
    errno.ELOOP: ("changed", "it became a symbolic link meanwhile"),
    errno.ESTALE: ("changed", "it changed meanwhile"),
}


@dataclass(frozen=True, slots=True)
class Root:
    """A directory of the host that is shown inside at `inside`. One that is not writable is the system's."""

    inside: tuple[bytes, ...]
    host: bytes
    writable: bool


@dataclass(frozen=True, slots=True)
class Spot:
    """Names beneath a root; without a root it is one of the view's own directories, such as `/`."""

    root: Root | None
    names: tuple[bytes, ...]

    @property
    def inside(self) -> bytes:
        return b"/" + b"/".join((self.root.inside if self.root else ()) + self.names)

    def open(self, flags: int) -> int:
        """Open it, links refused. Of the system only what everybody may read, whoever the server is."""
        top = self.open_root()
        try:
            if self.root and not self.root.writable and os.geteuid() == 0:
                _check_everybody_may(top, self.names, read=not flags & os.O_PATH)
            return open_beneath(top, self.names, flags)
        finally:
            os.close(top)

    def open_parent(self) -> tuple[int, bytes]:
        """The directory that it is in (O_PATH), and its own name."""
        return Spot(self.root, self.names[:-1]).open(os.O_PATH | os.O_DIRECTORY), self.names[-1]

    def open_root(self) -> int:
        if self.root is None:
            raise OSError(errno.EISDIR, "")
        return os.open(self.root.host, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


class View:
    """What paths mean inside one sandbox. Keeps no descriptor: the folders may be mounted anew between two calls."""

    def __init__(self, roots: Mapping[str, str], system: str = "/") -> None:
        self.roots: dict[tuple[bytes, ...], Root] = {}
        self.links: dict[tuple[bytes, ...], bytes] = {(b"var", b"tmp"): b"../tmp"}
        for inside, host in roots.items():
            self._add(tuple(os.fsencode(inside).strip(b"/").split(b"/")), os.fsencode(host), True)
        for name in SYSTEM_FOLDERS:
            host_path = os.path.join(os.fsencode(system), name)
            if os.path.islink(host_path):
                self.links[name,] = os.readlink(host_path)
            elif os.path.isdir(host_path):
                self._add((name,), host_path, False)
        places = [*self.roots, *self.links]
        self.folders = {place[:length] for place in places for length in range(len(place))}

    def _add(self, inside: tuple[bytes, ...], host: bytes, writable: bool) -> None:
        self.roots[inside] = Root(inside, host, writable)

    def at(self, path: str | bytes, act: Callable[[Spot], _Result], *, follow: bool = True) -> _Result:
        """`act` on where the path leads; again when it says ELOOP. `follow` is about a link as the last name.

        Raises FileProblem for what `act` raises as OSError, UsageError for what is no path.
        """
        names = split(path)
        plain = True
        for _ in range(TRIES):
            try:
                return act((plain and self._plain(names)) or self._resolve(names, follow))
            except _Outside as problem:
                raise FileProblem("outside", shown(path), str(problem)) from None
            except OSError as problem:
                if problem.errno != errno.ELOOP:
                    raise_problem(problem, path)
            plain = False
        raise FileProblem("changed", shown(path), "links in it change faster than it can be followed")

    def listed(self, folder: tuple[bytes, ...]) -> list[bytes]:
        """The names in a directory of the view's own."""
        depth = len(folder)
        known = [place for place in (*self.roots, *self.links, *self.folders) if len(place) > depth]
        return sorted({place[depth] for place in known if place[:depth] == folder})

    def _plain(self, names: list[bytes]) -> Spot | None:
        """Where the path leads if there is no link in it: the usual case, and tried first."""
        here = tuple(names)
        if b".." in here or here[:1] in self.links or here[:2] in self.links:
            return None
        return self._locate(here)

    def _locate(self, here: tuple[bytes, ...]) -> Spot:
        for length in (2, 1):
            if root := self.roots.get(here[:length]):
                return Spot(root, here[length:])
        if here in self.folders:
            return Spot(None, here)
        raise _Outside(f"{shown(b'/' + b'/'.join(here))} is outside of the sandbox's own files")

    def _resolve(self, names: list[bytes], follow: bool) -> Spot:
        pending, links = deque(names), 0
        here: list[bytes] = []
        with _Cursor(self) as cursor:
            while pending:
                name = pending.popleft()
                if name == b"..":
                    del here[-1:]
                    continue
                target = None if not pending and not follow else cursor.link(tuple(here), name)
                if target is None:
                    here.append(name)
                    continue
                links += 1
                if links > LINKS:
                    raise _Outside("too many symbolic links")
                if target.startswith(b"/"):
                    here.clear()
                pending.extendleft(reversed(_names(target)))
                if sum(map(len, pending)) > PATH_BYTES:
                    raise OSError(errno.ENAMETOOLONG, "")
        return self._locate(tuple(here))


class _Outside(Exception):
    """A path leads to where nothing is shown."""


class _Cursor:
    """Reads links one after the other, and keeps the last directory open: most often the next name is in it."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.here: tuple[bytes, ...] = ()
        self.fd = -1

    def __enter__(self) -> _Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        self._keep((), -1)

    def link(self, here: tuple[bytes, ...], name: bytes) -> bytes | None:
        """Where `name` in the directory `here` links to; None if it is no link, or is not there."""
        place = (*here, name)
        if place in self.view.links:
            return self.view.links[place]
        if place in self.view.folders or place in self.view.roots:
            return None
        spot = self.view._locate(place)
        near = self.fd >= 0 and self.here == here and spot.root and spot.root.writable
        try:
            fd = open_beneath(self.fd, [name], os.O_PATH) if near else spot.open(os.O_PATH)
        except OSError as problem:
            if problem.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            raise
        if not stat.S_ISLNK(os.fstat(fd).st_mode):
            self._keep(place, fd)
            return None
        try:
            return os.readlink(b"", dir_fd=fd)
        finally:
            os.close(fd)

    def _keep(self, here: tuple[bytes, ...], fd: int) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.here, self.fd = here, fd


def split(path: str | bytes) -> list[bytes]:
    """The names of a path from the sandbox's `/`; a relative one and `~` begin at the home. Raises UsageError."""
    try:
        raw = path if isinstance(path, bytes) else path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise UsageError(f"path: {path!a:.80} is no text that could be a path") from None
    if not raw or b"\0" in raw:
        raise UsageError("path: it is empty" if not raw else "path: it has a NUL byte in it")
    if len(raw) > PATH_BYTES:
        raise FileProblem("too_large", shown(raw[:100]) + "...", f"a path of more than {PATH_BYTES} bytes")
    names = _names(raw)
    if raw.startswith(b"/"):
        return names
    return [*HOME, *(names[1:] if names[:1] == [b"~"] else names)]


def _names(raw: bytes) -> list[bytes]:
    return [name for name in raw.split(b"/") if name not in (b"", b".")]


def shown(path: str | bytes) -> str:
    """A path as text that any encoder takes: bytes that are no UTF-8 as `\\xff`."""
    raw = path if isinstance(path, bytes) else path.encode("utf-8", "surrogateescape")
    return raw.decode("utf-8", "backslashreplace")


def raise_problem(problem: OSError, path: str | bytes) -> NoReturn:
    """Raise the FileProblem that an OSError is; one that is the server's own trouble stays as it is."""
    if problem.errno not in KINDS:
        raise problem
    raise FileProblem(KINDS[problem.errno][0], shown(path), KINDS[problem.errno][1]) from None


def _check_everybody_may(top: int, names: tuple[bytes, ...], *, read: bool) -> None:
    """The sandbox runs as nobody in particular: root must not read to it what it could not read itself."""
    for length in range(len(names) + 1):
        fd = open_beneath(top, names[:length], os.O_PATH)
        try:
            mode = os.fstat(fd).st_mode
        finally:
            os.close(fd)
        wanted = stat.S_IXOTH if length < len(names) else read * stat.S_IROTH
        if mode & wanted != wanted:
            raise OSError(errno.EACCES, "")
