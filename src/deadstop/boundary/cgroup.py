# SPDX-License-Identifier: Apache-2.0
"""Control groups, v2, v1 and mixed: limits from whichever hierarchy has the controller, the kill from v2.

A cgroup v2 hierarchy without any controller still has cgroup.kill, so on mixed hosts the limits come from v1 and the
kill from v2. Nothing here assumes: a folder is used only after it could be made and, for a limit, after the limit
could be written. Not tested here: v2 with memory and pids controllers, and delegation by systemd (see
docs/design.md).
"""

from __future__ import annotations

import itertools
import os
import time

PREFIX = "deadstop-"
PART = "call-"
CONTROLLERS = ("memory", "pids", "cpu")
_V2_LIMIT_FILES = {"memory": "memory.max", "pids": "pids.max", "cpu": "cpu.max"}
_V1_LIMIT_FILES = {"memory": "memory.limit_in_bytes", "pids": "pids.max", "cpu": "cpu.cfs_quota_us"}
_CPU_PERIOD_US = 100_000
_SWEEP_AFTER_S = 60.0  # a group this young may belong to a supervisor in a pid namespace that we cannot see into


def denied() -> set[str]:
    """What DEADSTOP_DENY takes away (`userns`, `cgroup`): for testing what a stricter host would give."""
    return {word.strip() for word in os.environ.get("DEADSTOP_DENY", "").split(",") if word.strip()}


