# SPDX-License-Identifier: Apache-2.0
"""From an intent to the end of an attempt: what is written before anything is sent, and what after.

Work on a `Tx`, so that whatever belongs together is durable together. Who loses a race is told by what is returned,
because what was refused is written down as well; `ledger.py` makes errors of it.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import IllegalTransition, UsageError
from . import alerts, crash, outbox
from .canonical import canonical, digest, is_small
from .definition import Definition
from .definitions import definition_of
from .entries import add, as_text, change, clean, entry_of, locked, locked_to_end, note, write_head
from .late import late
from .records import Begun, Evidence, Intent, Outcome, Record
from .states import TERMINAL, Retry, State, Verdict
from .store import Tx

__all__ = [
    "announce", "asked_to_wait_ms", "begin", "cancel", "claim", "finish", "heartbeat", "in_doubt", "key_is_kept",
    "key_of", "may_be_sent", "may_send_again", "submit",
]  # fmt: skip

EVENTS = "events"  # in meta: publish what is settled
LONGEST_PAUSE_S = 366 * 86400.0
MOST_VALUE = 64 << 10  # of a result that is kept for whoever asks again
_HELD = {State.DISPATCHING: "busy", State.RECONCILING: "reconciling", State.UNKNOWN: "unknown",
         State.NEEDS_HUMAN: "needs_human"}  # fmt: skip


def key_of(scope: str, binding: str, generation: int) -> str:
    """The idempotency key: the same whoever asks, whenever, and told by nobody but the host program's own binding."""
    text = "\0".join(("deadstop.key.v1", scope, binding, str(generation)))
    return f"dsk_{hashlib.sha256(text.encode()).hexdigest()[:40]}"


# -- before anything is sent ---------------------------------------------------------------------------------------


def submit(tx: Tx, intent: Intent) -> Begun:
    """The operation of this intent, made now (PREPARED) or found. Nothing is sent under it yet."""
    key = key_of(intent.scope, intent.binding, _generation(tx, intent))
    record = _drafted(tx, intent, key)
    record, entries, sealed = _told_of(tx, record, intent)
    made = tx.run(
        "add_operation", op_id=record.op_id, scope=intent.scope, key=key, binding=intent.binding,
        fingerprint=intent.fingerprint, tool=intent.tool, definition=intent.definition, correlation=record.correlation,
        target=record.target, request_ms=record.request_ms, recovery_ms=record.recovery_ms, next_ms=record.next_ms,
        at_ms=tx.now, evidence=record.evidence, head=record.head,
    )  # fmt: skip
    if not made:
        return _found(tx, intent, key)
    for entry in entries:
        add(tx, entry)
    for name, (salt, body) in sealed.items():
        tx.run("add_payload", op_id=record.op_id, name=name, salt=salt, value=body)
    return Begun(record, None, "prepared", fresh=True)


def _generation(tx: Tx, intent: Intent) -> int:
    """Which of its binding's operations this one is: the last, or the next where the last is over and does not bind.

    They are numbered without a gap and never deleted, so the last one is found by halving, through the index of keys.
    """
    if intent.holds == "always":
        return 0
    last, beyond, state = -1, 0, None
    while (found := _state_of(tx, intent, beyond)) is not None:
        last, beyond, state = beyond, 2 * beyond + 1, found
    while beyond - last > 1:
        middle = (last + beyond) // 2
        found = _state_of(tx, intent, middle)
        last, beyond, state = (last, middle, state) if found is None else (middle, beyond, found)
    if state is None:
        return 0
    over = state in TERMINAL and (intent.holds == "open" or state is not State.SUCCEEDED)
    return last + 1 if over and not _is_news(tx, intent, key_of(intent.scope, intent.binding, last), state) else last


def _is_news(tx: Tx, intent: Intent, key: str, state: State) -> bool:
    """An end that no caller was told: the last was told that nobody knows. Who asks now is that caller, trying again:
    he gets this answer, once, before the same request is a new one."""
    if state not in (State.SUCCEEDED, State.ABANDONED):
        return False  # what did not happen may be tried again
    row = tx.one("end_as_told", scope=intent.scope, key=key)
    return row is not None and row[0] == State.UNKNOWN and row[1] == 0


