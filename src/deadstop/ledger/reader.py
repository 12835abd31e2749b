# SPDX-License-Identifier: Apache-2.0
"""Read a ledger without changing it: what verifying and exporting need, also of a copy that nobody may write to."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..errors import LedgerUnavailable
from .statements import statements
from .store import MEMORY, open_store

if TYPE_CHECKING:
    from .store import Store, Tx

__all__ = ["Reader", "opened", "pages"]

T = TypeVar("T")
PAGE = 4096


class Reader(Protocol):
    where: str
    dialect: str

    def read(self, work: Callable[[Tx], T], /) -> T: ...


class _HasStore(Protocol):
    @property
    def store(self) -> Store: ...


@contextlib.contextmanager
def opened(source: str | Reader | _HasStore) -> Iterator[Reader]:
    """A ledger, its store, a path or a postgresql:// URL. A file is read on a connection of its own, without a write
    and without a migration: nobody waits for it, and triggers that were dropped do not matter.

    Raises LedgerUnavailable for what cannot be read.
    """
    store: Any = getattr(source, "store", source)
    if not isinstance(store, str) and not (store.dialect == "sqlite" and store.where != MEMORY):
        yield store
    elif isinstance(store, str) and "://" in store:
        made = open_store(store)
        try:
            yield made
        finally:
            made.close()
    else:
        file = _SqliteFile(store if isinstance(store, str) else store.where)
        try:
            yield file
        finally:
            file.close()


class _SqliteFile:
    dialect = "sqlite"

    def __init__(self, path: str) -> None:
        self.where = os.path.abspath(path)
        if not os.path.isfile(self.where):
            raise LedgerUnavailable(self.where, "there is no such file")
        try:
            self._connection = _connect(self.where)
        except sqlite3.Error as problem:
            raise LedgerUnavailable(self.where, str(problem)) from problem

    def read(self, work: Callable[[Any], T], /) -> T:
        try:
            self._connection.execute("BEGIN")
            try:
                return work(_FileTx(self._connection, statements("sqlite")))
            finally:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error as problem:
            raise LedgerUnavailable(self.where, str(problem)) from problem

    def close(self) -> None:
        self._connection.close()


class _FileTx:
    def __init__(self, connection: sqlite3.Connection, texts: dict[str, str]) -> None:
        self.now = round(time.time() * 1000)
        self._connection, self._texts = connection, texts

    def one(self, name: str, /, **values: Any) -> tuple[Any, ...] | None:
        rows = self.all(name, **values)
        return rows[0] if rows else None

    def all(self, name: str, /, **values: Any) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(self._texts[name], values).fetchall()
        except sqlite3.OperationalError as problem:
            if "decode" not in str(problem):
                raise
        self._connection.text_factory = _text  # three times as slow, so only from here on
        return self._connection.execute(self._texts[name], values).fetchall()


def _connect(path: str) -> sqlite3.Connection:
    """Read only. Of a file in WAL mode in a place where nothing can be written, SQLite wants to be told so."""
    quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    for mode in ("mode=ro", "mode=ro&immutable=1"):
        made = sqlite3.connect(
            f"file:{quoted}?{mode}", uri=True, timeout=10, isolation_level=None, check_same_thread=False
        )
        try:
            made.execute("SELECT size FROM head").fetchone()
            return made
        except sqlite3.OperationalError as problem:
            made.close()
            if "unable to open" not in str(problem) or os.path.exists(f"{path}-wal"):
                raise
    raise sqlite3.OperationalError("unable to open database file")


def _text(data: bytes) -> str:
    """What was edited need not be text any more; it must be found, not stop the search."""
    return data.decode("utf-8", "surrogateescape")


def pages(tx: Tx, name: str, first: int = 0) -> Iterator[list[Any]]:
    """Rows whose first column is a growing number, some thousand at a time."""
    while rows := tx.all(name, first=first, limit=PAGE):
        yield rows
        first = rows[-1][0] + 1
