# SPDX-License-Identifier: Apache-2.0
"""Run the zoo: start cases in batches, wait until each has settled, look once, end it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from cases import Zoo
from live import Case

from deadstop.boundary.evidence import proc

ZOO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "zoo")
_QUIET = 0.2  # seconds without any member having run: it has settled
_SETTLED_BY = 6.0
_BUSY_AGE = 0.9  # seconds after the start at which a case that never settles is looked at
CGROUPS = {"pids": "/sys/fs/cgroup/pids", "memory": "/sys/fs/cgroup/memory", "cgroup": "/sys/fs/cgroup/unified"}


def missing(case: Zoo) -> str | None:
    """Why a case cannot run here, or None."""
    for program in case.needs:
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if case.root and os.geteuid() != 0:
        return "needs root"
    for name, _value in case.limits:
        if not os.path.isdir(CGROUPS[name]):
            return f"no writable v1 {name} control group here"
    return None


class Servers:
    """The loopback servers, as one process of their own: outside of every case."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, os.path.join(ZOO, "servers.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.ports: dict[str, str] = {}
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line == b"up\n":
                break
            name, port = line.decode().split()
            self.ports[name] = port

    def close(self) -> None:
        self._process.communicate(timeout=10)


class Field:
    """Cases under way. `take` starts the batch a case is in, and hands out the case when it has settled."""

    def __init__(self, ports: dict[str, str], batch_of: Callable[[Zoo], list[Zoo]]) -> None:
        self._folder = tempfile.mkdtemp(prefix="deadstop-zoo-")
        self._batch_of = batch_of
        self._running: dict[str, Case] = {}
        self._ended: list[str] = []
        self._groups: list[str] = []
        self._words = {"{zoo}": ZOO, "{python}": sys.executable, **{"{%s}" % k: v for k, v in ports.items()}}

    def take(self, case: Zoo) -> Case:
        if case.name not in self._running:
            for other in self._batch_of(case):
                if other.name not in self._running and other.name not in self._ended and not missing(other):
                    self._running[other.name] = self._start(other)
        running = self._running[case.name]
        _settle(running, case.busy)
        return running

    def end(self, case: Zoo) -> None:
        self._ended.append(case.name)
        self._running.pop(case.name).close()

    def close(self) -> None:
        for running in self._running.values():
            running.close()
        for path in reversed(self._groups):
            _remove_group(path)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, case: Zoo) -> Case:
        words = {**self._words, "{tmp}": tempfile.mkdtemp(dir=self._folder)}
        argv = ["bash", "-c", case.command] if isinstance(case.command, str) else case.command
        for word, value in words.items():
            argv = [part.replace(word, value) for part in argv]
        environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        environment |= {"TERM": "xterm", "LC_ALL": "C.UTF-8", "HOME": words["{tmp}"]}
        environment |= {"npm_config_update_notifier": "false"}  # the tests call nobody outside
        enter, paths = self._group(case)
        running = Case(argv, case.stdin, environment, enter)
        running.cgroup = paths
        return running

    def _group(self, case: Zoo) -> tuple[Callable[[], None] | None, dict[str, str]]:
        """Control groups with the limits of a case, how to enter them, and the paths a View takes."""
        if not case.limits:
            return None, {}
        made: dict[str, str] = {}
        for name, value in case.limits:
            made[name] = path = os.path.join(CGROUPS[name], f"deadstop-zoo-{os.getpid()}-{len(self._groups)}")
            os.mkdir(path)
            self._groups.append(path)
            limit = "pids.max" if name == "pids" else "memory.limit_in_bytes"
            _write(os.path.join(path, limit), value if name == "pids" else value << 20)

        def enter() -> None:
            for path in made.values():
                _write(os.path.join(path, "cgroup.procs"), 0)

        files = {
            "pids": ("pids", "pids.current"),
            "pids_max": ("pids", "pids.max"),
            "pids_events": ("pids", "pids.events"),
            "mem_failcnt": ("memory", "memory.failcnt"),
        }
        known = {key: os.path.join(made[name], file) for key, (name, file) in files.items() if name in made}
        known["procs"] = os.path.join(next(iter(made.values())), "cgroup.procs")
        return enter, known


def look(running: Case) -> dict[str, Any]:
    """One look, with the output rate measured just before."""
    before = time.monotonic()
    taken = running.pump(0.05)
    return running.look(out_rate=taken / (time.monotonic() - before))


def _settle(running: Case, busy: bool) -> None:
    """Wait until nothing inside has run for a while, draining its output meanwhile."""
    last: dict[int, int] = {}
    quiet_since = time.monotonic()
    while True:
        running.pump(0.02)
        now, members = time.monotonic(), proc.descendants(running.root)
        seen = {pid: proc.run_time(pid, 2)[1] for pid in members}
        active = any((found := proc.stat(pid)) is not None and found.state == "R" for pid in members)
        if seen != last or active:
            last, quiet_since = seen, now
        if now - running.started > (_BUSY_AGE if busy else _SETTLED_BY):
            return
        if not busy and now - quiet_since > _QUIET and now - running.started > 0.4:
            return


def _write(path: str, value: int) -> None:
    with open(path, "w") as file:
        file.write(str(value))


def _remove_group(path: str) -> None:
    end = time.monotonic() + 5
    while time.monotonic() < end:
        try:
            os.rmdir(path)
            return
        except OSError:
            with contextlib.suppress(OSError), open(os.path.join(path, "cgroup.procs")) as file:
                for line in file:
                    with contextlib.suppress(OSError):
                        os.kill(int(line), signal.SIGKILL)
            time.sleep(0.01)
