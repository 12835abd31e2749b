# SPDX-License-Identifier: Apache-2.0
"""Somebody edits a copy of the ledger with sqlite3, its triggers dropped: whatever it was, it is found and located."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from audit_ground import Copy, closed_ledger, history, rebuild_the_end
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deadstop.ledger.ledger import Ledger
from deadstop.ledger.notary import Notary
from deadstop.ledger.report import Problem, Report
from deadstop.ledger.store import open_store
from deadstop.ledger.verify import verify

Edit = Callable[[sqlite3.Connection], Any]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """29 + 29 entries under two checkpoints, and some that no checkpoint covers."""
    path = closed_ledger(tmp_path_factory.mktemp("whole"), 6, 6)
    ledger = Ledger(open_store(str(path)), notary=False)
    history(ledger, 12, 2)
    ledger.close()
    return path


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More than 256 entries, so that roots of whole subtrees are stored."""
    return closed_ledger(tmp_path_factory.mktemp("long"), 30, 40)


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Copy:
    return Copy.of(original, tmp_path)


def after(copy: Copy, *edits: str | Edit) -> Report:
    with copy.edit() as database:
        for each in edits:
            if callable(each):
                each(database)
            else:
                database.executescript(each)
    return verify(str(copy.path))


def found(report: Report, kind: str, *words: str) -> Problem:
    """The problem of that kind whose place and text have these words."""
    for each in report.problems:
        if each.kind == kind and all(word in str(each) for word in words):
            return each
    raise AssertionError(f"no {kind} problem with {words} in {report.problems}")


def flipped(value: Any) -> Any:
    if value is None:
        return "x"
    if isinstance(value, int):
        return value ^ 1
    middle = len(value) // 2
    return value[:middle] + chr(ord(value[middle]) ^ 1) + value[middle + 1 :] if value else "x"


# -- one bit -------------------------------------------------------------------------------------------------------

# By table: its key, what names a row of it in a report, and the columns that the log vouches for.
COLUMNS = {
    "evidence": ("op_id n", "n kind at_ms body prev hash"),
    "leaf": ("seq", "op_id n hash"),
    "head": ("id", "size frontier"),
    "operation": ("op_id", "scope key binding fingerprint tool definition correlation target state ver fence attempts "
                           "verdict reference evidence head"),
    "attempt": ("op_id n", "fence owner started_ms"),
    "attempt_end": ("op_id n", "ended_ms outcome phase certain observation receipt"),
    "payload": ("op_id name", "salt value"),
    "definition": ("tool version", "digest body"),
    "checkpoint": ("size", "note"),
}  # fmt: skip


def named(table: str, row: dict[str, Any]) -> str:
    """What must be in the place that a report gives."""
    by_table = {
        "leaf": "leaf {seq}", "head": "", "checkpoint": "size {size}", "definition": "definition {version}",
    }  # fmt: skip
    return by_table.get(table, "{op_id}").format(**row)


@pytest.mark.parametrize("table", COLUMNS)
def test_a_flipped_bit_anywhere_is_found_and_located(copy: Copy, table: str) -> None:
    keys, columns = COLUMNS[table]
    where = " AND ".join(f"{key} = ?" for key in keys.split())
    tried = 0
    with copy.edit() as database:
        database.row_factory = sqlite3.Row
        rows = [dict(row) for row in database.execute(f"SELECT * FROM {table}")]
        for row in rows[:: max(1, len(rows) // 5)]:
            for column in columns.split():
                changed = {**row, column: flipped(row[column])}
                before, now = [row[key] for key in keys.split()], [changed[key] for key in keys.split()]
                try:
                    database.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (changed[column], *before))
                except sqlite3.IntegrityError:
                    continue  # there is such a row already
                problems = verify(str(copy.path)).problems
                assert any(named(table, row) in each.where for each in problems), (table, row, column, problems)
                database.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (row[column], *now))
                tried += 1
    assert tried >= len(columns.split())
    assert verify(str(copy.path)).problems == (), "the edits above were not undone, so they were not what was found"


def test_a_flipped_root_of_a_subtree_is_found(long: Path, tmp_path: Path) -> None:
    copy = Copy.of(long, tmp_path)
    report = after(copy, "UPDATE node SET hash = replace(hash, substr(hash, 1, 2), '00')")
    found(report, "node", "leaves 0 to 255")
    found(after(copy, "DELETE FROM node"), "node", "leaves 0 to 255")


def test_a_body_that_is_no_text_any_more_is_found(copy: Copy) -> None:
    report = after(copy, "UPDATE evidence SET body = CAST(x'7bff7d' AS TEXT) WHERE n = 2")
    found(report, "evidence", "entry 2", "does not have its hash")
    found(report, "evidence", "entry 2", "no JSON object")


