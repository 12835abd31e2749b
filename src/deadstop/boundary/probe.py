# SPDX-License-Identifier: Apache-2.0
"""What this host can give, found out by doing: every level is really opened, killed and collected.

Nothing is concluded from a version or a file alone. Those are read afterwards, to say why something was
refused and what would change that; a fix is named only where the host shows that it is the one.
"""

from __future__ import annotations

import dataclasses
import os
import select
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import BoundaryUnavailable
from ..model import Limits, Place
from ..results import LimitReport
from .remedies import cgroup_fix, has_sys_admin, kernel_version, namespace_fix, proc_fix, setting

if TYPE_CHECKING:
    from .base import Boundary
    from .cgroup import Hierarchies

__all__ = ["HostReport", "LevelReport", "LimitSupport", "Trial", "probe", "try_open"]

BOUND_S = 5.0  # for a boundary to stand, and for it to be gone
RELEASE_S = 0.5
STRONG = "pid_namespace_reaped"
# Small enough for any group we may be in, large enough for our own helpers.
TRIAL_LIMITS = Limits(memory=256 << 20, pids=64, cpus=0.5, disk=16 << 20)
LIMITS = ("memory", "pids", "cpus", "disk", "output")
CONTROLLERS = {"memory": "memory", "pids": "pids", "cpus": "cpu"}


@dataclass(frozen=True, slots=True)
class LevelReport:
    """One level. `proof` is what a kill in it is shown by; `reason` says why it is missing or weaker."""

    name: str
    available: bool
    proof: str = "none"
    create_ms: float | None = None
    reason: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class LimitSupport:
    """What keeps one limit at one level ("none": nothing); `reason` and `fix` where that is less than meant."""

    level: str
    name: str
    enforced_by: str
    reason: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class HostReport:
    """What `probe` found."""

    platform: str
    kernel: str
    user: str
    levels: tuple[LevelReport, ...]
    limits: tuple[LimitSupport, ...]
    remarks: tuple[str, ...] = ()

    def level(self, name: str) -> LevelReport:
        return next(level for level in self.levels if level.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            **dataclasses.asdict(self),
            "levels": [dataclasses.asdict(level) for level in self.levels],
            "limits": [dataclasses.asdict(limit) for limit in self.limits],
            "remarks": list(self.remarks),
        }


@dataclass(slots=True)
class Trial:
    """A boundary that was opened and ended. `kind` is its class; `reason`: why it is missing or weaker."""

    kind: str = ""
    available: bool = False
    proof: str = "none"
    create_ms: float | None = None
    reason: str = ""
    fix: str = ""
    reports: dict[str, LimitReport] = field(default_factory=dict)
    degraded: tuple[str, ...] = ()  # limits and folders that are not as asked for
    own_proc: bool = True


def probe() -> HostReport:
    """Open, end and measure every level. Takes well under a second; at most some 20 s where a host is stuck.

    Only for a process with one thread. Where namespaces are refused it stays a subreaper afterwards.
    """
    if _platform() != "linux":
        return _elsewhere()
    from .cgroup import Hierarchies

    hierarchies = Hierarchies()
    trials = {name: try_open(Place(name, TRIAL_LIMITS), hierarchies) for name in ("process", "sandbox")}
    limits = [_limit_support(level, name, trial, hierarchies) for level, trial in trials.items() for name in LIMITS]
    return HostReport(
        platform="linux",
        kernel=os.uname().release,
        user="root" if os.geteuid() == 0 else f"uid {os.geteuid()}",
        levels=(_INLINE, *(_level_report(name, trial) for name, trial in trials.items()), _MICROVM),
        limits=tuple(limits),
        remarks=tuple(_remarks(trials["process"])),
    )


_INLINE = LevelReport("inline", True, reason="runs in the caller itself: nothing can be killed")
_MICROVM = LevelReport("microvm", False, reason="not in this version")


def _platform() -> str:
    return sys.platform


def _elsewhere() -> HostReport:
    reason = f"boundaries are made of Linux namespaces, pidfds and control groups; this is {_platform()}"
    refused = [LevelReport(name, False, reason=reason, fix="run it on Linux (a virtual machine counts)")
               for name in ("process", "sandbox")]  # fmt: skip
    user = f"uid {os.geteuid()}" if hasattr(os, "geteuid") else ""
    kernel = os.uname().release if hasattr(os, "uname") else ""
    return HostReport(_platform(), kernel, user, (_INLINE, *refused, _MICROVM), ())


def _level_report(name: str, trial: Trial) -> LevelReport:
    return LevelReport(name, trial.available, trial.proof, trial.create_ms, trial.reason, trial.fix)


# -- opening -------------------------------------------------------------------------------------------------


def try_open(place: Place, hierarchies: Hierarchies) -> Trial:
    """Open the boundary that `place` asks for as a command would get it, end it, and say what came of it.

    Starts no command and leaves nothing. Never raises BoundaryUnavailable: see `Trial.available`. Bounded by
    BOUND_S for each of opening and ending. Needs what `probe` needs.
    """
    from .open import open_boundary, open_fallback

    begun = time.monotonic()
    try:
        trial = _use(open_boundary(place, hierarchies), begun)
        if not trial.available and place.isolation == "process":
            refusal = trial.reason
            trial = _use(open_fallback(place, hierarchies), time.monotonic())
            trial.reason = f"namespaces are given here but of no use: {refusal}"
            trial.fix = namespace_fix(0)
    except BoundaryUnavailable as problem:
        trial = Trial(reason=problem.reason, fix=problem.fix)
    except OSError as problem:
        trial = Trial(reason=f"{problem.filename or 'set-up'}: {problem.strerror}")
    _explain(place.isolation, trial)
    return trial


