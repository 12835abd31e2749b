# SPDX-License-Identifier: Apache-2.0
"""Operations: one intent, one key, one effect; what is refused, what is unknown, what may be sent again."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest
import rfc8785

from deadstop.errors import IllegalTransition, OperationConflict, OperationNotFound, StaleClaim, UsageError
from deadstop.ledger import alerts
from deadstop.ledger.canonical import canonical, fingerprint, leaf_hash, selected
from deadstop.ledger.definition import Definition, Effect
from deadstop.ledger.handle import effect_of, retry_allowed
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.operations import key_of
from deadstop.ledger.queries import HttpQuery
from deadstop.ledger.records import Claim, Finding, Intent, Outcome, Record
from deadstop.ledger.states import State, Verdict
from deadstop.ledger.verify import verify

LOOK_UP = HttpQuery(url="http://authority.invalid/by-key/{key}")
LOST = Outcome(State.UNKNOWN, phase="await_response", certain=False, observation="the connection was closed")


def intent(ledger: Ledger, binding: str = "one", *, effect: Effect | None = None, **more) -> Intent:
    effect = effect or Effect(retry="if_not_accepted", reconcile=LOOK_UP, consistent=True)
    version = ledger.define(effect.define("pay")).version
    return Intent(**{"scope": "default/pay", "binding": binding, "fingerprint": "f1", "tool": "pay",
                     "definition": version, "recovery_s": effect.recovery_deadline} | more)  # fmt: skip


def begun(ledger: Ledger, binding: str = "one", **more) -> Claim:
    claim = ledger.begin(intent(ledger, binding, **more)).claim
    assert claim is not None
    return claim


def lost(ledger: Ledger, **more) -> Record:
    return ledger.finish(begun(ledger, **more), LOST)


def asked(ledger: Ledger, record: Record, verdict: Verdict, **more) -> Record:
    claim = ledger.take(record.op_id, force=True)
    assert claim is not None
    return ledger.settle(claim, Finding(verdict, source="test", **more))


def kinds(ledger: Ledger, op_id: str) -> list[str]:
    return [entry.kind for entry in ledger.trail(op_id)]


def test_an_attempt_is_on_record_before_anything_can_be_sent(ledger) -> None:
    claim = begun(ledger)
    assert kinds(ledger, claim.op_id) == ["intent", "attempt.started"]
    (attempt,) = ledger.attempts(claim.op_id)
    assert (attempt.n, attempt.fence, attempt.ended_ms) == (1, claim.fence, None)
    assert ledger.get(claim.op_id).state is State.DISPATCHING


def test_the_same_key_finds_the_one_operation_whatever_became_of_it(ledger) -> None:
    claim = begun(ledger)
    assert ledger.begin(intent(ledger)).why == "busy"
    ledger.finish(claim, Outcome(State.SUCCEEDED, value={"id": 7}, has_value=True, reference="dep_7"))
    again = ledger.begin(intent(ledger))
    assert (again.why, again.claim, again.record.op_id) == ("settled", None, claim.op_id)
    assert ledger.value(claim.op_id) == (True, {"id": 7})
    assert ledger.get(claim.op_id).reference == "dep_7"


def test_another_fingerprint_under_the_key_is_refused_and_on_record(ledger) -> None:
    claim = begun(ledger)
    with pytest.raises(OperationConflict) as caught:
        ledger.begin(intent(ledger, fingerprint="f2"))
    assert caught.value.op_id == claim.op_id
    assert kinds(ledger, claim.op_id)[-1] == "conflict.rejected"
    assert [each.kind for each in ledger.read(alerts.list_alerts)] == ["key_conflict"]
    assert len(ledger.attempts(claim.op_id)) == 1


@pytest.mark.parametrize(
    ("holds", "ended", "same"),
    [
        ("always", State.SUCCEEDED, True), ("always", State.FAILED, True),
        ("success", State.SUCCEEDED, True), ("success", State.FAILED, False),
        ("open", State.SUCCEEDED, False), ("open", State.FAILED, False),
        ("always", State.UNKNOWN, True), ("success", State.UNKNOWN, True), ("open", State.UNKNOWN, True),
    ],
)  # fmt: skip
def test_how_long_a_binding_holds(ledger, holds, ended, same) -> None:
    claim = begun(ledger, holds=holds)
    ledger.finish(claim, Outcome(ended))
    again = ledger.begin(intent(ledger, holds=holds))
    assert (again.record.op_id == claim.op_id) is same
    assert (again.claim is None) is same
    assert (again.record.key == claim.record.key) is same


def test_a_binding_that_is_used_over_and_over_finds_its_last_operation(ledger) -> None:
    """Many within one millisecond, too: their order is that of their keys."""
    seen = set()
    for _ in range(30):
        claim = begun(ledger, holds="open")
        assert ledger.begin(intent(ledger, holds="open")).record.op_id == claim.op_id
        ledger.finish(claim, Outcome(State.SUCCEEDED))
        seen.add(claim.op_id)
    assert len(seen) == 30


def test_scopes_have_keys_of_their_own(ledger) -> None:
    one, other = begun(ledger), begun(ledger, scope="somebody/pay")
    assert one.op_id != other.op_id
    assert one.record.key != other.record.key


def test_of_many_at_once_one_sends(ledger) -> None:
    wanted = intent(ledger)
    found = []
    threads = [threading.Thread(target=lambda: found.append(ledger.begin(wanted))) for _ in range(12)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)
    assert len(found) == 12
    assert sum(each.claim is not None for each in found) == 1
    assert {each.record.op_id for each in found} == {found[0].record.op_id}


def test_a_lease_that_runs_out_makes_it_unknown_and_sends_nothing(ledger) -> None:
    claim = ledger.begin(intent(ledger), lease_s=0.001).claim
    again = ledger.begin(intent(ledger))
    while again.why == "busy":
        again = ledger.begin(intent(ledger))
    assert (again.why, again.claim) == ("unknown", None)
    with pytest.raises(StaleClaim):
        ledger.finish(claim, Outcome(State.SUCCEEDED, reference="late"))
    record = ledger.get(claim.op_id)
    assert (record.state, record.reference) == (State.UNKNOWN, "late")  # which can be asked for, and at once
    assert record.next_ms <= ledger.read(lambda tx: tx.now)
    assert kinds(ledger, claim.op_id)[-1] == "attempt.late"
    assert [each.outcome for each in ledger.attempts(claim.op_id)] == ["UNKNOWN"]


def test_what_was_surely_not_sent_may_be_sent_under_its_one_key(ledger) -> None:
    claim = begun(ledger)
    record = ledger.finish(claim, Outcome(State.PREPARED, phase="connect", observation="refused"))
    assert (record.state, effect_of(record)) == (State.PREPARED, "not_applied")
    second = begun(ledger)
    assert (second.op_id, second.record.key) == (claim.op_id, claim.record.key)
    assert (second.attempt, second.fence) == (2, claim.fence + 1)


def test_never_means_never_also_where_nothing_was_sent(ledger) -> None:
    record = ledger.finish(begun(ledger, effect=Effect()), Outcome(State.PREPARED, phase="connect"))
    assert (record.state, effect_of(record)) == (State.FAILED, "not_applied")


def test_attempts_are_counted_out(ledger) -> None:
    effect = Effect(retry="if_not_accepted", max_attempts=2, reconcile=LOOK_UP, consistent=True)
    for _ in range(2):
        record = ledger.finish(begun(ledger, effect=effect), Outcome(State.PREPARED))
    assert record.state is State.FAILED
    assert ledger.begin(intent(ledger, effect=effect)).why == "settled"


def test_without_an_authority_a_person_is_asked_at_once(ledger) -> None:
    record = lost(ledger, effect=Effect())
    assert record.state is State.NEEDS_HUMAN
    assert kinds(ledger, record.op_id)[-2:] == ["attempt.ended", "human.requested"]
    for operator, reason in (("anna", " "), ("", "seen in the bank's list")):
        with pytest.raises(UsageError):
            ledger.resolve(record.op_id, State.SUCCEEDED, operator, reason)
    done = ledger.resolve(record.op_id, State.SUCCEEDED, "anna", "seen in the bank's list", ver=record.ver)
    assert done.state is State.SUCCEEDED
    assert done.fence > record.fence
    with pytest.raises(IllegalTransition):
        ledger.resolve(record.op_id, State.FAILED, "ben", "no")


@pytest.mark.parametrize(
    ("verdict", "state"),
    [
        (Verdict.APPLIED, State.SUCCEEDED), (Verdict.APPLIED_FAILED, State.FAILED),
        (Verdict.DEFINITELY_ABSENT, State.PREPARED), (Verdict.IN_PROGRESS, State.UNKNOWN),
        (Verdict.INCONCLUSIVE, State.UNKNOWN), (Verdict.UNREACHABLE, State.UNKNOWN),
        (Verdict.CONTRADICTION, State.NEEDS_HUMAN),
    ],
)  # fmt: skip
def test_what_each_finding_does(ledger, verdict, state) -> None:
    record = lost(ledger)
    settled = asked(ledger, record, verdict)
    assert settled.state is state
    assert settled.verdict is verdict
    entries = ledger.trail(record.op_id)
    assert "attempt.ended" in [each.kind for each in entries]  # that it was once unknown stays on record
    assert json.loads(entries[-1].body)["to"] == state.value


def test_absence_is_no_fact_unless_the_definition_makes_it_one(ledger) -> None:
    effect = Effect(retry="if_not_accepted", reconcile=LOOK_UP)
    settled = asked(ledger, lost(ledger, effect=effect), Verdict.DEFINITELY_ABSENT)
    assert (settled.state, settled.verdict) == (State.UNKNOWN, Verdict.INCONCLUSIVE)


def test_absence_counts_when_the_settle_time_is_over(ledger) -> None:
    effect = Effect(retry="if_not_accepted", reconcile=LOOK_UP, settle=0.2)
    record = asked(ledger, lost(ledger, effect=effect), Verdict.DEFINITELY_ABSENT)
    assert record.state is State.UNKNOWN
    sent = ledger.get(record.op_id).last_sent_ms
    assert record.next_ms == sent + 200  # asked again when it can count
    while ledger.store.read(lambda tx: tx.now) < record.next_ms:
        pass
    assert asked(ledger, record, Verdict.DEFINITELY_ABSENT).state is State.PREPARED


def test_absent_and_never_to_be_sent_again_has_failed(ledger) -> None:
    effect = Effect(retry="never", reconcile=LOOK_UP, consistent=True)
    settled = asked(ledger, lost(ledger, effect=effect), Verdict.DEFINITELY_ABSENT)
    assert (settled.state, effect_of(settled)) == (State.FAILED, "not_applied")


def test_a_key_that_the_provider_keeps_may_be_sent_in_doubt_and_stays_in_doubt(ledger) -> None:
    effect = Effect(retry="same_key_safe", key_ttl=3600, reconcile=LOOK_UP)
    record = lost(ledger, effect=effect)
    definition = ledger.definition("pay", record.definition)
    assert (effect_of(record), retry_allowed(record, definition)) == ("unknown", True)
    second = begun(ledger, effect=effect)
    assert (second.op_id, second.attempt) == (record.op_id, 2)
    # The second one is refused: that says nothing of the first.
    record = ledger.finish(second, Outcome(State.FAILED, observation="403"))
    assert (record.state, effect_of(record)) == (State.UNKNOWN, "unknown")


def test_a_key_that_the_provider_has_forgotten_is_not_sent_again(ledger) -> None:
    effect = Effect(retry="same_key_safe", key_ttl=0.001, reconcile=LOOK_UP)
    sent = lost(ledger, effect=effect).first_sent_ms
    while ledger.read(lambda tx: tx.now) < sent + 2:
        pass
    assert ledger.begin(intent(ledger, effect=effect)).why == "unknown"


def test_a_later_definition_only_tightens(ledger) -> None:
    lax = Effect(retry="if_not_accepted", reconcile=LOOK_UP, consistent=True, max_attempts=9)
    record = lost(ledger, effect=lax)
    ledger.define(Effect(retry="never", reconcile=LOOK_UP, max_attempts=2).define("pay"))
    now = ledger.definition("pay", record.definition)
    assert (now.retry, now.consistent, now.max_attempts, now.version) == ("never", False, 2, record.definition)
    assert asked(ledger, record, Verdict.DEFINITELY_ABSENT).state is State.UNKNOWN
    laxer = ledger.define(Effect(retry="same_key_safe", key_ttl=9, consistent=True, max_attempts=99).define("pay"))
    assert ledger.definition("pay", record.definition).retry == "if_not_accepted"
    assert laxer.version == 3


def test_a_run_that_slept_while_a_person_decided_is_refused(ledger) -> None:
    claim = ledger.begin(intent(ledger), lease_s=0.001).claim
    while not ledger.sweep():
        pass
    ledger.resolve(claim.op_id, State.ABANDONED, "anna", "cancelled with the customer")
    with pytest.raises(StaleClaim) as caught:
        ledger.finish(claim, Outcome(State.SUCCEEDED))
    assert caught.value.state == "ABANDONED"
    with pytest.raises(StaleClaim):
        ledger.heartbeat(claim)


def test_a_query_that_was_under_way_while_a_person_decided_changes_nothing(ledger) -> None:
    record = lost(ledger)
    query = ledger.take(record.op_id)
    ledger.resolve(record.op_id, State.FAILED, "anna", "not in the list")
    with pytest.raises(StaleClaim):
        ledger.settle(query, Finding(Verdict.APPLIED))
    assert ledger.get(record.op_id).state is State.FAILED
    assert kinds(ledger, record.op_id)[-1] == "fence.refused"


def test_two_people_decide_once(ledger) -> None:
    record = lost(ledger, effect=Effect())
    ledger.resolve(record.op_id, State.PREPARED, "anna", "send it again", ver=record.ver)
    with pytest.raises(StaleClaim):
        ledger.resolve(record.op_id, State.SUCCEEDED, "ben", "it was there", ver=record.ver)
    assert ledger.begin(intent(ledger, effect=Effect())).claim is not None


def test_recovery_that_takes_too_long_is_for_a_person_once(ledger) -> None:
    record = lost(ledger, effect=Effect(reconcile=LOOK_UP, recovery_deadline=0.001))
    while not (swept := ledger.sweep()):
        pass
    assert [each.state for each in swept] == [State.NEEDS_HUMAN]
    assert ledger.sweep() == []
    assert ledger.take(record.op_id) is None  # nobody asks by himself any more
    assert asked(ledger, record, Verdict.APPLIED).state is State.SUCCEEDED  # a person may have it asked


def test_what_is_not_sent_in_time_is_given_up(ledger) -> None:
    made = ledger.submit(intent(ledger, request_s=0.001))
    assert made.record.state is State.PREPARED
    while not ledger.sweep():
        pass
    record = ledger.get(made.record.op_id)
    assert (record.state, effect_of(record)) == (State.ABANDONED, "not_applied")


def test_what_was_given_up_did_not_happen_only_if_it_never_left(ledger) -> None:
    never = ledger.finish(begun(ledger, binding="a"), Outcome(State.PREPARED, phase="connect"))
    assert effect_of(ledger.cancel(never.op_id)) == "not_applied"
    maybe = ledger.resolve(lost(ledger, binding="b").op_id, State.ABANDONED, "anna", "no use any more")
    assert effect_of(maybe) == "unknown"


def test_what_is_sealed_can_be_shredded(ledger) -> None:
    claim = begun(ledger, sealed={"request": {"iban": "DE00 canary"}})
    ledger.finish(claim, Outcome(State.SUCCEEDED, value="secret canary", has_value=True))
    assert "canary" not in "".join(entry.body for entry in ledger.trail(claim.op_id))
    assert ledger.shred(claim.op_id, by="anna") == ["request", "result"]
    assert ledger.value(claim.op_id) == (False, None)
    assert kinds(ledger, claim.op_id)[-1] == "payload.shredded"


def test_every_operation_is_in_one_place(ledger) -> None:
    lost(ledger, binding="a"), lost(ledger, binding="b", effect=Effect()), begun(ledger, binding="c")
    ledger.finish(begun(ledger, binding="d"), Outcome(State.SUCCEEDED))
    sum_ = ledger.conservation()
    assert (sum_["started"], sum_["ended"], sum_["open"], sum_["holds"]) == (4, 1, 3, True)
    assert ledger.counts()["UNKNOWN"] == 1
    assert [each.state for each in ledger.list([State.NEEDS_HUMAN])] == [State.NEEDS_HUMAN]
    assert len(ledger.list()) == 4


def test_ids_may_be_shortened_as_long_as_they_are_clear(ledger) -> None:
    claim = begun(ledger)
    assert ledger.get(claim.op_id[:-3]).op_id == claim.op_id
    begun(ledger, binding="two")
    with pytest.raises(UsageError, match="more than one"):
        ledger.get("op_")
    for unknown in ("op_nothing", "", "o%", "'; --"):
        with pytest.raises(OperationNotFound):
            ledger.get(unknown)


def test_odd_texts_are_written_as_they_can_be(ledger) -> None:
    odd = "nul \0 lone \ud800 \u2028 quote ' -- 日本 " + "x" * 5000
    claim = begun(ledger, correlation=odd, target=odd, asked_by=odd)
    record = ledger.finish(claim, replace(LOST, observation=odd))
    assert record.state is State.UNKNOWN
    for entry in ledger.trail(record.op_id):
        assert leaf_hash(entry.body.encode()) == entry.hash
        assert canonical(json.loads(entry.body)) == entry.body.encode()


@pytest.mark.parametrize("text", ["a", '\x7f\x1f\t\n"\\/', "é日\U0001f600", "\ue000\U00010000", "", "</script>"])
def test_our_own_encoding_is_the_canonical_one(text) -> None:
    document = {"z": text, "a": 1, "n": None, "t": True, "m": -(2**53) + 1, text or "k": "key"}
    for each in (document, {"a": [document, text, 7]}):
        assert canonical(each) == rfc8785.dumps(each)


def test_a_fingerprint_is_of_what_was_meant_and_not_of_how_it_was_written() -> None:
    one = fingerprint("t", selected({"b": 1, "a": {"x": [1.0, "y"]}, "trace": "q"}, ["a", "b"]))
    assert one == fingerprint("t", selected({"a": {"x": [1, "y"]}, "b": 1, "trace": "r"}, ["b", "a"]))
    assert one != fingerprint("u", {"b": 1, "a": {"x": [1, "y"]}})
    assert selected({"a": {"b": 2}}, ["a.b"]) == {"a.b": 2}
    for bad in (float("nan"), 2**60, {1: 2}, object(), "\ud800"):
        with pytest.raises(UsageError):
            fingerprint("t", {"a": bad})
    with pytest.raises(UsageError, match="no argument 'c'"):
        selected({"a": 1}, ["c"])


def test_keys_are_of_the_binding_and_nothing_else() -> None:
    assert key_of("s", "b", 0) == key_of("s", "b", 0)
    assert len({key_of("s", "b", 0), key_of("s", "b", 1), key_of("t", "b", 0), key_of("sb", "", 0)}) == 4


@pytest.mark.parametrize(
    "bad",
    [
        {"retry": "always"}, {"recovery_deadline": None}, {"recovery_deadline": 0}, {"reconcile_timeout": float("inf")},
        {"settle": -1}, {"max_attempts": 0}, {"max_attempts": None}, {"fingerprint": "a"}, {"redact": [1]},
        {"retry": "same_key_safe"}, {"reconcile": lambda op: None}, {"reconcile": 5},
        {"fingerprint": ["a"], "redact": ["a"]}, {"fingerprint": ["a.b"], "redact": ["a"]}, {"redact": ["a.b"]},
    ],
)  # fmt: skip
def test_declarations_that_cannot_be_kept_are_refused(bad) -> None:
    with pytest.raises(UsageError):
        Effect(**bad)


def test_a_definition_survives_being_written_down() -> None:
    for effect in (Effect(), Effect(fingerprint=["a", "b.c"], reconcile=LOOK_UP, settle=3, redact=["x"], target="{a}")):
        made = effect.define("t")
        assert Definition.from_dict(json.loads(canonical(made.to_dict()))) == made


def test_what_is_not_answered_is_said() -> None:
    assert len(Effect().unanswered()) == 2
    assert len(Effect(fingerprint=["a"], reconcile=LOOK_UP).unanswered()) == 1
    assert Effect(fingerprint=["a"], reconcile=LOOK_UP, consistent=True).unanswered() == ()


LAX = Effect(retry="if_not_accepted", reconcile=LOOK_UP, consistent=True)


def test_an_earlier_declaration_that_is_declared_again_is_the_current_one(ledger) -> None:
    """As after a step back to the release before."""
    strict = Effect(retry="never", reconcile=LOOK_UP)
    versions = [ledger.define(each.define("pay")).version for each in (LAX, strict, LAX, strict, LAX)]
    assert versions == [1, 2, 1, 2, 1]
    record = ledger.finish(begun(ledger, effect=LAX), Outcome(State.PREPARED, observation="refused"))
    assert record.state is State.PREPARED
    assert ledger.definition("pay", 1).retry == "if_not_accepted"
    assert ledger.definition("pay", 2).retry == "never"


@pytest.mark.parametrize("stricter", [Effect(retry="never", reconcile=LOOK_UP), replace(LAX, max_attempts=1)])
def test_what_became_stricter_since_is_not_sent_again(ledger, stricter) -> None:
    first = begun(ledger, effect=LAX)
    waiting = intent(ledger, effect=LAX)
    assert ledger.finish(first, Outcome(State.PREPARED, observation="429")).state is State.PREPARED
    current = ledger.define(stricter.define("pay"))
    assert not retry_allowed(ledger.get(first.op_id), ledger.definition("pay", waiting.definition))
    with pytest.raises(IllegalTransition):
        ledger.claim(first.op_id)
    again = ledger.begin(replace(waiting, definition=current.version))
    assert (again.claim, again.record.state, effect_of(again.record)) == (None, State.ABANDONED, "not_applied")
    assert len(ledger.attempts(first.op_id)) == 1


def test_what_a_person_allows_is_sent_whatever_is_declared(ledger) -> None:
    record = lost(ledger, effect=Effect())
    record = ledger.resolve(record.op_id, State.PREPARED, "anna", "asked them: send it again")
    assert retry_allowed(record, ledger.definition("pay", record.definition))
    assert ledger.begin(intent(ledger, effect=Effect())).why == "begun"


def test_nothing_is_sent_before_the_pause_that_was_asked_for_is_over(ledger) -> None:
    record = ledger.finish(begun(ledger, effect=LAX), Outcome(State.PREPARED, observation="429", retry_after_s=0.2))
    assert record.state is State.PREPARED
    found = ledger.begin(intent(ledger, effect=LAX))
    while found.claim is None:
        assert (found.why, found.record.attempts) == ("waiting", 1)
        found = ledger.begin(intent(ledger, effect=LAX))
    assert found.record.last_sent_ms >= record.updated_ms + 200


def late(ledger: Ledger, claim: Claim) -> list[str]:
    """The alerts after a late success."""
    with pytest.raises(StaleClaim):
        ledger.finish(claim, Outcome(State.SUCCEEDED, reference="dep-1"))
    return [alert.detail for alert in ledger.alerts() if alert.kind == "late_contradiction"]


def test_a_late_success_that_contradicts_a_decision_is_told(ledger) -> None:
    claim = begun(ledger, effect=LAX)
    ledger.finish(claim, LOST)
    ledger.resolve(claim.op_id, State.FAILED, "anna", "saw nothing")
    (told,) = late(ledger, claim)
    assert "FAILED" in told
    ledger.write(lambda tx: [alerts.over(tx, *each) for each in alerts.past(tx)])
    assert late(ledger, claim)  # no state of the operation ends it
    assert ledger.acknowledge("late_contradiction", claim.op_id, "anna")
    assert ledger.alerts() == []
    assert late(ledger, claim)


def test_a_late_success_of_what_was_sent_again_since_may_be_a_second_effect(ledger) -> None:
    first = begun(ledger, effect=LAX)
    asked(ledger, ledger.finish(first, LOST), Verdict.DEFINITELY_ABSENT)
    second = begun(ledger, effect=LAX)
    assert "twice" in late(ledger, first)[0]
    assert ledger.acknowledge("late_contradiction", first.op_id, "anna")
    ledger.finish(second, Outcome(State.SUCCEEDED))
    assert "twice" in late(ledger, first)[0]


def test_a_late_success_that_agrees_is_told_to_nobody(ledger) -> None:
    claim = begun(ledger, effect=LAX)
    asked(ledger, ledger.finish(claim, LOST), Verdict.APPLIED)
    assert late(ledger, claim) == []


def test_a_late_finding_that_contradicts_is_told(ledger) -> None:
    record = lost(ledger, effect=LAX)
    slow = ledger.take(record.op_id, 0.001, force=True)
    while not ledger.sweep_one(record.op_id):
        pass
    ledger.resolve(record.op_id, State.FAILED, "anna", "saw nothing")
    with pytest.raises(StaleClaim):
        ledger.settle(slow, Finding(Verdict.APPLIED, source="test"))
    assert [alert.kind for alert in ledger.alerts()] == ["late_contradiction"]


@pytest.mark.parametrize("size", [1999, 2000, 2001, 4001])
def test_texts_of_any_length_are_the_same_in_the_tables_and_in_the_log(ledger, size) -> None:
    claim = begun(ledger, correlation="c" * size, target="\udc80" * size)
    ledger.finish(claim, Outcome(State.UNKNOWN, observation="o\0" * size, reference="r" * size))
    assert verify(ledger).problems == ()


def test_whoever_asks_under_another_name_is_not_given_more_than_he_declares(ledger) -> None:
    """Commands are called by what they declare, and have one scope: a stricter run finds what a laxer one has made."""
    lax = Effect(retry="same_key_safe", key_ttl=600, reconcile=LOOK_UP)
    record = lost(ledger, effect=lax, scope="run/default")
    strict = ledger.define(Effect().define("pay+strict"))
    other = replace(intent(ledger, effect=lax, scope="run/default"), tool="pay+strict", definition=strict.version)
    assert (ledger.begin(other).why, ledger.get(record.op_id).attempts) == ("unknown", 1)
    assert ledger.begin(intent(ledger, effect=lax, scope="run/default")).why == "begun"
