# SPDX-License-Identifier: Apache-2.0
"""The rules for one process: read its threads, and say from the most telling one what it waits for."""

from __future__ import annotations

from collections.abc import Callable

from . import endpoints, proc, prompts, waits
from .hints import rank
from .snapshot import Finding, Snapshot
from .waits import Wait

_THREADS = 48


def explain(snapshot: Snapshot, pid: int) -> Finding:
    """What a member waits for, and for whom. Never raises; kind "unknown" where nothing can be read."""
    found, me = snapshot.after.get(pid), snapshot.who(pid)
    if found is None:
        return Finding("unknown", pid, f"{me} went away while it was read", 0.1)
    if found.state in "Tt":
        cause = "traced" if found.state == "t" else "by a signal, or by terminal access from the background"
        return Finding("stopped", pid, f"{me} is stopped ({cause})", 0.97)
    if found.state in "ZX" and found.threads <= 1:
        return Finding("zombie_wait", pid, f"{me} is dead, {snapshot.who(found.parent)} has not collected it", 0.8)
    findings = _thread_findings(snapshot, found)
    if not findings:
        return Finding("unknown", pid, f"{me} went away while it was read", 0.1)
    return _most_telling(snapshot, pid, findings)


def _thread_findings(snapshot: Snapshot, found: proc.Stat) -> list[Finding]:
    pid = found.pid
    threads = [pid]
    if found.threads > 1:
        listed = sorted(int(name) for name in proc.names(f"/proc/{pid}/task", _THREADS))
        threads = [pid] * (pid in listed) + [thread for thread in listed if thread != pid]
    findings: list[Finding] = []
    for thread in threads:
        if findings and snapshot.over_budget():  # the main thread is read even when the time is over
            break
        state = found.state
        if found.threads > 1:
            of_thread = proc.stat(pid, thread)
            state = of_thread.state if of_thread else "Z"
        if state not in "ZX":
            findings.append(_explain_thread(snapshot, pid, thread, state))
    return findings


def _most_telling(snapshot: Snapshot, pid: int, findings: list[Finding]) -> Finding:
    main = findings[0]
    if len(findings) == 1:
        return main
    if all(finding.operation == "futex" for finding in findings):
        main.detail = f"all {len(findings)} threads of {snapshot.who(pid)} wait for locks: deadlock"
        main.confidence = 0.9
        return main
    rest = [finding for finding in findings if finding.operation != "futex"]
    pool = [finding for finding in findings if finding.kind == "cpu_spin"]
    share = snapshot.cpu_share(pid)
    if share > 0.5 and not pool:
        pool = [Finding("cpu_spin", pid, f"{snapshot.who(pid)} used {share:.0%} of a CPU", 0.7)]
    sure = main.confidence >= 0.65 or main.operation == "sleep"
    if not pool and sure and main.operation != "futex" and main.kind != "lock_wait":
        pool = [main]
    best = min(pool or rest, key=lambda finding: (rank(finding.kind), -finding.confidence))
    if best is main and main.kind != "waiting_for_input" and any(f.kind == "waiting_for_input" for f in rest):
        main.detail += "; another thread reads its input"
        main.confidence = min(main.confidence, 0.7)
    return best


def _explain_thread(snapshot: Snapshot, pid: int, thread: int, state: str) -> Finding:
    wait = waits.of_thread(pid, thread)
    if wait.operation == "running" or state == "R":
        finding = _running(snapshot, pid, snapshot.who(pid))
        if finding.kind != "unknown":
            return finding
        wait = waits.of_thread(pid, thread)  # caught in one of its short turns: what does it go back to
        if wait.operation == "running":
            return finding
        state = "S"
    finding = _by_operation(snapshot, pid, state, wait)
    finding.operation = wait.operation
    return finding


