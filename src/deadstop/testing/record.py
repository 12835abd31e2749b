# SPDX-License-Identifier: Apache-2.0
"""The testing authority's own record: what it has committed, whatever its clients think. SQLite."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

__all__ = ["AuthorityRecord", "effects_in"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS accepted (
    n INTEGER PRIMARY KEY, id TEXT UNIQUE, key TEXT, correlation TEXT, method TEXT NOT NULL, path TEXT NOT NULL,
    body TEXT NOT NULL, ends TEXT NOT NULL, at REAL NOT NULL, done_at REAL, visible_at REAL NOT NULL);
CREATE INDEX IF NOT EXISTS accepted_key ON accepted (key);
CREATE TABLE IF NOT EXISTS request (
    n INTEGER PRIMARY KEY, method TEXT NOT NULL, path TEXT NOT NULL, key TEXT, correlation TEXT,
    bytes INTEGER NOT NULL, did TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS resource (
    id TEXT NOT NULL, version INTEGER NOT NULL, body TEXT NOT NULL, visible_at REAL NOT NULL,
    PRIMARY KEY (id, version));
CREATE VIEW IF NOT EXISTS operations AS
    SELECT n, id, key, correlation, method, path, body, at, visible_at,
           CASE WHEN done_at <= (julianday('now') - 2440587.5) * 86400.0 + 0.001 THEN ends ELSE 'accepted' END AS state
    FROM accepted;
"""
_COLUMNS = "id, key, correlation, method, path, body, at, visible_at, state"
_FIELDS = _COLUMNS.split(", ")


class AuthorityRecord:
    """What arrived, what was accepted, and the resources. It outlives the death of any process, not a power cut.

    In the file, the view `operations` (id, key, state, path, body, ...) can be asked with SQL while the authority runs.
    """

    def __init__(self, file: str | Path | None = None) -> None:
        self._lock = threading.RLock()
        self._db = sqlite3.connect(str(file or ":memory:"), check_same_thread=False, isolation_level=None, timeout=10)
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.executescript(_SCHEMA)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def arrived(self, method: str, path: str, key: str | None, correlation: str | None, size: int, did: str) -> None:
        """One request, as far as it was read, and the word for what was done with it."""
        self._run(
            "INSERT INTO request (method, path, key, correlation, bytes, did, at) VALUES (?, ?, ?, ?, ?, ?, ?)",
            method, path, key, correlation, size, did, time.time(),
        )  # fmt: skip

    def accept(
        self, key: str | None, correlation: str | None, method: str, path: str, body: str, *,
        once: bool, lag: float = 0.0, takes: float | None = 0.0, ends: str = "succeeded",
    ) -> tuple[dict[str, Any], bool]:  # fmt: skip
        """(the operation, whether it is new). `once`: one key, one operation. `takes` None: it never ends."""
        now = time.time()
        done = None if takes is None else now + takes
        with self._lock:
            found = self.by_key(key) if once and key is not None else []
            if found:
                return found[0], False
            n = self._run(
                "INSERT INTO accepted (key, correlation, method, path, body, ends, at, done_at, visible_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                key, correlation, method, path, body, ends, now, done, now + lag,
            ).lastrowid  # fmt: skip
            self._run("UPDATE accepted SET id = 'dep_' || (1000 + n) WHERE n = ?", n)
            return self._operations("n = ?", n)[0], True

    def by_key(self, key: str, *, visible: bool = False) -> list[dict[str, Any]]:
        return self._operations("key = ? AND (visible_at <= ? OR NOT ?)", key, time.time(), visible)

    def by_id(self, name: str, *, visible: bool = False) -> list[dict[str, Any]]:
        return self._operations("id = ? AND (visible_at <= ? OR NOT ?)", name, time.time(), visible)

    def operations(self) -> list[dict[str, Any]]:
        return self._operations("TRUE")

    def effects(self, key: str | None = None) -> int:
        """How many have happened: accepted, ended, and not as a failure."""
        return sum(each["state"] == "succeeded" for each in (self.operations() if key is None else self.by_key(key)))

    def finish(self, key: str, state: str = "succeeded") -> None:
        """End what was accepted under a key now."""
        self._run("UPDATE accepted SET ends = ?, done_at = ? WHERE key = ?", state, time.time(), key)

    def requests(self) -> list[dict[str, Any]]:
        names = "method", "path", "key", "correlation", "bytes", "did"
        return [dict(zip(names, row, strict=True)) for row in self._all(f"SELECT {', '.join(names)} FROM request")]

    def put(self, name: str, body: str, lag: float, expected: str | None) -> tuple[bool, int]:
        """(whether it was written, its version now). `expected` is an If-Match."""
        with self._lock:
            row = self._all("SELECT max(version) FROM resource WHERE id = ?", name)[0]
            version = int(row[0] or 0)
            if expected is not None and not _matches(expected, version):
                return False, version
            self._run("INSERT INTO resource VALUES (?, ?, ?, ?)", name, version + 1, body, time.time() + lag)
            return True, version + 1

    def resource(self, name: str) -> tuple[int, str] | None:
        """The newest version that can be seen, and its body."""
        question = "SELECT version, body FROM resource WHERE id = ? AND visible_at <= ? ORDER BY version DESC LIMIT 1"
        rows = self._all(question, name, time.time())
        return rows[0] if rows else None

    def _operations(self, where: str, *values: object) -> list[dict[str, Any]]:
        rows = self._all(f"SELECT {_COLUMNS} FROM operations WHERE {where} ORDER BY n", *values)
        return [dict(zip(_FIELDS, row, strict=True)) for row in rows]

    def _run(self, statement: str, *values: object) -> sqlite3.Cursor:
        with self._lock:
            return self._db.execute(statement, values)

    def _all(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._db.execute(statement, values).fetchall()


def _matches(expected: str, version: int) -> bool:
    tags = [each.strip() for each in expected.split(",")]
    return version > 0 and ("*" in tags or etag(version) in tags)


def etag(version: int) -> str:
    return f'"v{version}"'


def same_body(first: str, second: str) -> bool:
    """Whether two bodies say the same: as JSON where they are, byte for byte otherwise."""
    try:
        return bool(json.loads(first) == json.loads(second))
    except ValueError:
        return first == second


def effects_in(file: str | Path, key: str | None = None) -> int:
    """How many effects a record in a file holds, also while its authority runs, or after its end."""
    record = AuthorityRecord(file)
    try:
        return record.effects(key)
    finally:
        record.close()
