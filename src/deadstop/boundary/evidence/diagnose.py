# SPDX-License-Identifier: Apache-2.0
"""The rules for the whole boundary: walk the wait graph from the leader to whoever waits for something
outside.

A process waits for its child, for the other end of its pipe or socket, or for the outside. The last one is
blamed. A cycle in the graph is a deadlock, proven by the facts and not by a guess.
"""

from __future__ import annotations

import time

from . import proc, prompts
from .hints import rank
from .processes import explain
from .snapshot import Finding, Snapshot

_EDGES = 8  # processes followed from one process
_FAULTS = 50  # major page faults in a life: more than a start makes whose files are not in memory
_FLOOD = 3e5  # bytes of output per second
VAGUE = ("unknown", "waiting_for_child")


def diagnose(snapshot: Snapshot) -> Finding:
    """The one finding for a boundary. Processes may end meanwhile; kind "unknown" at worst."""
    if not snapshot.after:
        return Finding("unknown", snapshot.view.leader, "no process is left inside", 0.1)
    finding = _fork_storm(snapshot) or _memory_pressure(snapshot)
    if finding is not None:
        return finding
    walk = _Walk(snapshot)
    leader = snapshot.view.leader if snapshot.view.leader in snapshot.after else snapshot.pids[0]
    finding = walk.start(leader)
    finding = _endless_commands(snapshot, finding)
    finding = _flood(snapshot, finding)
    if finding.kind in VAGUE:  # the leader explains nothing: any other process that is busy or blocked on the outside
        finding = walk.elsewhere(finding)
    finding = _end_of_input(snapshot, finding)
    if finding.kind == "waiting_for_input" and (question := prompts.ended_on_prompt(snapshot.view.tail)):
        finding.confidence = max(finding.confidence, 0.99 if finding.confidence >= 0.8 else 0.6)
        finding.detail += f"; last output {question[-60:]!r}"
    return finding