def _state_of(tx: Tx, intent: Intent, generation: int) -> State | None:
    row = tx.one("state_of_key", scope=intent.scope, key=key_of(intent.scope, intent.binding, generation))
    return None if row is None else State(row[0])


def _drafted(tx: Tx, intent: Intent, key: str) -> Record:
    request_ms = tx.now + round(intent.request_s * 1000)
    return Record(
        op_id=f"op_{tx.now:011x}{secrets.token_hex(6)}", scope=intent.scope, key=key, fingerprint=intent.fingerprint,
        tool=intent.tool, definition=intent.definition, correlation=clean(intent.correlation),
        target=clean(intent.target), state=State.PREPARED, ver=1, fence=0, owner=None, lease_ms=None, attempts=0,
        request_ms=request_ms, recovery_ms=request_ms + round(intent.recovery_s * 1000), next_ms=request_ms, queries=0,
        verdict=None, reference=None, first_sent_ms=None, last_sent_ms=None, created_ms=tx.now, updated_ms=tx.now,
        evidence=0, head="",
    )  # fmt: skip


def _told_of(
    tx: Tx, record: Record, intent: Intent
) -> tuple[Record, list[Evidence], dict[str, tuple[str, str]]]:  # fmt: skip
    """Its first entries, and what they name by digest: all of it known before, so that the row is written once."""
    told: dict[str, Any] = {
        "from": "", "to": record.state.value, "ver": 1, "fence": 0, "attempts": 0, "scope": intent.scope,
        "key": record.key, "binding": intent.binding, "fingerprint": intent.fingerprint, "tool": intent.tool,
        "definition": intent.definition, "declared": intent.declared or _declared(tx, intent),
        "correlation": record.correlation, "target": record.target, "digest": intent.digest,
        "asked_by": intent.asked_by,
    }  # fmt: skip
    if intent.arguments:
        told["arguments"] = dict(intent.arguments)
    sealed = {name: (secrets.token_hex(16), canonical(value).decode()) for name, value in intent.sealed.items()}
    for name, (salt, body) in sealed.items():
        told[f"sealed.{name}"] = digest(f"{salt}\0{body}".encode())
    entries = [entry_of(tx, record, "intent", told)]
    record = replace(record, evidence=1, head=entries[0].hash)
    if intent.authorised_by is not None:  # that somebody may do it is one thing, that it was done another
        who = {"authorised_by": intent.authorised_by, "asked_by": intent.asked_by}
        entries.append(entry_of(tx, record, "authz.decision", who))
        record = replace(record, evidence=2, head=entries[1].hash)
    return record, entries, sealed


def _declared(tx: Tx, intent: Intent) -> str | None:
    row = tx.one("definition_digest", tool=intent.tool, version=intent.definition)
    return None if row is None else row[0]


def _seal(tx: Tx, op_id: str, name: str, value: Any) -> str:
    """Kept apart from the log, which names it only by a salted digest: it can be shredded, and no proof breaks."""
    salt, body = secrets.token_hex(16), canonical(value).decode()
    tx.run("add_payload", op_id=op_id, name=name, salt=salt, value=body)
    return digest(f"{salt}\0{body}".encode())


def _found(tx: Tx, intent: Intent, key: str) -> Begun:
    row = tx.one("op_id_of_key", scope=intent.scope, key=key)
    assert row is not None
    record = locked(tx, row[0])
    if record.fingerprint == intent.fingerprint:
        if intent.holds != "always" and _is_news(tx, intent, key, record.state):
            record = write_head(tx, note(tx, record, "answer.told", {"asked_by": intent.asked_by}))
        return Begun(record, None, "settled" if record.state in TERMINAL else _HELD.get(record.state, "prepared"))
    told = {
        "fingerprint": intent.fingerprint,
        "digest": intent.digest,
        "asked_by": intent.asked_by,
        "tool": intent.tool,
    }
    record = write_head(tx, note(tx, record, "conflict.rejected", told))
    alerts.raise_alert(
        tx, "key_conflict", record.op_id, f"a second request with another fingerprint came for {intent.tool}"
    )
    return Begun(record, None, "conflict")


