# SPDX-License-Identifier: Apache-2.0
"""Promises of docs/ledger.md at their edges: what a stricter declaration changes, what comes after the deadline, how
much of a result is kept, what is written down of an acknowledgement, and over which checkpoint nothing is signed."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from audit_ground import Copy, closed_ledger, history

from deadstop.errors import LedgerBroken, OperationConflict, StaleClaim
from deadstop.ledger.definition import Definition, Effect
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.queries import HttpQuery
from deadstop.ledger.records import Claim, Finding, Intent, Outcome, Record
from deadstop.ledger.states import State, Verdict
from deadstop.ledger.store import open_store

LOOK_UP = HttpQuery(url="http://authority.invalid/{key}")
ASKS = Effect(retry="if_not_accepted", reconcile=LOOK_UP, consistent=True, recovery_deadline=60)


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    """In memory: what is promised here does not depend on where it is kept."""
    with Ledger.in_memory() as made:
        yield made


def later(ledger: Ledger, seconds: float) -> None:
    ledger.store._zero += seconds  # type: ignore[attr-defined]


def intent(ledger: Ledger, effect: Effect = ASKS, binding: str = "one", fingerprint: str = "f") -> Intent:
    version = ledger.define(effect.define("pay")).version
    return Intent("pay", binding, fingerprint, "pay", version, recovery_s=effect.recovery_deadline)


def begun(ledger: Ledger, effect: Effect = ASKS, binding: str = "one") -> Claim:
    claim = ledger.begin(intent(ledger, effect, binding)).claim
    assert claim is not None
    return claim


def lost(ledger: Ledger, effect: Effect = ASKS) -> Record:
    return ledger.finish(begun(ledger, effect), Outcome(State.UNKNOWN, certain=False, observation="lost"))


# -- a declaration that became stricter ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "of_the_operation", "declared_now", "counts"),
    [
        ("settle", 5.0, 30.0, 30.0), ("settle", 30.0, 5.0, 30.0), ("settle", 5.0, None, None),
        ("key_ttl", 3600.0, 60.0, 60.0), ("key_ttl", 60.0, 3600.0, 60.0), ("key_ttl", 60.0, None, None),
    ],
)  # fmt: skip
def test_settle_only_grows_and_key_ttl_only_shrinks(
    ledger: Ledger, name: str, of_the_operation: float, declared_now: float | None, counts: float | None
) -> None:
    """None is the strictest of either: absence never counts, no key is kept."""
    made_under = ledger.define(Definition(tool="pay", **{f"{name}_s": of_the_operation})).version
    ledger.define(Definition(tool="pay", **{f"{name}_s": declared_now}))
    assert getattr(ledger.definition("pay", made_under), f"{name}_s") == counts


def test_absence_waits_for_the_longer_of_two_settle_times(ledger: Ledger) -> None:
    effect = replace(ASKS, consistent=False, settle=5.0)
    record = lost(ledger, effect)
    ledger.define(replace(effect, settle=30.0).define("pay"))
    for seconds, state in ((6, State.UNKNOWN), (26, State.PREPARED)):
        later(ledger, seconds)
        claim = ledger.take(record.op_id, force=True)
        assert claim is not None
        assert ledger.settle(claim, Finding(Verdict.DEFINITELY_ABSENT)).state is state


def test_a_key_is_believed_to_be_kept_only_as_long_as_the_shorter_declaration_says(ledger: Ledger) -> None:
    effect = replace(ASKS, retry="same_key_safe", key_ttl=3600.0)
    lost(ledger, effect)
    shorter = replace(effect, key_ttl=40.0)
    ledger.define(shorter.define("pay"))
    later(ledger, 45)
    assert ledger.begin(intent(ledger, shorter)).why == "unknown"


@pytest.mark.parametrize("pause", ["asked for", "of the one who asks"])
def test_what_is_in_doubt_is_sent_under_its_kept_key_or_stays_in_doubt(ledger: Ledger, pause: str) -> None:
    """A pause before the next question leaves it neither PREPARED, which would look as if nothing had been sent."""
    effect = replace(ASKS, retry="same_key_safe", key_ttl=3600.0)
    claim = begun(ledger, effect)
    wait_s = 20.0 if pause == "asked for" else None
    ledger.finish(claim, Outcome(State.UNKNOWN, certain=False, observation="lost", retry_after_s=wait_s))
    if wait_s is None:
        taken = ledger.take(claim.op_id, force=True)
        assert taken is not None
        ledger.settle(taken, Finding(Verdict.UNREACHABLE))
    found = ledger.begin(intent(ledger, effect))
    assert found.claim is not None or found.record.state is State.UNKNOWN


# -- after the deadline --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("waits", "state"), [(50, State.PREPARED), (61, State.FAILED)])
def test_what_is_shown_absent_after_its_recovery_deadline_is_not_to_be_sent_again(
    ledger: Ledger, waits: float, state: State
) -> None:
    record = lost(ledger)
    claim = ledger.take(record.op_id, 600, force=True)
    assert claim is not None
    later(ledger, waits)
    after = ledger.settle(claim, Finding(Verdict.DEFINITELY_ABSENT))
    assert (after.state, after.verdict) == (state, Verdict.DEFINITELY_ABSENT)


def test_what_is_still_unknown_after_its_recovery_deadline_is_for_a_person(ledger: Ledger) -> None:
    record = lost(ledger)
    claim = ledger.take(record.op_id, 600, force=True)
    assert claim is not None
    later(ledger, 61)
    assert ledger.settle(claim, Finding(Verdict.UNREACHABLE)).state is State.NEEDS_HUMAN
    assert [each.kind for each in ledger.alerts()] == ["recovery_deadline_passed"]


def test_who_asked_too_long_settles_nothing_while_another_asks(ledger: Ledger) -> None:
    record = lost(ledger)
    slow = ledger.take(record.op_id, 5, force=True)
    assert slow is not None
    later(ledger, 6)
    ledger.sweep()
    other = ledger.take(record.op_id, 30, force=True)
    assert other is not None
    for verdict in (Verdict.DEFINITELY_ABSENT, Verdict.APPLIED):
        with pytest.raises(StaleClaim):
            ledger.settle(slow, Finding(verdict))
    with pytest.raises(StaleClaim):
        ledger.heartbeat(slow)
    assert ledger.get(record.op_id).state is State.RECONCILING
    assert ledger.heartbeat(other).fence == other.fence
    assert ledger.settle(other, Finding(Verdict.APPLIED)).state is State.SUCCEEDED


# -- what is kept --------------------------------------------------------------------------------------------------


def test_a_result_of_64_kib_is_kept_and_one_byte_more_is_its_callers_alone(ledger: Ledger) -> None:
    frame = len(json.dumps({"value": ""}, separators=(",", ":")))
    for length, kept in (((64 << 10) - frame, True), ((64 << 10) - frame + 1, False), (1 << 20, False)):
        claim = begun(ledger, binding=f"{length} long")
        record = ledger.finish(claim, Outcome(State.SUCCEEDED, value="x" * length, has_value=True))
        assert record.state is State.SUCCEEDED
        assert ledger.value(claim.op_id) == ((True, "x" * length) if kept else (False, None))


def test_who_acknowledged_what_is_in_the_trail_once(ledger: Ledger) -> None:
    claim = begun(ledger)
    with pytest.raises(OperationConflict):
        ledger.begin(intent(ledger, fingerprint="another"))
    assert ledger.acknowledge("key_conflict", claim.op_id, "anna")
    assert not ledger.acknowledge("key_conflict", claim.op_id, "ben")
    (acked,) = [json.loads(each.body) for each in ledger.trail(claim.op_id) if each.kind == "alert.acked"]
    assert {"alert": "key_conflict", "by": "anna"}.items() <= acked.items()
    record = ledger.get(claim.op_id)
    assert ledger.trail(claim.op_id)[-1].hash == record.head
    assert ledger.alerts() == []


# -- what is signed ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return closed_ledger(tmp_path_factory.mktemp("signed"), 6)


def with_another_signature(checkpoints: Path) -> None:
    """The same words, and the same key named for them: only that this key has not signed them."""
    text = checkpoints.read_text()
    start = text.rstrip("\n").rindex(" ") + 1
    signed = bytearray(base64.b64decode(text[start:].strip()))
    signed[-1] ^= 1
    checkpoints.write_text(f"{text[:start]}{base64.b64encode(signed).decode()}\n\n")


def test_nothing_is_signed_after_a_checkpoint_whose_signature_is_wrong(original: Path, tmp_path: Path) -> None:
    copy = Copy.of(original, tmp_path)
    with_another_signature(copy.checkpoints)
    before = copy.checkpoints.read_bytes()
    ledger = Ledger(open_store(str(copy.path)))
    history(ledger, 6, 1)
    assert ledger.notary is not None
    with pytest.raises(LedgerBroken, match="not what was signed"):
        ledger.notary.checkpoint()
    assert [each.kind for each in ledger.alerts() if each.op_id == "ledger"] == ["ledger_broken"]
    ledger.close()
    assert copy.checkpoints.read_bytes() == before