def read(path: str, size: int = 65536) -> str:
    """Content of a small kernel file; empty when it is not there."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, size).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)


def write(path: str, text: str) -> bool:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, text.encode())
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


_numbers = itertools.count(1)  # of this process: a name that is still busy is never asked for again


class Hierarchies:
    """Where this process may make groups, found once: `v2` (a folder or None) and one folder per v1 controller."""

    def __init__(self) -> None:
        self.v2: str | None = None
        self.v2_controllers: frozenset[str] = frozenset()
        self.v1: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        self._tag = f"{PREFIX}{os.getpid()}-{_start_time(os.getpid())}-"
        if "cgroup" in denied():
            self.reasons = dict.fromkeys((*CONTROLLERS, "kill"), "denied by DEADSTOP_DENY")
            return
        mounts, own = _mounts(), _own_groups()
        self._find_v1(mounts, own)
        self._find_v2(mounts, own)
        for name in CONTROLLERS:
            if name not in self.v1 and name not in self.v2_controllers:
                self.reasons.setdefault(name, "no writable cgroup with this controller")

    def _find_v1(self, mounts: list[tuple[str, str, str]], own: dict[str, str]) -> None:
        for kind, mount, options in mounts:
            for name in set(options.split(",")) & set(CONTROLLERS) if kind == "cgroup" else ():
                folder = _usable([mount + own.get(name, ""), mount])
                if folder:
                    self.v1[name] = folder
                    _sweep(folder)

    def _find_v2(self, mounts: list[tuple[str, str, str]], own: dict[str, str]) -> None:
        mount = next((path for kind, path, _ in mounts if kind == "cgroup2"), None)
        if mount is None:
            self.reasons["kill"] = "no cgroup v2 hierarchy is mounted"
            return
        candidates = [mount + own.get("", "").rstrip("/"), mount]
        usable = [folder for folder in dict.fromkeys(candidates) if _usable([folder])]
        if not usable:
            self.reasons["kill"] = "no cgroup v2 folder is writable for this user"
            return
        chosen = max(usable, key=lambda folder: len(_delegated(folder)))  # the first of the richest
        self.v2, self.v2_controllers = chosen, _delegated(chosen) - self.v1.keys()
        _sweep(chosen)

    @property
    def can_kill(self) -> bool:
        return self.v2 is not None

    def enforces(self, name: str) -> bool:
        return name in self.v1 or name in self.v2_controllers

    def create(self, *, memory: int | None = None, pids: int | None = None, cpus: float | None = None) -> Group:
        """A group with these limits. What could not be set is absent from `Group.enforced`."""
        name = f"{self._tag}{next(_numbers)}"
        wanted = {"memory": memory, "pids": pids, "cpu": cpus}
        group = Group(name, self.v2)
        for controller, value in wanted.items():
            if value is not None:
                group.limit(controller, value, self.v1.get(controller), controller in self.v2_controllers)
        if cpus is None and "cpu" in self.v1:
            group.share_processors(self.v1["cpu"])
        return group


class Group:
    """One call's group: a v2 folder (for the kill, and for limits where v2 has the controller) and v1 folders."""

    def __init__(self, name: str, v2_parent: str | None) -> None:
        self.name = name
        self.enforced: set[str] = set()
        self.v1: dict[str, str] = {}
        self.v2 = _make(f"{v2_parent}/{name}") if v2_parent else None
        self.has_kill = bool(self.v2) and os.path.exists(f"{self.v2}/cgroup.kill")

    @classmethod
    def known(cls, paths: tuple[str | None, dict[str, str]]) -> Group:
        """A group that another process made, by its `paths`: to be joined, not to be removed."""
        group = cls.__new__(cls)
        group.v2, group.v1 = paths
        group.name, group.enforced, group.has_kill = "", set(), bool(group.v2)
        return group

    def part(self, number: int) -> Group | None:
        """A group inside this one, for one command: it can be ended by itself. None where it could not be killed.

        Its member joins it by writing "0" to `open_for_joining`: the kernel asks what the opener may do.
        """
        folder = _make(f"{self.v2}/{PART}{number}") if self.has_kill else None
        return Group.known((folder, {})) if folder else None

    def open_for_joining(self) -> int:
        return os.open(f"{self.v2}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)

    @property
    def paths(self) -> tuple[str | None, dict[str, str]]:
        return self.v2, self.v1

    def limit(self, controller: str, value: float, v1_parent: str | None, in_v2: bool) -> None:
        if v1_parent:
            folder = _make(f"{v1_parent}/{self.name}")
            if folder is None:
                return
            self.v1[controller] = folder
            text = str(int(value * _CPU_PERIOD_US)) if controller == "cpu" else str(int(value))
            done = write(f"{folder}/{_V1_LIMIT_FILES[controller]}", text)
            if controller == "memory":
                write(f"{folder}/memory.memsw.limit_in_bytes", text)  # absent without swap accounting
        elif in_v2 and self.v2:
            text = f"{int(value * _CPU_PERIOD_US)} {_CPU_PERIOD_US}" if controller == "cpu" else str(int(value))
            done = write(f"{self.v2}/{_V2_LIMIT_FILES[controller]}", text)
            if controller == "memory":
                write(f"{self.v2}/memory.swap.max", "0")
                write(f"{self.v2}/memory.oom.group", "1")
        else:
            return
        if done:
            self.enforced.add(controller)

    def share_processors(self, v1_parent: str) -> None:
        """One share of the processors for all of it, without a quota.

        Outside such a group the kernel gives every session of a fork bomb as large a share as this process has
        (sched_autogroup), and the kill waits behind 500 of them: 57 ms against 31. In v2 the group itself does.
        """
        folder = _make(f"{v1_parent}/{self.name}")
        if folder:
            self.v1["cpu"] = folder

    def open_for_clone(self) -> int:
        """Descriptor for CLONE_INTO_CGROUP, or -1."""
        return os.open(self.v2, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) if self.v2 else -1

    def join_v1(self) -> None:
        """Called by a forked, single-threaded child on itself, before anything else runs: "0" means the writing thread.

        `tasks` and not `cgroup.procs`: moving only oneself takes no lock over the whole system, which costs 10 ms.
        """
        for folder in self.v1.values():
            with open(f"{folder}/tasks", "w") as file:
                file.write("0")

    def kill(self) -> bool:
        """SIGKILL to every member at once, by the kernel. False where there is no cgroup.kill."""
        return self.has_kill and write(f"{self.v2}/cgroup.kill", "1")

    def freeze(self, frozen: bool) -> bool:
        """Stop or let go every member. False where there is no freezer; it works without any v2 controller."""
        return bool(self.v2) and write(f"{self.v2}/cgroup.freeze", "1" if frozen else "0")

    def frozen(self) -> bool:
        return "frozen 1" in read(f"{self.v2}/cgroup.events")

    def members(self) -> list[int]:
        """Host pids, those of its parts included."""
        folders = [self.v2, *(f"{self.v2}/{name}" for name in self._parts())]
        return [int(word) for folder in folders for word in read(f"{folder}/cgroup.procs", 1 << 20).split()]

    def _parts(self) -> list[str]:
        try:
            return [name for name in os.listdir(self.v2 or "") if name.startswith(PART)]
        except OSError:
            return []

    def populated(self) -> bool:
        return "populated 1" in read(f"{self.v2}/cgroup.events") if self.v2 else False

    def out_of_memory_kills(self) -> int:
        if "memory" in self.v1:
            text = read(f"{self.v1['memory']}/memory.oom_control")
        else:
            text = read(f"{self.v2}/memory.events") if "memory" in self.enforced else ""
        return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))

    def files(self) -> dict[str, str]:
        """The counters that a diagnosis reads, by name; a missing one is left out."""
        v1, v2 = self.v1, self.v2 or ""
        where = {
            "procs": f"{v2}/cgroup.procs",
            "pids": f"{v1.get('pids', v2)}/pids.current",
            "pids_max": f"{v1.get('pids', v2)}/pids.max",
            "pids_events": f"{v1.get('pids', v2)}/pids.events",
            "mem_failcnt": f"{v1.get('memory', '')}/memory.failcnt",
            "mem_events": f"{v2}/memory.events",
        }
        return {key: path for key, path in where.items() if os.path.exists(path)}

    def remove(self) -> bool:
        """Try to take the folders away; False if one is still busy (an emptied group can be, for a moment)."""
        for folder in (*self.v1.values(), self.v2):
            try:
                if folder:
                    _remove_tree(folder)
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True


