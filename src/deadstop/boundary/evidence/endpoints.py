# SPDX-License-Identifier: Apache-2.0
"""The rules for a process that waits on descriptors: terminals, pipes, sockets and the kernel's anonymous
files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from . import proc, prompts, waits
from .snapshot import Finding, Snapshot
from .sockets import Socket
from .waits import Wait

_POLLED = 64  # descriptors looked at in one poll set
_BROKEN = ("CLOSE", "CLOSE_WAIT", "LAST_ACK", "CLOSING", "TIME_WAIT")


@dataclass
class _Reason:
    """One descriptor's explanation; the lowest order among those of a poll set wins."""

    order: int
    kind: str
    detail: str
    confidence: float
    waits_for: list[int] = field(default_factory=list)


def explain(snapshot: Snapshot, pid: int, wait: Wait, sleeping: Callable[[Snapshot, int, Wait], Finding]) -> Finding:
    """What a read, write, accept, connect or poll waits for; `sleeping` judges a timed poll on nothing
    telling.
    """
    reasons = [
        reason
        for number in wait.descriptors[:_POLLED]
        if (reason := _of_descriptor(snapshot, pid, wait, number)) is not None
    ]
    if wait.operation == "poll" and any(reason.kind == "serving" for reason in reasons):
        # An idle connection or stdin beside a listening socket does not make a server a client.
        reasons = [reason for reason in reasons if reason.kind == "serving" or reason.order == 1] or reasons
    network = [reason for reason in reasons if reason.kind == "network_wait"]
    asking = [reason for reason in reasons if reason.kind == "waiting_for_input"]
    if network and asking and not prompts.ended_on_prompt(snapshot.view.tail):
        best = min(network, key=lambda reason: reason.order)
        detail = best.detail + "; it also listens to its input"
        return Finding("network_wait", pid, detail, 0.6, best.waits_for)
    if network and asking:  # the question decides: a connection kept alive answers nothing either
        reasons = asking
    if reasons:
        best = min(reasons, key=lambda reason: (reason.order, -reason.confidence))
        return Finding(best.kind, pid, best.detail, best.confidence, best.waits_for)
    return _nothing_telling(snapshot, pid, wait, sleeping)


def _nothing_telling(
    snapshot: Snapshot, pid: int, wait: Wait, sleeping: Callable[[Snapshot, int, Wait], Finding]
) -> Finding:
    me, children = snapshot.who(pid), snapshot.children(pid)
    if children:
        return Finding("waiting_for_child", pid, f"{me} idles in its event loop; it has children", 0.5, children)
    if wait.timeout is not None:
        finding = sleeping(snapshot, pid, wait)
        finding.confidence = min(finding.confidence, 0.6)
        return finding
    kinds = sorted({snapshot.descriptor(pid, number)[0] for number in wait.descriptors[:_POLLED]})
    if pid in snapshot.denied:
        return Finding("unknown", pid, f"{me} may not be looked into", 0.2)
    return Finding("unknown", pid, f"{me} idles in {wait.name} on {', '.join(kinds) or 'nothing'}", 0.3)


def _of_descriptor(snapshot: Snapshot, pid: int, wait: Wait, number: int) -> _Reason | None:
    kind, key = snapshot.descriptor(pid, number)
    me = snapshot.who(pid)
    if kind == "tty":
        return _terminal(me, wait, key)
    if kind == "pipe":
        return _pipe(snapshot, pid, wait, number, key)
    if kind == "socket":
        return _socket(snapshot, pid, wait, number, int(key))
    if kind == "ptmx":
        children = snapshot.children(pid)
        shown = ", ".join(snapshot.who(child) for child in children[:4]) or "a program"
        return _Reason(2, "pipe_wait", f"{me} reads the terminal it made for {shown}", 0.6, children)
    if kind in ("inotify", "fanotify"):
        return _Reason(6, "event_wait", f"{me} waits for file changes", 0.85)
    if kind == "timerfd":
        return _Reason(7, "sleeping", f"{me} waits for a timer", 0.6)
    if kind == "signalfd" and wait.operation == "read":
        return _Reason(7, "event_wait", f"{me} waits for a signal that nobody has sent", 0.7)
    if kind == "pidfd":
        return _Reason(5, "waiting_for_child", f"{me} waits for a process", 0.6, snapshot.children(pid))
    if kind == "epoll" and wait.operation == "poll":
        return _nested(snapshot, pid, wait, number)
    if kind == "eventfd" and wait.operation == "read":
        return _Reason(6, "lock_wait", f"{me} waits for an eventfd that nobody has written", 0.6)
    return None


def _terminal(me: str, wait: Wait, path: str) -> _Reason:
    if wait.operation == "write":
        return _Reason(0, "output_flood", f"{me} writes to a terminal that the outside does not read", 0.6)
    direct = wait.operation == "read"
    return _Reason(
        0 if direct else 3, "waiting_for_input", f"{me} reads the terminal ({path})", 0.97 if direct else 0.85
    )


