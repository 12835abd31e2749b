# SPDX-License-Identifier: Apache-2.0
"""Random histories against an authority that remembers everything: what must hold of every ledger, after every step.

The numbers (I1, I2, ...) are those of docs/ledger.md, which names the tests of those that no history of one thread can
show (I11, I15, I18) and of what is more than this.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import hypothesis
import pytest
import stores
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from deadstop.errors import IllegalTransition, OperationConflict, StaleClaim
from deadstop.ledger import alerts
from deadstop.ledger.canonical import leaf_hash
from deadstop.ledger.definition import Effect
from deadstop.ledger.handle import effect_of, retry_allowed
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.queries import HttpQuery
from deadstop.ledger.records import Begun, Claim, Finding, Intent, Outcome, Record
from deadstop.ledger.states import LEASED, OPEN, TERMINAL, State, Verdict
from deadstop.ledger.store import MEMORY
from deadstop.ledger.verify import verify

LOOK_UP = HttpQuery(url="http://authority.invalid/{key}")
EFFECTS = {
    "asks": Effect(retry="if_not_accepted", reconcile=LOOK_UP, consistent=True, max_attempts=3),
    "hasty": Effect(retry="if_not_accepted", reconcile=LOOK_UP, consistent=True, recovery_deadline=0.001),
    "never": Effect(retry="never", reconcile=LOOK_UP, consistent=True),
    "blind": Effect(),
    "keyed": Effect(retry="same_key_safe", key_ttl=3600, reconcile=LOOK_UP, max_attempts=3),
    "vague": Effect(retry="if_not_accepted", reconcile=LOOK_UP),
}
SHORT, LONG = 0.0005, 600.0
WHICH = st.integers(0, 11)  # drawn whatever there is: leases run out by the clock, and draws must not depend on that
WANTED = st.tuples(st.sampled_from(sorted(EFFECTS)), st.sampled_from("ab"))  # (tool, binding)


@dataclass
class Authority:
    """One that keeps keys does nothing twice under one; all the others do what comes, as often as it comes."""

    effects: Counter[str] = field(default_factory=Counter)
    takes: bool = True

    def send(self, claim: Claim) -> bool:
        if not self.takes:
            return False
        if claim.record.tool != "keyed" or not self.effects[claim.record.key]:
            self.effects[claim.record.key] += 1
        return True


class Machine(RuleBasedStateMachine):
    ground: stores.Ground

    def __init__(self) -> None:
        super().__init__()
        self.ledger: Ledger = self.ground.ledger()
        self.authority = Authority()
        self.run = f"{random.randrange(1 << 60):x}"  # stores may be shared by several histories
        self.tools: dict[str, int] = {}
        self.wanted: list[tuple[str, str]] = []  # (tool, binding)
        self.claims: list[tuple[Claim, str]] = []  # (claim, what has become of it: held, sent, refused)
        self.queries: list[Claim] = []
        self.ended: dict[str, State] = {}
        self.fences: dict[str, int] = {}
        self.people: set[str] = set()  # operations that a person let be sent again
        self.was_unknown: set[str] = set()
        self.waits: set[str] = set()  # operations that were refused until later
        self.operations: dict[tuple[str, str], str] = {}
        self.checked: dict[str, Record] = {}  # as it was when its trail was read last
        self.latest = 0  # that the clock has shown

    def teardown(self) -> None:
        report = verify(self.ledger)  # I10, with everything that an auditor looks at
        self.ledger.close()
        self.ground.release()
        assert report.ok, report.problems

    @initialize(wanted=st.lists(WANTED, min_size=2, max_size=4), short=st.booleans())
    def declare(self, wanted: list[tuple[str, str]], short: bool) -> None:
        """Few operations, so that much happens to each. They are begun here: of the rules each history is given only a
        part, and not always those that begin any."""
        self.ledger.publish_ends()
        for name, effect in EFFECTS.items():
            self.tools[name] = self.ledger.define(effect.define(name)).version
        self.wanted = wanted
        for number in range(len(wanted)):
            self.begin(number, other=False, short=short, sends=number % 2 == 0)

    # -- what callers do ---------------------------------------------------------------------------------------------

    def intent(self, tool: str, binding: str, fingerprint: str, holds: str = "always") -> Intent:
        effect = EFFECTS[tool]
        return Intent(f"{self.run}/{tool}", binding, fingerprint, tool, self.tools[tool], holds=holds,
                      recovery_s=effect.recovery_deadline, request_s=LONG)  # fmt: skip

    @rule(which=WHICH, other=st.sampled_from([False, False, False, True]), short=st.booleans(), sends=st.booleans())
    def begin(self, which: int, other: bool, short: bool, sends: bool) -> None:
        tool, binding = self.wanted[which % len(self.wanted)]
        fingerprint = "other" if other else "same"
        try:
            begun = self.ledger.begin(self.intent(tool, binding, fingerprint), SHORT if short else LONG)
        except OperationConflict as problem:
            self.told_apart(problem.op_id, fingerprint)
            return
        record = begun.record
        assert record.fingerprint == fingerprint  # I13
        assert self.operations.setdefault((tool, binding), record.op_id) == record.op_id  # I1
        if begun.claim is None:
            assert record.state is not State.PREPARED or record.op_id in self.waits, record
            assert record.state is not State.PREPARED or effect_of(record) == "not_applied", record
            return
        assert [each.n for each in self.ledger.attempts(record.op_id)][-1] == begun.claim.attempt  # I4
        became = "held"
        if sends:
            became = "sent" if self.authority.send(begun.claim) else "refused"
        self.claims.append((begun.claim, became))

    @rule(which=WHICH)
    def begin_at_once(self, which: int) -> None:  # I14
        """Several do; the one who may send holds the claim from here on."""
        tool, binding = self.wanted[which % len(self.wanted)]
        intent = self.intent(tool, binding, "same")

        def begin(_: int) -> Begun | None:
            try:
                return self.ledger.begin(intent, LONG)
            except OperationConflict:
                return None

        with ThreadPoolExecutor(3) as pool:
            begun = [each for each in pool.map(begin, range(3)) if each is not None]
        ids = {each.record.op_id for each in begun}
        assert len(ids) <= 1
        assert len(begun) in (0, 3)
        for op_id in ids:
            assert self.operations.setdefault((tool, binding), op_id) == op_id  # I1
        claims = [each.claim for each in begun if each.claim is not None]
        assert len(claims) <= 1
        self.claims += [(each, "held") for each in claims]

    def told_apart(self, op_id: str, fingerprint: str) -> None:  # I13
        assert self.ledger.get(op_id).fingerprint != fingerprint

    @rule(which=WHICH)
    def send(self, which: int) -> None:
        if not self.claims:
            return
        number = which % len(self.claims)
        claim, became = self.claims[number]
        if became == "held" and not claim.is_over():  # nobody sends on a lease that is over
            self.claims[number] = claim, "sent" if self.authority.send(claim) else "refused"

    @rule(takes=st.booleans())
    def the_authority_changes_its_mind(self, takes: bool) -> None:
        self.authority.takes = takes

    @rule(which=WHICH, how=st.sampled_from(["lost", "answer", "later"]))
    def finish(self, which: int, how: str) -> None:
        """With what the caller truthfully saw; also long after somebody else has settled it, and twice."""
        if not self.claims:
            return
        number = which % len(self.claims)
        claim, became = self.claims[number]
        if how == "lost":
            outcome = Outcome(State.UNKNOWN, certain=False, observation="lost")
        else:
            to = {"held": State.PREPARED, "sent": State.SUCCEEDED, "refused": State.FAILED}[became]
            outcome = Outcome(to, value=became, has_value=True, retry_after_s=60 if how == "later" else None)
        before = self.ledger.get(claim.op_id)
        held = before.state is State.DISPATCHING and before.fence == claim.fence
        if became == "held" and how != "lost":
            self.claims[number] = claim, "over"
            self.waits |= {claim.op_id} if how == "later" else set()
        try:
            self.ledger.finish(claim, outcome)
        except StaleClaim:
            assert not held
            assert self.ledger.get(claim.op_id).state is before.state  # I6
        else:
            assert held
        if became != "over" and how != "lost":
            self.claims.pop(number)

    # -- what time and reconcilers do --------------------------------------------------------------------------------

    @rule()
    def sweep(self) -> None:
        """Twice: what was asked about until its lease ran out is unknown after the first, for one last question."""
        now = self.now()
        self.ledger.sweep()
        self.ledger.sweep()
        for op_id in self.operations.values():  # I8
            record = self.ledger.get(op_id)
            assert record.state is not State.UNKNOWN or record.recovery_ms > now, record
            assert record.state is not State.PREPARED or record.request_ms > now, record
            assert record.state not in LEASED or (record.lease_ms or 0) > now, record
        told = self.ledger.conservation()
        assert (told["holds"], told["without_deadline"]) == (True, [])

    def now(self) -> int:
        now = self.ledger.read(lambda tx: tx.now)
        self.latest = max(self.latest, now)
        return now

    def some_operation(self, which: int) -> str:
        return list(self.operations.values())[which % len(self.operations)]

    @rule(which=WHICH, force=st.booleans())
    def take(self, which: int, force: bool) -> None:
        op_id = self.some_operation(which)
        before = self.ledger.get(op_id)
        claim = self.ledger.take(op_id, LONG, force=force)
        if claim is None:
            return
        assert before.state in (State.UNKNOWN, State.NEEDS_HUMAN)
        self.queries.append(claim)

    @rule(which=WHICH, answer=st.sampled_from(["truth", "truth", "stale", "nothing", "contradiction"]))
    def settle(self, which: int, answer: str) -> None:
        if not self.queries:
            self.take(which, force=True)
        if not self.queries:
            return
        claim = self.queries.pop(which % len(self.queries))
        done = self.authority.effects[claim.record.key]
        truth = Verdict.APPLIED if done else Verdict.DEFINITELY_ABSENT
        # What is not declared consistent may not show yet what it has taken.
        stale = truth if EFFECTS[claim.record.tool].consistent else Verdict.DEFINITELY_ABSENT
        verdict = {"truth": truth, "stale": stale, "nothing": Verdict.UNREACHABLE,
                   "contradiction": Verdict.CONTRADICTION}[answer]  # fmt: skip
        before = self.ledger.get(claim.op_id)
        held = before.state is State.RECONCILING and before.fence == claim.fence
        try:
            self.ledger.settle(claim, Finding(verdict, source="machine"))
        except StaleClaim:
            assert not held
        else:
            assert held
            self.forget_what_may_still_be_sent(claim.op_id)

    @rule(which=WHICH, sends=st.booleans(), answer=st.sampled_from(["truth", "stale", None]))
    def lose_and_ask(self, which: int, sends: bool, answer: str | None) -> None:
        """A round at once: else no history would come as far as its last attempt, or have several in doubt."""
        before = len(self.claims)
        self.begin(which, other=False, short=False, sends=sends)
        if len(self.claims) == before:
            return
        self.finish(before, "lost")
        claim = None if answer is None else self.ledger.take(self.claims[before][0].op_id, LONG, force=True)
        if claim is not None and answer is not None:
            self.queries.append(claim)
            self.settle(len(self.queries) - 1, answer)

    def forget_what_may_still_be_sent(self, op_id: str) -> None:
        """Its lease is over, or the operation would not have been asked about: its holder sends nothing any more."""
        self.claims = [
            (claim, "over" if claim.op_id == op_id and became == "held" else became) for claim, became in self.claims
        ]
        self.claims = [each for each in self.claims if each[1] != "over"]

    @rule(which=WHICH, decision=st.sampled_from([State.SUCCEEDED, State.FAILED, State.ABANDONED, State.PREPARED]))
    def decide(self, which: int, decision: State) -> None:
        op_id = self.some_operation(which)
        before = self.ledger.get(op_id)
        if decision in (State.SUCCEEDED, State.FAILED):  # people look before they decide
            decision = State.SUCCEEDED if self.authority.effects[before.key] else State.FAILED
        try:
            after = self.ledger.resolve(op_id, decision, "anna", "has looked", ver=before.ver)
        except IllegalTransition:
            assert before.state in TERMINAL | {State.DISPATCHING, State.PREPARED}
            return
        assert after.fence > before.fence
        if decision is State.PREPARED:
            self.people.add(op_id)
        self.forget_what_may_still_be_sent(op_id)

    @rule(hours=st.sampled_from([-1, 1]))
    def the_clock_jumps(self, hours: int) -> None:  # I17
        zero = getattr(self.ledger.store, "_zero", None)
        if zero is not None:
            self.ledger.store._zero = zero + 3600 * hours

    # -- what holds --------------------------------------------------------------------------------------------------

    @invariant()
    def everything_holds(self) -> None:
        self.now()
        ids = list(self.operations.values())
        for op_id in ids:
            record = self.ledger.get(op_id)
            self.of_the_world(record)
            self.of_its_life(record)
            if self.checked.get(op_id) != record:
                self.of_its_trail(record)
                self.checked[op_id] = record
        events = {row[0] for row in self.ground.raw("SELECT op_id FROM outbox")}
        assert {op_id for op_id in ids if op_id in self.ended} <= events  # I16

    def of_the_world(self, record: Record) -> None:
        done = self.authority.effects[record.key]
        assert done <= 1 or record.op_id in self.people, record  # I2
        if record.state is State.SUCCEEDED:
            assert done, record  # I3
        if effect_of(record) == "not_applied" and record.op_id not in self.people:
            assert not done, record  # I3
        definition = self.ledger.definition(record.tool, record.definition)
        if retry_allowed(record, definition) and record.op_id not in self.people:  # I9
            assert definition.retry != "never" or record.attempts == 0
            assert record.tool == "keyed" or not done
        if record.op_id not in self.people:
            assert record.attempts <= definition.max_attempts  # I7

    def of_its_life(self, record: Record) -> None:
        if record.op_id in self.ended:
            assert record.state is self.ended[record.op_id]  # I5
        if record.state in TERMINAL:
            self.ended[record.op_id] = record.state
        assert record.fence >= self.fences.get(record.op_id, 0)  # I6
        self.fences[record.op_id] = record.fence
        assert (record.owner is None) is (record.lease_ms is None) is (record.state not in LEASED)
        if record.state in OPEN:
            self.of_its_deadline(record)
        if record.state is State.UNKNOWN:
            self.was_unknown.add(record.op_id)

    def of_its_deadline(self, record: Record) -> None:  # I8
        """Each open one has the deadline that ends the state it is in, no further away than was asked for."""
        ends_ms = {
            State.PREPARED: record.request_ms, State.DISPATCHING: record.lease_ms, State.RECONCILING: record.lease_ms,
            State.UNKNOWN: record.recovery_ms,
        }.get(record.state, self.latest)  # fmt: skip
        assert ends_ms is not None
        assert 0 < ends_ms <= self.latest + 1000 * LONG, record
        if record.state is State.NEEDS_HUMAN:
            told = self.ledger.read(lambda tx: alerts.list_alerts(tx, limit=1000))
            assert [each for each in told if each.op_id == record.op_id], record

    def of_its_trail(self, record: Record) -> None:
        state, ver, fence, attempts, prev = "", 0, 0, 0, ""
        lost = False
        for n, entry in enumerate(self.ledger.trail(record.op_id), 1):
            body = json.loads(entry.body)
            assert (entry.n, entry.prev, body["prev"], body["op"]) == (n, prev, prev, record.op_id)
            assert entry.hash == leaf_hash(entry.body.encode())
            prev = entry.hash
            if "to" in body:
                assert body["from"] == state
                state, ver, fence, attempts = body["to"], body["ver"], body["fence"], body["attempts"]
                lost = lost or state == State.UNKNOWN
        assert (state, ver, fence, attempts) == (record.state, record.ver, record.fence, record.attempts)  # I10
        assert (n, prev) == (record.evidence, record.head)
        assert lost or record.op_id not in self.was_unknown  # I12


@pytest.mark.parametrize(("kind", "examples", "steps"), [("memory", 100, 40), ("sqlite", 8, 30), ("postgresql", 4, 30)])
def test_random_histories(kind, examples, steps, request, tmp_path) -> None:
    databases = request.getfixturevalue("databases") if kind == "postgresql" else None
    number = 0

    class Here(Machine):
        def __init__(self) -> None:
            nonlocal number
            number += 1
            where = str(tmp_path / f"{number}.db") if databases is None else databases.fresh()
            where = MEMORY if kind == "memory" else where
            self.ground = stores.Ground(kind, where)
            super().__init__()

    run_state_machine_as_test(
        Here,
        settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None, database=None,
                          suppress_health_check=list(HealthCheck), print_blob=False,
                          phases=[hypothesis.Phase.generate]),
    )  # fmt: skip
