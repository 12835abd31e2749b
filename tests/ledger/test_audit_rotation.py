# SPDX-License-Identifier: Apache-2.0
"""Another signing key in the place of the old one: what verifying accepts of either, and what it does not."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
import stores
from audit_ground import Copy, closed_ledger, history
from rotation_ground import beside, go_on, key_file, rotated, says, sizes, with_notary

from deadstop import cli
from deadstop.errors import LedgerUnavailable, UsageError
from deadstop.ledger import alerts
from deadstop.ledger.anchor import read_anchors
from deadstop.ledger.export import export, verify_export
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.notary import Notary
from deadstop.ledger.rotation import Change, rotations_of
from deadstop.ledger.signing import public_keys
from deadstop.ledger.store import open_store
from deadstop.ledger.verify import verify


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return closed_ledger(tmp_path_factory.mktemp("signed"), 6, 6)


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Copy:
    return Copy.of(original, tmp_path)


# -- as it should be -----------------------------------------------------------------------------------------------


def test_the_old_key_vouches_and_both_are_accepted_in_their_turn(lasting_ground: stores.Ground) -> None:
    ledger = lasting_ground.ledger()
    notary, running = Notary(ledger), Notary(ledger)
    history(ledger, 0, 6)
    before = running.checkpoint()
    (old,) = public_keys(f"{notary.key_path}.pub")
    rotation, kept = notary.rotate("ann", "once a year")
    assert (rotation.old, rotation.by, rotation.reason, rotation.is_vouched) == (old, "ann", "once a year", True)
    history(ledger, 6, 6)
    after = running.checkpoint()  # by a process that had the old key
    assert before is not None
    assert after is not None
    assert [key_id for _, key_id, _ in before.signatures + after.signatures] == [old.id, rotation.new.id]
    report = verify(ledger)
    assert (report.problems, report.checkpoints, report.unanchored) == ((), 3, 0)
    assert report.keys == (str(old), str(rotation.new))
    assert [each["vouched"] for each in report.rotations] == [True]
    assert public_keys(f"{notary.key_path}.pub") == [old, rotation.new]
    assert public_keys(notary.key_path) == [rotation.new]
    assert public_keys(kept) == [old]
    assert stat.S_IMODE(os.stat(notary.key_path).st_mode) == stat.S_IMODE(os.stat(kept).st_mode) == 0o600
    for known in (old, rotation.new):  # whoever knows only one of them is led to the other
        assert verify(ledger, key=known).problems == ()
        assert verify(ledger, key=known).checkpoints == 3
    assert not os.path.exists(f"{notary.key_path}.next")
    notary.close()
    running.close()
    ledger.close()


def test_several_one_after_another_and_an_export_of_them(copy: Copy, tmp_path: Path) -> None:
    (first,) = public_keys(str(copy.public_key))
    made = []
    for number in range(3):
        made.append(rotated(copy))
        go_on(copy, 20 + 3 * number)
    keys = (first, *(each.new for each in made))
    for key in (None, *keys):
        report = verify(str(copy.path), key=key)
        assert (report.problems, report.checkpoints) == ((), 8)
        assert report.keys == tuple(map(str, keys))
    path = tmp_path / "log.jsonl"
    with path.open("w") as file:
        export(str(copy.path), file, key=first)
    for key in (None, *keys):
        report = verify_export(str(path), key)
        assert (report.problems, report.checkpoints, len(report.rotations)) == ((), 8, 3)
        assert report.operations == verify(str(copy.path)).operations


def test_a_first_checkpoint_of_the_new_key_that_others_can_read_with_the_old_one(copy: Copy) -> None:
    (old,) = public_keys(str(copy.public_key))
    new = rotated(copy).new
    last = read_anchors(copy.checkpoints.read_text())[-1].checkpoint
    assert last is not None
    assert [(key_id, key.verifies(last.text, signature))
            for (_, key_id, signature), key in zip(last.signatures, (new, old), strict=True)] == [
        (new.id, True), (old.id, True)]  # fmt: skip


def test_a_power_loss_while_it_is_written_is_no_change(copy: Copy) -> None:
    begin = len(copy.checkpoints.read_bytes())
    rotated(copy)
    whole = copy.checkpoints.read_bytes()
    for end in range(begin, len(whole), 7):
        copy.checkpoints.write_bytes(whole[:end])
        kinds = {str(each) for each in verify(str(copy.path), checkpoints=str(copy.checkpoints)).problems}
        assert not any("line" in each for each in kinds), (end, kinds)
    copy.checkpoints.write_bytes(whole[: begin + 200])
    with copy.edit() as database:
        database.execute("DELETE FROM checkpoint WHERE size = (SELECT max(size) FROM checkpoint)")
    go_on(copy, 20)
    assert verify(str(copy.path)).problems == ()


def test_a_lost_key_is_replaced_by_one_that_has_to_be_known(copy: Copy) -> None:
    (old,) = public_keys(str(copy.public_key))
    key_file(copy).unlink()
    with pytest.raises(LedgerUnavailable, match="--lost"):
        rotated(copy)
    new = rotated(copy, lost=True).new
    go_on(copy, 20)
    report = verify(str(copy.path))  # the host that made it knows it
    assert (report.problems, report.checkpoints) == ((), 4)
    assert [each["vouched"] for each in report.rotations] == [False]
    told = verify(str(copy.path), key=old)
    assert says(told, "rotation", "UNVOUCHED ROTATION", "ann", "the laptop is gone", str(new))
    assert says(told, "checkpoint", "not trusted here")
    assert told.checkpoints == 2
    assert verify(str(copy.path), key=beside(copy, "both", old, new)).problems == ()
    assert verify(str(copy.path), key=new).problems == ()


def test_a_key_that_was_made_anew_after_a_loss_is_replaced_too(copy: Copy) -> None:
    key_file(copy).unlink()
    with pytest.raises(LedgerUnavailable, match="another key"):
        go_on(copy, 20)
    stray = public_keys(str(key_file(copy)))
    with pytest.raises(LedgerUnavailable, match="--lost"):
        rotated(copy)
    kept = with_notary(copy, lambda _, notary: notary.rotate("ann", "lost", lost=True))[1]
    assert public_keys(kept) == stray
    assert verify(str(copy.path)).problems == ()


def test_what_there_is_nothing_to_replace_of(copy: Copy, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="without --lost"):
        rotated(copy, lost=True)
    (tmp_path / "empty").mkdir()
    with Ledger.open(str(tmp_path / "empty" / "ledger.db")) as ledger, pytest.raises(UsageError, match="nothing was"):
        Notary(ledger).rotate("ann", "why")
    with Ledger.in_memory() as ledger, pytest.raises(UsageError, match="gone with its process"):
        Notary(ledger).rotate("ann", "why")


@pytest.mark.parametrize("lost", [False, True])
def test_a_rotation_that_was_broken_off_signs_nothing_until_it_is_ended(
    copy: Copy, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    def broken_off(_: Change) -> str:
        raise OSError(28, "No space left on device")

    if lost:
        key_file(copy).unlink()
    with monkeypatch.context() as patched:
        patched.setattr(Change, "install", broken_off)
        with pytest.raises(LedgerUnavailable, match="No space"):
            rotated(copy, lost=lost)
    signed = sizes(copy)
    with pytest.raises(LedgerUnavailable, match="another key" if lost else r"was replaced by .*audit rotate"):
        go_on(copy, 20)
    assert sizes(copy) == signed
    rotation = rotated(copy, lost=lost)
    go_on(copy, 30)
    report = verify(str(copy.path))
    assert report.problems == ()
    assert [each["new"] for each in report.rotations] == [str(rotation.new)]


# -- hosts that share a key ----------------------------------------------------------------------------------------


def test_a_second_file_for_one_key_is_told_and_not_signed_into(lasting_ground: stores.Ground, tmp_path: Path) -> None:
    ledger = lasting_ground.ledger()
    if ledger.store.dialect != "postgresql":
        ledger.close()
        return  # a file has its checkpoints beside it
    first = Notary(ledger)
    other = Notary(ledger, key=first.key_path, checkpoints=str(tmp_path / "other"))
    history(ledger, 0, 3)
    assert first.checkpoint() is not None
    with pytest.raises(LedgerUnavailable, match=r"is not in it.*share a file"):
        other.checkpoint()
    history(ledger, 3, 3)
    assert first.checkpoint() is not None, "the one who has them all goes on"
    other.close()
    assert [each.kind for each in ledger.read(alerts.list_alerts)] == ["checkpoints_stopped"]
    assert verify(ledger).problems == ()
    own = Notary(ledger, key=str(tmp_path / "own.key"), checkpoints=str(tmp_path / "own"))
    history(ledger, 6, 3)
    assert own.checkpoint() is not None
    first.close()
    own.close()
    ledger.close()


# -- the command ---------------------------------------------------------------------------------------------------


def test_the_verb_and_what_verify_prints_then(
    copy: Copy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DEADSTOP_LEDGER", str(copy.path))
    (old,) = public_keys(str(copy.public_key))
    assert cli.main(["audit", "rotate", "--reason", "laptop \x1b[2Jgone", "--operator", "ann"]) == 0
    shown = capsys.readouterr().out
    (_, new) = public_keys(str(copy.public_key))
    assert f"key {old.id.hex()} was replaced by {new.id.hex()}" in shown
    assert str(new) in shown
    assert "\x1b" not in shown
    assert cli.main(["audit", "verify"]) == 0
    shown = capsys.readouterr().out
    assert f"key {old.id.hex()} was replaced by {new.id.hex()}" in shown
    assert f"signed by {old}\nsigned by {new}\n" in shown
    assert cli.main(["audit", "verify", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rotations"][0]["by"] == "ann"
    assert cli.main(["audit", "rotate", "--reason", "again", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["vouched"]
    key_file(copy).unlink()
    assert cli.main(["audit", "rotate", "--reason", "stolen"]) == 125
    assert "--lost" in capsys.readouterr().err
    assert cli.main(["audit", "rotate", "--reason", "stolen", "--lost"]) == 0
    assert "UNVOUCHED" in capsys.readouterr().out
    assert cli.main(["audit", "verify", "--key", beside(copy, "first", old)]) == 1
    assert "UNVOUCHED ROTATION" in capsys.readouterr().out
    for wrong in (["--reason", " "], ["--reason", "x" * 501], ["--reason", "x", "--operator", " "]):
        assert cli.main(["audit", "rotate", *wrong]) == 125
    assert cli.main(["audit", "rotate", "--reason", "x", "--ledger", str(tmp_path / "none")]) == 125
    assert not (tmp_path / "none").exists()


def test_rotations_are_read_from_the_log_in_its_order(copy: Copy) -> None:
    made = [rotated(copy), rotated(copy)]
    ledger = Ledger(open_store(str(copy.path)), notary=False)
    assert ledger.read(rotations_of) == made
    ledger.close()
