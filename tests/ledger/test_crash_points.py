# SPDX-License-Identifier: Apache-2.0
"""kill -9 at every place in the code that has a name for it, whether or not the authority had got it by then, found by
the same machine or by another one: one effect or a person's decision, never two, and no operation lost.

K1 to K20 are the table below; K21 and K22 are here, too (K22 also in test_store_sqlite.py). K23 is in
test_power_loss.py, and K24, a session of PostgreSQL that ends with COMMIT on its way, in test_store_postgresql.py.

All deaths of one kind of store happen to one ledger that all share. Each has an authority of its own, on which every
request is another effect, whatever its key: nothing but the ledger stands against doing it twice.
"""

from __future__ import annotations

import ast
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import stores

pytest.importorskip("httpx2", reason="deadstop[ledger] is not installed")

from crash_courses import HOOK
from crash_matrix import ANYWHERE, Death, Matrix, matrix_of

import deadstop
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.records import Record
from deadstop.ledger.states import State
from deadstop.testing import CRASH_POINTS

TESTS = Path(__file__).resolve().parent.parent

#: Whose deaths are shown where the machinery for them is.
ELSEWHERE = {
    "ssh.connected": "effects/test_ssh_effects.py",
    "ssh.started": "effects/test_ssh_effects.py",
    "ssh.finished": "effects/test_ssh_effects.py",
}


def both(point: str, unsent: str, done: str, no: str = "unavailable", yes: str = "normal", **more: Any) -> list[Death]:
    return [Death(point, unsent, False, no, **more), Death(point, done, True, yes, **more)]


SQLITE = {"stores": ("sqlite",)}
SENDING, ASKING = ("DISPATCHING",) * 2, ("RECONCILING",) * 2
DEATHS = [
    # Before anything left, nothing can have arrived.
    Death("submit.before_commit", None),
    Death("commit.before", None, n=2, **SQLITE),  # the first commit is the definition's
    Death("submit.committed", "PREPARED", course="submit"),
    Death("wal.checkpoint", "DISPATCHING", n=2, **SQLITE),
    Death("claim.committed", "DISPATCHING"),
    Death("http.connected", "DISPATCHING"),
    # Half of it: an authority may have acted upon that; `Matrix.act_early` makes this one do so.
    *both("http.half_written", *SENDING, no="normal"),
    *both("http.written", *SENDING),
    *both("http.written", *SENDING, asked=False),
    *both("http.half_read", *SENDING),
    *both("http.replied", *SENDING),
    *both("finish.in_transaction", *SENDING),
    *both("commit.before", *SENDING, n=3, **SQLITE),
    *both("wal.checkpoint", "UNKNOWN", "SUCCEEDED", n=3, **SQLITE),
    *both("finish.committed", "UNKNOWN", "SUCCEEDED"),
    *both("heartbeat", *SENDING, no="normal", course="beat"),
    *both("reconcile.answered", *ASKING, no="reject_before", yes="accept_then_drop", course="settle"),
    *both("settle.in_transaction", *ASKING, no="reject_before", yes="accept_then_drop", course="settle"),
    *both("settle.committed", "PREPARED", "SUCCEEDED", no="reject_before", yes="accept_then_drop", course="settle"),
    *both("resolve.before_commit", *("NEEDS_HUMAN",) * 2, no="reject_before", yes="accept_then_drop", course="decide",
          asked=False),
    *both("resolve.committed", "PREPARED", "SUCCEEDED", no="reject_before", yes="accept_then_drop", course="decide",
          asked=False),
    Death("outbox.taken", None, course="send"),
    Death("outbox.sent", None, True, course="send"),
    Death("checkpoint.signed", "SUCCEEDED", True, course="sign"),
    Death("checkpoint.anchored", "SUCCEEDED", True, course="sign"),
    Death("migrate.in_transaction", None, course="make"),
]  # fmt: skip
LEASED = ("DISPATCHING", "RECONCILING")


def cases_of(kind: str) -> dict[str, tuple[Death, bool]]:
    """By name, each of them on either machine."""
    named = {}
    for elsewhere in (False, True):
        for death in sorted(DEATHS, key=lambda death: death.left in LEASED):  # whose leases are to run out come last
            if kind in death.stores and not (elsewhere and death.course in ANYWHERE):
                words = [death.point, f"n{death.n}" * (death.n > 1), "nobody to ask" * (not death.asked)]
                words += ["got it" if death.got else "did not", "other worker" if elsewhere else "same host"]
                named[", ".join(filter(None, words))] = death, elsewhere
    return named


CASES = [(kind, name) for kind in stores.LASTING for name in cases_of(kind)]
FRESH = ("http.written, got it, same host", "settle.in_transaction, did not, same host")  # died in ways of their own


# -- the points themselves ---------------------------------------------------------------------------------------------