def _use(boundary: Boundary, begun: float) -> Trial:
    """Wait until it stands or has failed, then end it."""
    reports = dict(boundary.applied.reports)
    trial = Trial(type(boundary).__name__, reports=reports, degraded=tuple(boundary.applied.degraded))
    try:
        message = _first_message(boundary)
        trial.create_ms = round((time.monotonic() - begun) * 1000, 2)
    finally:
        trial.proof = _end(boundary)
    if message[:1] != ("ready",):
        trial.reason, trial.proof, trial.create_ms = str(message[2]), "none", None
        return trial
    trial.available = True
    trial.own_proc = bool(boundary.facts.get("own_proc"))
    remarks = boundary.facts.get("degraded")
    trial.degraded += tuple(remarks) if isinstance(remarks, list) else ()
    if trial.proof == "none":
        trial.reason = f"it was opened, but could not be shown to have ended within {BOUND_S:g} s of the kill"
    return trial


def _first_message(boundary: Boundary) -> tuple[object, ...]:
    if not _readable(boundary.lifeline.fileno()):
        return "failed", 0, f"no answer within {BOUND_S:g} s"
    message, fds = boundary.receive() or ((), [])
    for fd in fds:
        os.close(fd)
    return message or ("failed", 0, "its first process ended without a word")


def _end(boundary: Boundary) -> str:
    """Kill it; what its end proves."""
    from .subreaper import SubreaperBoundary

    boundary.kill()
    gone = _readable(boundary.exit_fd)
    if not gone and isinstance(boundary, SubreaperBoundary):
        boundary.kill_reaper()
        gone = _readable(boundary.exit_fd)
    proof = boundary.collect().proof if gone else "none"
    boundary.close()
    end = time.monotonic() + RELEASE_S
    while not boundary.release() and time.monotonic() < end:
        time.sleep(0.002)  # an emptied group is busy for a moment
    return proof


def _readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(BOUND_S * 1000))


# -- why, and what would change it ---------------------------------------------------------------------------


def _explain(level: str, trial: Trial) -> None:
    """Add why it is missing or weaker: from one more trial of namespaces alone, and the host's settings."""
    from .cgroup import denied

    weak = level == "process" and trial.kind == "SubreaperBoundary" and not trial.reason
    missing = level == "sandbox" and not trial.available and "bubblewrap (bwrap)" not in trial.reason
    if "userns" in denied() and (weak or missing):
        trial.reason, trial.fix = "namespaces are denied by DEADSTOP_DENY", "unset DEADSTOP_DENY"
    elif weak:
        number = _refusal()
        trial.reason = f"the host refuses namespaces ({os.strerror(number) if number else 'this time only'})"
        trial.fix = namespace_fix(number)
    elif missing and "/proc" in trial.reason:
        trial.fix = proc_fix()
    elif missing:
        trial.fix = namespace_fix(_refusal()) or trial.fix


def _refusal() -> int:
    """The errno of making a bare pid namespace, 0 where it works."""
    from .limits import Applied
    from .process import ProcessBoundary

    try:
        boundary = ProcessBoundary(Applied())
    except OSError as problem:
        return problem.errno or 0
    _end(boundary)
    return 0


def _limit_support(level: str, name: str, trial: Trial, hierarchies: Hierarchies) -> LimitSupport:
    if name == "output":
        return LimitSupport(level, name, "supervisor" if trial.available else "none")
    if not trial.available:
        return LimitSupport(level, name, "none", f"the {level} level is not available")
    report = trial.reports[name]
    reason = next((text.partition(": ")[2] for text in trial.degraded if text.startswith(f"{name}: ")), "")
    if name == "disk":
        fix = "use the sandbox level, which bounds all private files together" if reason else ""
        return LimitSupport(level, name, report.enforced_by or "none", reason, fix)
    controller = CONTROLLERS[name]
    why = hierarchies.reasons.get(controller)
    if not reason:
        return LimitSupport(level, name, report.enforced_by or "none")
    reason = f"{reason} ({why})" if why else reason
    return LimitSupport(level, name, report.enforced_by or "none", reason, cgroup_fix(controller))


# -- remarks -------------------------------------------------------------------------------------------------


def _remarks(process: Trial) -> list[str]:
    """What an answer of yes or no leaves out."""
    root, namespaces = os.geteuid() == 0, process.kind == "ProcessBoundary"
    yama, version = setting("kernel/yama/ptrace_scope"), kernel_version()
    remarks = {
        "root has no CAP_SYS_ADMIN here and can make no namespaces: an ordinary user may be given more": (
            root and not has_sys_admin()
        ),
        "setuid programs (sudo, su) gain no privilege inside a boundary of an ordinary user": namespaces and not root,
        f"process: /proc inside shows the host's processes, the proof is the same; fix: {proc_fix()}": (
            namespaces and not process.own_proc
        ),
        f"kernel.yama.ptrace_scope is {yama}: a payload's memory cannot be read, so evidence says less": (
            yama == "3" or (yama == "2" and not root and not namespaces)
        ),
        "kernel older than 5.7: nothing can be born inside its control group": version < (5, 7),
        "kernel older than 5.14: no cgroup.kill; RLIMIT_NPROC counts a user's processes host-wide": version < (5, 14),
    }
    return [text for text, holds in remarks.items() if holds]