class _Walk:
    """Depth first over the wait graph; every process is explained at most once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._explained: dict[int, Finding] = {}
        self._settled: dict[int, Finding] = {}

    def start(self, pid: int) -> Finding:
        return self._follow(pid, [pid])

    def elsewhere(self, vague: Finding) -> Finding:
        """The best explanation from processes the first walk has not reached; `vague` if there is none."""
        found: list[Finding] = []
        for pid in self._snapshot.after:
            if pid in self._explained or self._snapshot.over_budget():
                continue
            found.append(self.start(pid))
        telling = [finding for finding in found if finding.kind not in (*VAGUE, "zombie_wait")]
        if not telling:
            return vague
        best = min(telling, key=_order)
        best.confidence *= 0.7
        return best

    def _explain(self, pid: int) -> Finding:
        if pid not in self._explained:
            self._explained[pid] = explain(self._snapshot, pid)
        return self._explained[pid]

    def _follow(self, pid: int, path: list[int]) -> Finding:
        if pid in self._settled:
            return self._settled[pid]
        own = self._explain(pid)
        own.chain = [pid]
        results: list[Finding] = []
        for other in [other for other in own.waits_for if other in self._snapshot.after][:_EDGES]:
            if other in path:
                return self._circle(own, [*path[path.index(other) :], other])
            if len(path) < 64:
                results.append(self._follow(other, [*path, other]))
        answer = self._combine(own, results) if results else own
        self._settled[pid] = answer
        return answer

    def _circle(self, own: Finding, pids: list[int]) -> Finding:
        shown = " -> ".join(self._snapshot.who(pid) for pid in pids)
        kind = own.kind if own.kind in ("network_wait", "lock_wait") else "pipe_wait"
        return Finding(kind, own.pid, f"{own.detail}; circle: {shown}", 0.95, chain=[own.pid])

    def _combine(self, own: Finding, results: list[Finding]) -> Finding:
        best = min(results, key=_order)
        if own.kind == "network_wait" and best.kind in (*VAGUE, "serving", "event_wait"):
            own.chain = [own.pid, *best.chain]
            own.detail += "; " + best.detail
            return own
        if best.kind in VAGUE and own.kind != "unknown":
            own.chain = [own.pid, *best.chain]
            own.detail += "; " + best.detail
            return own
        if own.kind == "pipe_wait" and own.operation == "write" and best.kind == "sleeping":
            detail = f"{own.detail}, which does not read: {best.detail}"
            return Finding("pipe_wait", best.pid, detail, 0.85, chain=[own.pid, *best.chain])
        return Finding(best.kind, best.pid, best.detail, best.confidence, chain=[own.pid, *best.chain])


def _order(finding: Finding) -> tuple[int, float]:
    return rank(finding.kind), -finding.confidence


def _fork_storm(snapshot: Snapshot) -> Finding | None:
    count, window = len(snapshot.pids), max(snapshot.window, 1e-3)
    counters, growth = snapshot.counters, snapshot.growth
    crowded = counters.get("pids", 0) >= 0.6 * counters.get("pids_max", 1 << 30)
    refused = crowded and counters.get("pids_events.max", 0) > 0
    new = len(set(snapshot.after) - set(snapshot.before))
    forking = count > 40 and (snapshot.forks / window > 150 or new > 5)
    if not (refused or growth.get("pids_events.max", 0) > 0 or forking):
        return None
    limit = f" of {counters['pids_max']} allowed" if "pids_max" in counters else ""
    rate = f", about {snapshot.forks / window:.0f} new ones a second" if snapshot.forks else ""
    refusals = "; the kernel refused to start more" if counters.get("pids_events.max", 0) else ""
    chain = [snapshot.view.leader]
    return Finding("fork_storm", snapshot.view.leader, f"{count} processes{limit}{rate}{refusals}", 0.95, chain=chain)


def _memory_pressure(snapshot: Snapshot) -> Finding | None:
    hits = max(snapshot.growth.get("mem_failcnt", 0), snapshot.growth.get("mem_events.max", 0))
    if hits <= 5:
        return None
    faults = {pid: snapshot.major_faults(pid) for pid in snapshot.after}
    worst = max(faults, key=lambda pid: faults[pid])
    # With a large readahead one fault reads megabytes and takes milliseconds: few of them fit in the window, fewer on
    # a busy machine. So one is enough from a process that has done little else. Plain reading and writing of files
    # meets the limit as often, but without a fault.
    now, ever = sum(faults.values()), snapshot.after[worst].major_faults
    if now < (1 if ever >= _FAULTS else 3):
        return None
    detail = (
        f"{snapshot.who(worst)}: {now} major page faults, {hits} hits on the memory limit "
        f"in {snapshot.window * 1000:.0f} ms"
    )
    return Finding("memory_pressure", worst, detail, 0.95, chain=[worst])


def _endless_commands(snapshot: Snapshot, finding: Finding) -> Finding:
    leader = snapshot.after.get(snapshot.view.leader)
    known = leader is not None and not snapshot.view.reused
    if finding.kind not in VAGUE or leader is None or not known or leader.reaped_minor_faults <= 300:
        return finding
    again = prompts.repeated_line(snapshot.view.tail)
    if not again:
        return finding
    detail = f"{snapshot.who(leader.pid)} starts short commands and keeps printing {again!r}"
    return Finding("retry_loop", leader.pid, detail, 0.8, chain=finding.chain)


def _flood(snapshot: Snapshot, finding: Finding) -> Finding:
    rate = snapshot.view.out_rate
    if rate <= _FLOOD or finding.kind not in ("cpu_spin", "output_flood", *VAGUE):
        return finding
    pid = finding.pid
    if finding.kind in VAGUE:  # blame the process that writes, if one is seen running
        busy = [p for p, found in snapshot.after.items() if found.state == "R"]
        pid = busy[-1] if busy else pid
    detail = f"{snapshot.who(pid)} prints {rate / 1e6:.1f} MB/s"
    return Finding("output_flood", pid, detail, 0.95, chain=finding.chain)


def _end_of_input(snapshot: Snapshot, finding: Finding) -> Finding:
    """Without input, a program that asks until it gets an answer spins on end-of-input."""
    if snapshot.view.stdin != "null" or finding.kind not in (
        "cpu_spin",
        "output_flood",
        "retry_loop",
        *VAGUE,
    ):
        return finding
    tail = snapshot.view.tail
    question = prompts.prompt_loop(tail)
    if question is None and finding.kind != "retry_loop":
        question = prompts.ended_on_prompt(tail)
    if question is None:
        return finding
    empty = _reads_nothing(finding.pid)
    if empty is False or (empty is None and prompts.prompt_loop(tail) is None):
        return finding
    detail = f"{snapshot.who(finding.pid)} asks {question!r} again and again: it reads end-of-input each time"
    return Finding("waiting_for_input", finding.pid, detail, 0.95 if empty else 0.8, chain=finding.chain)


def _reads_nothing(pid: int) -> bool | None:
    """Whether a process makes read calls that return no bytes; None if it may not be looked into."""
    first = proc.reads_done(pid)
    time.sleep(0.004)
    second = proc.reads_done(pid)
    if first is None or second is None:
        return None
    if second[1] > first[1]:
        return second[0] == first[0]
    found = proc.stat(pid)
    if found is None or found.state == "R":
        return False
    # Blocked on its own output just now: judge its whole life. A start reads some files, in large pieces.
    return second[1] > 200 and second[0] < 256 * second[1]
