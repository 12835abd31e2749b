# SPDX-License-Identifier: Apache-2.0
"""Places in the log, signed checkpoints, and the file of them outside the database."""

from __future__ import annotations

import hashlib
import os
import signal
import stat
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import stores
from audit_ground import Copy, closed_ledger, history

from deadstop.errors import LedgerBroken, LedgerUnavailable, UsageError
from deadstop.ledger import alerts
from deadstop.ledger import notary as notary_module
from deadstop.ledger.anchor import read_anchors
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.merkle import Frontier
from deadstop.ledger.notary import Notary, stored
from deadstop.ledger.records import Evidence
from deadstop.ledger.sequence import sequence
from deadstop.ledger.signing import PublicKey, SigningKey, Trust, parse_note, public_keys
from deadstop.ledger.store import open_store
from deadstop.ledger.verify import verify

# The example of golang.org/x/mod/sumdb/note, whose form signed notes have.
GO_KEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
GO_TEXT = "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n"
GO_SIGNATURE = "x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM="
ROOT = hashlib.sha256(b"root").digest()


# -- the order of the log ------------------------------------------------------------------------------------------


def entry(op_id: str, n: int, at_ms: int) -> Evidence:
    return Evidence(op_id, n, "note", at_ms, "{}", "", hashlib.sha256(f"{op_id}{n}".encode()).hexdigest())


def add(tx: Any, each: Evidence) -> None:
    tx.run("add_evidence", op_id=each.op_id, n=each.n, kind=each.kind, at_ms=each.at_ms, body=each.body, prev=each.prev,
           hash=each.hash)  # fmt: skip


def test_entries_get_places_in_their_order_and_the_tree_grows_with_them() -> None:
    store = open_store(":memory:")
    entries = [entry(f"op_{number:04}", 1, 5) for number in range(600)]
    for part in (entries[:1], entries[1:300], entries[300:]):
        store.write(partial(sequence, entries=part)).result(10)
    size, text = store.read(lambda tx: tx.one("log_head")) or (0, "")
    leaves = store.read(lambda tx: stored(tx, 0, 0, 600))
    expected = Frontier()
    expected.extend([bytes.fromhex(each.hash) for each in entries])
    assert [each.hex() for each in leaves] == [each.hash for each in entries]
    assert (size, text) == (600, expected.text)
    assert len(store.read(lambda tx: stored(tx, 8, 0, 9))) == 2
    store.close()


def test_what_waits_is_placed_by_time_and_an_operation_in_its_own_order(ground: stores.Ground) -> None:
    store = ground.open()
    late_clock = [entry("op_b", 1, 30), entry("op_b", 2, 10), entry("op_c", 1, 20), entry("op_a", 1, 30)]

    def work(tx: Any) -> int:
        for each in late_clock:
            add(tx, each)
        return 0

    store.write(work).result(10)
    assert store.write(lambda tx: sequence(tx, limit=2)).result(10) == 2
    assert store.write(lambda tx: sequence(tx)).result(10) == 2
    assert store.write(lambda tx: sequence(tx)).result(10) == 0
    order = ground.raw("SELECT op_id, n FROM leaf ORDER BY seq")
    assert [tuple(each) for each in order] == [("op_c", 1), ("op_a", 1), ("op_b", 1), ("op_b", 2)]


def test_a_log_without_an_end_is_not_added_to() -> None:
    store = open_store(":memory:")
    store.write(lambda tx: tx.run("log_set_head", size=3, frontier="aa")).result(10)
    with pytest.raises(LedgerBroken, match="no end"):
        store.write(lambda tx: sequence(tx, [entry("op_a", 1, 1)])).result(10)
    store.close()


# -- signing ---------------------------------------------------------------------------------------------------------


def test_a_signature_that_another_program_made_is_verified() -> None:
    import base64

    key, raw = PublicKey.parse(GO_KEY), base64.b64decode(GO_SIGNATURE)
    assert raw[:4] == key.id
    assert key.verifies(GO_TEXT, raw[4:])
    assert not key.verifies(GO_TEXT + "\n", raw[4:])
    assert str(key) == GO_KEY


