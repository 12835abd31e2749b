# SPDX-License-Identifier: Apache-2.0
"""The life of a sandbox: its states, what may follow what, and the reasons for its end. The one table of both."""

from __future__ import annotations

from enum import StrEnum

from ..errors import NotAllowed


class State(StrEnum):
    CREATING = "creating"  #: recorded, with its deadline; its boundary is being made
    RUNNING = "running"  #: takes commands
    PAUSED = "paused"  #: every process is stopped; the time of its life goes on
    EXPIRING = "expiring"  #: runs, in the last seconds of its life (the buffer)
    ENDED = "ended"  #: nothing of it runs any more, and the record says why


class End(StrEnum):
    KILLED = "killed"  #: somebody asked for it
    TTL = "ttl"  #: its life was over
    IDLE = "idle"  #: nothing was done in it for its idle time
    OWNER_GONE = "owner_gone"  #: it was attached, and its owner's connection ended
    RESOURCE = "resource"  #: the kernel killed what holds it, for a ceiling
    HOST_LOST = "host_lost"  #: the server, its supervisor or the machine went away, and it with them
    FAILED = "failed"  #: it could not be made, or ended by itself, which nothing of ours does


# For people, where nothing more is known.
DETAILS = {
    End.TTL: "its life was over",
    End.IDLE: "nothing was done in it for its idle time",
    End.RESOURCE: "what holds it was killed for a ceiling",
    End.FAILED: "its boundary ended by itself",
    End.OWNER_GONE: "its owner's connection ended",
}

TRANSITIONS: dict[State, frozenset[State]] = {
    State.CREATING: frozenset({State.RUNNING, State.ENDED}),
    State.RUNNING: frozenset({State.PAUSED, State.EXPIRING, State.ENDED}),
    State.PAUSED: frozenset({State.RUNNING, State.EXPIRING, State.ENDED}),
    State.EXPIRING: frozenset({State.RUNNING, State.PAUSED, State.ENDED}),  # back by an extension
    State.ENDED: frozenset(),
}


def check(now: State, then: State) -> State:
    """`then`, if it may follow `now`; NotAllowed otherwise."""
    if then not in TRANSITIONS[now]:
        raise NotAllowed(f"a sandbox that is {now} cannot become {then}")
    return then
