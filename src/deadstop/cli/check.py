# SPDX-License-Identifier: Apache-2.0
"""`deadstop run --check`: open the boundary a command would get, end it, and say what would hold."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from .. import clock
from ..boundary.cgroup import Hierarchies
from ..boundary.probe import STRONG, Trial, try_open
from ..executor.prepare import Prepared
from ..model import Command, Place

FAILED = 125
# What a sandbox shows of the host besides its binds; the rest of it is empty at the start.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")


def check(prepared: Prepared, told: Mapping[str, str] = MappingProxyType({}), against: Sequence[str] = ()) -> int:
    """Print one line for each thing asked for. 0 when all holds as asked, otherwise 125 and the reasons.

    Starts no command. A weaker proof of the kill is a note, not a failure. `told` are lines, and `against` reasons,
    that others know of.
    """
    command, place = prepared.command, prepared.place
    trial = try_open(place, Hierarchies())
    program, missing = _program(prepared)
    reasons = _reasons(command, place, trial) + missing + list(against)
    lines = [_level(place, trial), *_time(command), *_ceilings(command, place, trial)]
    lines += _surroundings(prepared)
    lines.append(_line("program", program))
    lines += [_line(name, text) for name, text in told.items()]
    lines += [_line("note", note) for note in _notes(command, trial)]
    lines += [_line("not as asked", reason) for reason in reasons]
    print("\n".join(lines))
    return FAILED if reasons else 0


def _line(name: str, text: str) -> str:
    return f"{name:<14}{text}"


def _reasons(command: Command, place: Place, trial: Trial) -> list[str]:
    """Why the command as asked for would not run, or would run with less than was asked for."""
    reasons = []
    if not trial.available:
        fix = f"; fix: {trial.fix}" if trial.fix else ""
        reasons.append(f"the {place.isolation} level is not available: {trial.reason}{fix}")
    if command.deadline is not None and command.deadline <= clock.monotonic():
        reasons.append("its deadline is over already")
    return reasons + list(trial.degraded)


def _notes(command: Command, trial: Trial) -> list[str]:
    notes = list(command.notes)
    if trial.available and trial.proof != STRONG:
        fix = f"; fix: {trial.fix}" if trial.fix else ""
        notes.append(f"weaker proof of a kill ({trial.proof}): {trial.reason}{fix}")
    return notes


def _level(place: Place, trial: Trial) -> str:
    if not trial.available:
        return _line("level", f"{place.isolation}: not available here")
    return _line("level", f"{place.isolation} (proof: {trial.proof}), opened in {trial.create_ms:.1f} ms")


def _time(command: Command) -> list[str]:
    limit = command.limit
    if limit is None:
        lines = [_line("time limit", "none")]
    else:
        seconds = clock.format_duration(limit.seconds) if limit.seconds else "0s"
        lines = [_line("time limit", f"{seconds} ({limit.which}, {limit.source}); grace {command.grace:g}s")]
    if command.idle_timeout is not None:
        lines.append(_line("idle limit", f"{clock.format_duration(command.idle_timeout)} without output"))
    return lines


def _ceilings(command: Command, place: Place, trial: Trial) -> list[str]:
    lines = []
    for name in ("memory", "pids", "cpus", "disk"):
        value, report = getattr(place.limits, name), trial.reports.get(name)
        source = "default" if name in place.limits.defaulted else "given"
        kept = f"kept by {report.enforced_by or 'none'}" if report else "not kept"
        lines.append(_line(name, "no limit" if value is None else f"{value}, {kept} ({source})"))
    output = command.output_limit
    lines.append(_line("output", "no limit" if output is None else f"{output}, kept by supervisor (given)"))
    return lines


def _surroundings(prepared: Prepared) -> list[str]:
    place = prepared.place
    if place.isolation == "process":
        folder = os.path.abspath(prepared.cwd or os.curdir)
        own = "the caller's own"
        return [_line("files", own), _line("network", own), _line("folder", folder)]
    binds = [_line("folder shown", _shown(*bind)) for bind in place.binds]
    files = _line("files", "a read-only system, private home and /tmp, and the folders shown")
    network = _line("network", "this host's, loopback included" if place.net else "none")
    return [files, *binds, network, _line("folder", prepared.command.cwd or "")]


def _shown(source: str, target: str, writable: bool) -> str:
    elsewhere = "" if source == target else f", from {source}"
    return f"{target} ({'writable' if writable else 'read-only'}{elsewhere})"


# -- the program ---------------------------------------------------------------------------------------------


def _program(prepared: Prepared) -> tuple[str, list[str]]:
    """The path that would be run, and why it cannot be."""
    command, sandbox = prepared.command, prepared.place.isolation == "sandbox"
    word = command.argv[0]
    base = command.cwd or "/" if sandbox else os.path.abspath(prepared.cwd or os.curdir)
    folders = [""] if "/" in word else os.get_exec_path(command.env)
    paths = [os.path.normpath(os.path.join(base, folder, word)) for folder in folders]
    unusable = ""
    for path in paths:
        host = _host_path(path, prepared.place) if sandbox else path
        if host and os.path.isfile(host):
            if os.access(host, os.X_OK):
                return path, []
            unusable = unusable or path
    if unusable:
        return f"{unusable} (not executable)", [f"{unusable} is not executable"]
    where = "inside the sandbox" if sandbox else "on this host"
    searched = "" if "/" in word else f" (PATH: {command.env.get('PATH', os.defpath)})"
    return f"{word} (not found)", [f"{word!r} is not found {where}{searched}"]


def _host_path(path: str, place: Place) -> str | None:
    """Where a path of the sandbox lies on the host; None for what is empty or made inside."""
    for source, target, _ in sorted(place.binds, key=lambda bind: -len(bind[1])):
        if path == target or path.startswith(target + "/"):
            return source + path[len(target) :]
    return path if any(path.startswith(folder + "/") for folder in _SYSTEM) else None