def begin(tx: Tx, intent: Intent, owner: str, lease_ms: int) -> Begun:
    """As `submit`, and the claim with it, in one transaction, if nothing stands against sending it now."""
    begun = submit(tx, intent)
    if begun.why == "unknown":
        begun = _under_the_kept_key(tx, begun, intent, owner, lease_ms)
    if begun.why == "prepared" and begun.record.attempts:
        begun = _again(tx, begun, intent)
    if begun.why != "prepared":
        return begun
    # A retry has its own time to be sent in.
    record = begun.record if begun.fresh else replace(begun.record, request_ms=tx.now + round(intent.request_s * 1000))
    crash.at("submit.before_commit")
    return replace(begun, record=_claimed(tx, record, owner, lease_ms), why="begun")


def _of_both(tx: Tx, record: Record, intent: Intent) -> Definition:
    """What it was made under, never laxer than what is asked for now: also by a command that is called otherwise."""
    found = definition_of(tx, record.tool, record.definition)
    if (record.tool, record.definition) == (intent.tool, intent.definition):
        return found
    return found.tightened(definition_of(tx, intent.tool, intent.definition))


def _again(tx: Tx, begun: Begun, intent: Intent) -> Begun:
    """What was not sent before, or shown absent: whether it may still come again, and already."""
    record = begun.record
    if not may_be_sent(record, _of_both(tx, record, intent)):
        why = "its declaration has become stricter: it is not to be sent again"
        return replace(begun, record=announce(tx, change(tx, record, State.ABANDONED, "cancelled", {"reason": why})),
                       why="settled")  # fmt: skip
    return replace(begun, why="waiting") if asked_to_wait_ms(record, tx.now) else begun


def may_be_sent(record: Record, definition: Definition) -> bool:
    """Of what is PREPARED: the first time, and as often as its declaration allows or a person has said."""
    by_a_person = record.verdict not in (None, Verdict.DEFINITELY_ABSENT)  # see `doubtful`
    return not record.attempts or by_a_person or may_send_again(record, definition)


def asked_to_wait_ms(record: Record, now: int) -> int:
    """How long its authority still wants to be left alone; 0 where it may be sent now."""
    waits = record.state is State.PREPARED and record.attempts > 0 and record.next_ms < record.request_ms
    return max(0, record.next_ms - now) if waits else 0


def _under_the_kept_key(tx: Tx, begun: Begun, intent: Intent, owner: str, lease_ms: int) -> Begun:
    """An operation in doubt that may be sent again all the same, because its provider does nothing twice under a key.

    All its steps in one transaction: nobody may find it PREPARED, which would look as if it had not happened.
    """
    if not key_is_kept(begun.record, _of_both(tx, begun.record, intent), tx.now):
        return begun
    record = change(tx, begun.record, State.RECONCILING, "reconcile.started", {"owner": owner}, owner=owner,
                    lease_ms=tx.now + lease_ms)  # fmt: skip
    why = "the provider keeps its key: sending it again cannot do it twice"
    record = change(tx, record, State.PREPARED, "attempt.allowed", {"why": why}, verdict=doubtful(record),
                    next_ms=record.request_ms)  # fmt: skip
    return replace(begun, record=record, why="prepared")


def key_is_kept(record: Record, definition: Definition, now: int) -> bool:
    """The provider's memory counts from the first attempt; a little of it is left out, for clocks that differ."""
    if definition.retry is not Retry.SAME_KEY_SAFE or definition.key_ttl_s is None or record.first_sent_ms is None:
        return False
    kept = now < record.first_sent_ms + round(definition.key_ttl_s * 1000 * 0.9)
    return kept and may_send_again(record, definition)


def in_doubt(record: Record) -> bool:
    """An earlier attempt may have had its effect: what this one says of itself says nothing of that."""
    return record.attempts > 1 and record.verdict not in (None, Verdict.DEFINITELY_ABSENT)