def test_a_checkpoint_is_what_was_signed_or_is_refused(tmp_path: Path) -> None:
    key = SigningKey.open(str(tmp_path / "key"), "deadstop/abc")
    made = key.sign(17, ROOT)
    trust = Trust([key.public])
    assert parse_note(made.note) == made
    assert trust.accepts(made)
    assert made.note.startswith("deadstop/abc\n17\n")
    for position in range(len(made.note)):
        changed = made.note[:position] + chr(ord(made.note[position]) ^ 1) + made.note[position + 1 :]
        try:
            assert not trust.accepts(parse_note(changed)), f"a change at {position} was not seen"
        except ValueError:
            pass  # no checkpoint any more


def test_the_key_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "key"
    first = SigningKey.open(str(path), "deadstop/abc")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SigningKey.open(str(path), "deadstop/abc").public == first.public
    assert public_keys(f"{path}.pub") == public_keys(str(path)) == [first.public]
    assert sorted(each.name for each in path.parent.iterdir()) == ["key", "key.pub"]
    with pytest.raises(LedgerUnavailable, match="that of deadstop/abc, not of deadstop/other"):
        SigningKey.open(str(path), "deadstop/other")
    path.write_text(path.read_text().replace("+A", "+B"))
    with pytest.raises(LedgerUnavailable, match="key"):
        SigningKey.open(str(path), "deadstop/abc")


@pytest.mark.parametrize(
    "line", ["", "name", "name+00000000+AQ==", GO_KEY.replace("c74f", "c74e"), "PRIVATE+KEY+a+b+c"]
)
def test_what_is_no_public_key_is_refused(line: str) -> None:
    with pytest.raises(UsageError):
        PublicKey.parse(line)


# -- the notary ------------------------------------------------------------------------------------------------------


def sizes(path: str) -> list[int]:
    return [each.checkpoint.size for each in read_anchors(Path(path).read_text()) if each.checkpoint]


def leaves_of(ledger: Ledger) -> int:
    row = ledger.read(lambda tx: tx.one("log_head"))
    return row[0] if row else 0


def test_a_checkpoint_covers_everything_before_it(lasting_ground: stores.Ground) -> None:
    ledger = lasting_ground.ledger()
    notary = Notary(ledger)
    try:
        assert notary.checkpoint() is None
        assert not os.path.exists(notary.key_path), "nothing was signed, so no key is needed"
        for first in (0, 6):
            history(ledger, first, 6)
            made = notary.checkpoint()
            assert made is not None
            assert made.size == leaves_of(ledger) > 0
            assert notary.checkpoint() == made
        assert len(sizes(notary.checkpoints_path)) == 2
        report = verify(ledger)
        assert report.problems == ()
        assert (report.anchored_size, report.unanchored, report.waiting) == (report.leaves, 0, 0)
        assert ledger.read(lambda tx: [each[0] for each in tx.all("log_checkpoints")]) == sizes(notary.checkpoints_path)
    finally:
        notary.close()


def test_it_comes_by_itself_soon_after_a_change(lasting_ground: stores.Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notary_module, "DELAY_S", 0.02)
    ledger = lasting_ground.ledger()
    notary = Notary(ledger)
    history(ledger, 0, 3)
    notary.notice()
    until = time.monotonic() + 10
    while not (os.path.exists(notary.checkpoints_path) and sizes(notary.checkpoints_path)) and time.monotonic() < until:
        time.sleep(0.005)
    assert sizes(notary.checkpoints_path)[-1] <= leaves_of(ledger)
    history(ledger, 3, 3)
    notary.close()  # not in its time: the last one is written now
    assert sizes(notary.checkpoints_path)[-1] == leaves_of(ledger)
    assert (notary.problem, notary.broken) == ("", None)


