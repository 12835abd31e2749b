# SPDX-License-Identifier: Apache-2.0
"""A ledger with a million settled operations, made in bulk: copies of one real operation, with their own names, hashes
and places in the log. Its triggers are taken off for that, and put back."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any

from deadstop.ledger.merkle import Frontier, Node

from .ledger_ours import Operations

Entry = tuple[Any, ...]  # op_id, n, kind, at_ms, body, prev, hash
COPIED = ("operation", "attempt", "attempt_end", "payload")  # the log is written anew, for its hashes
SAMPLES = 1000


def fill(path: str, operations: int) -> list[str]:
    """A ledger of so many operations, with their whole log. Some of their ids."""
    ours = Operations(path)
    ours.whole()
    ours.close()
    with _in_bulk(path) as connection:
        _copy(connection, 1, operations)
        _log(connection)
    return _some(path)


def enlarge(path: str, operations: int) -> list[str]:
    """So many in all. What is added has no entries in the log."""
    with _in_bulk(path) as connection:
        there = connection.execute("SELECT count(*) FROM operation").fetchone()[0]
        _copy(connection, there, operations, created_ms="made.n")
    return _some(path)


@contextlib.contextmanager
def _in_bulk(path: str) -> Iterator[sqlite3.Connection]:
    """Nobody else has it open, and nothing of it is of use if this is broken off."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-200000"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("BEGIN")
        taken = _take_off(connection)
        yield connection
        for text in taken:
            connection.execute(text)
        connection.execute("COMMIT")


def _some(path: str) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        count = connection.execute("SELECT max(rowid) FROM operation").fetchone()[0]
        every = max(1, count // SAMPLES)
        return [row[0] for row in connection.execute("SELECT op_id FROM operation WHERE rowid % ? = 0", (every,))]


def _take_off(connection: sqlite3.Connection) -> list[str]:
    """Triggers, and the indexes that are quicker made afterwards. The texts that make them again."""
    wanted = "SELECT type, name, sql FROM sqlite_master WHERE sql NOT NULL AND type IN ('trigger', 'index')"
    found = connection.execute(wanted).fetchall()
    for kind, name, _ in found:
        connection.execute(f"DROP {kind} {name}")
    return [text for _, _, text in found]


def _copy(connection: sqlite3.Connection, first: int, end: int, **changed: str) -> None:
    """Ids in the order of time, as they are made; keys without order, as hashes are. `changed` columns as SQL."""
    connection.execute("CREATE TEMP TABLE made (n INTEGER PRIMARY KEY, op_id TEXT, key TEXT)")
    connection.execute(
        "WITH RECURSIVE turn (n) AS (SELECT :first UNION ALL SELECT n + 1 FROM turn WHERE n + 1 < :end)"
        " INSERT INTO made SELECT n, printf('op_%011x', n) || lower(hex(randomblob(6))),"
        " 'dsk_' || lower(hex(randomblob(20))) FROM turn WHERE n < :end",
        {"first": first, "end": end},
    )
    for table in COPIED:
        row = _real(connection, table)[0]
        own = {"op_id": "made.op_id", "key": "made.key", **changed}
        values = ", ".join(own.get(name, f":{name}") for name in row)
        connection.execute(f"INSERT INTO {table} ({', '.join(row)}) SELECT {values} FROM made ORDER BY made.n", row)


def _log(connection: sqlite3.Connection) -> None:
    """The entries of the real one copied for the others, and the tree over them all."""
    entries, key = _real(connection, "evidence"), _real(connection, "operation")[0]["key"]
    log = [bytes.fromhex(row["hash"]) for row in entries]
    names = ("op_id", "n", "kind", "at_ms", "body", "prev", "hash")
    others = connection.execute("SELECT op_id, key FROM made ORDER BY n").fetchall()
    _add(connection, "evidence", names, _noted(_entries([*map(itemgetter(*names), entries)], key, others), log))
    connection.execute(
        "INSERT INTO leaf (seq, op_id, n, hash) SELECT ? + row_number() OVER (ORDER BY made.n, e.n) - 1, e.op_id, e.n,"
        " e.hash FROM made JOIN evidence AS e ON e.op_id = made.op_id",
        (len(entries),),
    )
    connection.execute(
        "UPDATE operation SET head = e.hash FROM evidence AS e"
        " WHERE e.op_id = operation.op_id AND e.n = operation.evidence"
    )
    tree, nodes = Frontier(), list[Node]()
    tree.extend(log, nodes)
    _add(connection, "node", ("level", "place", "hash"), ((level, place, each.hex()) for level, place, each in nodes))
    connection.execute("UPDATE head SET size = ?, frontier = ?", (tree.size, tree.text))


def _entries(entries: list[Entry], key: str, others: Iterable[tuple[str, str]]) -> Iterator[Entry]:
    for op_id, own_key in others:
        head = ""
        for real, n, kind, at_ms, body, prev, _ in entries:
            own = body.replace(real, op_id).replace(key, own_key).replace(f'"prev":"{prev}"', f'"prev":"{head}"')
            leaf = hashlib.sha256(b"\0" + own.encode()).hexdigest()
            yield op_id, n, kind, at_ms, own, head, leaf
            head = leaf


def _noted(rows: Iterator[Entry], log: list[bytes]) -> Iterator[Entry]:
    for row in rows:
        log.append(bytes.fromhex(row[-1]))
        yield row


def _real(connection: sqlite3.Connection, table: str) -> list[dict[str, Any]]:
    """The rows of the operation that really took place."""
    which = "(SELECT op_id FROM operation ORDER BY rowid LIMIT 1)"
    cursor = connection.execute(f"SELECT * FROM {table} WHERE op_id = {which}")
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _add(connection: sqlite3.Connection, table: str, names: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> None:
    places = ", ".join("?" * len(names))
    connection.executemany(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({places})", rows)
