# SPDX-License-Identifier: Apache-2.0
"""The `process` boundary: a pid namespace of its own, and otherwise the caller's files, network, user and environment.

clone3 makes the namespace and, in the same call, puts its pid 1 into the cgroup. That pid 1 is our forked init.
Killing it ends everything: the kernel sends SIGKILL to every process of the namespace and collects them before pid 1
itself can be waited for. So "pid 1 was collected" is the proof that nothing is left (zap_pid_ns_processes in the
kernel), and the only exception is a process in uninterruptible sleep, in which case pid 1 cannot be collected either,
and we say so.

Only /proc is made private and mounted afresh; other mounts keep their propagation, as the caller's are.
"""

from __future__ import annotations

import os
import select
import socket
from typing import NoReturn

from . import syscalls
from .base import Boundary, Gone
from .init import fork_payload, run_init, seal
from .limits import Applied


class ProcessBoundary(Boundary):
    """Own pid namespace; for an ordinary user inside a user namespace that maps only this user to itself."""

    level = "process"
    init_name = "deadstop-init"
    sibling = False  # born as a child of our own parent

    def __init__(self, applied: Applied) -> None:
        self.uid, self.gid = os.geteuid(), os.getegid()
        super().__init__(applied)

    def _launch(self) -> tuple[int, int]:
        flags = syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNS
        flags |= syscalls.CLONE_PARENT if self.sibling else 0
        if self.uid != 0:
            flags |= syscalls.CLONE_NEWUSER
        cgroup_fd = self.group.open_for_clone() if self.group else -1
        try:
            pid, pidfd = syscalls.clone3(flags, cgroup_fd=cgroup_fd)
        finally:
            if cgroup_fd >= 0:
                os.close(cgroup_fd)
        self._in_child(pid)
        return pid, pidfd

    def _serve(self) -> NoReturn:
        seal(self._inner.fileno(), self.init_name, self._kept())
        self.lifeline.detach()  # closed by seal; its number may be in use again
        run_init(self._set_up, self._inner, self._spawn_inside, is_pid1=True, helpers=self._inner_helpers)

    def _spawn_inside(self, spec: int, stdio: list[int], error_fd: int) -> int:
        return fork_payload(spec, stdio, error_fd)

    def _inner_helpers(self) -> frozenset[int]:
        """Pids of our own processes inside, as init sees them, when it is set up and no payload exists."""
        return frozenset()

    def _kept(self) -> set[int]:
        """Descriptors that init needs besides its lifeline."""
        return set()

    def _set_up(self) -> tuple[dict[str, object], list[int]]:
        self._enter()
        own_proc = mount_own_proc()
        if self.group:
            self.group.join_v1()  # in the v2 group since birth
        if self.uid != 0:
            syscalls.drop_capabilities()
        syscalls.hide_from_peers()
        return {"own_proc": own_proc}, []

    def _enter(self) -> None:
        """Steps that every namespace init takes first."""
        syscalls.die_with_parent()
        poll = select.poll()  # not select, which takes no number above 1023
        poll.register(self._inner, select.POLLIN)
        if poll.poll(0) and not self._inner.recv(1, socket.MSG_PEEK):
            os._exit(0)  # the supervisor ended before PDEATHSIG was set
        if self.uid != 0:
            map_ids(self.uid, self.gid)

    def _judge(self, status: os.waitid_result) -> Gone:
        return Gone("pid_namespace_reaped", 0)


def map_ids(uid: int, gid: int) -> None:
    """Inside the new user namespace this user and group are themselves; nobody else exists."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def mount_own_proc() -> bool:
    """A /proc that shows only this pid namespace.

    False where the host forbids it: the host's stays, the proof is the same.
    """
    try:
        syscalls.mount("none", "/proc", None, syscalls.MS_PRIVATE)
        syscalls.mount("proc", "/proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
    except OSError:
        return False
    try:
        # Small equal pids would make names built from $$ collide between calls.
        with open("/proc/sys/kernel/ns_last_pid", "w") as file:
            file.write(str(300 + int.from_bytes(os.urandom(2), "big") % 31000))
    except OSError:
        pass
    return True
