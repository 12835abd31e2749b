# SPDX-License-Identifier: Apache-2.0
"""From the limits asked for to what enforces each one here, and what is said where something weaker stands in."""

from __future__ import annotations

import math
import os
import resource
from dataclasses import dataclass, field

from ..model import Files, Limits
from ..results import LimitReport
from .cgroup import Group, Hierarchies

MIB = 1 << 20
SCRATCH = 256 * MIB  # of /dev/shm and /run together, where the other private files are kept elsewhere
# Helpers of ours that live in the same group as the payload: init, and in a sandbox bwrap twice, holder, agent, pid 1.
HELPERS = {"process": 1, "sandbox": 6}


DEFAULTS = {
    # A fork bomb behind a five-minute limit would take the host first: bound it even where nothing was asked for.
    "process": Limits(pids=4096),
    "sandbox": Limits(memory=2048 * MIB, pids=512, disk=1024 * MIB),
}


@dataclass
class Applied:
    """How the limits are kept: the group, what each command sets on itself, the reports, what could not be given."""

    group: Group | None = None
    rlimits: list[tuple[int, int]] = field(default_factory=list)
    affinity: set[int] | None = None
    private_disk: int | None = None
    reports: dict[str, LimitReport] = field(default_factory=dict)
    degraded: list[str] = field(default_factory=list)

    def report(self, limits: Limits, name: str, enforced_by: str, weaker: str = "") -> None:
        value = getattr(limits, name)
        source = "default" if name in limits.defaulted else "given"
        self.reports[name] = LimitReport(value, enforced_by, source)
        if weaker and source == "given":
            self.degraded.append(f"{name}: {weaker}")


def apply(limits: Limits, level: str, hierarchies: Hierarchies, *, user_namespace: bool) -> Applied:
    """Make the group and say what keeps each limit. `user_namespace`: a process count of its own is possible."""
    applied = Applied()
    group = _group(limits, level, hierarchies, applied)
    enforced = group.enforced if group else set()
    _memory(limits, enforced, applied)
    _pids(limits, level, enforced, applied, user_namespace)
    _cpus(limits, enforced, applied)
    _disk(limits, level, applied)
    if level == "sandbox":
        applied.rlimits += [
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_NOFILE, 4096),
            (resource.RLIMIT_MEMLOCK, 65536),
        ]
    return applied


def _group(limits: Limits, level: str, hierarchies: Hierarchies, applied: Applied) -> Group | None:
    wanted = [("memory", limits.memory), ("pids", limits.pids), ("cpu", limits.cpus)]
    if not hierarchies.can_kill and not any(value and hierarchies.enforces(name) for name, value in wanted):
        return None
    pids = limits.pids + HELPERS[level] if limits.pids else None
    applied.group = hierarchies.create(memory=limits.memory, pids=pids, cpus=limits.cpus)
    return applied.group


def _memory(limits: Limits, enforced: set[str], applied: Applied) -> None:
    if limits.memory is None:
        return
    if "memory" in enforced:
        applied.report(limits, "memory", "cgroup")
    elif "memory" in limits.defaulted:
        applied.report(limits, "memory", "none")  # RLIMIT_AS would break programs that only reserve much (Java, node)
    else:
        applied.rlimits.append((resource.RLIMIT_AS, limits.memory))
        weaker = "no cgroup with a memory controller: address space of each single process instead (RLIMIT_AS)"
        applied.report(limits, "memory", "rlimit", weaker)


def _pids(limits: Limits, level: str, enforced: set[str], applied: Applied, user_namespace: bool) -> None:
    if limits.pids is None:
        return
    if "pids" in enforced:
        applied.report(limits, "pids", "cgroup")
    elif user_namespace or level == "sandbox":  # as root each sandbox has a host user of its own
        # Counted per user inside its own user namespace (Linux 5.14): a count of the boundary alone, without a cgroup.
        applied.rlimits.append((resource.RLIMIT_NPROC, limits.pids + HELPERS[level]))
        applied.report(limits, "pids", "rlimit")
    elif os.geteuid() != 0:
        applied.rlimits.append((resource.RLIMIT_NPROC, _own_processes() + limits.pids))
        weaker = "no cgroup with a pids controller: counted over all processes of this user instead (RLIMIT_NPROC)"
        applied.report(limits, "pids", "rlimit", weaker)
    else:
        applied.report(limits, "pids", "none", "no cgroup with a pids controller, and root is exempt from RLIMIT_NPROC")


def _own_processes() -> int:
    """Threads of this user now: what RLIMIT_NPROC counts."""
    total, user = 0, os.geteuid()
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:
                total += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue
    return total


def _cpus(limits: Limits, enforced: set[str], applied: Applied) -> None:
    if limits.cpus is None:
        return
    if "cpu" in enforced:
        applied.report(limits, "cpus", "cgroup")
        return
    usable = sorted(os.sched_getaffinity(0))
    applied.affinity = set(usable[: max(1, math.ceil(limits.cpus))])
    weaker = f"no cgroup with a cpu controller: bound to {len(applied.affinity)} of {len(usable)} processors instead"
    applied.report(limits, "cpus", "affinity", weaker)


def bound_files(limits: Limits, files: Files, applied: Applied) -> None:
    """The disk limit of files that outlive the boundary is kept by whoever made them, or by nobody."""
    applied.private_disk = SCRATCH
    applied.rlimits = [pair for pair in applied.rlimits if pair[0] != resource.RLIMIT_FSIZE]
    applied.degraded = [line for line in applied.degraded if not line.startswith("disk")]
    if files.bounded:
        applied.report(limits, "disk", "quota")
    else:
        assert limits.disk is not None
        applied.rlimits.append((resource.RLIMIT_FSIZE, limits.disk))
        applied.report(limits, "disk", "rlimit", "bounds each single file only (RLIMIT_FSIZE), not their sum")


def _disk(limits: Limits, level: str, applied: Applied) -> None:
    if limits.disk is None:
        return
    if level == "sandbox":
        applied.private_disk = limits.disk
        applied.report(limits, "disk", "tmpfs")
    else:
        applied.report(limits, "disk", "rlimit", "bounds each single file only (RLIMIT_FSIZE), not their sum")
    if level != "sandbox" or "disk" not in limits.defaulted:
        applied.rlimits.append((resource.RLIMIT_FSIZE, limits.disk))