def doubtful(record: Record) -> Verdict:
    """The verdict that goes with sending it again in doubt. That an attempt before the last one was shown to be absent
    says nothing of the last one."""
    return Verdict.INCONCLUSIVE if record.verdict in (None, Verdict.DEFINITELY_ABSENT) else record.verdict


def claim(tx: Tx, op_id: str, owner: str, lease_ms: int) -> Record:
    """Raises IllegalTransition unless it is PREPARED, and may be sent (again)."""
    record = locked(tx, op_id)
    if record.attempts and not may_be_sent(record, definition_of(tx, record.tool, record.definition)):
        raise IllegalTransition(record.state.value, State.DISPATCHING.value)
    return _claimed(tx, record, owner, lease_ms)


def _claimed(tx: Tx, record: Record, owner: str, lease_ms: int) -> Record:
    until, attempt = tx.now + lease_ms, record.attempts + 1
    new = change(
        tx, record, State.DISPATCHING, "attempt.started", {"attempt": attempt, "owner": owner}, owner=owner,
        lease_ms=until, next_ms=until, attempts=attempt, request_ms=record.request_ms, last_sent_ms=tx.now,
        first_sent_ms=tx.now if record.first_sent_ms is None else record.first_sent_ms,
    )  # fmt: skip
    tx.run("add_attempt", op_id=new.op_id, n=attempt, fence=new.fence, owner=owner, started_ms=tx.now)
    return new


def heartbeat(tx: Tx, op_id: str, fence: int, lease_ms: int) -> bool:
    """A later end of the lease; False if it is no longer held. The log does not hear of it."""
    crash.at("heartbeat")
    return tx.run("heartbeat", op_id=op_id, fence=fence, lease_ms=tx.now + lease_ms) == 1


def cancel(tx: Tx, op_id: str, reason: str) -> Record:
    """Give up what was never sent. Raises IllegalTransition for anything else."""
    return announce(tx, change(tx, locked(tx, op_id), State.ABANDONED, "cancelled", {"reason": reason}))


# -- after an attempt ----------------------------------------------------------------------------------------------


def may_send_again(record: Record, definition: Definition) -> bool:
    return definition.retry is not Retry.NEVER and record.attempts < definition.max_attempts


def finish(tx: Tx, op_id: str, fence: int, outcome: Outcome) -> tuple[Record, bool]:
    """The operation after this attempt, and whether the one who tells was still the one who holds it.

    A late answer changes nothing: it is written down, and whoever asks the authority will see for himself.
    """
    record, heard = locked_to_end(tx, op_id)
    outcome = _writable(outcome)
    if record.state is not State.DISPATCHING or record.fence != fence:
        return late(tx, record, fence, outcome), False
    to, told = outcome.to, _told(record, outcome)
    if to in (State.FAILED, State.PREPARED) and in_doubt(record):
        to, told["why"] = State.UNKNOWN, "an earlier attempt is in doubt"
    definition = None if to in TERMINAL else definition_of(tx, record.tool, record.definition)
    if definition is not None and to is State.PREPARED and not may_send_again(record, definition):
        to = State.FAILED  # surely not sent, and not to be sent again
    end_attempt(tx, record, to, outcome)
    crash.at("finish.in_transaction")
    if outcome.has_value and to is State.SUCCEEDED:
        told["sealed.result"] = seal_result(tx, record, outcome.value)
    changes: dict[str, Any] = {"reference": record.reference if outcome.reference is None else clean(outcome.reference)}
    if definition is not None and to is State.PREPARED:
        changes |= waiting_again(tx, record, definition)
        if wait_ms := pause_ms(outcome.retry_after_s, 0):
            changes["next_ms"] = min(changes["next_ms"], tx.now + wait_ms)
    if definition is not None and to is State.UNKNOWN:
        recovery_ms = tx.now + round(definition.recovery_s * 1000)
        changes |= {"recovery_ms": recovery_ms, "queries": 0, "last_sent_ms": tx.now,  # it may have left until now
                    "next_ms": min(recovery_ms, tx.now + pause_ms(outcome.retry_after_s, 0))}  # fmt: skip
    record = change(tx, record, to, "settled" if to in TERMINAL else "attempt.ended", told, **changes)
    for message in outcome.events if to is State.SUCCEEDED else ():
        outbox.publish(tx, message)
    if to in TERMINAL and heard:
        outbox.publish(tx, outbox.settled_message(record, record.state))
    if definition is None or outcome.followed:
        return record, True
    return ask_a_person_if_nobody_else_can(tx, record, definition), True


