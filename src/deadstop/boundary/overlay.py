# SPDX-License-Identifier: Apache-2.0
"""Overlay file systems for a sandbox: mounted when it is made, and exchanged while it is idle.

Every folder of a mount is named relative to `root`, so that the mount table that a payload can read says nothing about
the host, and so that a long chain fits into the one page that mount(2) takes.

Only an idle sandbox may be exchanged. Descriptors, mappings and working folders of live processes stay with the old
mount, and what they write would reach a layer that others take for frozen. `mount -o remount,lowerdir=...` is no way:
the kernel accepts it and changes nothing.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from ..errors import BoundaryUnavailable
from . import syscalls

__all__ = ["TARGETS", "OverlayMount", "mount_overlay", "probe", "swap", "system_overlay"]

TARGETS = {"home": "/home/agent", "tmp": "/tmp"}
"""Folders of a layer, and where a sandbox has them."""

_FLAGS = syscalls.MS_NOSUID | syscalls.MS_NODEV
_MNT_DETACH = 2
_PLAIN = re.compile(r"[A-Za-z0-9_./-]+")  # neither the colon nor the comma that mount(2) would take apart
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class OverlayMount:
    """One overlay: `lowers` (the uppermost first), `upper` and `work` are paths relative to `root`."""

    root: str
    lowers: tuple[str, ...]
    upper: str
    work: str

    def __post_init__(self) -> None:
        if not self.lowers or not all(map(_PLAIN.fullmatch, (*self.lowers, self.upper, self.work))):
            raise ValueError(f"not the folders of an overlay: {self}")

    def options(self) -> str:
        """For mount(2).

        `userxattr`: an ordinary user cannot write the kernel's own attributes. `volatile`: else the end of the last
        process, and so the proof that all is gone, waits until the host has written out its whole file system.
        """
        folders = f"volatile,lowerdir={':'.join(self.lowers)},upperdir={self.upper},workdir={self.work}"
        return folders if _is_real_root() else f"userxattr,{folders}"


def mount_overlay(layer: OverlayMount, target: str) -> None:
    """Mount in this process's mount namespace; `target` is absolute. Changes the working folder for a moment.

    What is written to it need not be on the disk after fsync: a layer lives no longer than its server.
    """
    before = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.chdir(layer.root)
        _forget_last_mount(f"{layer.work}/work/incompat/volatile")
        syscalls.mount("layer", target, "overlay", _FLAGS, layer.options())
    finally:
        os.fchdir(before)
        os.close(before)


def system_overlay(target: str, extra_usr: str, usr: str = "/usr") -> None:
    """Mount /usr read-only at `target`, with what is in `extra_usr` above it.

    File systems mounted below /usr do not show in it. Raises BoundaryUnavailable where the host does not let this user
    mount an overlay.
    """
    for path in (extra_usr, usr):
        if not _PLAIN.fullmatch(path):
            raise ValueError(f"an overlay cannot name this folder: {path!r}")
    options = f"lowerdir={extra_usr}:{usr}"
    if not _is_real_root():
        options += ",userxattr"
    try:
        syscalls.mount("system", target, "overlay", _FLAGS | syscalls.MS_RDONLY, options)
    except OSError as problem:
        reason = f"packages of a template need an overlay over /usr ({problem.strerror})"
        raise BoundaryUnavailable("sandbox", reason, "use a template without Debian packages") from None


def swap(pid: int, layer: OverlayMount, view: str, targets: Mapping[str, str] = TARGETS) -> None:
    """Give the sandbox in whose mount namespace `pid` is another layer, at once for all processes that start later.

    `pid` is a process that /proc lets the caller look into: bubblewrap's holder (not init, not the agent).
    `view` is an empty folder to mount on, seen by nobody else. For a caller with one thread; takes two to ten ms.
    Raises OSError; then the old layer is still in place, unless its `filename` begins with "half-way": end the sandbox.
    """
    read, write = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        _swap_and_leave(pid, layer, view, targets, write)
    os.close(write)
    with open(read, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    if said != b"done":
        number, _, step = said.decode("utf-8", "replace").partition(" ")
        code = int(number) if number.isdigit() else errno.ECHILD
        raise OSError(code, os.strerror(code), step or "the exchange of a layer ended without a word")


def probe(root: str) -> str:
    """Why this user cannot have overlays below `root`, or "" if it can. For a caller with one thread."""
    read, write = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        _probe_and_leave(root, write)
    os.close(write)
    with open(read, "rb") as pipe:
        said = pipe.read().decode("utf-8", "replace")
    os.waitpid(child, 0)
    return "" if said == "done" else said or "the trial ended without a word"


# -- in a child of our own: it joins other namespaces and never comes back --------------------------------------------


def _swap_and_leave(pid: int, layer: OverlayMount, view: str, targets: Mapping[str, str], report: int) -> NoReturn:
    begun = ""
    try:
        room = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        if not _is_real_root():
            syscalls.setns(fcntl.ioctl(room, syscalls.NS_GET_USERNS))
        _own_mounts()
        mount_overlay(layer, view)
        mounts = {target: syscalls.clone_mount(f"{view}/{name}") for name, target in targets.items()}
        syscalls.setns(room)
        for target, mount in mounts.items():
            _unmount(target)
            begun = "half-way: "
            syscalls.attach_mount(mount, target)
        os.write(report, b"done")
    except OSError as problem:
        os.write(report, f"{problem.errno} {begun}{problem.filename or 'exchange of a layer'}".encode())
    finally:
        os._exit(0)


def _probe_and_leave(root: str, report: int) -> NoReturn:
    try:
        if not _is_real_root():
            uid, gid = os.geteuid(), os.getegid()
            _unshare(syscalls.CLONE_NEWUSER)
            for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
        _own_mounts()
        for name in ("lower", "upper", "work", "view"):
            os.makedirs(f"{root}/{name}", exist_ok=True)
        mount_overlay(OverlayMount(root, ("lower",), "upper", "work"), f"{root}/view")
        os.mkdir(f"{root}/view/made")
        os.rmdir(f"{root}/view/made")
        os.write(report, b"done")
    except OSError as problem:
        os.write(report, f"{problem.filename or 'namespaces'}: {problem.strerror}".encode())
    finally:
        os._exit(0)


def _forget_last_mount(mark: str) -> None:
    """A volatile overlay refuses a second mount, as a crash of the host may have cost files. Here it ends the layer."""
    try:
        os.unlink(f"{mark}/dirty")
        os.rmdir(mark)
    except FileNotFoundError:
        pass


def _own_mounts() -> None:
    _unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)


def _unshare(flags: int) -> None:
    if _libc.unshare(flags) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "unshare")


def _unmount(target: str) -> None:
    if _libc.umount2(os.fsencode(target), _MNT_DETACH) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), f"umount {target}")


def _is_real_root() -> bool:
    """Root of the host, not of a user namespace of an ordinary user's: only the first writes trusted attributes."""
    if os.geteuid() != 0:
        return False
    with open("/proc/self/uid_map") as file:
        return file.read().split() == ["0", "0", "4294967295"]
