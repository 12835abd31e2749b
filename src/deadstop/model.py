# SPDX-License-Identifier: Apache-2.0
"""What is asked for: one command, its limits and its place, as frozen data that can travel to the supervisor."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from .results import FiredLimit


class Isolation(StrEnum):
    """Where a call runs. Two separate questions: can it be killed, is it confined."""

    PROCESS = "process"  #: killed as a whole; the caller's files, network, user and environment
    SANDBOX = "sandbox"  #: killed as a whole and confined: read-only system, private files, no network unless asked


@dataclass(frozen=True, slots=True)
class Limits:
    """Ceilings of one boundary; None is unlimited. Memory and disk in bytes, pids a count, cpus a number such as 0.5.

    `disk` in a sandbox bounds its private files (/tmp and the home folder together); elsewhere only each single file.
    `defaulted` names the limits that nobody asked for.
    """

    memory: int | None = None
    pids: int | None = None
    cpus: float | None = None
    disk: int | None = None
    defaulted: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Files:
    """The writable files of a sandbox that is kept: folders of its server's, that outlive the boundary.

    `binds` are (host path, path inside); `overlay` is (root, lower folders, upper, work), the others relative to the
    first, with `home` and `tmp` in it. `system` is a folder shown above /usr. `bounded`: something bounds their size.
    """

    binds: tuple[tuple[str, str], ...] = ()
    overlay: tuple[str, tuple[str, ...], str, str] | None = None
    system: str | None = None
    bounded: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """What boundary to make: its kind, its ceilings, and for a sandbox what it may see.

    `binds` are (host path, path inside, writable). Two commands share a boundary only if they share the object.
    """

    isolation: str = "process"
    limits: Limits = Limits()
    net: bool = False
    binds: tuple[tuple[str, str, bool], ...] = ()
    files: Files | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """One command to be run in a boundary, everything resolved: no default is applied after this.

    `deadline` and `hard_end` are points on CLOCK_MONOTONIC: SIGTERM goes out at the first, SIGKILL `grace` seconds
    later but never after the second. `limit` says where the deadline comes from. `cwd` is a path inside a sandbox;
    elsewhere the folder travels as a descriptor.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    tool: str
    call_id: str
    cwd: str | None = None
    task_id: str | None = None
    limit: FiredLimit | None = None
    deadline: float | None = None
    hard_end: float | None = None
    idle_timeout: float | None = None
    grace: float = 0.5
    stdin: str = "null"  # null, open (the caller's descriptor or data) or tty
    tty: tuple[int, int] | None = None  # rows, columns
    tail: int = 65536
    output_limit: int | None = None
    on_input_wait: str = "wait"
    evidence_paths: tuple[str, ...] = ()
    umask: int = 0o022
    nice: int = 0
    oom_score_adj: int = 0
    open_files: tuple[int, int] = (1024, 4096)  # the caller's RLIMIT_NOFILE: the supervisor raises its own
    stream: bool = False
    own_part: bool = False  # in a kept boundary: what ends it ends what it started, and not the boundary
    rlimits: tuple[tuple[int, int], ...] = ()  # of this command, besides the boundary's
    notes: tuple[str, ...] = field(default=())  # what the result should say in `degraded`


def command_to_dict(command: Command) -> dict[str, Any]:
    return dataclasses.asdict(command)


def command_from_dict(document: dict[str, Any]) -> Command:
    """The inverse of `command_to_dict` after JSON, which has no tuples."""
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in document.items()
    }
    values["rlimits"] = tuple((which, value) for which, value in document["rlimits"])
    values["limit"] = FiredLimit(**document["limit"]) if document["limit"] else None
    return Command(**values)


def place_to_dict(place: Place) -> dict[str, Any]:
    return {**dataclasses.asdict(place), "limits": _limits_to_dict(place.limits)}


def place_from_dict(document: dict[str, Any]) -> Place:
    limits = {**document["limits"], "defaulted": frozenset(document["limits"]["defaulted"])}
    binds = tuple((source, target, writable) for source, target, writable in document["binds"])
    return Place(document["isolation"], Limits(**limits), document["net"], binds, _files(document["files"]))


def _files(document: dict[str, Any] | None) -> Files | None:
    if document is None:
        return None
    binds = tuple((source, target) for source, target in document["binds"])
    overlay = document["overlay"]
    if overlay is not None:
        root, lowers, upper, work = overlay
        overlay = root, tuple(lowers), upper, work
    return Files(binds, overlay, document["system"], document["bounded"])


def _limits_to_dict(limits: Limits) -> dict[str, Any]:
    return {**dataclasses.asdict(limits), "defaulted": sorted(limits.defaulted)}
