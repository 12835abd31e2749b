# SPDX-License-Identifier: Apache-2.0
"""The files of a sandbox, read and written from outside while a payload inside changes them.

Whatever the payload does, nothing outside of the sandbox's own folders is read, written, made or removed: paths are
resolved in the sandbox's view (files_view.py) and opened with links refused (openat2.py). System folders such as /usr
are shown read-only, and of them only what everybody may read; /etc, /proc, /dev and all the rest are not shown.

Functions block, and are meant for a worker thread. A path is `str` (bytes that are no UTF-8 as surrogates, as
os.fsdecode does) or `bytes`, absolute inside or relative to the home; `~` is the home. Errors: FileProblem, and
UsageError for what is no path at all.

Names in entries are text that any JSON encoder takes: bytes that are no UTF-8 are shown as `\\xff`. Such an entry also
has `encoded`, its path percent-encoded: given back in a query as it is, it names the same file (`decode_path`).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Mapping
from urllib.parse import unquote_to_bytes

from ..errors import FileProblem
from .files_list import Entry, Listing, list_folder, make_entry
from .files_tree import Stream, read_exactly, remove_tree, tar_one, tar_tree
from .files_untar import Untar
from .files_view import Spot, View, shown, split
from .files_write import Owner, Writer, make_folders, mode_of_old

__all__ = ["Files", "Listing", "Stream", "Untar", "Writer", "decode_path"]

MAX_ENTRIES = 10_000
MAX_MEMBERS, MAX_TREE_BYTES = 200_000, 16 << 30

Path = str | bytes


class Files:
    """Safe from any thread, several at a time; keeps nothing open between calls."""

    def __init__(self, layer_roots: Mapping[str, str], owner: Owner, system: str = "/") -> None:
        """`layer_roots`: inside path -> host folder. `owner` (uid, gid) is given new files where we are root."""
        self._view, self._owner = View(layer_roots, system), owner

    @classmethod
    def for_layer(cls, folder: str, owner: Owner, system: str = "/") -> Files:
        """The files of a layer: a host folder with `home` and `tmp` in it."""
        return cls({"/home/agent": f"{folder}/home", "/tmp": f"{folder}/tmp"}, owner, system)

    # -- one file ----------------------------------------------------------------------------------------------------

    def read(self, path: Path, limit: int | None = None) -> tuple[int, int]:
        """(descriptor, size) of a regular file, for `pieces` or sendfile. Never waits for a FIFO or a lock.

        Raises not_found, is_a_directory, not_a_file, denied, outside, too_large (more than `limit` bytes).
        """

        def act(spot: Spot) -> tuple[int, int]:
            fd = spot.open(os.O_RDONLY)
            found = os.fstat(fd)
            if stat.S_ISREG(found.st_mode) and (limit is None or found.st_size <= limit):
                return fd, found.st_size
            os.close(fd)
            if stat.S_ISREG(found.st_mode):
                raise FileProblem("too_large", shown(path), f"it has {found.st_size} bytes, more than {limit}")
            raise OSError(errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.ENXIO, "")

        return self._view.at(path, act)

    @staticmethod
    def pieces(fd: int, size: int) -> Stream:
        """The content, exactly `size` bytes in pieces of 1 MiB, whatever is appended meanwhile. Closes `fd`.

        Raises FileProblem changed if the file became shorter.
        """
        return Stream(fd, lambda fd: _pieces(fd, size))

    def writer(self, path: Path, mode: int | None = None, limit: int | None = None) -> Writer:
        """Begin to write a file, which replaces what is there when it is complete. Missing parents are made.

        Through a symbolic link only where that stays inside. `mode`: permission bits, by default the old file's, else
        0644. Other names of the old file (hard links) keep the old content. `limit` bytes at most.
        """

        def act(spot: Spot) -> Writer:
            if not spot.names:
                raise IsADirectoryError(errno.EISDIR, "")
            folder, name = self._make(spot, spot.names[:-1]), spot.names[-1]
            try:
                old = mode_of_old(folder, name)
            except BaseException:
                os.close(folder)
                raise
            return Writer(folder, name, owner=self._owner, mode=old if mode is None else mode, limit=limit, path=path)

        return self._view.at(path, act)

    def stat(self, path: Path, follow: bool = True) -> Entry:
        """{name, path, is_dir, size, mode ("0644"), mtime, type}, and of a link not followed its `target`.

        `type`: file, directory, symlink, fifo or other. A link that leads nowhere is not_found, unless not followed.
        """

        def act(spot: Spot) -> Entry:
            if spot.root is None:
                return make_entry(_asked(path, spot), None)
            fd = spot.open(os.O_PATH)
            try:
                found = os.fstat(fd)
                if follow and stat.S_ISLNK(found.st_mode):
                    raise OSError(errno.ELOOP, "")
                target = os.readlink(b"", dir_fd=fd) if stat.S_ISLNK(found.st_mode) else b""
            finally:
                os.close(fd)
            return make_entry(_asked(path, spot), found, target)

        return self._view.at(path, act, follow=follow)

    # -- directories -------------------------------------------------------------------------------------------------

    def listdir(self, path: Path, recursive: bool = False, limit: int = MAX_ENTRIES) -> Listing:
        """The entries of a directory (as `stat` without following), sorted by path; at most `limit`.

        Also bounded by 4 MiB of paths. With `recursive` all below, too, each directory's entries together.
        """

        def act(spot: Spot) -> Listing:
            base = _asked(path, spot)
            if spot.root is None:
                return self._list_virtual(spot, base)
            return list_folder(spot.open(os.O_RDONLY | os.O_DIRECTORY), base, recursive, limit)

        return self._view.at(path, act)

    def _list_virtual(self, spot: Spot, base: bytes) -> Listing:
        listing = Listing()
        for name in self._view.listed(spot.names):
            target = self._view.links.get((*spot.names, name), b"")
            listing.entries.append(make_entry(base.rstrip(b"/") + b"/" + name, None, target))
        return listing

    def mkdir(self, path: Path) -> None:
        """Make a directory (0755) and its missing parents. One that is there is well; raises exists for a file."""

        def act(spot: Spot) -> None:
            try:
                os.close(self._make(spot, spot.names))
            except NotADirectoryError:
                self._refuse_file(spot)
                raise

        self._view.at(path, act)

    @staticmethod
    def _refuse_file(spot: Spot) -> None:
        os.close(spot.open(os.O_PATH))  # raises if it is not the last name that is the file
        raise FileExistsError(errno.EEXIST, "")

    def remove(self, path: Path, recursive: bool = False) -> None:
        """Remove a file, a link (not what it leads to), an empty directory; with `recursive` a tree of any depth.

        A directory that a payload fills again all the while is `changed`, and not all gone.
        """

        def act(spot: Spot) -> None:
            _refuse_unless_changeable(spot)
            folder, name = spot.open_parent()
            try:
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if recursive:
                    remove_tree(folder, name)
                elif stat.S_ISDIR(found.st_mode):
                    os.rmdir(name, dir_fd=folder)
                else:
                    os.unlink(name, dir_fd=folder)
            finally:
                os.close(folder)

        self._view.at(path, act, follow=False)

    def move(self, source: Path, target: Path) -> None:
        """Give a file, link or tree another name, as rename(2): a file there is replaced, an empty directory, too.

        The parents of `target` must be there. Where the two lie on different file systems it is copied (as by
        `tar_out`), then removed: not in one step, and only onto a name that is free.
        """

        def act(spot: Spot) -> bool:
            _refuse_unless_changeable(spot)
            folder, name = spot.open_parent()
            try:
                os.stat(name, dir_fd=folder, follow_symlinks=False)
                return self._view.at(target, lambda to: _rename(folder, name, to), follow=False)
            finally:
                os.close(folder)

        if not self._view.at(source, act, follow=False):
            self._copy(source, target)
            self.remove(source, recursive=True)

    def _copy(self, source: Path, target: Path) -> None:
        """For a move to another file system: through the same two doors as everybody's uploads and downloads."""
        kind = self.stat(source, follow=False)["type"]
        self._view.at(target, _refuse_existing, follow=False)
        if kind == "directory":
            untar = self.tar_in(target)
            try:
                for piece in self.tar_out(source):
                    untar.feed(piece)
                untar.close()
            finally:
                untar.abort()
        elif kind == "file":
            with self.writer(target, int(self.stat(source)["mode"], 8)) as writer:
                for piece in self.pieces(*self.read(source)):
                    writer.write(piece)
        else:
            raise FileProblem("denied", shown(source), "neither a file nor a directory, and on another file system")

    # -- trees -------------------------------------------------------------------------------------------------------

    def tar_out(self, path: Path, limit: int | None = None) -> Stream:
        """A tree as a tar stream (pax), or one file as a stream of one member. Close the iterator if you stop early.

        What is wrong with the path is raised here, what is wrong further down (denied, too_large, changed) while the
        stream is read. Links stay links; sockets, devices and FIFOs are left out. See `tar_tree`.
        """

        def act(spot: Spot) -> Stream:
            fd = spot.open(os.O_RDONLY)
            found = os.fstat(fd)
            if stat.S_ISDIR(found.st_mode):
                return Stream(fd, lambda fd: tar_tree(fd, limit))
            if stat.S_ISREG(found.st_mode):
                return Stream(fd, lambda fd: tar_one(fd, spot.names[-1]))
            os.close(fd)
            raise OSError(errno.ENXIO, "")

        return self._view.at(path, act)

    def tar_in(self, path: Path, limit: int = MAX_TREE_BYTES, members: int = MAX_MEMBERS) -> Untar:
        """Begin to unpack a tar stream into a directory, which is made if it is missing."""

        def act(spot: Spot) -> Untar:
            return Untar(self._make(spot, spot.names), self._owner, limit=limit, members=members)

        return self._view.at(path, act)

    def _make(self, spot: Spot, names: tuple[bytes, ...]) -> int:
        _refuse_unless_changeable(spot, root_too=False)
        top = spot.open_root()
        try:
            return make_folders(top, names, self._owner)
        finally:
            os.close(top)


