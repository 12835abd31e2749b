# SPDX-License-Identifier: Apache-2.0
"""Two samples of the members of a boundary, and facts read on demand and kept for one look."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field, replace

from . import proc
from .locks import FileLocks
from .sockets import Sockets
from .view import View

_SAMPLED = 512  # processes; a fork storm has more, and is known by its number
_DESCRIPTORS = 256  # per process
_FEW = 16  # processes that one sample is judged of: the answer must be there before the second is due
_WALL_FACTOR = 4  # on a loaded machine CPU time passes slowly; the wall clock ends the look too, later


@dataclass
class Finding:
    """One answer to "what is this process waiting for", with the processes that it waits for.

    operation is what the deciding thread does. chain: host pids from the start of the walk to `pid`.
    """

    kind: str
    pid: int
    detail: str
    confidence: float
    waits_for: list[int] = field(default_factory=list)
    operation: str = ""
    chain: list[int] = field(default_factory=list)


class Snapshot:
    """The members of `view`, sampled once when made and again by `sample_again`."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._wall_start = time.monotonic()
        self._cpu_start = time.thread_time()
        self.cut_short = False
        self.denied: set[int] = set()
        self.locks = FileLocks()
        self.sockets = Sockets()
        self.pids = members(view)
        self.before = self._sample(self.pids)
        self.after = self.before
        self._spent = self._run_times()
        self._counters = self._read_counters()
        self.growth: dict[str, int] = {}
        self.counters = self._counters
        self._newest = self._newest_number(self.pids)
        self.forks = 0
        self.window = 0.0
        self._sampled_at = time.monotonic()
        self.uptime = proc.uptime()
        self._numbers: dict[int, int] = {}
        self._known: dict[tuple[int, int], tuple[str, str]] = {}
        self._holders: dict[tuple[str, str], list[tuple[int, int]]] | None = None
        self._children: dict[int, list[int]] | None = None

    def early(self) -> Snapshot | None:
        """What the first sample alone can be judged by, while the window is open; None where it could mislead.

        What runs is known by how much it ran in the window, so all must be asleep. It spends of the same budget.
        """
        if self.view.window <= 0 or not 0 < len(self.pids) <= _FEW or not self._all_asleep():
            return None
        first = copy.copy(self)
        first.view = replace(self.view, window=0.0)
        first._known, first._holders, first._children = {}, None, None
        return first

    def sample_again(self) -> None:
        """Sleep for what is left of the window, then sample again. A window of 0 keeps the first sample."""
        if self.view.window <= 0:
            return
        time.sleep(max(0.0, self._sampled_at + self.view.window - time.monotonic()))
        self.window = time.monotonic() - self._sampled_at
        now = members(self.view)
        self.pids = now
        self.after = self._sample(now)
        self.counters = self._read_counters()
        self.growth = {key: self.counters[key] - old for key, old in self._counters.items() if key in self.counters}
        self.forks = max(0, self._newest_number(now) - self._newest)
        self.uptime = proc.uptime()

    def close(self) -> None:
        """Let go of what was opened for the look."""
        self.sockets.close()

    def over_budget(self) -> bool:
        """Whether the look should end; once true it stays true, and the diagnosis is marked incomplete."""
        spent = time.thread_time() - self._cpu_start
        elapsed = time.monotonic() - self._wall_start
        if spent > self.view.budget or elapsed > _WALL_FACTOR * self.view.budget + self.view.window:
            self.cut_short = True
        return self.cut_short

    def age(self, pid: int) -> float:
        """Seconds since the process was started."""
        return max(self.uptime - self.after[pid].started, 0.0)

    def who(self, pid: int) -> str:
        """How a process is named to people: its number inside the boundary, and its name."""
        found = self.after.get(pid)
        if found is None:
            return "a process outside"
        return f"pid {self.number(pid)} ({found.name})"

    def number(self, pid: int) -> int:
        """The pid inside the innermost namespace."""
        if pid not in self._numbers:
            self._numbers[pid] = proc.namespace_pid(pid)
        return self._numbers[pid]

    def children(self, pid: int) -> list[int]:
        """Member children of a member."""
        if self._children is None:
            self._children = {}
            for found in self.after.values():
                self._children.setdefault(found.parent, []).append(found.pid)
        return [child for child in self._children.get(pid, []) if child in self.after]

    def descriptor(self, pid: int, number: int) -> tuple[str, str]:
        """proc.descriptor, read once; a refusal is noted in `denied`."""
        if (pid, number) not in self._known:
            found = self._known[pid, number] = proc.descriptor(pid, number)
            if found[0] == "denied":
                self.denied.add(pid)
        return self._known[pid, number]

    def pipe_holders(self, key: str, writers: bool) -> list[int]:
        """Members that hold the writing (or reading) end of a pipe."""
        wanted = 1 if writers else 0
        found = self._holder_index().get(("pipe", key), [])
        return sorted({pid for pid, number in found if proc.access_mode(pid, number) in (2, wanted)})

    def socket_holders(self, inode: int) -> list[int]:
        """Members that hold a socket."""
        return sorted({pid for pid, _number in self._holder_index().get(("socket", str(inode)), [])})

    def cpu_share(self, pid: int) -> float:
        """CPUs used during the window; measured over 4 ms now if the first sample gave no reason to count."""
        if self.window <= 0:
            return 0.0
        threads = self.after[pid].threads
        if pid in self._spent:
            return (proc.run_time(pid, threads)[0] - self._spent[pid][0]) / 1e9 / (time.monotonic() - self._sampled_at)
        start, first = time.monotonic(), proc.run_time(pid, threads)[0]
        time.sleep(0.004)
        return (proc.run_time(pid, threads)[0] - first) / 1e9 / (time.monotonic() - start)

    def always_runnable(self, pid: int) -> bool:
        """Runnable in both samples: on a loaded machine a busy process may get no CPU during the window."""
        old = self.before.get(pid)
        return self.window > 0 and old is not None and old.state == "R" and self.after[pid].state == "R"

    def major_faults(self, pid: int) -> int:
        """Major page faults during the window."""
        old = self.before.get(pid)
        return self.after[pid].major_faults - old.major_faults if old is not None else 0

    def _sample(self, pids: list[int]) -> dict[int, proc.Stat]:
        return {pid: found for pid in pids[:_SAMPLED] if (found := proc.stat(pid)) is not None}

    def _all_asleep(self) -> bool:
        for found in self.before.values():
            threads = proc.names(f"/proc/{found.pid}/task", _FEW + 1) if found.threads > 1 else []
            states = [stat.state for name in threads if (stat := proc.stat(found.pid, int(name)))]
            if len(threads) > _FEW or "R" in (found.state, *states):
                return False
        return True

    def _run_times(self) -> dict[int, tuple[int, int, int]]:
        if self.view.window <= 0:
            return {}
        busy = [found for found in self.before.values() if found.state == "R" or found.threads > 1]
        return {found.pid: proc.run_time(found.pid, found.threads) for found in busy[:64]}

    def _newest_number(self, pids: list[int]) -> int:
        """The highest inner pid: it grows with every fork, even of processes that are gone already."""
        if len(pids) <= 40 or self.view.window <= 0:  # too few for a fork storm
            return 0
        return max((proc.namespace_pid(pid) for pid in sorted(pids)[-8:]), default=0)

    def _read_counters(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for key, path in self.view.cgroup.items():
            if key == "procs":
                continue
            for line in proc.read(path, 4096).splitlines():
                words = line.split()
                if len(words) == 1 and words[0].isdigit():
                    found[key] = int(words[0])
                elif len(words) == 2 and words[1].isdigit():
                    found[f"{key}.{words[0].decode('ascii', 'replace')}"] = int(words[1])
        return found

    def _holder_index(self) -> dict[tuple[str, str], list[tuple[int, int]]]:
        if self._holders is None:
            self._holders = {}
            for pid in self.after:
                if self.over_budget():
                    break
                self._index_descriptors(pid, self._holders)
        return self._holders

    def _index_descriptors(self, pid: int, index: dict[tuple[str, str], list[tuple[int, int]]]) -> None:
        listed = proc.names(f"/proc/{pid}/fd", _DESCRIPTORS)
        if not listed and self.after[pid].state not in "ZX":
            self.descriptor(pid, 0)  # notes a refusal
        for name in listed:
            found = self.descriptor(pid, int(name))
            if found[0] in ("pipe", "socket"):
                index.setdefault(found, []).append((pid, int(name)))


def members(view: View) -> list[int]:
    """Host pids inside the boundary, the leader first; without its root and our helpers."""
    listed = proc.read_whole(view.cgroup["procs"], 1 << 18).split() if "procs" in view.cgroup else []
    pids = [int(word) for word in listed if word.isdigit()] or proc.descendants(view.root)
    hidden = view.ours | {view.root, 0}
    found = [pid for pid in pids if pid not in hidden]
    if view.leader in found:
        found.remove(view.leader)
        found.insert(0, view.leader)
    return found