def test_several_notaries_of_one_ledger_keep_in_order(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "ledger.db"))
    ledger = Ledger(store, notary=False)
    first, second = Notary(ledger), Notary(ledger)
    for number, notary in enumerate((first, second, second, first)):
        history(ledger, number * 3, 3)
        assert notary.checkpoint() is not None
    found = sizes(first.checkpoints_path)
    assert found == sorted(set(found))
    assert len(found) == 4
    assert verify(ledger).problems == ()
    store.close()


def test_what_does_not_outlive_the_process_has_no_checkpoints() -> None:
    with Ledger.in_memory() as ledger:
        history(ledger, 0, 6)
        assert ledger.notary is None
        assert Notary(ledger).checkpoint() is None
        assert verify(ledger).problems == ()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return closed_ledger(tmp_path_factory.mktemp("signed"), 6, 6)


def notary_of(copy: Copy) -> tuple[Notary, list[LedgerBroken]]:
    """Of the copy as it is, whatever it is."""
    store, told = open_store(str(copy.path)), list[LedgerBroken]()
    known = store.read(lambda tx: tx.one("meta", name="ledger_id"))
    assert known is not None
    ledger = SimpleNamespace(store=store, id=known[0])
    return Notary(ledger, on_broken=told.append), told


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("DELETE FROM leaf WHERE seq >= 20; UPDATE head SET size = 16, frontier = '{new16}'", "end was cut off"),
        ("UPDATE leaf SET hash = '{other}' WHERE seq = 3", ""),
        ("UPDATE head SET frontier = replace(frontier, substr(frontier, 1, 4), 'beef')", "forked or rewritten"),
        ("UPDATE head SET frontier = 'nonsense'", "cannot be read"),
    ],
)
def test_nothing_is_signed_over_another_history(original: Path, tmp_path: Path, change: str, says: str) -> None:
    copy = Copy.of(original, tmp_path)
    other = hashlib.sha256(b"other").hexdigest()
    before = copy.checkpoints.read_text()
    with copy.edit() as database:
        database.executescript(change.format(other=other, new16=other))
    notary, told = notary_of(copy)
    if not says:  # an old leaf alone is for `verify`: what is signed next still begins with what was signed
        assert notary.checkpoint() is not None
        assert verify(str(copy.path)).problems
    else:
        with pytest.raises(LedgerBroken, match=says):
            notary.checkpoint()
        with pytest.raises(LedgerBroken):
            notary.checkpoint()
        assert [str(each) for each in told] == [notary.problem]
        assert [each.kind for each in notary._store.read(alerts.list_alerts)] == ["ledger_broken"]
    assert copy.checkpoints.read_text() == before
    notary.close()
    notary._store.close()


def test_a_new_leaf_that_does_not_lead_to_the_stated_root_is_not_signed(original: Path, tmp_path: Path) -> None:
    copy = Copy.of(original, tmp_path)
    ledger = Ledger(open_store(str(copy.path)), notary=False)
    history(ledger, 12, 3)
    ledger.close()
    with copy.edit() as database:
        database.execute("UPDATE leaf SET hash = ? WHERE seq = (SELECT max(seq) FROM leaf)", (ROOT.hex(),))
    notary, told = notary_of(copy)
    with pytest.raises(LedgerBroken, match="do not lead to the root"):
        notary.checkpoint()
    assert told
    notary._store.close()


def test_a_file_that_lost_its_last_checkpoint_meanwhile_is_noticed(original: Path, tmp_path: Path) -> None:
    copy = Copy.of(original, tmp_path)
    notary, _ = notary_of(copy)
    assert notary.checkpoint() is not None
    whole = copy.checkpoints.read_text()
    copy.checkpoints.write_text(whole[: whole.index("\n\n", whole.index("\u2014")) + 2])
    with pytest.raises(LedgerBroken, match="has lost the checkpoint"):
        notary.checkpoint()
    notary._store.close()


@pytest.mark.parametrize("length", [1, 20, 60, 90, 180])
def test_a_torn_end_of_the_file_is_passed_over(original: Path, tmp_path: Path, length: int) -> None:
    copy = Copy.of(original, tmp_path)
    with copy.checkpoints.open("a") as file:
        file.write(copy.checkpoints.read_text()[:length])
    assert verify(str(copy.path)).problems == ()
    ledger = Ledger(open_store(str(copy.path)), notary=False)
    history(ledger, 12, 2)
    notary = Notary(ledger)
    made = notary.checkpoint()
    assert made is not None
    assert sizes(notary.checkpoints_path)[-1] == made.size
    assert verify(ledger).problems == ()
    ledger.close()


