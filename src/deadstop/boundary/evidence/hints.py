# SPDX-License-Identifier: Apache-2.0
"""One hint per kind of diagnosis: the shape of a fix, never a command. The keys are all the kinds."""

from __future__ import annotations

HINTS = {
    "waiting_for_input": (
        "it asked a question nobody can answer here: pass the answer as an argument, file or environment "
        "setting, or use the tool's non-interactive mode"
    ),
    "cpu_spin": (
        "it was computing without pause: give it less input, bound the loop or the pattern, or allow more "
        "time if the work is known to be long"
    ),
    "network_wait": (
        "the other end did not answer: check that the address is right and reachable from here, and set a "
        "connect and read timeout in the tool itself"
    ),
    "serving": ("it is a server and runs until stopped: start it in the background, wait for its port, then go on"),
    "sleeping": "it slept on purpose: shorten the wait, or wait for the condition instead of a fixed time",
    "event_wait": (
        "it watches for events and never ends by itself: use a form that reads once and exits, or bound "
        "it by count or time"
    ),
    "disk_wait": ("the disk or a network file system did not answer: check the mount; trying again now will wait too"),
    "lock_wait": (
        "it waits for a lock: if another process is named, let that one finish; if it is its own threads, "
        "it is a deadlock in the program"
    ),
    "pipe_wait": (
        "its own processes wait for each other through a pipe: read the output while the child runs, "
        "close unused pipe ends, or write to a file"
    ),
    "fork_storm": "it starts processes without end: bound the recursion or the number of parallel jobs",
    "memory_pressure": "it does not fit in its memory limit: work on smaller pieces or ask for more memory",
    "output_flood": "it prints without end: filter or limit the output at its source",
    "retry_loop": (
        "it tries the same thing again and again: read the repeated error, mend its cause, and bound the "
        "number of tries"
    ),
    "stopped": (
        "a process was suspended by job control or a signal: do not start it in the background with a "
        "terminal; continue or end it"
    ),
    "zombie_wait": (
        "a child is dead but its parent does not collect it: the parent waits for something else; look at the parent"
    ),
    "waiting_for_child": "it waits for a child whose own reason is not known: run that child alone",
    "unknown": "no single cause could be read; see the process list",
}

# Where several branches of the wait graph have an answer, the one nearer the front explains more.
RANK = (
    "memory_pressure", "lock_wait", "waiting_for_input", "network_wait", "disk_wait", "pipe_wait", "stopped",
    "output_flood", "fork_storm", "retry_loop", "cpu_spin", "sleeping", "serving", "event_wait",
    "zombie_wait", "waiting_for_child", "unknown",
)  # fmt: skip


def rank(kind: str) -> int:
    """Position in RANK."""
    return RANK.index(kind)