def _by_operation(snapshot: Snapshot, pid: int, state: str, wait: Wait) -> Finding:
    me = snapshot.who(pid)
    operation = wait.operation
    if state == "D" or operation == "disk":
        if operation == "vfork":
            return _vfork(snapshot, pid, me)
        where = wait.channel or wait.name
        return Finding("disk_wait", pid, f"{me} is in an uninterruptible wait ({where})", 0.85 if state == "D" else 0.6)
    if operation in ("read", "write", "accept", "connect", "poll"):
        return endpoints.explain(snapshot, pid, wait, _sleeping)
    rule = _RULES.get(operation)
    return rule(snapshot, pid, me, wait) if rule else _unreadable(snapshot, pid, me, wait)


def _running(snapshot: Snapshot, pid: int, me: str) -> Finding:
    share = snapshot.cpu_share(pid)
    if share > 0.3:
        return Finding("cpu_spin", pid, f"{me} used {min(share, 99):.0%} of a CPU during the sample", 0.85)
    if snapshot.always_runnable(pid):
        return Finding("cpu_spin", pid, f"{me} wanted a CPU all the time and got {share:.0%} of one", 0.7)
    return Finding("unknown", pid, f"{me} was on the CPU only briefly", 0.3)


def _child(snapshot: Snapshot, pid: int, me: str, wait: Wait) -> Finding:
    children = snapshot.children(pid)
    if wait.target > 0:  # numbers of the inner namespace
        children = [child for child in children if snapshot.number(child) == wait.target] or children
    live = [child for child in children if snapshot.after[child].state not in "ZX"] or children
    if not live:
        return Finding("waiting_for_child", pid, f"{me} waits for a child that is not inside", 0.3)
    shown = ", ".join(snapshot.who(child) for child in live[:4]) + (" and others" if len(live) > 4 else "")
    return Finding("waiting_for_child", pid, f"{me} waits for {shown}", 0.6, live)


def _vfork(snapshot: Snapshot, pid: int, me: str, _wait: Wait | None = None) -> Finding:
    return Finding("waiting_for_child", pid, f"{me} starts a child", 0.6, snapshot.children(pid))


def _futex(snapshot: Snapshot, pid: int, me: str, wait: Wait) -> Finding:
    left = "" if wait.timeout is None else f", {wait.timeout:.0f} s left"
    where = f"{wait.target:#x}" if wait.target > 0 else "futex"
    return Finding("lock_wait", pid, f"{me} waits for a lock ({where}{left})", 0.7 if wait.timeout is None else 0.5)


def _file_lock(snapshot: Snapshot, pid: int, me: str, wait: Wait) -> Finding:
    where, held = "a file", ""
    if wait.descriptors:
        where = snapshot.descriptor(pid, wait.descriptors[0])[1] or where
        holder = snapshot.locks.holder(pid, wait.descriptors[0])
        held = f" held by {snapshot.who(holder)}" if holder is not None else ""
    return Finding("lock_wait", pid, f"{me} waits for a lock on {where}{held}", 0.95)


def _semaphore(snapshot: Snapshot, pid: int, me: str, wait: Wait) -> Finding:
    return Finding("lock_wait", pid, f"{me} waits for a System V semaphore", 0.8)


def _message_queue(snapshot: Snapshot, pid: int, me: str, wait: Wait) -> Finding:
    verb = "room in" if "snd" in wait.name or "send" in wait.name else "a message from"
    return Finding("pipe_wait", pid, f"{me} waits for {verb} a message queue", 0.8)


def _open(snapshot: Snapshot, pid: int, me: str, wait: Wait) -> Finding:
    if "partner" in wait.channel or "fifo" in wait.channel:
        return Finding("pipe_wait", pid, f"{me} opens a named pipe that nobody has opened on the other side", 0.85)
    return Finding("disk_wait", pid, f"{me} is opening a file ({wait.channel})", 0.6)


