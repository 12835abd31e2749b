# SPDX-License-Identifier: Apache-2.0
"""What every store keeps, whoever writes to it: the rules are in the database, not in the program alone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pg_server
import pytest
from stores import Ground, intent, refusals, step, way_to

import hosts
from deadstop.errors import LedgerBroken, LedgerError, LedgerUnavailable
from deadstop.ledger import sqlite, store
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.records import Outcome
from deadstop.ledger.statements import Migration, migrations, statements
from deadstop.ledger.states import TRANSITIONS, State

SECOND = "CREATE TABLE added (name TEXT PRIMARY KEY);"


def begun(ledger: Ledger, **changes: Any) -> str:
    return ledger.submit(intent(ledger, **changes)).record.op_id


def done(ledger: Ledger, **changes: Any) -> str:
    claim = ledger.begin(intent(ledger, **changes)).claim
    assert claim is not None
    return ledger.finish(claim, Outcome(State.SUCCEEDED, reference="r1", value={"paid": 10}, has_value=True)).op_id


def refused(ground: Ground, text: str, *values: Any) -> bool:
    with ground.undone():
        try:
            ground.raw(text, *values)
        except refusals():
            return True
        return False


# -- the rules ---------------------------------------------------------------------------------------------------------


def test_the_database_allows_the_transitions_of_the_table_and_no_other(ground: Ground) -> None:
    ledger = ground.ledger()
    allowed = set()
    for number, before in enumerate(State):
        op_id = begun(ledger, binding=f"b{number}")
        for each in way_to(before):
            step(ground, op_id, each)
        for after in set(State) - {before}:
            with ground.undone():
                try:
                    step(ground, op_id, after)
                    allowed.add((before, after))
                except refusals():
                    pass
    assert allowed == TRANSITIONS


def accepted(ground: Ground, op_id: str, changes: list[str]) -> list[str]:
    return [each for each in changes if not refused(ground, f"UPDATE operation SET {each} WHERE op_id = ?", op_id)]


def test_what_an_operation_is_never_changes(ground: Ground) -> None:
    ledger = ground.ledger()
    op_id = begun(ledger)
    begun(ledger, tool="other")  # so that a changed name is one that exists
    changes = [f"{name} = 'x'" for name in ("op_id", "scope", "key", "binding", "fingerprint")]
    assert accepted(ground, op_id, [*changes, "tool = 'other'", "definition = 2", "created_ms = 7"]) == []


def test_counts_only_grow_and_leases_go_with_their_states(ground: Ground) -> None:
    ledger = ground.ledger()
    op_id = ledger.begin(intent(ledger)).record.op_id
    changes = [
        "fence = fence - 1",
        "attempts = attempts - 1",
        "evidence = evidence - 1",
        "ver = ver + 1",
        "ver = ver - 1",
        "state = 'UNKNOWN', owner = NULL, lease_ms = NULL",  # without a new version
        "state = 'UNKNOWN', owner = NULL, lease_ms = NULL, ver = ver + 2",
        "state = 'UNKNOWN', ver = ver + 1",  # but still somebody's
        "owner = NULL",
        "owner = NULL, lease_ms = NULL",
        "state = 'SOMETHING', ver = ver + 1",
        "next_ms = NULL",
    ]
    assert accepted(ground, op_id, changes) == []
    allowed = ["lease_ms = lease_ms + 1", "state = 'UNKNOWN', owner = NULL, lease_ms = NULL, ver = ver + 1"]
    assert accepted(ground, op_id, allowed) == allowed


def test_a_claim_without_a_new_fence_is_refused(ground: Ground) -> None:
    op_id = begun(ground.ledger())
    claim = "UPDATE operation SET state = 'DISPATCHING', ver = ver + 1, owner = 'me', lease_ms = 1{} WHERE op_id = ?"
    assert refused(ground, claim.format(""), op_id)
    assert refused(ground, claim.format(", fence = fence + 2"), op_id)
    assert not refused(ground, claim.format(", fence = fence + 1"), op_id)


def test_what_is_settled_stays_so(ground: Ground) -> None:
    op_id = done(ground.ledger())
    changes = ["fence = fence + 1", "attempts = 9", "reference = 'r2'", "reference = NULL", "verdict = 'applied'"]
    assert accepted(ground, op_id, changes) == []
    allowed = ["evidence = evidence + 1, head = 'x'"]  # what came later is written down
    assert accepted(ground, op_id, allowed) == allowed


def test_what_is_only_added_to_is_neither_changed_nor_deleted(ground: Ground) -> None:
    done(ground.ledger())
    if ground.kind == "postgresql":  # there, entries get their places later
        ground.raw("INSERT INTO leaf SELECT row_number() OVER () - 1, op_id, n, hash FROM evidence")
        ground.raw("UPDATE head SET size = 3")
    ground.raw("INSERT INTO node VALUES (1, 0, 'aa')")
    columns = {
        "definition": "body",
        "attempt": "owner",
        "attempt_end": "outcome",
        "evidence": "body",
        "leaf": "hash",
        "node": "hash",
    }
    for table, column in columns.items():
        assert ground.raw(f"SELECT count(*) FROM {table}")[0][0] > 0, table
        assert refused(ground, f"UPDATE {table} SET {column} = 'x'"), table
        assert refused(ground, f"DELETE FROM {table}"), table
        if ground.kind == "postgresql":
            assert refused(ground, f"TRUNCATE {table} CASCADE"), table
    assert refused(ground, "DELETE FROM operation")
    assert refused(ground, "UPDATE head SET size = size - 1")
    assert refused(ground, "INSERT INTO head VALUES (2, 0, '')")


def test_an_operation_begins_as_prepared_of_a_known_definition_and_once_for_a_key(ground: Ground) -> None:
    op_id = begun(ground.ledger())
    row = ground.raw("SELECT * FROM operation WHERE op_id = ?", op_id)[0]
    names = [each[0] for each in ground.raw(_COLUMNS[ground.kind != "postgresql"])]
    born = {**dict(zip(names, row, strict=True)), "op_id": "op_2", "key": "k2", "evidence": 0, "head": ""}

    def insert_refused(**changes: Any) -> bool:
        values = {**born, **changes}
        places = ", ".join("?" * len(values))
        return refused(ground, f"INSERT INTO operation ({', '.join(values)}) VALUES ({places})", *values.values())

    assert not insert_refused()
    wrong = {"state": "UNKNOWN", "ver": 2, "fence": 1, "attempts": 1, "definition": 9, "tool": "nobody", "op_id": op_id,
             "key": row[names.index("key")], "request_ms": None, "owner": "me"}  # fmt: skip
    for name, value in wrong.items():
        assert insert_refused(**{name: value}), name


_COLUMNS = (
    "SELECT column_name FROM information_schema.columns "
    "WHERE table_schema = current_schema() AND table_name = 'operation' ORDER BY ordinal_position",
    "SELECT name FROM pragma_table_info('operation')",
)


def test_an_attempt_has_one_number_and_one_fence(ground: Ground) -> None:
    op_id = done(ground.ledger())
    add = "INSERT INTO attempt (op_id, n, fence, owner, started_ms) VALUES (?, ?, ?, 'me', 1)"
    assert not refused(ground, add, op_id, 2, 2)
    assert refused(ground, add, op_id, 1, 2)
    assert refused(ground, add, op_id, 2, 1)
    assert refused(ground, add, "op_nobody", 1, 1)


def test_both_databases_have_the_same_tables(pg_ground: Ground) -> None:
    pg_ground.open()
    memory = Ground("memory", ":memory:")
    memory.open()
    mine = memory.raw(
        'SELECT m.name, p.name, p."notnull" OR p.pk FROM sqlite_schema AS m, pragma_table_info(m.name) AS p '
        "WHERE m.type = 'table'",
    )
    theirs = pg_ground.raw(
        "SELECT table_name, column_name, (is_nullable = 'NO')::int FROM information_schema.columns "
        "WHERE table_schema = current_schema()"
    )
    made_by_the_stores = {"migration", "unplaced"}
    assert {row for row in mine if row[0] not in made_by_the_stores} == {
        row for row in theirs if row[0] not in made_by_the_stores
    }
    indexes = memory.raw("SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL")
    theirs = pg_ground.raw(
        "SELECT indexname FROM pg_indexes WHERE schemaname = current_schema() AND indexname !~ '_(pkey|key)$'"
    )
    assert set(indexes) == set(theirs)
    memory.release()


def test_every_statement_is_one_that_its_database_takes(ground: Ground) -> None:
    ground.open()
    ground.raw("SELECT 1")
    bad = {}
    for name, text in statements("postgresql" if ground.kind == "postgresql" else "sqlite").items():
        try:
            if ground.kind == "postgresql":
                from deadstop.ledger.pg_session import _Statement

                ground.raw(f"PREPARE p_{name} AS {_Statement(name, text).text.decode().replace('%', '%%')}")
            else:
                names = dict.fromkeys(sqlite_names(text))
                ground._raw[0].execute(f"EXPLAIN {text}", names)
        except Exception as problem:
            bad[name] = str(problem)
    assert bad == {}


def sqlite_names(text: str) -> list[str]:
    from deadstop.ledger.statements import _PARAMETER

    return _PARAMETER.findall(text)


# -- transactions ------------------------------------------------------------------------------------------------------


def test_work_that_fails_leaves_nothing(ground: Ground) -> None:
    opened = ground.open()

    def work(tx: Any) -> None:
        tx.run("set_meta", name="half", value="done")
        raise ZeroDivisionError("after the first half")

    with pytest.raises(ZeroDivisionError, match="after the first half"):
        opened.write(work).result(5)
    assert opened.read(lambda tx: tx.one("meta", name="half")) is None
    assert opened.write(lambda tx: tx.run("set_meta", name="whole", value="done")).result(5) == 1
    assert opened.read(lambda tx: tx.one("meta", name="whole")) == ("done",)


def test_a_statement_that_is_refused_undoes_what_came_before_it(ground: Ground) -> None:
    ledger = ground.ledger()
    op_id = done(ledger)

    def work(tx: Any) -> None:
        tx.run("set_meta", name="half", value="done")
        tx.run("add_attempt", op_id=op_id, n=1, fence=1, owner="me", started_ms=1)

    with pytest.raises(LedgerError):
        ledger.write(work)
    assert ledger.read(lambda tx: tx.one("meta", name="half")) is None
    assert ledger.get(op_id).state is State.SUCCEEDED


def test_of_many_who_begin_at_once_one_sends(ground: Ground) -> None:
    ledger = ground.ledger()
    wanted = intent(ledger)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: ledger.begin(wanted), range(16)))
    assert sum(each.claim is not None for each in found) == 1
    assert {each.record.op_id for each in found} == {found[0].record.op_id}
    assert len(ledger.attempts(found[0].record.op_id)) == 1


def test_many_at_once_all_come_through(ground: Ground) -> None:
    ledger = ground.ledger()
    with ThreadPoolExecutor(12) as threads:
        made = list(threads.map(lambda n: done(ledger, binding=f"b{n}"), range(60)))
    assert len(set(made)) == 60
    assert ledger.counts().get("SUCCEEDED") == 60


def test_reading_sees_one_state(lasting_ground: Ground) -> None:
    opened = lasting_ground.open()
    looked, written = threading.Event(), threading.Event()

    def reader(tx: Any) -> tuple[Any, Any]:
        before = tx.one("meta", name="new")
        looked.set()
        assert written.wait(5)
        return before, tx.one("meta", name="new")

    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(opened.read, reader)
        assert looked.wait(5)
        opened.write(lambda tx: tx.run("set_meta", name="new", value="v")).result(5)
        written.set()
        assert reading.result(5) == (None, None)
    assert opened.read(lambda tx: tx.one("meta", name="new")) == ("v",)


def test_a_closed_store_says_so(ground: Ground) -> None:
    opened = ground.open()
    opened.close()
    opened.close()
    with pytest.raises(LedgerUnavailable, match="closed"):
        opened.read(lambda tx: tx.one("meta", name="x"))
    with pytest.raises(LedgerUnavailable, match="closed"):
        opened.write(lambda tx: tx.one("meta", name="x")).result(5)


# -- over time ---------------------------------------------------------------------------------------------------------


def test_what_was_written_is_there_when_it_is_opened_again(lasting_ground: Ground) -> None:
    ledger = lasting_ground.ledger()
    op_id = done(ledger)
    before = ledger.get(op_id), ledger.trail(op_id), ledger.attempts(op_id), ledger.value(op_id)
    ledger.close()
    again = lasting_ground.ledger()
    after = again.get(op_id), again.trail(op_id), again.attempts(op_id), again.value(op_id)
    assert after[2:] == before[2:] and after[0] == before[0]
    assert [each.hash for each in after[1]] == [each.hash for each in before[1]]
    assert again.id == ledger.id


FIRST_FREE = len(migrations("sqlite")) + 1  # the same for both


def with_migrations(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    def changed(dialect: str) -> tuple[Migration, ...]:
        return tuple(change(migrations(dialect)))

    modules = [store, sqlite]
    if pg_server.why_not() is None:
        from deadstop.ledger import postgresql

        modules.append(postgresql)
    for module in modules:
        monkeypatch.setattr(module, "migrations", changed)


def test_a_ledger_of_an_older_form_is_brought_up_to_date(
    lasting_ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = lasting_ground.ledger()
    op_id = done(ledger)
    ledger.close()
    with_migrations(monkeypatch, lambda known: (*known, Migration(len(known) + 1, "9999_added", SECOND)))
    again = lasting_ground.ledger()
    assert again.get(op_id).state is State.SUCCEEDED
    assert lasting_ground.raw("SELECT count(*) FROM added") == [(0,)]
    assert [row[0] for row in lasting_ground.raw("SELECT number FROM migration ORDER BY number")] == [
        *(each.number for each in migrations(lasting_ground.kind)), FIRST_FREE,
    ]  # fmt: skip


def test_the_first_form_is_brought_up_to_this_one(lasting_ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    with_migrations(monkeypatch, lambda known: known[:1])
    lasting_ground.open().close()
    monkeypatch.undo()
    ledger = lasting_ground.ledger()
    assert ledger.get(done(ledger)).state is State.SUCCEEDED
    assert lasting_ground.raw("SELECT count(*) FROM migration") == [(FIRST_FREE - 1,)]


def test_a_migration_that_fails_changes_nothing(lasting_ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    lasting_ground.open().close()
    bad = f"{SECOND} INSERT INTO nowhere VALUES (1);"
    with_migrations(monkeypatch, lambda known: (*known, Migration(FIRST_FREE, "9999_bad", bad)))
    with pytest.raises(LedgerUnavailable):
        lasting_ground.open()
    monkeypatch.undo()
    lasting_ground.open()
    assert lasting_ground.raw("SELECT count(*) FROM migration") == [(FIRST_FREE - 1,)]
    with pytest.raises(Exception, match="added"):
        lasting_ground.raw("SELECT count(*) FROM added")


def test_a_ledger_of_a_newer_form_is_refused(lasting_ground: Ground) -> None:
    lasting_ground.open().close()
    lasting_ground.raw("INSERT INTO migration VALUES (99, 'x', 1)")
    with pytest.raises(LedgerUnavailable, match=r"newer deadstop.*; update deadstop"):
        lasting_ground.open()


def test_a_ledger_made_by_another_text_is_refused(lasting_ground: Ground) -> None:
    lasting_ground.open().close()
    lasting_ground.raw("UPDATE migration SET digest = 'x'")
    with pytest.raises(LedgerBroken, match="0001_ledger was made by another text"):
        lasting_ground.open()


# -- several processes -------------------------------------------------------------------------------------------------

WORKER = """
import sys
sys.path[:0] = sys.argv[2:]
import stores
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.records import Outcome
from deadstop.ledger.states import State
ledger = Ledger.open(sys.argv[1])
for number in range(15):
    claim = ledger.begin(stores.intent(ledger, binding=f"b{number}")).claim
    if claim is not None:
        ledger.finish(claim, Outcome(State.SUCCEEDED))
        print(number)
ledger.close()
"""


def child(where: str, text: str = WORKER, **variables: str) -> subprocess.Popen[bytes]:
    tests = os.path.dirname(__file__)
    return subprocess.Popen(
        [sys.executable, "-c", text, where, str(hosts.SOURCE), tests, os.path.dirname(tests)],
        env={**os.environ, **variables}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_two_processes_at_once_make_it_and_share_it(lasting_ground: Ground) -> None:
    children = [child(lasting_ground.where) for _ in range(2)]
    ended = [each.communicate(timeout=20) for each in children]
    assert [each.returncode for each in children] == [0, 0], ended
    assert sorted(int(word) for out, _ in ended for word in out.split()) == list(range(15))
    ledger = lasting_ground.ledger()
    assert ledger.counts().get("SUCCEEDED") == 15
    assert lasting_ground.raw("SELECT count(*) FROM migration") == [(FIRST_FREE - 1,)]


def test_a_death_in_the_migration_leaves_an_empty_place(lasting_ground: Ground) -> None:
    died = child(lasting_ground.where, DEADSTOP_CRASH_AT="migrate.in_transaction")
    died.communicate(timeout=20)
    assert died.returncode == -9
    assert done(lasting_ground.ledger())
