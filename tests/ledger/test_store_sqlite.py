# SPDX-License-Identifier: Apache-2.0
"""SQLite's own ways to fail: files that cannot be written, are full, or are something else."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_stores import child, done

from deadstop.errors import LedgerUnavailable, UsageError
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.store import open_store

FULL = """
import resource, signal, sys
sys.path[:0] = sys.argv[2:]
import stores
from deadstop.errors import LedgerUnavailable
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.records import Outcome
from deadstop.ledger.states import State
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)

def room(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))

def operation(number):
    claim = ledger.begin(stores.intent(ledger, binding=f"b{number}")).claim
    ledger.finish(claim, Outcome(State.SUCCEEDED, value="v" * 20000, has_value=True))

ledger = Ledger(stores.open_store(sys.argv[1]), notary=False)
room(400_000)
for number in range(100):
    try:
        operation(number)
    except LedgerUnavailable as problem:
        print(problem)
        break
else:
    sys.exit("it never became full")
before = ledger.counts()
assert before["SUCCEEDED"] == number and sum(before.values()) <= number + 1, before
for record in ledger.list():
    trail = ledger.trail(record.op_id)
    assert len(trail) == record.evidence and trail[-1].hash == record.head, record
    attempts = ledger.attempts(record.op_id)
    assert len(attempts) == record.attempts, record
    assert (attempts[0].ended_ms is None) == (record.state is State.DISPATCHING), record
room(most)
operation("after")
assert ledger.counts()["SUCCEEDED"] == number + 1
ledger.close()
"""

READ_ONLY = """
import os, sys
sys.path[:0] = sys.argv[2:]
from deadstop.errors import LedgerUnavailable
from deadstop.ledger.store import open_store
from deadstop.ledger import sqlite, statements
statements.statements("sqlite"), statements.migrations("sqlite")  # it may not be readable any more
if os.geteuid() == 0:
    os.setegid(65534)
    os.seteuid(65534)
try:
    store = open_store(sys.argv[1])
    store.write(lambda tx: tx.run("set_meta", name="a", value="v")).result(5)
except LedgerUnavailable as problem:
    print(problem)
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that another user can reach, too."""
    folder = Path(tempfile.mkdtemp(prefix="deadstop-ledger-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def said(where: Path | str, text: str) -> str:
    process = child(str(where), text)
    out, problems = process.communicate(timeout=20)
    assert process.returncode == 0, problems.decode()
    return out.decode()


def test_a_full_disk_is_said_and_leaves_nothing_half_done(tmp_path: Path) -> None:
    assert "is not available: " in said(tmp_path / "ledger.db", FULL)


@pytest.mark.parametrize("made", [True, False])
def test_what_cannot_be_written_is_said(open_folder: Path, made: bool) -> None:
    where = open_folder / "ledger.db"
    if made:
        open_store(str(where)).close()
        for each in open_folder.iterdir():
            each.chmod(0o444)
    open_folder.chmod(0o555)
    text = said(where, READ_ONLY)
    assert f"the ledger {where} is not available: " in text and "; " in text, "nothing says what would mend it"


@pytest.mark.parametrize(
    "content", [b"This is a letter, and no database.\n" * 100, b"SQLite format 3\0" + b"\xff" * 5000]
)
def test_a_file_that_is_something_else_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "letter.txt"
    file.write_bytes(content)
    with pytest.raises(LedgerUnavailable, match=r"letter\.txt is not available: "):
        open_store(str(file))
    assert file.read_bytes() == content


def test_a_database_of_somebody_elses_is_refused_or_only_added_to(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    with sqlite3.connect(file) as other:
        other.execute("CREATE TABLE operation (mine TEXT)")
        other.execute("INSERT INTO operation VALUES ('kept')")
    other.close()
    with pytest.raises(LedgerUnavailable, match="operation already exists"):
        open_store(str(file))
    with sqlite3.connect(file) as other:
        assert other.execute("SELECT * FROM operation").fetchall() == [("kept",)]
        assert [row[0] for row in other.execute("SELECT name FROM sqlite_schema WHERE name = 'evidence'")] == []
    other.close()


def test_places_that_are_none_are_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for where in (tmp_path, tmp_path / "file" / "ledger.db"):
        with pytest.raises(LedgerUnavailable):
            open_store(str(where))
    for wrong in ("", "mysql://me@here/x", "http://here"):
        with pytest.raises(UsageError):
            open_store(wrong)


def test_nobody_else_may_read_what_it_makes(tmp_path: Path) -> None:
    ledger = Ledger.open(str(tmp_path / "new" / "ledger.db"))
    done(ledger)
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "new").iterdir()}
    ledger.close()
    assert "ledger.db" in modes and {name for name, mode in modes.items() if mode & 0o077} == set()
    assert os.stat(tmp_path / "new").st_mode & 0o077 == 0