def _signal(snapshot: Snapshot, pid: int, me: str, wait: Wait) -> Finding:
    dead = [child for child in snapshot.children(pid) if snapshot.after[child].state == "Z"]
    live = [child for child in snapshot.children(pid) if snapshot.after[child].state != "Z"]
    if dead and not live:
        shown = snapshot.who(dead[0])
        return Finding(
            "zombie_wait",
            pid,
            f"{me} waits for a signal while its child {shown} is dead and not collected",
            0.8,
        )
    if live:
        return Finding("waiting_for_child", pid, f"{me} waits for a signal; it has children", 0.4, live)
    return Finding("event_wait", pid, f"{me} waits for a signal that nobody has sent", 0.7)


def _fault(snapshot: Snapshot, pid: int, me: str, wait: Wait) -> Finding:
    kind = "memory_pressure" if snapshot.major_faults(pid) > 0 else "disk_wait"
    return Finding(kind, pid, f"{me} is blocked in a page fault ({wait.channel})", 0.5)


def _sleep(snapshot: Snapshot, pid: int, me: str, wait: Wait) -> Finding:
    return _sleeping(snapshot, pid, wait)


def _sleeping(snapshot: Snapshot, pid: int, wait: Wait) -> Finding:
    """A sleep, or a poll on nothing with a time limit: on purpose, between tries, or for a lock."""
    me, found, seconds = snapshot.who(pid), snapshot.after[pid], wait.timeout
    if (seconds is None or seconds < 1) and wait.operation == "sleep" and (held := snapshot.locks.polled_by(pid)):
        return Finding("lock_wait", pid, f"{me} polls a file locked by {snapshot.who(held[0])}: {held[1]}", 0.9)
    again = prompts.repeated_line(snapshot.view.tail)
    if seconds is not None and seconds <= 30 and (how := _tries(snapshot, found, seconds, bool(again))):
        detail = f"{me} sleeps {seconds:.2g} s at a time, {how}" + (f"; it keeps printing {again!r}" if again else "")
        return Finding("retry_loop", pid, detail, 0.9 if again else 0.6)
    span = "" if seconds is None else f", {seconds:.1f} s {'left' if wait.absolute else 'asked for'}"
    return Finding("sleeping", pid, f"{me} sleeps{span}", 0.95 if seconds else 0.8)


def _tries(snapshot: Snapshot, found: proc.Stat, seconds: float, again: bool) -> str:
    """How one can tell that a short sleep is one of many; "" if it is not."""
    parent = snapshot.after.get(found.parent)
    if parent is not None and parent.started < found.started - 0.2 and (again or seconds <= 5):
        # A command costs about as many page faults as this one did when it started.
        reaped = parent.reaped_minor_faults / max(found.minor_faults, 60)
        if reaped >= 3:
            return f"about {reaped:.0f} commands have ended before it"
    if snapshot.view.reused and found.pid == snapshot.view.leader:
        return ""
    age = max(snapshot.age(found.pid), 0.1)
    switches = proc.voluntary_switches(found.pid)
    if switches >= (3 if again else 8) and switches / age > (0.7 if again else 3):
        return f"{switches} waits in {age:.0f} s"
    return ""


def _unreadable(snapshot: Snapshot, pid: int, me: str, wait: Wait) -> Finding:
    if wait.operation == "denied":
        snapshot.denied.add(pid)
        if snapshot.after[pid].terminal and prompts.ended_on_prompt(snapshot.view.tail):
            detail = f"{me} may not be looked into, but it has a terminal and the last output is a prompt"
            return Finding("waiting_for_input", pid, detail, 0.6)
        return Finding("unknown", pid, f"{me} may not be looked into", 0.2)
    if children := snapshot.children(pid):
        return Finding("waiting_for_child", pid, f"{me} is in {wait.name or wait.channel}", 0.3, children)
    return Finding("unknown", pid, f"{me} is in {wait.name or wait.channel or 'an unknown wait'}", 0.2)


_RULES: dict[str, Callable[[Snapshot, int, str, Wait], Finding]] = {
    "wait": _child,
    "vfork": _vfork,
    "sleep": _sleep,
    "futex": _futex,
    "flock": _file_lock,
    "semaphore": _semaphore,
    "message_queue": _message_queue,
    "open": _open,
    "signal": _signal,
    "fault": _fault,
}
