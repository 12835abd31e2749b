# SPDX-License-Identifier: Apache-2.0
"""A tar stream unpacked into a sandbox from outside, in bounded memory, as its pieces arrive."""

from __future__ import annotations

import errno
import os
import stat
import tarfile
from collections.abc import Generator, Sequence
from typing import NoReturn

from ..errors import FileProblem, UsageError
from .files_tree import CHUNK
from .files_view import raise_problem, shown
from .files_write import Owner, Writer, make_folder, make_folders
from .openat2 import open_beneath

__all__ = ["Untar"]

_BLOCK = tarfile.BLOCKSIZE
_EXTENSION_BYTES = 1 << 20
_REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_LONG_NAMES = {tarfile.GNUTYPE_LONGNAME: b"path", tarfile.GNUTYPE_LONGLINK: b"linkpath"}
_LAST_SECOND = 2.0**32
_ZEROS = bytes(_BLOCK)

Parser = Generator[None, None, None]


class Untar:
    """Feed it the stream, then close it; or abort.

    Members replace what has their name; a directory that is there is kept. A member whose path goes through a symbolic
    link is refused: links are made as they are and never followed here. Owners are dropped, of modes the setuid bits,
    of directories no right of the owner. What was unpacked before an error stays, a half-written file does not.
    Raises UsageError for what is no tar stream, FileProblem for the rest (outside, denied, too_large, no_space, ...).
    """

    def __init__(self, folder: int, owner: Owner, *, limit: int, members: int) -> None:
        """Takes `folder`, a descriptor, over. At most `limit` bytes of files, and `members`."""
        self._top, self._owner, self._room, self._members_left = folder, owner, limit, members
        self._buffer = bytearray()
        self._writer: Writer | None = None
        self._folder = -1
        self._folder_names: tuple[bytes, ...] = ()
        self.members = 0
        self.complete, self._between = False, True
        self._parser = self._parse()
        next(self._parser)

    def feed(self, data: bytes) -> None:
        """The next piece, of any length. After an error every further call is one too."""
        if self._top < 0:
            raise UsageError("the tar stream was given up before")
        view = memoryview(data)
        try:
            while view and not self.complete:
                self._buffer += view[:CHUNK]
                view = view[CHUNK:]
                next(self._parser, None)
        except BaseException:
            self.abort()
            raise

    def close(self) -> None:
        """The stream is over. Raises UsageError if it ended in the middle."""
        ended = self.complete or (not self._buffer and self._between and self.members > 0)
        self.abort()
        if not ended:
            raise UsageError("the tar stream ends before its end")

    def abort(self) -> None:
        """Stop. Any number of times."""
        self._parser.close()
        if self._writer:
            self._writer.abort()
            self._writer = None
        for fd in (self._top, self._folder):
            if fd >= 0:
                os.close(fd)
        self._top = self._folder = -1

    # -- the stream --------------------------------------------------------------------------------------------------

    def _parse(self) -> Parser:
        """Runs until it needs more than the buffer has."""
        more: dict[bytes, bytes] = {}
        common: dict[bytes, bytes] = {}
        while True:
            self._between = not more
            block = yield from self._take(_BLOCK)
            self._between = False
            if block == _ZEROS:
                self.complete = True
                self._buffer.clear()
                return
            info = _header(block)
            if info.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE, *_LONG_NAMES):
                body = yield from self._take_extension(info)
                if info.type == tarfile.XGLTYPE:
                    common |= _records(body)
                elif name := _LONG_NAMES.get(info.type):
                    more[name] = body.rstrip(b"\0")
                else:
                    more |= _records(body)
                continue
            yield from self._member(info, common | more)
            more = {}

    def _take(self, size: int) -> Generator[None, None, bytes]:
        while len(self._buffer) < size:
            yield
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def _take_extension(self, info: tarfile.TarInfo) -> Generator[None, None, bytes]:
        self._count()
        if info.size > _EXTENSION_BYTES:
            raise FileProblem("too_large", "/", "a name or header in the tar stream is too long")
        body = yield from self._take(info.size + -info.size % _BLOCK)
        return body[: info.size]

    def _count(self) -> None:
        self._members_left -= 1
        if self._members_left < 0:
            raise FileProblem("too_large", "/", "too many members in the tar stream")

    # -- its members -------------------------------------------------------------------------------------------------

    def _member(self, info: tarfile.TarInfo, more: dict[bytes, bytes]) -> Parser:
        self._count()
        path = more.get(b"path") or info.name.encode("utf-8", "surrogateescape")
        target = more.get(b"linkpath") or info.linkname.encode("utf-8", "surrogateescape")
        names = _inside(path)
        if any(key.startswith(b"GNU.sparse.") for key in more):
            raise FileProblem("denied", shown(path), "sparse members are not supported")
        try:
            if info.type in _REGULAR:
                yield from self._file(names, path, info.mode, _time(more, info), _number(more.get(b"size"), info.size))
            elif info.type == tarfile.DIRTYPE:
                self._directory(names, info.mode)
            elif info.type == tarfile.SYMTYPE:
                self._symlink(names, target)
            elif info.type == tarfile.LNKTYPE:
                self._hard_link(names, _inside(target))
            else:
                raise FileProblem("denied", shown(path), "neither a file nor a directory nor a link")
        except OSError as problem:
            _raise(problem, path)
        self.members += 1

    def _file(self, names: Sequence[bytes], path: bytes, mode: int, time: float, size: int) -> Parser:
        self._room -= size
        if self._room < 0:
            raise FileProblem("too_large", shown(path), "more bytes in the tar stream than may be unpacked")
        folder = os.dup(self._parent(names))
        self._writer = Writer(folder, names[-1], owner=self._owner, mode=mode, limit=None, path=path)
        left = size
        while left:
            while not self._buffer:
                yield
            with memoryview(self._buffer) as view, view[:left] as piece:
                self._writer.write(piece)
                written = len(piece)
            del self._buffer[:written]
            left -= written
        self._writer.set_time(time)
        self._writer.commit()
        self._writer = None
        yield from self._take(-size % _BLOCK)

    def _directory(self, names: Sequence[bytes], mode: int) -> None:
        if names:
            os.close(make_folder(self._parent(names), names[-1], self._owner, mode & 0o777 | 0o700))

    def _symlink(self, names: Sequence[bytes], target: bytes) -> None:
        folder = self._clear(names)
        os.symlink(target, names[-1], dir_fd=folder)
        if os.geteuid() == 0:
            os.chown(names[-1], *self._owner, dir_fd=folder, follow_symlinks=False)

    def _hard_link(self, names: Sequence[bytes], target: Sequence[bytes]) -> None:
        if names == target:
            return
        source = open_beneath(self._top, target, os.O_PATH)
        try:
            if not stat.S_ISREG(os.fstat(source).st_mode):
                raise FileProblem("denied", shown(b"/".join(names)), "a hard link to what is no regular file")
            folder = self._clear(names)
            os.link(f"/proc/self/fd/{source}", names[-1], dst_dir_fd=folder, follow_symlinks=True)
        finally:
            os.close(source)

    def _clear(self, names: Sequence[bytes]) -> int:
        """The directory for a link, with nothing (but a directory) under the link's name."""
        folder = self._parent(names)
        try:
            os.unlink(names[-1], dir_fd=folder)
        except FileNotFoundError:
            pass
        return folder

    def _parent(self, names: Sequence[bytes]) -> int:
        """The directory of a member, made where missing; often it is the one before."""
        if not names:
            raise IsADirectoryError(errno.EISDIR, "")
        above = tuple(names[:-1])
        if self._folder < 0 or above != self._folder_names:
            folder = make_folders(self._top, above, self._owner)
            if self._folder >= 0:
                os.close(self._folder)
            self._folder, self._folder_names = folder, above
        return self._folder


