# SPDX-License-Identifier: Apache-2.0
"""The life of an operation: its states, the one table of what may follow what, and the words of a finding.

The databases enforce the same table by triggers (sql/); a test tries every pair on both.
"""

from __future__ import annotations

from enum import StrEnum

from ..errors import IllegalTransition

__all__ = ["LEASED", "OPEN", "TERMINAL", "TRANSITIONS", "Phase", "Retry", "State", "Verdict", "check_transition"]


class State(StrEnum):
    """Where an operation is. SUCCEEDED and FAILED are facts about the world, not about a call."""

    PREPARED = "PREPARED"  #: the intent is durable; nothing has been sent
    DISPATCHING = "DISPATCHING"  #: an attempt may be under way; somebody holds a lease on it
    SUCCEEDED = "SUCCEEDED"  #: the effect happened, shown by the authority or decided by a person
    FAILED = "FAILED"  #: shown not to have happened, or failed by the authority
    UNKNOWN = "UNKNOWN"  #: nobody can say; it has a recovery deadline
    RECONCILING = "RECONCILING"  #: the authority is being asked; somebody holds a lease on it
    NEEDS_HUMAN = "NEEDS_HUMAN"  #: no authority can say, or not in time: a person decides
    ABANDONED = "ABANDONED"  #: given up before anything was sent, or by a person


TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.ABANDONED})
OPEN = frozenset(State) - TERMINAL
LEASED = frozenset({State.DISPATCHING, State.RECONCILING})

_NEXT = {
    State.PREPARED: (State.DISPATCHING, State.ABANDONED),
    State.DISPATCHING: (State.SUCCEEDED, State.FAILED, State.PREPARED, State.UNKNOWN),
    State.UNKNOWN: (State.RECONCILING, State.NEEDS_HUMAN),
    State.RECONCILING: (State.SUCCEEDED, State.FAILED, State.PREPARED, State.UNKNOWN, State.NEEDS_HUMAN),
    State.NEEDS_HUMAN: (State.SUCCEEDED, State.FAILED, State.ABANDONED, State.PREPARED, State.RECONCILING),
}
TRANSITIONS = frozenset((before, after) for before, followers in _NEXT.items() for after in followers)


def check_transition(before: State, after: State) -> None:
    """Raises IllegalTransition for what the table does not have."""
    if (before, after) not in TRANSITIONS:
        raise IllegalTransition(before.value, after.value)


class Verdict(StrEnum):
    """What asking the authority has shown."""

    APPLIED = "applied"  #: it happened
    APPLIED_FAILED = "applied_failed"  #: the authority took it and failed it
    DEFINITELY_ABSENT = "definitely_absent"  #: it has no trace, and its having none means something
    IN_PROGRESS = "in_progress"  #: the authority has it and is not done
    INCONCLUSIVE = "inconclusive"  #: an answer that settles nothing
    UNREACHABLE = "unreachable"  #: no answer
    CONTRADICTION = "contradiction"  #: what was found cannot all be true


class Retry(StrEnum):
    """When an operation may be sent again, always under its one id and key."""

    NEVER = "never"  #: never once it may have left
    IF_NOT_ACCEPTED = "if_not_accepted"  #: when the authority shows that it has no trace of it
    SAME_KEY_SAFE = "same_key_safe"  #: also when nobody can say, as long as the provider keeps the key


class Phase(StrEnum):
    """How far an attempt had come when it ended."""

    PREPARE = "prepare"
    CONNECT = "connect"
    WRITE_REQUEST = "write_request"
    AWAIT_RESPONSE = "await_response"
    READ_RESPONSE = "read_response"
    DECODE = "decode"
    LOCAL_COMMIT = "local_commit"
    REMOTE_EXEC = "remote_exec"
