# SPDX-License-Identifier: Apache-2.0
"""One transaction of SQLite's, as the ledger sees it."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from .records import Evidence
from .store import Row

__all__ = ["SqliteTx"]


class SqliteTx:
    """See `store.Tx`."""

    __slots__ = ("_cursor", "_texts", "entries", "now")

    def __init__(self, cursor: sqlite3.Cursor, texts: Mapping[str, str], now: int) -> None:
        self._cursor, self._texts, self.now = cursor, texts, now
        self.entries: list[Evidence] = []

    def one(self, name: str, /, **values: Any) -> Row | None:
        row: Row | None = self._cursor.execute(self._texts[name], values).fetchone()
        return row

    def all(self, name: str, /, **values: Any) -> list[Row]:
        return self._cursor.execute(self._texts[name], values).fetchall()

    def run(self, name: str, /, **values: Any) -> int:
        return self._cursor.execute(self._texts[name], values).rowcount

    def many(self, name: str, rows: Sequence[Mapping[str, Any]], /) -> None:
        self._cursor.executemany(self._texts[name], rows)

    def noted(self, entry: Evidence, /) -> None:
        self.entries.append(entry)