# -- deleted, added, moved -----------------------------------------------------------------------------------------


def test_a_deleted_entry_is_found(copy: Copy) -> None:
    report = after(copy, "DELETE FROM evidence WHERE (op_id, n) = (SELECT op_id, n FROM leaf WHERE seq = 5)")
    found(report, "evidence", "leaf 5 ", "deleted")
    found(report, "chain", "missing")


def test_a_deleted_leaf_is_found(copy: Copy) -> None:
    report = after(copy, "DELETE FROM leaf WHERE seq = 7")
    found(report, "leaf", "leaf 7", "missing from the log")
    found(report, "leaf", "entry", "no place in the log")


def test_an_entry_deleted_with_its_leaf_is_found(copy: Copy) -> None:
    def close_the_gap(database: sqlite3.Connection) -> None:
        database.execute("DELETE FROM evidence WHERE (op_id, n) = (SELECT op_id, n FROM leaf WHERE seq = 9)")
        database.execute("DELETE FROM leaf WHERE seq = 9")
        for (seq,) in database.execute("SELECT seq FROM leaf WHERE seq > 9 ORDER BY seq").fetchall():
            database.execute("UPDATE leaf SET seq = ? WHERE seq = ?", (seq - 1, seq))

    report = after(copy, close_the_gap, rebuild_the_end)
    found(report, "fork", "leaves 0 to ", "signed")
    found(report, "chain", "missing")
    assert report.anchored_size == 0


def test_a_deleted_operation_is_found_with_everything_of_it(copy: Copy) -> None:
    with copy.edit() as database:
        (op_id,) = database.execute("SELECT op_id FROM leaf WHERE seq = 9").fetchone()
    found(after(copy, f"DELETE FROM operation WHERE op_id = '{op_id}'"), "operation", op_id, "deleted")
    tables = ("attempt", "attempt_end", "evidence", "payload", "leaf")
    report = after(copy, ";".join(f"DELETE FROM {table} WHERE op_id = '{op_id}'" for table in tables))
    found(report, "leaf", "missing from the log")