def _remove_tree(folder: str) -> None:
    """A nested deadstop that was killed leaves empty groups below ours. Not recursive: a payload chooses the depth."""
    found = [folder]
    for path in found:
        with os.scandir(path) as entries:
            found += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    for path in reversed(found):
        os.rmdir(path)


def _make(folder: str) -> str | None:
    try:
        os.mkdir(folder)
    except OSError:
        return None
    return folder


def _usable(folders: list[str]) -> str | None:
    """The first folder in which a group can be made and given a process's id file that we may write."""
    for folder in folders:
        trial = _make(f"{folder}/{PREFIX}{os.getpid()}-{_start_time(os.getpid())}-probe")
        if trial is None:
            continue
        writable = os.access(f"{trial}/cgroup.procs", os.W_OK) and os.access(f"{folder}/cgroup.procs", os.W_OK)
        os.rmdir(trial)
        if writable:
            return folder
    return None


def _delegated(folder: str) -> frozenset[str]:
    """v2 controllers that groups below `folder` get, switching them on where we may."""
    have = set(read(f"{folder}/cgroup.controllers").split()) & set(CONTROLLERS)
    active = set(read(f"{folder}/cgroup.subtree_control").split())
    missing = have - active
    if missing and not write(f"{folder}/cgroup.subtree_control", " ".join(f"+{name}" for name in missing)):
        missing_allowed = _step_aside(folder) and write(
            f"{folder}/cgroup.subtree_control", " ".join(f"+{name}" for name in missing)
        )
        if not missing_allowed:
            return frozenset(have & active)
    return frozenset(have)


def _step_aside(folder: str) -> bool:
    """A v2 group with processes cannot hand on controllers: move this process down, if it is the only one there."""
    if read(f"{folder}/cgroup.procs").split() != [str(os.getpid())]:
        return False
    leaf = f"{folder}/{PREFIX}{os.getpid()}-{_start_time(os.getpid())}-supervisor"
    return _make(leaf) is not None and write(f"{leaf}/cgroup.procs", str(os.getpid()))


def _sweep(folder: str) -> None:
    """Remove empty groups of supervisors that are gone (killed with -9, they could not do it themselves)."""
    try:
        names = [name for name in os.listdir(folder) if name.startswith(PREFIX)]
    except OSError:
        return
    for name in names:
        owner, _, start = name[len(PREFIX) :].rpartition("-")[0].partition("-")
        if not owner.isdigit() or _start_time(int(owner)) == start:
            continue
        try:
            if time.time() - os.stat(f"{folder}/{name}").st_ctime > _SWEEP_AFTER_S:
                _remove_tree(f"{folder}/{name}")
        except OSError:
            pass


def _start_time(pid: int) -> str:
    fields = read(f"/proc/{pid}/stat", 1024).rpartition(") ")[2].split()
    return fields[19] if len(fields) > 19 else ""


def _mounts() -> list[tuple[str, str, str]]:
    """(type, mount point, super options) of every cgroup mount, later ones first: they cover earlier ones."""
    found = []
    for line in read("/proc/self/mountinfo", 1 << 20).splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = [*right.split(" ", 2), "", ""][:3]
        if kind in ("cgroup", "cgroup2"):
            found.append((kind, left.split()[4], options))
    return found[::-1]


def _own_groups() -> dict[str, str]:
    """This process's group per v1 controller, and under "" in v2."""
    groups: dict[str, str] = {}
    for line in read("/proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            groups[name] = path.rstrip("/")
    return groups
