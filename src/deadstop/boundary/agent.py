# SPDX-License-Identifier: Apache-2.0
"""The process that starts a sandbox's commands, and the pid 1 that they live under.

The agent is forked from init and joins the namespaces that bubblewrap made, all but the one for pids: in there it would
be with bubblewrap's own processes. It makes another, whose pid 1 is again a fork of ours: it collects orphans, ignores
signals, is not dumpable, and has the filter on. A payload that kills all it can name leaves all of ours alone.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import signal
import socket
from typing import NoReturn

from .. import wire
from . import payload, seccomp, syscalls
from .covers import cover_proc
from .init import seal

NAMESPACES = ("mnt", "net", "ipc", "uts", "cgroup")


def be_agent(orders: socket.socket, uid: int | None, filters: list[bytes]) -> NoReturn:
    """Body of the forked agent: told the pid of the holder it joins, answers "joined", then forks on request.

    `uid` is the host user to become, as root.
    """
    try:
        holder = orders.recv(16)
        if not holder:
            os._exit(0)
        _join(int(holder), uid, filters)
        seal(orders.fileno(), "deadstop-agent", set())
        seccomp.apply(filters)  # every command it forks inherits it
        orders.send(b"joined")
        while True:
            _fork_one(orders)
    except OSError as problem:
        orders.send(f"{problem.filename or 'agent'}: {problem.strerror}"[:200].encode())
    finally:
        os._exit(125)


def become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _join(holder: int, uid: int | None, filters: list[bytes]) -> None:
    namespaces = {name: os.open(f"/proc/{holder}/ns/{name}", os.O_RDONLY) for name in (*NAMESPACES, "user")}
    shared = {name for name, fd in namespaces.items() if _is_own(name, fd)}  # the network, with --net
    if uid is not None:
        become(uid)
    # bubblewrap's outer user namespace owns the others; the payload's lies inside it.
    syscalls.setns(fcntl.ioctl(namespaces["mnt"], syscalls.NS_GET_USERNS))
    for name in NAMESPACES:
        if name not in shared:
            syscalls.setns(namespaces[name])
    syscalls.setns(_start_pid1(namespaces["user"], filters))  # for the agent's children, not for itself
    syscalls.setns(namespaces["user"])
    syscalls.drop_capabilities(bounding=True)


def _is_own(name: str, fd: int) -> bool:
    return os.path.samestat(os.fstat(fd), os.stat(f"/proc/self/ns/{name}"))


def _start_pid1(user_namespace: int, filters: list[bytes]) -> int:
    """A descriptor of its pid namespace, when it is ready. It has to send that itself: nobody may look into it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    pid, _ = syscalls.clone3(syscalls.CLONE_NEWPID)
    if pid == 0:
        _be_pid1(user_namespace, theirs, filters)
    theirs.close()
    said, fds = wire.receive_fds(ours, 256, 1)
    ours.close()
    if said != b"ready":
        raise OSError(1, said.decode("utf-8", "replace") or "ended without a word", "pid 1 of the sandbox")
    return fds[0]


def _be_pid1(user_namespace: int, parent: socket.socket, filters: list[bytes]) -> NoReturn:
    """It answers as soon as its /proc is in place. Should a later step fail it ends, and its namespace with it."""
    try:
        syscalls.mount("proc", "/proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
        cover_proc()
        own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        syscalls.hide_from_peers()
        syscalls.erase_own_arguments()
        socket.send_fds(parent, [b"ready"], [own])
        syscalls.setns(user_namespace)
        syscalls.drop_capabilities(bounding=True)
        seal(own, "deadstop-room", set())
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        seccomp.apply(filters)
        os.close(own)
        while True:
            _collect_orphans()
            signal.sigwait([signal.SIGCHLD])
    except OSError as problem:
        parent.send(f"{problem.filename or 'set-up'}: {problem.strerror}"[:200].encode())
    finally:
        os._exit(125)


def _collect_orphans() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _fork_one(orders: socket.socket) -> None:
    word, fds = wire.receive_fds(orders, 16, 8)
    if not word:
        os._exit(0)
    spec, error_fd, stdio = fds[0], fds[1], fds[2:]
    pid = syscalls.fork_sibling()
    if pid == 0:
        payload.start(spec, stdio, error_fd)
    for fd in fds:
        os.close(fd)
    orders.send(marshal.dumps(pid))
