# SPDX-License-Identifier: Apache-2.0
"""What SQLite's file says after its end was lost, as by a power cut."""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
from pathlib import Path

import stores

from deadstop.ledger.ledger import Ledger
from deadstop.ledger.records import Outcome
from deadstop.ledger.states import State
from deadstop.ledger.store import open_store
from deadstop.ledger.verify import verify


def test_wherever_the_end_is_lost_what_was_told_before_it_is_there(tmp_path: Path) -> None:
    """SQLite's log cut off at each of its frames, and within one, as a power cut may do that comes before a flush.

    What had been told to be durable by then is there; what is there is a beginning of what happened; and it goes on.
    """
    where = tmp_path / "ledger.db"
    Ledger(open_store(str(where)), notary=False).close()  # all of its form is in the file, and nothing in its log
    told = _history(where)
    log = Path(f"{where}-wal").read_bytes()
    frame = 24 + struct.unpack(">I", log[8:12])[0]
    boundaries = list(range(32, told[-1][0] + 1, frame))
    assert len(boundaries) > 20 and told[-1][0] == boundaries[-1]
    seen: list[dict[str, list[str]]] = []
    found, everything = _after_a_cut(where, tmp_path / "cut", log), dict[str, list[str]]()
    for size in [*boundaries, 0, boundaries[-1] - frame // 2]:
        before, found = found, _after_a_cut(where, tmp_path / "cut", log[:size])
        durable = [each for length, each in told if length <= size]
        for op_id, count in (durable[-1] if durable else {}).items():
            assert len(found.get(op_id, ())) >= count, f"lost at {size}: {op_id}"
        if size == boundaries[-1]:
            everything = found
            assert {op_id: len(trail) for op_id, trail in found.items()} == told[-1][1]
        if found != before:
            _goes_on(tmp_path / "cut" / "ledger.db")
        seen.append(found)
    assert len({str(each) for each in seen}) == len(told) + 1  # each of what was told, and nothing
    for trails in seen:
        assert all(trail == everything[op_id][: len(trail)] for op_id, trail in trails.items())


def _history(where: Path) -> list[tuple[int, dict[str, int]]]:
    """After each thing that is told to be durable: how long the log was, and how many entries each operation had."""
    told: list[tuple[int, dict[str, int]]] = []
    ledger = Ledger(open_store(str(where)), notary=False)

    def note() -> None:
        told.append((os.stat(f"{where}-wal").st_size, {each.op_id: each.evidence for each in ledger.list()}))

    for number, end in enumerate((State.SUCCEEDED, State.UNKNOWN, State.FAILED)):
        claim = ledger.begin(stores.intent(ledger, binding=f"b{number}")).claim
        assert claim is not None
        note()
        record = ledger.finish(claim, Outcome(end, value="v" * 3000, has_value=True))
        note()
        if record.state is State.NEEDS_HUMAN:
            ledger.resolve(record.op_id, State.FAILED, "me", "seen")
            note()
    for each in where.parent.glob("ledger.db*"):
        shutil.copy(each, where.parent / f"kept-{each.name}")
    ledger.close()  # folds it: what was kept is what a power cut would find
    for each in where.parent.glob("kept-*"):
        os.replace(each, where.parent / each.name.removeprefix("kept-"))
    return told


def _after_a_cut(where: Path, folder: Path, log: bytes) -> dict[str, list[str]]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    place = folder / "ledger.db"
    shutil.copy(where, place)
    Path(f"{place}-wal").write_bytes(log)
    with Ledger(open_store(str(place)), notary=False) as ledger:
        return {each.op_id: [one.hash for one in ledger.trail(each.op_id)] for each in ledger.list()}


def _goes_on(place: Path) -> None:
    with Ledger(open_store(str(place)), notary=False) as ledger:
        assert verify(ledger).problems == ()
        assert ledger.conservation()["holds"]
        claim = ledger.begin(stores.intent(ledger, binding="after")).claim
        assert claim is not None and ledger.finish(claim, Outcome(State.SUCCEEDED)).state is State.SUCCEEDED
    raw = sqlite3.connect(place)
    assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    raw.close()
