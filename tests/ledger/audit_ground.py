# SPDX-License-Identifier: Apache-2.0
"""A ledger with every kind of history in it, and what somebody with a copy of the file and sqlite3 does to it."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deadstop.ledger import operations, settling
from deadstop.ledger.definition import Definition
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.merkle import Frontier, Node
from deadstop.ledger.queries import HttpQuery
from deadstop.ledger.reading import shred
from deadstop.ledger.records import Finding, Intent, Outcome
from deadstop.ledger.states import Retry, State, Verdict

SECRET = "canary-3141592653"
LEASE_MS = 30_000
DEFINITION = Definition(
    tool="deploy", query=HttpQuery(url="http://authority/{key}"), retry=Retry.IF_NOT_ACCEPTED, consistent=True
)


def intent(number: int, version: int) -> Intent:
    return Intent(
        scope="default/deploy", binding=f"release {number}", fingerprint="f" * 64, tool="deploy", definition=version,
        correlation=f"run-{number}", target="production", digest="d" * 64, arguments={"revision": number},
        sealed={"arguments": {"token": SECRET, "revision": number}}, asked_by="agent", authorised_by="ann",
    )  # fmt: skip


def history(ledger: Ledger, first: int, count: int) -> list[str]:
    """Operations first, first + 1, ...: succeeded, refused, found by asking, decided by a person, never sent, open."""
    version = ledger.define(DEFINITION).version
    return ledger.write(lambda tx: [_one(tx, number, version) for number in range(first, first + count)])


def _one(tx: Any, number: int, version: int) -> str:
    kind = number % 6
    if kind == 4:
        record = operations.submit(tx, intent(number, version)).record
        operations.cancel(tx, record.op_id, "not wanted")
        return record.op_id
    record = operations.begin(tx, intent(number, version), "host/boot/pid/1/1", LEASE_MS).record
    op_id = record.op_id
    if kind == 0:
        outcome = Outcome(
            State.SUCCEEDED, reference=f"dep-{number}", value={"url": "x"}, has_value=True, receipt={"ms": 1}
        )
        operations.finish(tx, op_id, record.fence, outcome)
    elif kind == 1:
        operations.finish(tx, op_id, record.fence, Outcome(State.FAILED, phase="read_response", observation="403"))
    elif kind in (2, 3):
        lost = Outcome(State.UNKNOWN, phase="await_response", certain=False, observation="reset")
        operations.finish(tx, op_id, record.fence, lost)
        taken = settling.take(tx, op_id, "host/boot/pid/2/2", LEASE_MS, force=True)
        assert taken is not None
        verdict = Verdict.APPLIED if kind == 2 else Verdict.CONTRADICTION
        settling.settle(tx, op_id, taken.fence, Finding(verdict, source="http", reference=f"found-{number}", raw=b"{}"))
        operations.finish(tx, op_id, record.fence, Outcome(State.SUCCEEDED))  # too late
        if kind == 3:
            settling.resolve(tx, op_id, State.FAILED, "bob", "the console shows none", authorised_by="ann")
            shred(tx, op_id, ["arguments"], "bob")
    return op_id


@dataclass
class Copy:
    """A ledger's files, closed, in a folder of its own, for one that does not go through deadstop."""

    path: Path

    @classmethod
    def of(cls, original: Path, folder: Path) -> Copy:
        for each in original.parent.iterdir():
            if each.is_file():
                shutil.copy(each, folder / each.name)
        copied = cls(folder / original.name)
        with copied.edit() as database:
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
                database.execute(f"DROP TRIGGER {name}")
        return copied

    @contextlib.contextmanager
    def edit(self) -> Iterator[sqlite3.Connection]:
        database = sqlite3.connect(self.path, isolation_level=None)
        for pragma in ("journal_mode=MEMORY", "synchronous=OFF", "foreign_keys=OFF", "ignore_check_constraints=ON"):
            database.execute(f"PRAGMA {pragma}").fetchall()
        try:
            yield database
        finally:
            database.close()

    @property
    def checkpoints(self) -> Path:
        return self.path.with_name(f"{self.path.name}.checkpoints")

    @property
    def public_key(self) -> Path:
        return self.path.with_name(f"{self.path.name}.key.pub")


def closed_ledger(folder: Path, *counts: int) -> Path:
    """A ledger with a checkpoint after each part of its history."""
    path, first = folder / "ledger.db", 0
    with Ledger.open(str(path)) as ledger:
        for count in counts:
            history(ledger, first, count)
            first += count
            assert ledger.notary is not None
            assert ledger.notary.checkpoint() is not None
    return path


def rebuild_the_end(database: sqlite3.Connection) -> None:
    """The end of the log and what is stored of its tree, as they follow from the leaves that are there now."""
    frontier, nodes = Frontier(), list[Node]()
    frontier.extend([bytes.fromhex(each) for (each,) in database.execute("SELECT hash FROM leaf ORDER BY seq")], nodes)
    database.execute("UPDATE head SET size = ?, frontier = ?", (frontier.size, frontier.text))
    database.execute("DELETE FROM node")
    database.executemany("INSERT INTO node VALUES (?, ?, ?)", [(a, b, c.hex()) for a, b, c in nodes])
