# SPDX-License-Identifier: Apache-2.0
"""The `process` boundary where the host refuses namespaces: a subreaper of its own for each call, a weaker proof.

Everything the payload starts stays below this process, whatever sessions or groups it makes: orphans come back to the
nearest subreaper. It kills its descendants until waiting says that none is left (`reaper.drain`), with cgroup.kill
before that where a group could be made. What it cannot promise: the payload runs as the same user and can kill this
process; its orphans then come to the supervisor, which is a subreaper too and drains them (proof `scan`).
"""

from __future__ import annotations

import errno
import os
import signal
from typing import NoReturn

from . import payload, syscalls
from .base import Boundary, Gone
from .init import run_init, seal


class SubreaperBoundary(Boundary):
    """Kill by repeated sweeps. The reaper process exits with 0 only after it saw that no child is left."""

    level = "process"
    weaker = ("no namespaces on this host: killed by repeated sweeps below a subreaper (proof subreaper_drained)",)

    def _launch(self) -> tuple[int, int]:
        syscalls.become_subreaper()  # of last resort: see Room._sweep_orphans
        pid = os.fork()
        self._in_child(pid)
        return pid, os.pidfd_open(pid)

    def _serve(self) -> NoReturn:
        seal(self._inner.fileno(), "deadstop-reaper", set())
        self.lifeline.detach()
        run_init(self._set_up, self._inner, self._spawn_inside, is_pid1=False)

    def _set_up(self) -> tuple[dict[str, object], list[int]]:
        syscalls.become_subreaper()
        syscalls.hide_from_peers()
        return {"own_proc": False}, []

    def _spawn_inside(self, spec: int, stdio: list[int], error_fd: int) -> int:
        """Only the payload is born in the group: the reaper must outlive cgroup.kill to say that all are gone."""
        group_fd = self.group.open_for_clone() if self.group else -1
        try:
            pid, pidfd = syscalls.clone3(0, cgroup_fd=group_fd)
            if pid:
                os.close(pidfd)
        except OSError as problem:
            if problem.errno != errno.ENOSYS:
                raise
            pid, self.group = os.fork(), None  # clone3 is filtered out: swept without a group
        if pid == 0:
            self._start(spec, stdio, error_fd)
        if group_fd >= 0:
            os.close(group_fd)
        return pid

    def _start(self, spec: int, stdio: list[int], error_fd: int) -> NoReturn:
        payload.start(spec, stdio, error_fd, enter=self._join)

    def _join(self) -> None:
        if self.group:
            self.group.join_v1()

    def kill(self) -> None:
        try:
            signal.pidfd_send_signal(self.exit_fd, signal.SIGCONT)  # a payload of the same user may have stopped it
        except OSError:
            pass
        if self.group and self.group.kill():
            self._used("cgroup.kill")
        self._order("kill")
        self._used("sweep")

    def kill_reaper(self) -> None:
        """Last resort, when the reaper does not answer: its orphans come to the supervisor."""
        self._kill_root()

    def _judge(self, status: os.waitid_result) -> Gone:
        if status.si_code == os.CLD_EXITED and status.si_status == 0:
            return Gone("subreaper_drained", 0)
        return Gone("none", None)
