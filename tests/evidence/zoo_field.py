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

from live_case import Case
from zoo_cases import Zoo

from deadstop.boundary.evidence import proc

ZOO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "zoo")
_QUIET = 0.2  # seconds without any member having run: it has settled
_SETTLED_BY = 6.0
_BUSY_AGE = 0.9  # seconds after the start at which a case that never settles is looked at
CGROUPS = {
    "pids": "/sys/fs/cgroup/pids",
    "memory": "/sys/fs/cgroup/memory",
    "cgroup": "/sys/fs/cgroup/unified",
}


def missing(case: Zoo) -> str | None:
    """Why a case cannot run here, or None."""
    for program in case.needs:
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if case.root and os.geteuid() != 0:
        return "needs root"
    if case.ordinary and os.geteuid() == 0:
        return "root is not asked"
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
        self._words = {
            "{zoo}": ZOO,
            "{python}": sys.executable,
            **{"{" + name + "}": port for name, port in ports.items()},
        }

    def take(self, case: Zoo) -> Case:
        if case.name not in self._running:
            batch = [
                other
                for other in self._batch_of(case)
                if other.name not in self._running and other.name not in self._ended and not missing(other)
            ]
            for other in batch:
                self._running[other.name] = self._start(other)
            _settle([(self._running[other.name], other) for other in batch])
        return self._running[case.name]

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


def _settle(batch: list[tuple[Case, Zoo]]) -> None:
    """Wait until nothing inside has run for a while, for each of a batch; drains their output meanwhile."""
    waiting = [_Settling(running, case) for running, case in batch]
    while waiting := [one for one in waiting if not one.done()]:
        time.sleep(0.02)


class _Settling:
    def __init__(self, running: Case, case: Zoo) -> None:
        self._running, self._case = running, case
        self._last: dict[int, int] = {}
        self._quiet_since = time.monotonic()

    def done(self) -> bool:
        self._running.pump()
        now, pids = time.monotonic(), proc.descendants(self._running.root)
        seen = {pid: proc.run_time(pid, 2)[2] for pid in pids}
        if seen != self._last or any((found := proc.stat(pid)) and found.state == "R" for pid in pids):
            self._last, self._quiet_since = seen, now
        age = now - self._running.started
        if self._case.busy:
            return age > _BUSY_AGE
        if self._case.ready:
            return age > _SETTLED_BY or self._case.ready in self._running.output
        return age > _SETTLED_BY or (age > 0.4 and now - self._quiet_since > _QUIET)


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