def pause_ms(seconds: float | None, otherwise: int) -> int:
    """What somebody else asked for, who may have asked for anything."""
    if not isinstance(seconds, int | float) or not 0 <= seconds < LONGEST_PAUSE_S:
        return otherwise
    return round(seconds * 1000)


def _writable(outcome: Outcome) -> Outcome:
    """What tools raise holds anything, and an end that could not be written down would be lost."""
    return replace(
        outcome, phase=as_text(outcome.phase), observation=as_text(outcome.observation) or "",
        reference=as_text(outcome.reference), certain=bool(outcome.certain),
    )  # fmt: skip


def end_attempt(tx: Tx, record: Record, to: State, outcome: Outcome) -> None:
    receipt = None if outcome.receipt is None else json.dumps(outcome.receipt)
    tx.run("end_attempt", op_id=record.op_id, n=record.attempts, ended_ms=tx.now, outcome=to.value, phase=outcome.phase,
           certain=int(outcome.certain), observation=clean(outcome.observation) or "", receipt=receipt)  # fmt: skip


def waiting_again(tx: Tx, record: Record, definition: Definition) -> dict[str, Any]:
    """PREPARED once more: its caller has as long as a recovery may take to send it, then it is given up."""
    until = tx.now + round(definition.recovery_s * 1000)
    return {"request_ms": until, "next_ms": until, "queries": 0}


def announce(tx: Tx, record: Record) -> Record:
    """Tell whoever subscribes to ends, where the ledger was told that somebody does."""
    if tx.one("meta", name=EVENTS) is not None:
        outbox.publish(tx, outbox.settled_message(record, record.state))
    return record


def ask_a_person_if_nobody_else_can(tx: Tx, record: Record, definition: Definition) -> Record:
    """Where there is no authority to ask, and no key that the provider keeps, waiting would settle nothing."""
    if record.state is not State.UNKNOWN or definition.query is not None:
        return record
    if definition.retry is Retry.SAME_KEY_SAFE and may_send_again(record, definition):
        return record
    if any(name.startswith("place.") for (name,) in tx.all("payload_names", op_id=record.op_id)):
        return record  # where the one who took it said that its end is to be seen
    return need_a_person(tx, record, "no_authority", "it can be looked up nowhere")


def need_a_person(tx: Tx, record: Record, kind: str, why: str, told: Mapping[str, Any] | None = None) -> Record:
    record = change(tx, record, State.NEEDS_HUMAN, "human.requested", {"why": why, **(told or {})})
    alerts.raise_alert(tx, kind, record.op_id, f"{record.tool}: {why}")
    return record


def _told(record: Record, outcome: Outcome) -> dict[str, Any]:
    told: dict[str, Any] = {
        "attempt": record.attempts, "phase": outcome.phase, "certain": outcome.certain,
        "observation": outcome.observation, "reference": outcome.reference,
    }  # fmt: skip
    if outcome.receipt is not None:
        told["receipt"] = canonical(json.loads(json.dumps(outcome.receipt))).decode()
    return told


def seal_result(tx: Tx, record: Record, value: Any) -> str | None:
    """None for what is too large or no JSON: the operation counts, its value is only its caller's."""
    if not is_small(value, MOST_VALUE):  # others wait for this transaction
        return None
    try:
        small = len(canonical({"value": value})) <= MOST_VALUE
    except UsageError:
        return None
    return _seal(tx, record.op_id, "result", {"value": value}) if small else None