def decode_path(encoded: str) -> bytes:
    """The path that a percent-encoded one stands for: what a query has before anybody decoded it as text."""
    return unquote_to_bytes(encoded.replace("+", " "))


def _pieces(fd: int, size: int) -> Generator[bytes, None, None]:
    left = size
    try:
        for data in read_exactly(fd, size):
            left -= len(data)
            yield data
    finally:
        os.close(fd)
    if left:
        raise FileProblem("changed", "/", "the file became shorter while it was read")


def _asked(path: Path, spot: Spot) -> bytes:
    """The path to show: as it was asked for, where that is plain."""
    names = split(path)
    return spot.inside if b".." in names else b"/" + b"/".join(names)


def _refuse_unless_changeable(spot: Spot, root_too: bool = True) -> None:
    if spot.root is None or not spot.root.writable:
        raise FileProblem("outside", shown(spot.inside), "only the home and /tmp can be changed")
    if root_too and not spot.names:
        raise FileProblem("denied", shown(spot.inside), "a sandbox keeps this directory")


def _refuse_existing(spot: Spot) -> None:
    try:
        os.close(spot.open(os.O_PATH))
    except FileNotFoundError:
        return
    raise FileExistsError(errno.EEXIST, "")


def _rename(folder: int, name: bytes, to: Spot) -> bool:
    """False if it lies on another file system (an overlay says that of directories of its lower layer, too)."""
    _refuse_unless_changeable(to)
    target_folder, target_name = to.open_parent()
    try:
        os.rename(name, target_name, src_dir_fd=folder, dst_dir_fd=target_folder)
    except OSError as problem:
        if problem.errno != errno.EXDEV:
            raise
        return False
    finally:
        os.close(target_folder)
    return True
