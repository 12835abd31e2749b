# SPDX-License-Identifier: Apache-2.0
"""What the ledger asks of a database: transactions that are durable before anybody hears of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from .. import places
from ..errors import LedgerBroken, LedgerUnavailable, UsageError
from .records import Evidence
from .statements import migrations

__all__ = ["LEDGER_VARIABLE", "MEMORY", "Store", "Tx", "check_migrations", "default_place", "open_store"]

T = TypeVar("T")
Row = tuple[Any, ...]

LEDGER_VARIABLE = places.LEDGER_VARIABLE
MEMORY = ":memory:"


class Tx(Protocol):
    """One transaction. Statements go by their names in sql/*.sql."""

    now: int  # ms since 1970 on the ledger's clock: the same for everything in this transaction

    def one(self, name: str, /, **values: Any) -> Row | None:
        """The first row."""

    def all(self, name: str, /, **values: Any) -> list[Row]:
        """Every row."""

    def run(self, name: str, /, **values: Any) -> int:
        """How many rows it has changed."""

    def many(self, name: str, rows: Sequence[Mapping[str, Any]], /) -> None:
        """The statement once for each row."""

    def noted(self, entry: Evidence, /) -> None:
        """An entry was added: the store gives it its place in the whole log, now or later."""


class Store(Protocol):
    where: str  #: for people: without a password
    dialect: str  #: "sqlite" or "postgresql"
    lasting: bool  #: it outlives this process

    def write(self, work: Callable[[Tx], T], /) -> Future[T]:
        """Run `work` in a transaction. The future has its result when, and only when, the commit is durable.

        An exception of `work` undoes what it did and is the future's. It may be run again if the database asks for it,
        so it must do nothing but talk to the Tx. Raises LedgerUnavailable (through the future).
        """

    def read(self, work: Callable[[Tx], T], /) -> T:
        """Run `work`, which only reads, on one state of the database."""

    def scrub(self) -> bool:
        """Remove what was deleted from the database's files, too; False where that is not ours to do, or a reader still
        needs it. Raises LedgerUnavailable."""

    def close(self) -> None:
        """Finish what was given, and let go. Safe to call twice."""


def default_place() -> str:
    """DEADSTOP_LEDGER, else a file in the user's state folder.

    Raises UsageError for a relative path: it would be another ledger in each folder, and each would send under the same
    key; and LedgerUnavailable inside a sandbox, where what is written is gone with it.
    """
    given = os.environ.get(LEDGER_VARIABLE)
    if not given:
        if os.environ.get("DEADSTOP_SANDBOX"):
            raise LedgerUnavailable(
                "ledger.db", "a sandbox has no lasting ledger of its own",
                f"call tools with effects outside of it, or name a ledger that outlives it in {LEDGER_VARIABLE}",
            )  # fmt: skip
        return os.path.join(places.state_folder(), "ledger.db")
    if given != MEMORY and "://" not in given and not os.path.isabs(given):
        raise UsageError(f"{LEDGER_VARIABLE}={given!r:.80} is not an absolute path, and not a postgresql:// URL")
    return given


def open_store(where: str | None = None) -> Store:
    """The store for a path, a postgresql:// URL or ":memory:". Makes it if it is not there, and brings it up to date.

    Raises LedgerUnavailable with what would mend it, UsageError for a place that no store is for.
    """
    place = default_place() if where is None else where
    if not isinstance(place, str) or not place:
        raise UsageError(f"ledger: {place!r:.80} is not a path and not a postgresql:// URL")
    if place.startswith(("postgresql://", "postgres://")):
        from .postgresql import PostgresStore

        return PostgresStore(place)
    if "://" in place:
        raise UsageError(
            f"ledger: {place.partition('://')[0]}:// is not a kind of ledger; give a path or postgresql://"
        )
    from .sqlite import SqliteStore

    return SqliteStore(place)


def check_migrations(where: str, dialect: str, done: Sequence[tuple[int, str]]) -> int:
    """How many are done already. Raises if the ledger is newer than this program, or was made by changed files."""
    known = migrations(dialect)
    if len(done) > len(known):
        newer = f"it was written by a newer deadstop (form {len(done)}, this one knows {len(known)})"
        raise LedgerUnavailable(where, newer, "update deadstop")
    wrong = [each.name for each, (_, digest) in zip(known, done, strict=False) if each.digest != digest]
    if wrong:
        raise LedgerBroken(where, (f"its form {wrong[0]} was made by another text than this program has",))
    return len(done)