def test_another_key_does_not_go_on_with_the_file(original: Path, tmp_path: Path) -> None:
    copy = Copy.of(original, tmp_path)
    for each in (copy.path.with_name("ledger.db.key"), copy.public_key):
        each.unlink()
    notary, told = notary_of(copy)
    with pytest.raises(LedgerUnavailable, match=r"another key.*DEADSTOP_LEDGER_KEY"):
        notary.checkpoint()
    assert notary.broken is None
    assert not told
    notary.close()
    assert "another key" in notary.problem
    notary._store.close()


def test_a_full_disk_is_a_problem_and_not_an_end(original: Path, tmp_path: Path) -> None:
    copy = Copy.of(original, tmp_path)
    ledger = Ledger(open_store(str(copy.path)), notary=False)
    history(ledger, 12, 2)
    notary = Notary(ledger, checkpoints=str(tmp_path))  # a folder cannot be appended to
    with pytest.raises(LedgerUnavailable, match="directory"):
        notary.checkpoint()
    notary.close()
    assert "directory" in notary.problem
    assert notary.broken is None
    ledger.close()


@pytest.mark.parametrize("point", ["checkpoint.signed", "checkpoint.anchored"])
def test_a_death_around_the_signature_loses_nothing(original: Path, tmp_path: Path, point: str) -> None:
    copy = Copy.of(original, tmp_path)
    program = (
        "import sys; sys.path.insert(0, sys.argv[2]); from audit_ground import history; "
        "from deadstop.ledger.ledger import Ledger; ledger = Ledger.open(sys.argv[1]); history(ledger, 12, 3); "
        "ledger.notary.checkpoint(); print('survived')"
    )
    arguments = [sys.executable, "-c", program, str(copy.path), os.path.dirname(__file__)]
    done = subprocess.run(arguments, env={**os.environ, "DEADSTOP_CRASH_AT": point}, capture_output=True, text=True,
                          timeout=30, check=False)  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    report = verify(str(copy.path))
    assert report.problems == ()
    assert (report.unanchored == 0) == (point == "checkpoint.anchored")
    Ledger.open(str(copy.path)).close()
    assert verify(str(copy.path)).unanchored == 0


def test_a_signing_key_that_is_lost_is_told_and_nothing_is_signed_with_another(tmp_path: Path) -> None:
    where = str(tmp_path / "ledger.db")
    with Ledger.open(where) as ledger:
        history(ledger, 0, 2)
    before = Path(f"{where}.checkpoints").read_bytes()
    os.unlink(f"{where}.key")
    for number in (2, 4):
        with Ledger.open(where) as ledger:
            history(ledger, number, 2)
    assert Path(f"{where}.checkpoints").read_bytes() == before
    with Ledger.open(where) as ledger:
        (alert,) = [each for each in ledger.alerts() if each.kind == "checkpoints_stopped"]  # once
        assert "another key" in alert.detail


def test_what_is_signed_while_it_is_verified_is_no_end_that_was_cut_off(
    lasting_ground: stores.Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deadstop.ledger import checkpoints as module

    ledger = lasting_ground.ledger()
    notary = Notary(ledger)
    history(ledger, 0, 6)
    notary.checkpoint()
    of_table = module._of_table

    def meanwhile(tx: Any, problems: Any) -> Any:
        found = of_table(tx, problems)
        history(ledger, 6, 6)
        notary.checkpoint()
        return found

    with monkeypatch.context() as patched:
        patched.setattr(module, "_of_table", meanwhile)
        report = verify(ledger)
    assert (report.problems, report.checkpoints) == ((), 2)
    assert verify(ledger).anchored_size > report.anchored_size > 0
    notary.close()
    ledger.close()
