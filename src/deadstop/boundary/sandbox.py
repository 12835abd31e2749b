# SPDX-License-Identifier: Apache-2.0
"""The `sandbox` boundary: the kill of `process`, and inside it a room that bubblewrap builds.

The outermost pid namespace is a `process` boundary: its pid 1 is our forked init, and ending that init ends
everything, bubblewrap included. bubblewrap makes the other namespaces and the mounts and then holds them open with
`cat` on a pipe of ours; the byte that `cat` passes on tells that the room is ready.

The payload is not bubblewrap's child. A forked agent (agent.py) joins the room from outside, gives up everything, and
forks each command as a sibling of itself, so that init is its parent: exact wait statuses (bubblewrap folds a signal
into an exit code), commands can be added later, and no second interpreter has to start (15 ms). The commands live in a
pid namespace of their own, in which they can name neither our init nor bubblewrap nor the holder.

As root every sandbox gets a host user of its own, and bound folders are mounted with their owner mapped to it, so that
a project that belongs to root can be worked on without being root.
"""

from __future__ import annotations

import errno
import fcntl
import marshal
import os
import select
import socket
import stat
from typing import NoReturn

from ..errors import BoundaryUnavailable
from ..model import Files
from . import etc, overlay, payload, seccomp, syscalls
from .agent import be_agent, become
from .cgroup import read
from .init import SetUpFailed
from .limits import Applied
from .policy import Bind, Rooms, bwrap_arguments
from .process import ProcessBoundary, mount_own_proc
from .reaper import children_of, descendants

INSIDE_UID = 1000
ROOMS = {"home": 0o755, "tmp": 0o1777, "shm": 0o1777, "run": 0o755, "etc": 0o755}
HOLDER = "/usr/bin/cat"
INOTIFY_INSTANCES = 64
# Nobody hands out ids in this range: above containers, below the 31-bit edge.
FIRST_HOST_UID, HOST_UIDS = 1_879_048_192, 65_536
UID_LOCKS = "/run/deadstop/uids"
# Where the private files are mounted, in a mount namespace of ours: any folder that nothing needs to be bound from.
STAGING_PLACES = ("/mnt", "/media", "/srv", "/dev/shm", "/opt")


