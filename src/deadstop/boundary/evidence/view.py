# SPDX-License-Identifier: Apache-2.0
"""What the supervisor knows about a running call when it asks why the call does not end."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class View:
    """One call, as seen from outside its boundary.

    root: host pid of the boundary's pid 1 or of its reaper; it is never shown nor blamed.
    leader: host pid of the command's first process.
    ours: host pids of helper processes inside the tree; never shown nor blamed.
    tail: the last output, both streams.
    stdin: "null", "open" or "tty".
    cgroup: paths of "procs", "pids", "pids_max", "pids_events", "mem_failcnt", "mem_events"; any may be
    missing. out_rate: bytes of output per second, lately. elapsed: seconds since the start. window: seconds
    between the two samples. budget: seconds of CPU time the reader may burn. reused: the leader has done other
    work before: its counters say nothing about this call. stacks: ask for Python stacks, if py-spy is installed.
    """

    root: int
    leader: int
    ours: frozenset[int] = frozenset()
    tail: bytes = b""
    stdin: str = "null"
    cgroup: dict[str, str] = field(default_factory=dict)
    out_rate: float = 0.0
    elapsed: float = 0.0
    window: float = 0.015
    budget: float = 0.05
    reused: bool = False
    stacks: bool = False