def _header(block: bytes) -> tarfile.TarInfo:
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError) as problem:
        raise UsageError(f"not a tar stream: {problem}") from None
    if info.size < 0:
        raise UsageError("not a tar stream: a negative size")
    return info


def _inside(path: bytes) -> list[bytes]:
    names = [name for name in path.split(b"/") if name not in (b"", b".")]
    if path.startswith(b"/") or b".." in names or b"\0" in path:
        raise FileProblem("outside", shown(path), "a member of a tar stream must lie beneath where it is unpacked")
    return names


def _records(body: bytes) -> dict[bytes, bytes]:
    """The records of a pax header: `length key=value newline`, where the length counts all of it."""
    found, at = {}, 0
    while at < len(body):
        length_text, space, _ = body[at : at + 20].partition(b" ")
        length = _number(length_text, 0)
        key, equals, value = body[at + len(length_text) + 1 : at + length].partition(b"=")
        if not space or not equals or length > len(body) - at or not value.endswith(b"\n"):
            raise UsageError("not a tar stream: a pax header that is none")
        found[key] = value[:-1]
        at += length
    return found


def _number(text: bytes | None, default: int) -> int:
    if text is None:
        return default
    if not text.isdigit() or len(text) > 19:
        raise UsageError("not a tar stream: a number that is none")
    return int(text)


def _time(more: dict[bytes, bytes], info: tarfile.TarInfo) -> float:
    """When the member was changed, as far as it is a time."""
    try:
        seconds = float(more.get(b"mtime", info.mtime))
    except ValueError:
        return 0.0
    return min(max(seconds, 0.0), _LAST_SECOND)


def _raise(problem: OSError, path: bytes) -> NoReturn:
    if problem.errno == errno.ELOOP:
        raise FileProblem("outside", shown(path), "its path goes through a symbolic link") from None
    raise_problem(problem, path)
