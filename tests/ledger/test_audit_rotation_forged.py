# SPDX-License-Identifier: Apache-2.0
"""Rotations of the signing key that nobody with the right to it has made, and keys that sign out of their turn."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from audit_ground import Copy, closed_ledger, history, rebuild_the_end
from rotation_ground import beside, go_on, key_file, rotated, says, with_notary

from deadstop.ledger.anchor import AnchorFile, read_anchors
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.merkle import Frontier
from deadstop.ledger.notary import Notary
from deadstop.ledger.rotation import Change, Ring, Rotation, statement
from deadstop.ledger.signing import PublicKey, SigningKey, public_keys
from deadstop.ledger.verify import verify


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return closed_ledger(tmp_path_factory.mktemp("signed"), 6, 6)


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Copy:
    return Copy.of(original, tmp_path)


def forged(
    copy: Copy, old: PublicKey | None, new: SigningKey, vouched: bytes | None, named: PublicKey | None = None
) -> None:
    """By somebody who writes to the database, as deadstop would have written it."""
    theirs = Change("", None, old, new, False)

    def work(ledger: Ledger, _: Notary) -> None:
        ledger.write(lambda tx: theirs.record(tx, "ann", "why"))

    with_notary(copy, work)
    with copy.edit() as database:
        n, body = database.execute("SELECT max(n), body FROM evidence WHERE op_id = 'ledger'").fetchone()
        document = json.loads(body)
        if named is not None:
            document["new"] = str(named)
        if vouched is not None:
            document["vouched"] = base64.b64encode(vouched).decode()
        rewrite(database, n, document)


def rewrite(database: Any, n: int, document: dict[str, Any]) -> None:
    """The entry, its leaf and the end of the log."""
    body = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    own = hashlib.sha256(b"\0" + body.encode()).hexdigest()
    database.execute("UPDATE evidence SET body = ?, hash = ? WHERE op_id = 'ledger' AND n = ?", (body, own, n))
    database.execute("UPDATE leaf SET hash = ? WHERE op_id = 'ledger' AND n = ?", (own, n))
    rebuild_the_end(database)


@pytest.fixture
def evil(copy: Copy, tmp_path: Path) -> SigningKey:
    (ours,) = public_keys(str(copy.public_key))
    return SigningKey.open(str(tmp_path / "evil"), ours.name)


@pytest.mark.parametrize("word", [None, bytes(64), "own"])
@pytest.mark.parametrize("named", [True, False])
def test_a_forged_rotation_is_shown_and_changes_nothing_even_when_it_was_signed_over(
    copy: Copy, evil: SigningKey, word: Any, named: bool
) -> None:
    (ours,) = public_keys(str(copy.public_key))
    old = ours if named else None
    word = evil.sign_text(statement(old, evil.public, "ann", "why")) if word == "own" else word
    forged(copy, old, evil, word)
    go_on(copy, 20)  # our notary goes on with our key, and covers it
    report = verify(str(copy.path))
    assert says(report, "rotation", "UNVOUCHED ROTATION", str(evil.public))
    assert (report.rotations, report.keys) == ((), (str(ours),))
    assert {each.kind for each in report.problems} == {"rotation"}
    sign_with(copy, evil)
    assert says(verify(str(copy.path)), "checkpoint", "not trusted here")


def sign_with(copy: Copy, key: SigningKey) -> int:
    """One more checkpoint of the log as it is, in the file."""

    def work(ledger: Ledger, _: Notary) -> int:
        history(ledger, 90, 3)
        size, frontier = ledger.read(lambda tx: tx.one("log_head")) or (0, "")
        file = AnchorFile(str(copy.checkpoints))
        with file.held(5):
            file.append(key.sign(size, Frontier.parse(size, frontier).root()))
        return int(size)

    return int(with_notary(copy, work))


def test_one_that_the_named_key_has_not_signed_is_refused(copy: Copy, evil: SigningKey) -> None:
    """To a key that is known here, which would retire the one in use."""
    (ours,) = public_keys(str(copy.public_key))
    other = SigningKey.open(str(copy.path.with_name("other")), ours.name)
    forged(copy, ours, evil, None, other.public)
    report = verify(str(copy.path), key=beside(copy, "both", ours, other.public))
    assert says(report, "rotation", "not signed with the key that it names")
    assert report.checkpoints == 2


def test_the_old_key_signs_nothing_after_its_rotation_and_hands_nothing_over(copy: Copy, evil: SigningKey) -> None:
    old = SigningKey.open(str(key_file(copy)), evil.name)  # leaked
    rotation = rotated(copy)
    sign_with(copy, old)
    report = verify(str(copy.path))
    assert says(report, "checkpoint", "had been replaced")
    forged(copy, old.public, evil, old.sign_text(statement(old.public, evil.public, "ann", "why")))
    for key in (None, old.public, rotation.new):
        report = verify(str(copy.path), key=key)
        assert says(report, "rotation", "an old key")
        assert [each["new"] for each in report.rotations] == [str(rotation.new)]


def test_the_new_key_signs_nothing_from_before_it(copy: Copy) -> None:
    whole = copy.checkpoints.read_text()
    first = read_anchors(whole)[0].checkpoint
    assert first is not None
    rotated(copy)
    new = SigningKey.open(str(key_file(copy)), first.origin)
    copy.checkpoints.write_text(new.sign(first.size, first.root).note + "\n" + copy.checkpoints.read_text())
    assert says(verify(str(copy.path)), "checkpoint", "line 1", "was not in use yet")


def test_a_rotation_that_was_taken_out_or_repeated_is_found(copy: Copy) -> None:
    rotation = rotated(copy)
    with copy.edit() as database:
        n, kind, at, body, prev, own = database.execute(
            "SELECT n, kind, at_ms, body, prev, hash FROM evidence WHERE op_id = 'ledger'"
        ).fetchone()
        database.execute("DELETE FROM evidence WHERE op_id = 'ledger'")
        report = verify(str(copy.path))
        assert says(report, "evidence", f"leaf {rotation.seq} ", "deleted")
        database.execute("INSERT INTO evidence VALUES ('ledger', ?, ?, ?, ?, ?, ?)", (n, kind, at, body, prev, own))
        assert verify(str(copy.path)).problems == ()
        database.execute("INSERT INTO evidence VALUES ('ledger', 2, ?, ?, '', ?, '')", (kind, at, own))
        (size,) = database.execute("SELECT size FROM head").fetchone()
        database.execute("INSERT INTO leaf VALUES (?, 'ledger', 2, '')", (size,))
        rewrite(database, 2, {**json.loads(body), "n": 2, "prev": own})
    assert says(verify(str(copy.path)), "rotation", "in use before")
    with copy.edit() as database:
        database.execute("UPDATE evidence SET kind = 'note' WHERE op_id = 'ledger'")
    assert says(verify(str(copy.path)), "operation", "ledger", "deleted")


def test_a_key_does_not_come_back(copy: Copy) -> None:
    origin = public_keys(str(copy.public_key))[0].name
    keys = [SigningKey.open(str(copy.path.with_name(name)), origin) for name in ("a", "b", "c")]

    def handed(seq: int, old: SigningKey, new: SigningKey) -> Rotation:
        text = statement(old.public, new.public, "ann", "why")
        return Rotation(seq, old.public, new.public, "ann", "why", new.sign_text(text), old.sign_text(text))

    a, b, c = keys
    ring = Ring([b.public], [handed(5, a, b), handed(9, b, a), handed(12, b, c), handed(15, c, b)])
    assert [each.seq for each in ring.counted] == [5, 12]
    assert [each.seq for each, _ in ring.refused] == [9, 15]
    spans = {key: [size for size in (5, 6, 12, 13) if ring.counts(key.sign(size, bytes(32)))] for key in keys}
    assert spans == {a: [5], b: [6, 12], c: [13]}
