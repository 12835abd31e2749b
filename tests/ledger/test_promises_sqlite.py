# SPDX-License-Identifier: Apache-2.0
"""What SQLite is told to do, and does: flush what was committed, leave nothing of what was shredded, stay off disks of
other machines."""

from __future__ import annotations

import builtins
import io
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import stores

import deadstop
from deadstop.errors import LedgerUnavailable
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.records import Outcome
from deadstop.ledger.states import State
from deadstop.ledger.store import open_store

COMMITS = 20
WRITES = f"""
import sys
from deadstop.ledger.store import open_store
store = open_store(sys.argv[1])
for number in range({COMMITS}):
    store.write(lambda tx: tx.run("set_meta", name=f"n{{number}}", value="v")).result(5)
print("committed", flush=True)
sys.stdin.read()
"""


def test_every_commit_is_flushed_before_it_is_told(tmp_path: Path) -> None:
    """As the kernel sees it. What is read is what the child had asked for when it said that all was committed."""
    strace = shutil.which("strace")
    if strace is None or subprocess.run([strace, "-qqo", "/dev/null", "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("there is no strace here that may trace")
    calls, place = tmp_path / "calls", tmp_path / "ledger.db"
    words = [strace, "-f", "-qq", "-y", "-e", "trace=fsync,fdatasync", "-o", str(calls)]
    env = {**os.environ, "PYTHONPATH": str(Path(deadstop.__file__).parent.parent)}
    child = subprocess.Popen([*words, sys.executable, "-c", WRITES, str(place)], env=env, stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE)  # fmt: skip
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"committed\n"
        flushed = [line for line in calls.read_text().splitlines() if "/ledger.db-wal>" in line]
    finally:
        child.communicate(timeout=20)
    assert len(flushed) >= COMMITS


def test_every_connection_that_may_write_is_a_careful_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def noted(*given: Any, **more: Any) -> sqlite3.Connection:
        made.append(connect(*given, **more))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", noted)
    store = open_store(str(tmp_path / "ledger.db"))
    settings = {"synchronous": 2, "secure_delete": 1, "foreign_keys": 1, "trusted_schema": 0, "wal_autocheckpoint": 0}
    assert made
    for each in made:
        assert {name: each.execute(f"PRAGMA {name}").fetchone()[0] for name in settings} == settings
    store.close()


def test_nothing_of_what_was_shredded_is_left_in_the_file(tmp_path: Path) -> None:
    where = tmp_path / "ledger.db"
    ledger = Ledger(open_store(str(where)), notary=False)
    claim = ledger.begin(stores.intent(ledger, sealed={"request": {"token": "canary-request " * 500}})).claim
    assert claim is not None
    ledger.finish(claim, Outcome(State.SUCCEEDED, value="canary-result " * 500, has_value=True))
    ledger.close()
    assert b"canary-request" in where.read_bytes()
    assert b"canary-result" in where.read_bytes()
    ledger = Ledger(open_store(str(where)), notary=False)
    assert ledger.shred(claim.op_id) == ["request", "result"]
    ledger.close()
    assert b"canary" not in b"".join(each.read_bytes() for each in tmp_path.iterdir() if each.is_file())


def mounted_as(monkeypatch: pytest.MonkeyPatch, folder: Path, kind: str) -> None:
    """Let the kernel say that what the folder is on is of that kind."""
    device, opened = os.stat(folder).st_dev, builtins.open
    line = f"36 25 {os.major(device)}:{os.minor(device)} / /here rw,relatime shared:1 - {kind} there:/export rw\n"

    def open_(file: Any, *given: Any, **more: Any) -> Any:
        return io.StringIO(line) if file == "/proc/self/mountinfo" else opened(file, *given, **more)

    monkeypatch.setattr(builtins, "open", open_)


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs"])
def test_a_file_system_of_another_machine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    mounted_as(monkeypatch, tmp_path, kind)
    with pytest.raises(LedgerUnavailable, match=rf"network file system \({kind}\).*postgresql://"):
        open_store(str(tmp_path / "ledger.db"))
    assert list(tmp_path.glob("ledger.db*")) == []


def test_one_of_this_machine_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("xfs", "overlay"):
        mounted_as(monkeypatch, tmp_path, kind)
        open_store(str(tmp_path / "ledger.db")).close()
