# SPDX-License-Identifier: Apache-2.0
"""What verifying looks at in the quick way, it does not look at less closely: both ways find the same."""

from __future__ import annotations

import json
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from audit_ground import DEFINITION, LEASE_MS, Copy, history, intent

from deadstop.ledger import operations, replay
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.logcheck import LogCheck
from deadstop.ledger.operations import MOST_VALUE
from deadstop.ledger.ordinary import is_ordinary
from deadstop.ledger.records import Intent, Outcome
from deadstop.ledger.states import State
from deadstop.ledger.verify import verify

TABLES = {
    "evidence": "n kind at_ms body prev hash", "leaf": "seq op_id n hash",
    "operation": "scope key binding fingerprint tool definition correlation target state ver fence attempts verdict "
                 "reference evidence head",
    "attempt": "n fence owner started_ms", "attempt_end": "n ended_ms outcome phase certain observation receipt",
    "payload": "name salt value", "definition": "digest",
}  # fmt: skip
ODD = 'a "quoted"\\text,\n"asked_by":null,"at":1 \u00e9\u2028\U0001f600'
OUTCOMES = {
    "with all": Outcome(
        State.SUCCEEDED, phase="decode", reference=ODD, value={"url": 1.5}, has_value=True,
        receipt={"ms": 1, "ratio": 0.25, "text": ODD}, observation=ODD,
    ),
    "a value too large": Outcome(State.SUCCEEDED, value="x" * (MOST_VALUE + 1), has_value=True, certain=False),
    "nothing": Outcome(State.SUCCEEDED),
    "refused": Outcome(State.FAILED, phase="read_response", observation="403"),
}  # fmt: skip


def odd(number: int, version: int) -> Intent:
    return Intent(
        scope=ODD, binding=f"{ODD} {number}", fingerprint="f" * 64, tool="deploy", definition=version, target=ODD,
        arguments={"at": 1, "ratio": 0.1 + number, "text": ODD, "none": None}, sealed={"b": ODD, "a": [1.5], "Z": 1},
        asked_by=ODD,
    )  # fmt: skip


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ordinary") / "ledger.db"
    with Ledger.open(str(path)) as ledger:
        version = ledger.define(DEFINITION).version

        def work(tx: Any) -> None:
            for number, outcome in enumerate(OUTCOMES.values()):
                for made in (odd(number, version), intent(100 + number, version)):
                    begun = operations.begin(tx, made, "host/boot/pid/1/1", LEASE_MS).record
                    operations.finish(tx, begun.op_id, begun.fence, outcome)

        ledger.write(work)
        assert ledger.notary is not None
        ledger.notary.checkpoint()
        history(ledger, 0, 6)
    return path


def test_operations_that_were_sent_and_settled_are_verified_in_the_quick_way(
    original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []

    def noting(*arguments: Any) -> bool:
        said.append(is_ordinary(*arguments))
        return said[-1]

    monkeypatch.setattr(replay, "is_ordinary", noting)
    assert verify(str(original)).problems == ()
    assert (said.count(True), len(said)) == (2 * len(OUTCOMES) + 2, 2 * len(OUTCOMES) + 6)


def test_both_ways_find_the_same_whatever_was_changed(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, chance = Copy.of(original, tmp_path), random.Random(5)
    assert both_ways(copy, monkeypatch) == ()
    with copy.edit() as database:
        database.row_factory = sqlite3.Row
        for table, columns in TABLES.items():
            where = "WHERE " + " AND ".join(f"{name} IS :{name}" for name in names_of(database, table))
            rows = [dict(row) for row in database.execute(f"SELECT * FROM {table}")]
            for column in columns.split():
                for row in chance.sample(rows, min(3, len(rows))):
                    changed = {**row, column: another(chance, row[column], column)}
                    if not replaced(database, table, where, row, changed):
                        continue
                    found = both_ways(copy, monkeypatch)
                    assert found or changed == row, (table, column, row, changed)
                    assert replaced(database, table, where, changed, row)
    assert both_ways(copy, monkeypatch) == ()


def both_ways(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    quick = verify(str(copy.path))
    with monkeypatch.context() as patched:
        patched.setattr(replay, "is_ordinary", lambda *_: False)
        patched.setattr(LogCheck, "run_quickly", lambda _: False)
        thorough = verify(str(copy.path))
    assert (quick.problems, quick.leaves, quick.anchored_size) == (
        thorough.problems, thorough.leaves, thorough.anchored_size
    )  # fmt: skip
    return quick.problems


def names_of(database: sqlite3.Connection, table: str) -> list[str]:
    return [str(row["name"]) for row in database.execute(f"PRAGMA table_info({table})")]


def replaced(database: sqlite3.Connection, table: str, where: str, row: dict[str, Any], new: dict[str, Any]) -> bool:
    database.execute("SAVEPOINT one")
    try:
        done = database.execute(f"DELETE FROM {table} {where}", row).rowcount
        names = ", ".join(new)
        database.execute(f"INSERT INTO {table} ({names}) VALUES (:{names.replace(', ', ', :')})", new)
    except sqlite3.IntegrityError:
        database.execute("ROLLBACK TO one")
        done = 0
    database.execute("RELEASE one")
    return done == 1


def another(chance: random.Random, value: Any, column: str) -> Any:
    if value is None:
        return "x"
    if isinstance(value, int):
        return -1 - value if column == "seq" else value ^ 1
    place = chance.randrange(len(value) + 1)
    return value[:place] + chance.choice('x",:{}1 ') + value[place + chance.randrange(2) :]


@pytest.mark.parametrize(("kind", "key", "value"), [
    ("intent", "arguments", {"z": 1}), ("intent", "more", 1), ("intent", "ver", 2),
    ("intent", "sealed.arguments", None),
    ("intent", "to", "DISPATCHING"), ("attempt.started", "attempt", 2), ("attempt.started", "counts_as", "APPLIED"),
    ("settled", "certain", None), ("settled", "receipt", "{}"), ("settled", "fence", 2), ("settled", "to", "FAILED"),
    ("authz.decision", "to", "UNKNOWN"),
])  # fmt: skip
def test_a_history_rewritten_with_right_hashes_is_judged_alike(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, key: str, value: Any
) -> None:
    """By somebody who may rewrite all of the tables: the checkpoints and the sense of the entries stand against it."""
    copy = Copy.of(original, tmp_path)
    with copy.edit() as database:
        (op_id,) = database.execute(
            "SELECT op_id FROM operation WHERE state = 'SUCCEEDED' AND evidence = 4 AND attempts = 1 LIMIT 1"
        ).fetchone()
        before = ""
        for n, body in database.execute("SELECT n, body FROM evidence WHERE op_id = ? ORDER BY n", (op_id,)).fetchall():
            document = {**json.loads(body), "prev": before}
            if document["kind"] == kind:
                document[key] = value
            text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
            own = replay.digest(b"\0" + text.encode())
            database.execute("UPDATE evidence SET body = ?, prev = ?, hash = ? WHERE op_id = ? AND n = ?",
                             (text, before, own, op_id, n))  # fmt: skip
            database.execute("UPDATE leaf SET hash = ? WHERE op_id = ? AND n = ?", (own, op_id, n))
            before = own
        database.execute("UPDATE operation SET head = ? WHERE op_id = ?", (before, op_id))
    found = both_ways(copy, monkeypatch)
    assert any(each.kind == "fork" for each in found)
    allowed = (kind, key) in {("intent", "arguments"), ("intent", "more")}
    assert any(op_id in each.where for each in found) is not allowed, found
