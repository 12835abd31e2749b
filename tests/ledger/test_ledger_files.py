# SPDX-License-Identifier: Apache-2.0
"""The files of an SQLite ledger: what is left in them, who else has them open, and under which name."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from test_operations import begun, intent

import deadstop
from deadstop.errors import LedgerUnavailable
from deadstop.ledger import sqlite
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.records import Outcome
from deadstop.ledger.states import State

# -- what was shredded ---------------------------------------------------------------------------------------------


def files_with(folder: Path, text: bytes) -> list[str]:
    return [each.name for each in folder.iterdir() if each.is_file() and text in each.read_bytes()]


def test_what_was_shredded_is_in_no_file_though_the_ledger_is_open_elsewhere(tmp_path: Path) -> None:
    place = str(tmp_path / "ledger.db")
    with Ledger.open(place) as ledger, Ledger.open(place):
        claim = begun(ledger, sealed={"request": {"card": "canary-4711"}})
        ledger.finish(claim, Outcome(State.SUCCEEDED))
        assert files_with(tmp_path, b"canary-4711")
        assert ledger.shred(claim.op_id) == ["request"]
        assert ledger.scrub()
        assert files_with(tmp_path, b"canary-4711") == []


def test_what_a_reader_still_needs_is_said_and_scrubbed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "SCRUB_MS", 20)
    place = str(tmp_path / "ledger.db")
    with Ledger.open(place) as ledger:
        claim = begun(ledger, sealed={"request": {"card": "canary-4711"}})
        with contextlib.closing(sqlite3.connect(place)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM payload").fetchone()
            assert ledger.shred(claim.op_id) == ["request"]  # nobody is kept from it
            assert not ledger.scrub()
        assert ledger.scrub()
        assert files_with(tmp_path, b"canary-4711") == []
        ledger.finish(claim, Outcome(State.SUCCEEDED))


# -- forks, and files with two names -------------------------------------------------------------------------------

FORKING = """
import os, sys, threading
from deadstop.ledger import ledger as ledgers

os.environ["DEADSTOP_LEDGER"] = sys.argv[1]
mine, over, counts = ledgers.default(), threading.Event(), [0, 0]

def note(name):
    ledgers.default().write(lambda tx: tx.run("set_meta", name=name, value="x"))

def work(k):
    while not over.is_set():
        note(f"parent/{k}/{counts[k]}")
        counts[k] += 1

threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
for each in threads: each.start()
children = []
for n in range(12):
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            note(f"child/{n}/0")
            os.close(tell)
            os.read(told, 1)  # until the parent has closed its own, which must not take the child's log with it
            note(f"child/{n}/1")
            status = 0
        finally:
            os._exit(status)  # as if killed
    os.close(told)
    children.append((child, tell))
over.set()
for each in threads: each.join()
mine.close()
for child, tell in children:
    os.close(tell)
failed = [child for child, _ in children if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]
wanted = [f"child/{n}/{k}" for n in range(12) for k in (0, 1)]
wanted += [f"parent/{k}/{n}" for k in (0, 1) for n in range(counts[k])]
with ledgers.Ledger.open(sys.argv[1]) as ledger:
    lost = ledger.read(lambda tx: [name for name in wanted if tx.one("meta", name=name) is None])
assert not failed and not lost, (failed, lost)
"""


def test_whoever_forks_while_others_write_loses_nothing_and_locks_out_nobody(tmp_path: Path) -> None:
    path = {**os.environ, "PYTHONPATH": str(Path(deadstop.__file__).parent.parent)}
    ended = subprocess.run(
        [sys.executable, "-c", FORKING, str(tmp_path / "ledger.db")],
        env=path, timeout=30, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr


def test_a_file_with_two_names_is_refused_and_a_link_leads_to_the_one(tmp_path: Path) -> None:
    place, other = tmp_path / "ledger.db", tmp_path / "elsewhere"
    other.mkdir()
    with Ledger.open(str(place)) as ledger:
        claim = begun(ledger)
        (other / "ledger.db").symlink_to(place)
        with Ledger.open(str(other / "ledger.db")) as same:
            assert same.begin(intent(same)).record.op_id == claim.op_id
            assert {each.name for each in other.iterdir()} == {"ledger.db"}
    os.link(place, other / "hard.db")
    for name in (place, other / "hard.db"):
        with pytest.raises(LedgerUnavailable, match="hard links"):
            Ledger.open(str(name))


@pytest.mark.root
def test_a_file_that_is_mounted_without_its_folder_is_refused(tmp_path: Path) -> None:
    """As by `docker run -v FILE:FILE`: its log would be another one than that of whoever has the folder."""
    Ledger.open(str(tmp_path / "ledger.db")).close()
    script = """
import sys
from deadstop.errors import LedgerUnavailable
from deadstop.ledger.ledger import Ledger
try:
    Ledger.open(sys.argv[1])
except LedgerUnavailable as problem:
    print(problem)
"""
    words = 'touch "$2"; mount --bind "$1" "$2" && exec "$3" -c "$4" "$2"'
    ended = subprocess.run(
        ["unshare", "--mount", "sh", "-c", words, "sh", str(tmp_path / "ledger.db"), str(tmp_path / "a name"),
         sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(Path(deadstop.__file__).parent.parent)}, timeout=20, capture_output=True,
        text=True,
    )  # fmt: skip
    if "mount" in ended.stderr or "unshare" in ended.stderr:
        pytest.skip(f"nothing can be mounted here: {ended.stderr.strip():.80}")
    assert "mounted here without its folder" in ended.stdout, ended.stderr