def points_in_the_code() -> set[str]:
    found: set[str] = set()
    for file in Path(deadstop.__file__).parent.rglob("*.py"):
        text = file.read_text()
        assert "crash import at" not in text, f"{file}: write crash.at(...), so that it is found"
        if "crash.at(" in text and file.name != "crash.py":
            found |= _points(ast.parse(text))
    return found


def _points(tree: ast.Module) -> set[str]:
    """The texts that `crash.at` is called with; of one with a part to be filled in, those its `if ... in` names."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            found |= {each for call in node.body for each in _filled_in(call, node.test)}
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("crash.at"):
            (argument,) = node.args
            if isinstance(argument, ast.Constant):
                found.add(argument.value)
            else:
                assert isinstance(argument, ast.JoinedStr), ast.unparse(node)
    return found


def _filled_in(statement: ast.stmt, test: ast.expr) -> set[str]:
    match statement:
        case ast.Expr(ast.Call(func=ast.Attribute(attr="at"), args=[ast.JoinedStr(values=[ast.Constant(prefix), _])])):
            tuples = [each for each in ast.walk(test) if isinstance(each, ast.Tuple)]
            return {f"{prefix}{word.value}" for each in tuples for word in each.elts if isinstance(word, ast.Constant)}
    return set()


def test_every_place_at_which_a_process_can_be_made_to_die_has_a_death_here() -> None:
    here = {death.point for death in DEATHS}
    assert points_in_the_code() == here | set(ELSEWHERE)
    assert set(CRASH_POINTS) <= here
    for point, file in ELSEWHERE.items():
        assert f'"{point}"' in (TESTS / file).read_text(), f"{point} is not in {file}"


# -- dying, and being set right ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def matrices(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Matrix]]:
    """That of a kind of store, made when the first test wants it."""
    made: dict[str, Matrix] = {}
    with ExitStack() as open_ones:

        def of(kind: str) -> Matrix:
            if kind not in made:
                made[kind] = open_ones.enter_context(matrix_of(kind, request, tmp_path_factory))
                made[kind].run_all(cases_of(kind), FRESH)
            return made[kind]

        yield of


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_death_leaves_one_effect_or_a_decision_and_nothing_lost(
    matrices: Callable[[str], Matrix], kind: str, name: str
) -> None:
    matrix = matrices(kind)
    case, death, died, end = (each[name] for each in (matrix.cases, matrix.deaths, matrix.died, matrix.ends))
    assert died["exit"] == -signal.SIGKILL, f"it did not die there: {died}"
    assert died["points"][-1] == death.point and died["points"].count(death.point) == death.n
    assert matrix.before[name][0] == int(death.got)
    if death.course == "send":
        _delivered(matrix, name)
        return
    assert end["found"] == ([death.left] if death.left else []), "what it left is not what was to be durable"
    assert end["told"]["state"] == "SUCCEEDED", end
    assert end["told"]["effect"] == "applied"
    _one_effect(matrix, name)
    _all_on_record(matrix, name, matrix.ledgers[case.where], matrix.record_of(name))


def _one_effect(matrix: Matrix, name: str) -> None:
    """Each request would be an effect, so there is one that was done, and one more only where none had been."""
    death, authority = matrix.deaths[name], matrix.authorities[name]
    key = matrix.record_of(name).key
    assert authority.effects() == authority.effects(key) == 1, authority.requests()
    writes = authority.requests(writes=True)
    assert len(writes) == matrix.before[name][1] + (not death.got), writes
    assert {each["key"] for each in writes} == {key}


def _all_on_record(matrix: Matrix, name: str, ledger: Ledger, record: Record) -> None:
    case, death, end = matrix.cases[name], matrix.deaths[name], matrix.ends[name]
    assert record.state is State.SUCCEEDED and record.owner is None and record.lease_ms is None
    assert end["told"]["id"] == record.op_id
    trail, attempts = ledger.trail(record.op_id), ledger.attempts(record.op_id)
    kinds = [each.kind for each in trail]
    assert all(each.ended_ms is not None and each.outcome for each in attempts), attempts
    assert len(attempts) == record.attempts == kinds.count("attempt.started")
    lost = [json.loads(each.body) for each in trail if each.kind == "lease.expired"]
    assert len(lost) == (death.left in LEASED)
    if lost:
        gone = "its lease ran out" if case.elsewhere else "the process that held it is gone"
        assert lost[0]["why"] == gone and lost[0]["owner"], lost
    if death.left == "DISPATCHING":
        assert (attempts[0].outcome, attempts[0].certain) == ("UNKNOWN", False)
        assert record.attempts == (1 if death.got else 2)
    decisions = kinds.count("human.decision")
    in_person = (not death.asked and death.left != "PREPARED") or death.point == "resolve.committed"
    assert decisions == (1 if in_person else 0)
    assert end["decided"] == (0 if death.point == "resolve.committed" else decisions)


def _delivered(matrix: Matrix, name: str) -> None:
    """At least once, under one id."""
    death, authority = matrix.deaths[name], matrix.authorities[name]
    assert matrix.ends[name] == {"found": [], "delivered": True}
    came = [json.loads(each["body"]) for each in authority.operations()]
    assert len(came) == 1 + death.got
    assert len({each["id"] for each in came}) == 1
    assert {each["path"] for each in authority.requests(writes=True)} == {HOOK}


@pytest.mark.parametrize("kind", stores.LASTING)
def test_after_all_of_them_the_sum_is_right_and_the_log_whole(matrices: Callable[[str], Matrix], kind: str) -> None:
    matrix = matrices(kind)
    for place, told in matrix.checks.items():
        assert told["problems"] == [] and told["unanchored"] == told["waiting"] == 0, told
        assert told["swept"] == [], "something was left to be swept"
        sums = told["conservation"]
        assert sums["holds"] and sums["lapsed"] == 0 and sums["open"] == 0, sums
        here = [name for name in matrix.ends if matrix.cases[name].where == place and "told" in matrix.ends[name]]
        assert sums["started"] == sums["states"]["SUCCEEDED"] == len(here) + (place == matrix.where)  # and the first
    assert sum(effects for effects, _ in matrix.after.values()) == len(matrix.ends) + 1  # an event came twice
    assert all(each["alerts"] == [] for each in matrix.checks.values()), "a person is still asked for"


# -- stopped, and going on too late (K21) ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", stores.LASTING)
def test_whoever_was_stopped_while_a_person_decided_is_refused(matrices: Callable[[str], Matrix], kind: str) -> None:
    matrix = matrices(kind)
    decisions = {"http.connected": State.FAILED, "http.replied": State.SUCCEEDED}
    cases = {point: matrix.add(f"stopped at {point}", Death(point, None), fault="stop") for point in decisions}
    stopped = matrix.ask("run", list(cases.values()))
    assert [each["exit"] for each in stopped.values()] == [None, None], stopped
    ledger = matrix.ledgers[matrix.where]
    try:
        for point, decision in decisions.items():
            record = _swept(ledger, matrix.record_of(cases[point].name))
            assert record.state is State.UNKNOWN
            ledger.resolve(record.op_id, decision, "operator", "nobody answers")
    finally:
        ended = matrix.ask("go on", pids={name: each["pid"] for name, each in stopped.items()})
    for point, decision in decisions.items():
        name = cases[point].name
        told, record = ended[name]["result"], matrix.record_of(name)
        assert ended[name]["exit"] == 0 and record.state is decision
        # It sends nothing after its lease, and what it has seen before decides nothing any more.
        assert matrix.authorities[name].effects() == (point == "http.replied")
        assert (told["status"], told["effect"], told["state"]) == ("unknown", "unknown", decision.value)
        kinds = [each.kind for each in ledger.trail(record.op_id)]
        assert kinds[-1] == "attempt.late" and kinds.count("human.decision") == 1
    assert matrix.check()[matrix.where]["problems"] == []


def _swept(ledger: Ledger, record: Record) -> Record:
    until = time.monotonic() + 10
    while record.state is State.DISPATCHING and time.monotonic() < until:
        time.sleep(0.02)
        record = ledger.sweep_one(record.op_id) or ledger.get(record.op_id)
    return record


# -- a disk that is full (K22), and one that has lost the end (K23) ----------------------------------------------------


def test_on_a_full_disk_nothing_is_sent_or_nothing_is_claimed(matrices: Callable[[str], Matrix]) -> None:
    """Before the intent is durable nothing leaves; afterwards nobody is told of a success that is not on record."""
    matrix = matrices("sqlite")
    before, after = cases = [
        matrix.add(f"full at {point}", Death(point, None), fault="full")
        for point in ("submit.before_commit", "http.replied")
    ]
    ended = matrix.ask("run", cases)
    assert [each["exit"] for each in ended.values()] == [0, 0], matrix.stderr
    assert ended[before.name]["result"]["raised"] == "LedgerUnavailable"
    told = ended[after.name]["result"]
    assert (told["status"], told["effect"]) == ("unknown", "unknown")
    assert told["state"] in ("DISPATCHING", "UNKNOWN")  # as far as it can still be read
    assert [matrix.authorities[each.name].effects() for each in cases] == [0, 1]
    ends = matrix.recover(cases)
    assert [ends[each.name]["found"] for each in cases] == [[], ["DISPATCHING"]]
    assert [ends[each.name]["told"]["state"] for each in cases] == ["SUCCEEDED", "SUCCEEDED"]
    assert [matrix.authorities[each.name].effects() for each in cases] == [1, 1]
    assert matrix.check()[matrix.where]["problems"] == []