@pytest.mark.parametrize("table", ["attempt", "attempt_end", "payload"])
def test_a_deleted_row_beside_the_log_is_found(copy: Copy, table: str) -> None:
    with copy.edit() as database:
        rows = database.execute(f"SELECT op_id, {'name' if table == 'payload' else 'n'} FROM {table}").fetchall()
    op_id, name = rows[len(rows) // 2]
    column = "name" if table == "payload" else "n"
    report = after(copy, f"DELETE FROM {table} WHERE op_id = '{op_id}' AND {column} = '{name}'")
    found(report, table if table == "payload" else "attempt", op_id, "deleted")


def forged(database: sqlite3.Connection, op_id: str, n: int, **told: Any) -> str:
    """An entry as deadstop would have written it."""
    (prev,) = database.execute("SELECT hash FROM evidence WHERE op_id = ? AND n = ?", (op_id, n - 1)).fetchone()
    document = {"op": op_id, "n": n, "at": 1, "prev": prev, **told}
    body = json.dumps(document, sort_keys=True, separators=(",", ":"))
    leaf = hashlib.sha256(b"\0" + body.encode()).hexdigest()
    database.execute("INSERT INTO evidence VALUES (?, ?, ?, ?, ?, ?, ?)", (op_id, n, told["kind"], 1, body, prev, leaf))
    return leaf


def some_operation(database: sqlite3.Connection, state: str) -> tuple[str, int]:
    row: tuple[str, int] = database.execute(
        "SELECT op_id, evidence FROM operation WHERE state = ?", (state,)
    ).fetchone()
    return row


def test_an_added_entry_is_found(copy: Copy) -> None:
    def add(database: sqlite3.Connection) -> None:
        op_id, count = some_operation(database, "FAILED")
        forged(database, op_id, count + 1, kind="human.decision", operator="nobody")

    report = after(copy, add)
    found(report, "leaf", "no place in the log", "added around it")
    found(report, "operation", "column evidence")


def test_an_entry_added_in_the_middle_of_the_log_is_found(copy: Copy) -> None:
    def add(database: sqlite3.Connection) -> None:
        op_id, count = some_operation(database, "FAILED")
        leaf = forged(database, op_id, count + 1, kind="human.decision", operator="nobody")
        for (seq,) in database.execute("SELECT seq FROM leaf WHERE seq >= 40 ORDER BY seq DESC").fetchall():
            database.execute("UPDATE leaf SET seq = ? WHERE seq = ?", (seq + 1, seq))
        database.execute("INSERT INTO leaf VALUES (40, ?, ?, ?)", (op_id, count + 1, leaf))
        database.execute("UPDATE operation SET evidence = ?, head = ? WHERE op_id = ?", (count + 1, leaf, op_id))

    report = after(copy, add, rebuild_the_end)
    checkpoint = first_checkpoint(copy)
    found(report, "fork", f"leaves {checkpoint} to ")
    found(report, "order", "leaf 40", "older than the one before")
    assert report.anchored_size == checkpoint


@pytest.mark.parametrize("place", [-1, 500])
def test_a_leaf_outside_the_log_is_found(copy: Copy, place: int) -> None:
    report = after(copy, f"INSERT INTO leaf VALUES ({place}, 'op_x', 1, '{'ab' * 32}')")
    found(report, "leaf", "added" if place < 0 else "beyond the log's end")


def exchange(a: int, b: int) -> Edit:
    """Two leaves, as whole rows."""

    def edit(database: sqlite3.Connection) -> None:
        rows = [database.execute("SELECT op_id, n, hash FROM leaf WHERE seq = ?", (seq,)).fetchone() for seq in (a, b)]
        database.execute("DELETE FROM leaf WHERE seq IN (?, ?)", (a, b))
        for seq, row in zip((b, a), rows, strict=True):
            database.execute("INSERT INTO leaf VALUES (?, ?, ?, ?)", (seq, *row))

    return edit


@pytest.mark.parametrize(("a", "b"), [(0, 1), (3, 4), (2, 20), (36, 37), (35, 50)])
@pytest.mark.parametrize("hidden", [False, True])
def test_leaves_that_changed_places_are_named(copy: Copy, a: int, b: int, hidden: bool) -> None:
    report = after(copy, exchange(a, b), *([rebuild_the_end] if hidden else []))
    found(report, "order", f"leaves {a} and {b}", "changed places")
    found(report, "fork", "reordered")


def test_leaves_exchanged_over_a_checkpoint_are_found_where_the_first_of_them_was(copy: Copy) -> None:
    report = after(copy, exchange(2, 50), rebuild_the_end)
    found(report, "fork", f"leaves 0 to {first_checkpoint(copy) - 1}")


def test_reordered_leaves_that_nothing_signed_covers_are_found_by_the_stated_end(copy: Copy) -> None:
    with copy.edit() as database:
        (size,) = database.execute("SELECT size FROM head").fetchone()
    report = after(copy, exchange(size - 2, size - 1))
    found(report, "order", f"leaves {size - 2} and {size - 1}")


def test_neighbours_far_into_a_long_log_are_named(long: Path, tmp_path: Path) -> None:
    copy = Copy.of(long, tmp_path)
    report = after(copy, exchange(290, 291))
    found(report, "order", "leaves 290 and 291")
    assert report.anchored_size == first_checkpoint(copy)


def test_bodies_that_changed_places_are_found(copy: Copy) -> None:
    def edit(database: sqlite3.Connection) -> None:
        (a, one), (b, two) = database.execute(
            "SELECT op_id, body FROM evidence WHERE n = 2 ORDER BY op_id LIMIT 2"
        ).fetchall()
        database.execute("UPDATE evidence SET body = ? WHERE op_id = ? AND n = 2", (two, a))
        database.execute("UPDATE evidence SET body = ? WHERE op_id = ? AND n = 2", (one, b))

    report = after(copy, edit)
    assert len([each for each in report.problems if "does not have its hash" in each.text]) == 2


# -- cut off, and another history ----------------------------------------------------------------------------------


def first_checkpoint(copy: Copy) -> int:
    return int(copy.checkpoints.read_text().splitlines()[1])


def cut(keep: int) -> Edit:
    """The log as it was at that size, with the operations as they were then, or without them."""

    def edit(database: sqlite3.Connection) -> None:
        gone = database.execute("SELECT op_id, n FROM leaf WHERE seq >= ?", (keep,)).fetchall()
        database.execute("DELETE FROM leaf WHERE seq >= ?", (keep,))
        database.executemany("DELETE FROM evidence WHERE op_id = ? AND n = ?", gone)
        for (op_id,) in database.execute("SELECT op_id FROM operation").fetchall():
            if database.execute("SELECT 1 FROM evidence WHERE op_id = ?", (op_id,)).fetchone() is None:
                for table in ("operation", "attempt", "attempt_end", "payload"):
                    database.execute(f"DELETE FROM {table} WHERE op_id = ?", (op_id,))
        database.execute("DELETE FROM checkpoint WHERE size > ?", (keep,))

    return edit


def test_a_tail_that_was_cut_off_below_the_last_checkpoint_is_found(copy: Copy) -> None:
    keep = first_checkpoint(copy)  # where operations begin, so that everything that is left fits
    report = after(copy, cut(keep), rebuild_the_end)
    last = int(copy.checkpoints.read_text().split("\n\n")[2].splitlines()[1])
    assert [str(each) for each in report.problems] == [
        f"leaves {keep} to {last - 1}: the end of the log was cut off: a checkpoint of {last} leaves was signed"
    ]


def test_a_tail_that_was_cut_off_beyond_it_is_found_by_the_stated_end_alone(copy: Copy) -> None:
    last = int(copy.checkpoints.read_text().split("\n\n")[2].splitlines()[1])
    found(after(copy, cut(last)), "leaf", f"leaves {last} to ", "cut off")
    report = after(copy, rebuild_the_end)
    assert report.problems == ()  # what no checkpoint covers is not covered, and that is what is said:
    assert (report.anchored_size, report.unanchored) == (last, 0)


def test_another_history_that_fits_in_itself_is_a_fork(copy: Copy, tmp_path: Path) -> None:
    """Everything after the first checkpoint written anew, by deadstop itself, with a key that is not ours."""
    keep = first_checkpoint(copy)
    after(copy, cut(keep), rebuild_the_end)
    ledger = Ledger(open_store(str(copy.path)), notary=False)
    history(ledger, 100, 8)
    theirs = Notary(ledger, key=str(tmp_path / "their.key"), checkpoints=str(tmp_path / "their.checkpoints"))
    assert theirs.checkpoint() is not None
    ledger.close()
    last = int(copy.checkpoints.read_text().split("\n\n")[2].splitlines()[1])
    report = verify(str(copy.path))
    found(report, "fork", f"leaves {keep} to {last - 1}", "another history")
    assert report.anchored_size == keep
    own = verify(str(copy.path), str(tmp_path / "their.checkpoints"), str(tmp_path / "their.key.pub"))
    assert {each.kind for each in own.problems} <= {"checkpoint"}, "it does fit in itself"


# -- checkpoints ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", range(1, 13))
def test_a_change_in_the_file_of_checkpoints_is_found_in_its_line(copy: Copy, line: int) -> None:
    lines = copy.checkpoints.read_text().split("\n")
    text = lines[line - 1]
    lines[line - 1] = f"{text[:-2]}{'B' if text[-2:-1] != 'B' else 'C'}{text[-1:]}" if text else "x"
    copy.checkpoints.write_text("\n".join(lines))
    problems = verify(str(copy.path)).problems
    assert any(each.kind == "checkpoint" and f"{copy.checkpoints}, line " in each.where for each in problems), problems


def test_a_removed_checkpoint_or_file_is_found(copy: Copy) -> None:
    whole = copy.checkpoints.read_text()
    copy.checkpoints.write_text(whole[whole.index("\n\n", whole.index("\u2014")) + 2 :])
    found(verify(str(copy.path)), "checkpoint", f"size {whole.splitlines()[1]}", "was removed there")
    copy.checkpoints.unlink()
    found(verify(str(copy.path)), "checkpoint", "is gone")


def test_without_a_key_nothing_is_called_checked(copy: Copy) -> None:
    copy.path.with_name("ledger.db.key").unlink()
    copy.public_key.unlink()
    report = verify(str(copy.path))
    found(report, "key", "name one")
    assert report.anchored_size == 0


# -- anything ------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    place=st.integers(0, 10**9),
    bit=st.integers(0, 7),
    table=st.sampled_from(["evidence.body", "evidence.hash", "leaf.hash"]),
)
def test_any_bit_of_any_entry(copy: Copy, place: int, bit: int, table: str) -> None:
    name, column = table.split(".")
    key = "seq" if name == "leaf" else "op_id || '/' || n"
    with copy.edit() as database:
        rows = database.execute(f"SELECT {key}, CAST({column} AS BLOB) FROM {name} ORDER BY 1").fetchall()
        row, data = rows[place % len(rows)]
        position = place // len(rows) % len(data)
        changed = data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]
        database.execute(f"UPDATE {name} SET {column} = CAST(? AS TEXT) WHERE {key} = ?", (changed, row))
        problems = verify(str(copy.path)).problems
        database.execute(f"UPDATE {name} SET {column} = CAST(? AS TEXT) WHERE {key} = ?", (data, row))
    where = f"leaf {row}" if name == "leaf" else row.partition("/")[0]
    assert any(where in each.where for each in problems), problems