class SandboxBoundary(ProcessBoundary):
    """A confined boundary. `binds` are host paths shown inside; private files are bounded by `applied.private_disk`."""

    level = "sandbox"
    init_name = "deadstop-box"

    def __init__(
        self, applied: Applied, *, binds: tuple[Bind, ...], net: bool, program: str, files: Files | None = None
    ) -> None:
        self.binds, self.net, self.program, self.files = binds, net, program, files
        self.shown = (*binds, *(Bind(source, target, True) for source, target in files.binds)) if files else binds
        self.staging = _staging_place(self.shown)
        self.filters = _filters()
        self.inside_host_uid, self._uid_lock = _reserve_uid() if os.geteuid() == 0 else (os.geteuid(), -1)
        self.disk_fd = -1
        self._helpers: frozenset[int] = frozenset()
        try:
            super().__init__(applied)
        except OSError:
            if self._uid_lock >= 0:
                os.close(self._uid_lock)
            raise

    # -- in the supervisor -------------------------------------------------------------------------------------------

    def receive(self) -> tuple[tuple[object, ...], list[int]] | None:
        got = super().receive()
        if got and got[0] and got[0][0] == "ready":
            self._helpers = frozenset(descendants(self.pid))  # no payload exists yet
            self.disk_fd = got[1].pop()
        return got

    def helpers(self) -> frozenset[int]:
        return self._helpers

    def give(self, fds: list[int]) -> None:
        """Make pipes the inside user's, as their maker's they would be: programs open /dev/stderr by its name."""
        if self.uid == 0:
            for fd in fds:
                os.fchown(fd, self.inside_host_uid, self.inside_host_uid)

    def disk_full(self) -> bool:
        """Whether the private files have reached their limit."""
        if self.disk_fd < 0 or self.files:
            return False
        space = os.fstatvfs(self.disk_fd)
        return space.f_bavail == 0 or space.f_favail == 0

    def close(self) -> None:
        super().close()
        for fd in (self.disk_fd, self._uid_lock):
            if fd >= 0:
                os.close(fd)
        self.disk_fd = self._uid_lock = -1

    def exchange_files(self, root: str, lowers: tuple[str, ...], upper: str, work: str, view: str) -> None:
        """Put another overlay in the place of its files, in a process of one thread. Only while nothing runs inside."""
        holder = next(pid for pid in self._helpers if read(f"/proc/{pid}/comm").strip() == os.path.basename(HOLDER))
        overlay.swap(holder, overlay.OverlayMount(root, lowers, upper, work), view)

    # -- in init -----------------------------------------------------------------------------------------------------

    def _set_up(self) -> tuple[dict[str, object], list[int]]:
        self._enter()
        if self.group:
            self.group.join_v1()
        syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
        if not mount_own_proc():
            raise SetUpFailed(errno.EPERM, "this host does not let a new pid namespace have its own /proc")
        self._limit_inotify()
        remarks, binds = self._stage()
        syscalls.hide_from_peers()
        self._agent = self._start_agent()  # its fork takes place while bubblewrap is at work
        holder = self._start_room(binds)
        self._agent.send(str(holder).encode())
        if (said := self._agent.recv(256)) != b"joined":
            text = said.decode("utf-8", "replace")
            raise SetUpFailed(errno.EPERM, f"the agent could not join the sandbox: {text}")
        disk = os.open(self.staging, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return {"own_proc": True, "degraded": remarks}, [disk]

    def _inner_helpers(self) -> frozenset[int]:
        return frozenset(descendants(os.getpid()))

    def _limit_inotify(self) -> None:
        """Watches are counted per host user: an ordinary user's own editor must not starve because of a payload."""
        if self.uid != 0:
            try:
                with open("/proc/sys/user/max_inotify_instances", "w") as file:
                    file.write(str(INOTIFY_INSTANCES))
            except OSError:
                pass

    def _stage(self) -> tuple[list[str], list[Bind]]:
        """One sized tmpfs with the private folders and, as root, the bound folders as the inside user sees them."""
        remarks: list[str] = []
        mounts = [self._mapped(bind, remarks) for bind in self.shown] if self.uid == 0 else []
        size = self.applied.private_disk or (1 << 30)
        options = f"size={size},nr_inodes={max(1024, size // 8192)},mode=711"
        syscalls.mount("deadstop", self.staging, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)
        for name, mode in ROOMS.items():
            os.mkdir(f"{self.staging}/{name}")
            os.chmod(f"{self.staging}/{name}", mode)
            if name in ("home", "tmp", "shm", "run"):
                group = self.inside_host_uid if self.uid == 0 else self.gid
                os.chown(f"{self.staging}/{name}", self.inside_host_uid, group)
        etc.build(f"{self.staging}/etc", INSIDE_UID, self.net)
        if self.uid != 0:
            return remarks, [*self.shown, *self._mount_files()]
        return remarks, [
            *(self._attach(number, *pair) for number, pair in enumerate(zip(self.shown, mounts, strict=True))),
            *self._mount_files(),
        ]

    def _mount_files(self) -> list[Bind]:
        """Overlays that the kept files need: the layer itself, and what lies above /usr."""
        if self.files and self.files.system:
            os.mkdir(f"{self.staging}/usr")
            overlay.system_overlay(f"{self.staging}/usr", self.files.system)
        if self.files is None or self.files.overlay is None:
            return []
        os.mkdir(f"{self.staging}/layer")
        overlay.mount_overlay(overlay.OverlayMount(*self.files.overlay), f"{self.staging}/layer")
        return [Bind(f"{self.staging}/layer/{name}", target, True) for name, target in overlay.TARGETS.items()]

    def _mapped(self, bind: Bind, remarks: list[str]) -> int:
        mount = syscalls.clone_mount(bind.source)
        owner = os.stat(bind.source)
        namespace = _owner_map(owner.st_uid, owner.st_gid, self.inside_host_uid)
        try:
            syscalls.map_mount_owner(mount, namespace)
        except OSError as problem:
            remarks.append(
                f"{bind.source}: its file system cannot map owners ({problem.strerror}): files keep their owner"
            )
        finally:
            os.close(namespace)
        return mount

    def _attach(self, number: int, bind: Bind, mount: int) -> Bind:
        place = f"{self.staging}/bind{number}"
        if stat.S_ISDIR(os.fstat(mount).st_mode):
            os.mkdir(place)
        else:
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o600))
        syscalls.attach_mount(mount, place)
        os.close(mount)
        return Bind(place, bind.target, bind.writable)

    def _start_room(self, binds: list[Bind]) -> int:
        """Run bubblewrap until its holder answers; the pid of the holder."""
        fed, feed = os.pipe2(os.O_CLOEXEC)
        answer, answering = os.pipe2(os.O_CLOEXEC)
        complaints, complaining = os.pipe2(os.O_CLOEXEC)
        os.write(feed, b"R")
        pid = os.fork()
        if pid == 0:
            self._become_bwrap(binds, [fed, answering, complaining])
        for fd in (fed, answering, complaining):
            os.close(fd)
        poll = select.poll()  # not select, which takes no number above 1023
        poll.register(answer, select.POLLIN)
        ready = poll.poll(30_000)
        if not ready or not os.read(answer, 1):
            said = os.read(complaints, 4096).decode("utf-8", "replace").strip() if ready else "no answer in 30 s"
            raise SetUpFailed(errno.EPERM, said or "bubblewrap ended without a word")
        os.close(complaints)
        os.close(answer)
        # `feed` stays open, unread: the holder waits on it for as long as init lives.
        while children := children_of(pid):
            pid = children[0]
        return pid

    def _become_bwrap(self, binds: list[Bind], stdio: list[int]) -> NoReturn:
        try:
            payload.reset_signals()
            programs = [_memory_file(program) for program in self.filters]
            rooms = Rooms(*(f"{self.staging}/{name}" for name in ("home", "tmp", "shm", "run", "etc")))
            usr = f"{self.staging}/usr" if self.files and self.files.system else "/usr"
            arguments = bwrap_arguments(
                rooms=rooms, binds=binds, net=self.net, filter_fds=programs, uid=INSIDE_UID, usr=usr
            )
            listed = _memory_file(b"\0".join(os.fsencode(word) for word in arguments) + b"\0")
            for target, fd in enumerate(stdio):
                os.dup2(fd, target, inheritable=True)
            if self.uid == 0:
                become(self.inside_host_uid)
            syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
            os.execve(self.program, ["bwrap", "--args", str(listed), "--", HOLDER], {})
        except BaseException as problem:
            os.write(stdio[2], f"{problem!r}".encode())
        finally:
            os._exit(126)

    def _start_agent(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            be_agent(theirs, self.inside_host_uid if self.uid == 0 else None, self.filters)
        theirs.close()
        return ours

    def _spawn_inside(self, spec: int, stdio: list[int], error_fd: int) -> int:
        socket.send_fds(self._agent, [b"fork"], [spec, error_fd, *stdio])
        answer = self._agent.recv(64)
        if not answer:
            raise OSError(errno.ECHILD, "the sandbox's agent is gone")
        pid: int = marshal.loads(answer)
        return pid


def find_bwrap(path: str | None = None) -> str:
    """Where bubblewrap is. Raises BoundaryUnavailable with the fix."""
    for folder in [*(path or os.environ.get("PATH", os.defpath)).split(":"), "/usr/bin", "/usr/local/bin"]:
        candidate = os.path.join(folder, "bwrap")
        if folder.startswith("/") and os.access(candidate, os.X_OK):
            return candidate
    raise BoundaryUnavailable("sandbox", "bubblewrap (bwrap) is not installed", "install the package `bubblewrap`")


def _filters() -> list[bytes]:
    try:
        return seccomp.filters()
    except LookupError as problem:
        raise BoundaryUnavailable("sandbox", str(problem), "use the process level, or build a filter") from None


def _staging_place(binds: tuple[Bind, ...]) -> str:
    sources = [os.path.realpath(bind.source) for bind in binds]
    for place in STAGING_PLACES:
        clash = any(
            source == place or source.startswith(place + "/") or place.startswith(source + "/") for source in sources
        )
        if os.path.isdir(place) and not os.path.islink(place) and not clash:
            return place
    raise BoundaryUnavailable(
        "sandbox", f"no folder to mount private files on ({', '.join(STAGING_PLACES)})", "make /mnt"
    )


def _memory_file(data: bytes) -> int:
    fd = os.memfd_create("deadstop", 0)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _owner_map(uid: int, gid: int, inside: int) -> int:
    """Descriptor of a user namespace in which `uid` stands for `inside`: what an id-mapped mount is told by."""
    held, hold = os.pipe2(os.O_CLOEXEC)
    child, pidfd = syscalls.clone3(syscalls.CLONE_NEWUSER)
    if child == 0:
        os.close(hold)
        os.read(held, 1)
        os._exit(0)
    try:
        for name, number in (("uid_map", uid), ("gid_map", gid)):
            with open(f"/proc/{child}/{name}", "w") as file:
                file.write(f"{number} {inside} 1")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(hold)
        os.close(held)
        os.close(pidfd)
        os.waitpid(child, 0)


def _reserve_uid() -> tuple[int, int]:
    """A host user id that no other live sandbox of this host has, and the descriptor that holds it."""
    try:
        os.makedirs(UID_LOCKS, mode=0o700, exist_ok=True)
    except OSError as problem:
        reason = f"no place for the locks of user ids ({UID_LOCKS}: {problem.strerror})"
        raise BoundaryUnavailable("sandbox", reason, "make it writable for root, or run as an ordinary user") from None
    start = int.from_bytes(os.urandom(2), "big")
    for step in range(HOST_UIDS):
        uid = FIRST_HOST_UID + (start + step) % HOST_UIDS
        fd = os.open(f"{UID_LOCKS}/{uid}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return uid, fd
        except OSError:
            os.close(fd)
    raise BoundaryUnavailable("sandbox", "every sandbox user id is in use", "end some sandboxes")
