# SPDX-License-Identifier: Apache-2.0
"""A fresh place for a ledger in each kind of store, and a way to look behind the ledger's back."""

from __future__ import annotations

import secrets
import sqlite3
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pg_server

from deadstop.ledger.definition import Effect
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.records import Intent
from deadstop.ledger.states import LEASED, TRANSITIONS, State
from deadstop.ledger.store import MEMORY, Store, open_store

LASTING = ("sqlite", "postgresql")
KINDS = (*LASTING, "memory")


@dataclass
class Databases:
    """Schemas in a database that this process has for itself, on the server of this run."""

    folder: Path  # that all workers share
    _server: pg_server.PgServer | None = None
    _database: str = ""

    @property
    def server(self) -> pg_server.PgServer:
        if self._server is None:
            self._server = pg_server.shared(self.folder)
            self._database = self._server.create()
        return self._server

    def fresh(self, *, port: int | None = None, **options: str) -> str:
        """The URL of an empty schema: a millisecond, where a database of its own takes a hundred. With a port, it is
        reached through TCP there."""
        schema = f"s{secrets.token_hex(6)}"
        server = self.server
        server.sql(f"CREATE SCHEMA {schema}", database=self._database)
        return server.url(self._database, tcp=port, **{"options": f"-csearch_path={schema}", **options})

    def release(self) -> None:
        if self._server is not None:
            self._server.release()


@dataclass
class Ground:
    """Where a store of one kind is made. `where` is as `open_store` takes it."""

    kind: str
    where: str
    _opened: list[Store] = field(default_factory=list)
    _raw: list[Any] = field(default_factory=list)

    def open(self) -> Store:
        store = open_store(self.where)
        self._opened.append(store)
        return store

    def ledger(self, *, notary: bool = False) -> Ledger:
        """Without a notary nothing happens that the test does not do."""
        return Ledger(self.open(), notary=notary)

    def raw(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """SQL past the ledger, `?` for values; committed at once unless BEGIN was among it."""
        if not self._raw:
            self._raw.append(self._connect())
        if self.kind == "postgresql":
            text = text.replace("?", "%s")
        cursor = self._raw[0].execute(text, values)
        return list(cursor.fetchall()) if cursor.description else []

    def _connect(self) -> Any:
        if self.kind == "postgresql":
            import psycopg

            return psycopg.connect(self.where, autocommit=True)
        if self.kind == "memory":
            return self._opened[-1]._writer  # type: ignore[attr-defined] # there is no other way to it
        made = sqlite3.connect(self.where, isolation_level=None, timeout=5)
        made.execute("PRAGMA foreign_keys=ON")
        return made

    @contextmanager
    def undone(self) -> Iterator[None]:
        """What `raw` does in the block leaves nothing."""
        self.raw("BEGIN")
        try:
            yield
        finally:
            self.raw("ROLLBACK")

    def release(self) -> None:
        if self.kind != "memory":
            for connection in self._raw:
                connection.close()
        for store in self._opened:
            store.close()


def refusals() -> tuple[type[Exception], ...]:
    """What the databases raise when a trigger or a key says no."""
    if pg_server.why_not() is not None:
        return (sqlite3.IntegrityError,)
    import psycopg

    return sqlite3.IntegrityError, psycopg.IntegrityError


def psycopg_error() -> type[Exception]:
    import psycopg

    return psycopg.Error


def place(kind: str, folder: Path, databases: Databases | None) -> str:
    """Where a ledger of that kind can be made that is not there yet; databases are only asked for PostgreSQL."""
    if kind == "postgresql":
        assert databases is not None
        return databases.fresh()
    return MEMORY if kind == "memory" else str(folder / "ledger.db")


def intent(ledger: Ledger, binding: str = "b1", tool: str = "pay", **changes: Any) -> Intent:
    version = ledger.define(Effect().define(tool)).version
    wanted = {"scope": tool, "binding": binding, "fingerprint": "f" * 64, "tool": tool, "definition": version}
    return Intent(**{**wanted, **changes})


def way_to(state: State) -> list[State]:
    """The states after PREPARED on a shortest way to it."""
    ways = {State.PREPARED: list[State]()}
    waiting = deque([State.PREPARED])
    while waiting:
        here = waiting.popleft()
        for before, after in sorted(TRANSITIONS):
            if before is here and after not in ways:
                ways[after] = [*ways[here], after]
                waiting.append(after)
    return ways[state]


def step(ground: Ground, op_id: str, after: State) -> None:
    """Write that state, with all that has to go with it: only the transition itself may be in the way."""
    leased = after in LEASED
    ground.raw(
        "UPDATE operation SET state = ?, ver = ver + 1, fence = fence + ?, owner = ?, lease_ms = ? WHERE op_id = ?",
        after.value, int(leased), "somebody" if leased else None, 1 if leased else None, op_id,
    )  # fmt: skip