def _pipe(snapshot: Snapshot, pid: int, wait: Wait, number: int, key: str) -> _Reason | None:
    me, reads = snapshot.who(pid), wait.operation != "write"
    if wait.operation == "poll" and proc.access_mode(pid, number) == 1:
        return None
    holders = snapshot.pipe_holders(key, writers=reads)
    others = [holder for holder in holders if holder != pid]
    if not holders and not reads:
        return _Reason(0, "output_flood", f"{me} writes to a full pipe that only the outside reads", 0.7)
    if not holders:
        sure = 0.5 if snapshot.denied - {pid} else (0.95 if number == 0 else 0.8)
        order = 0 if wait.operation == "read" else 3
        return _Reason(order, "waiting_for_input", f"{me} reads a pipe (fd {number}) that nobody inside writes", sure)
    if others:
        shown = ", ".join(snapshot.who(other) for other in others[:4])
        return _Reason(1, "pipe_wait", f"{me} {'reads' if reads else 'writes to'} a pipe of {shown}", 0.7, others)
    if wait.operation != "poll":  # a pipe to itself in a poll set is how event loops wake themselves
        return _Reason(1, "pipe_wait", f"{me} waits on a pipe whose other end only it holds", 0.9)
    return None


def _nested(snapshot: Snapshot, pid: int, wait: Wait, number: int) -> _Reason | None:
    inner = [target for target in waits.epoll_targets(pid, number) if target != number]
    reasons = [
        reason
        for target in inner[:_POLLED]
        if snapshot.descriptor(pid, target)[0] != "epoll"
        and (reason := _of_descriptor(snapshot, pid, wait, target)) is not None
    ]
    return min(reasons, key=lambda reason: (reason.order, -reason.confidence), default=None)


def _socket(snapshot: Snapshot, pid: int, wait: Wait, number: int, inode: int) -> _Reason | None:
    me = snapshot.who(pid)
    found = snapshot.sockets.find(pid, inode)
    if found is None:
        if wait.operation == "poll":
            return None
        return _Reason(5, "network_wait", f"{me} waits on a socket of unknown kind", 0.3)
    if found.state == "LISTEN":
        return _Reason(4, "serving", f"{me} listens on {found.local or 'a socket'}: an idle server", 0.9)
    if found.protocol == "unix":
        return _unix(snapshot, pid, wait, number, found)
    if found.protocol == "udp":
        return _udp(me, found)
    return _tcp(snapshot, pid, wait, found)


def _unix(snapshot: Snapshot, pid: int, wait: Wait, number: int, found: Socket) -> _Reason | None:
    me, polled = snapshot.who(pid), wait.operation == "poll"
    holders = snapshot.socket_holders(found.peer_inode) if found.peer_inode else []
    others = [holder for holder in holders if holder != pid]
    if others:
        shown = ", ".join(snapshot.who(other) for other in others[:4])
        return _Reason(5 if polled else 1, "pipe_wait", f"{me} waits on a unix socket of {shown}", 0.6, others)
    if holders:  # a pair of its own: how event loops wake themselves
        return None if polled else _Reason(1, "pipe_wait", f"{me} waits on a socket pair that only it holds", 0.9)
    if number == 0 and wait.operation != "write":
        return _Reason(3, "waiting_for_input", f"{me} reads a socket (fd 0) that nobody inside writes", 0.8)
    if polled and not found.peer_inode:
        return None
    name = f" {found.local}" if found.local else ""
    return _Reason(5, "network_wait", f"{me} waits for an answer on a unix socket{name} from outside", 0.5)


def _udp(me: str, found: Socket) -> _Reason:
    if found.peer.endswith(":53"):
        return _Reason(1, "network_wait", f"{me} waits for DNS at {found.peer}, no answer", 0.95)
    if found.peer.endswith(":0"):
        return _Reason(4, "serving", f"{me} waits for datagrams on {found.local}", 0.6)
    return _Reason(2, "network_wait", f"{me} waits on udp {found.local} -> {found.peer}", 0.7)


def _tcp(snapshot: Snapshot, pid: int, wait: Wait, found: Socket) -> _Reason | None:
    me = snapshot.who(pid)
    if found.state == "SYN_SENT":
        detail = f"{me} connects to {found.peer}: SYN_SENT, {found.retries} retries, no answer"
        return _Reason(1, "network_wait", detail, 0.97)
    if found.unsent and found.retries:
        detail = f"{me} sent to {found.peer}, {found.unsent} bytes not acknowledged after {found.retries} retries"
        return _Reason(1, "network_wait", detail, 0.95)
    if found.state in _BROKEN and wait.operation == "poll":
        return None
    inside = _peer_inside(snapshot, pid, found)
    if found.unsent:
        detail = f"{me} waits for {found.peer} to read: {found.state}, {found.unsent} bytes unsent"
    else:
        detail = f"{me} waits for {found.peer} to answer: {found.state}, nothing queued{_traffic(found)}"
    if inside:
        detail += f" (the other end is {snapshot.who(inside[0])})"
    return _Reason(2, "network_wait", detail, 0.85 if wait.operation == "poll" else 0.9, inside)


def _traffic(found: Socket) -> str:
    if found.received is None:
        return ""
    text = f"; sent {found.acked} bytes, received {found.received}"
    if not found.received:
        return text + ", it never answered (TLS handshake or first reply)"
    return text if found.silent is None else f"{text}, silent for {found.silent:.1f} s"


def _peer_inside(snapshot: Snapshot, pid: int, found: Socket) -> list[int]:
    """Members that hold the other end of a connection over the loopback."""
    inode = snapshot.sockets.other_end(pid, found)
    return [holder for holder in snapshot.socket_holders(inode) if holder != pid] if inode else []
