# SPDX-License-Identifier: Apache-2.0
"""The proof that a log only grew, for somebody who kept an old checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import stores
from audit_ground import Copy, closed_ledger, history, rebuild_the_end

from deadstop import cli
from deadstop.errors import LedgerError, UsageError
from deadstop.ledger.anchor import read_anchors
from deadstop.ledger.consistency import growth_proof, verify_growth_proof
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.notary import Notary
from deadstop.ledger.signing import SigningKey, public_keys
from deadstop.ledger.store import open_store


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More than 256 entries, under four checkpoints."""
    return closed_ledger(tmp_path_factory.mktemp("grown"), 6, 1, 30, 40)


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Copy:
    return Copy.of(original, tmp_path)


def sizes(copy: Copy) -> list[int]:
    return [each.checkpoint.size for each in read_anchors(copy.checkpoints.read_text()) if each.checkpoint]


def test_every_checkpoint_leads_to_every_later_one(copy: Copy) -> None:
    known, (key,) = sizes(copy), public_keys(str(copy.public_key))
    for number, first in enumerate(known):
        for size in known[number:]:
            proof = growth_proof(str(copy.path), first, size)
            assert verify_growth_proof(json.loads(json.dumps(proof)), key, str(copy.checkpoints)) == ()
    assert growth_proof(str(copy.path), known[0])["size"] == known[-1]


def test_of_a_database_that_is_written_to_meanwhile(lasting_ground: stores.Ground) -> None:
    ledger = lasting_ground.ledger()
    notary = Notary(ledger)
    made = []
    for first in (0, 6):
        history(ledger, first, 6)
        made.append(notary.checkpoint())
    history(ledger, 12, 3)
    before, after = made
    assert before is not None
    assert after is not None
    proof = growth_proof(ledger, before.size)
    assert (proof["size"], proof["checkpoints"]) == (after.size, [before.note, after.note])
    assert verify_growth_proof(proof) == ()
    notary.close()
    ledger.close()


@pytest.mark.parametrize("what", ["proof", "checkpoints", "first", "size", "origin"])
def test_what_was_changed_proves_nothing(copy: Copy, what: str) -> None:
    known, (key,) = sizes(copy), public_keys(str(copy.public_key))
    proof = growth_proof(str(copy.path), known[1], known[2])
    other = growth_proof(str(copy.path), known[0], known[3])
    assert verify_growth_proof({**proof, what: f"{other[what]}x" if what == "origin" else other[what]}, key)
    assert verify_growth_proof({**proof, "proof": proof["proof"][:-1]}, key)
    assert verify_growth_proof({**proof, "proof": [*proof["proof"], proof["proof"][0]]}, key)


def test_a_log_that_was_rewritten_is_no_continuation(copy: Copy) -> None:
    """By somebody with the database and the key, but not the checkpoints that were kept elsewhere."""
    known, kept = sizes(copy), copy.checkpoints.read_text()
    key = SigningKey.open(f"{copy.path}.key", read_anchors(kept)[0].checkpoint.origin)  # type: ignore[union-attr]
    own = copy.path.with_name("own")
    own.write_text(kept)
    copy.checkpoints.unlink()
    with copy.edit() as database:
        database.execute("UPDATE leaf SET hash = replace(hash, 'a', 'b') WHERE seq = 3")
        rebuild_the_end(database)
        database.execute("DELETE FROM checkpoint")
    ledger = Ledger(open_store(str(copy.path)), notary=False)
    notary = Notary(ledger)
    assert notary.checkpoint() is not None
    history(ledger, 90, 3)
    assert notary.checkpoint() is not None
    ledger.close()
    proof = growth_proof(str(copy.path), known[-1])
    assert verify_growth_proof(proof, key.public) == (), "it agrees with itself"
    told = verify_growth_proof(proof, key.public, str(own))
    assert [each.kind for each in told] == ["fork"]


def test_a_checkpoint_that_was_not_kept_is_said(copy: Copy) -> None:
    whole = copy.checkpoints.read_text()
    own = copy.path.with_name("own")
    own.write_text(whole[whole.index("\n\n", whole.index("\u2014")) + 2 :])
    (told,) = verify_growth_proof(growth_proof(str(copy.path), sizes(copy)[0]), None, str(own))
    assert "not in your own file" in told.text


def test_only_sizes_that_were_signed(copy: Copy) -> None:
    known = sizes(copy)
    with pytest.raises(LedgerError, match=f"no checkpoint of {known[0] + 1} entries was signed; near it: .*{known[0]}"):
        growth_proof(str(copy.path), known[0] + 1)
    for first, size in ((0, None), (-1, None), (known[1], known[0]), (known[-1] + 1, None)):
        with pytest.raises(UsageError):
            growth_proof(str(copy.path), first, size)


@pytest.mark.parametrize("document", [[], {}, {"format": "deadstop.proof/1"}])
def test_what_is_no_such_proof(copy: Copy, document: Any) -> None:
    with pytest.raises(UsageError):
        verify_growth_proof(document)
    whole = growth_proof(str(copy.path), sizes(copy)[0])
    for name in ("checkpoints", "proof", "first", "keys"):
        for value in (None, ["x"], "x", [whole[name]]):
            try:
                assert verify_growth_proof({**whole, name: value})
            except UsageError:
                pass


def test_the_verb(
    copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DEADSTOP_LEDGER", str(copy.path))
    first, last = sizes(copy)[0], sizes(copy)[-1]
    assert cli.main(["audit", "proof", "--since", str(first)]) == 0
    path = tmp_path / "grew.json"
    path.write_text(capsys.readouterr().out)
    own = ["--key", str(copy.public_key), "--checkpoints", str(copy.checkpoints)]
    assert cli.main(["audit", "verify", str(path), *own]) == 0
    assert capsys.readouterr().out == f"ok: the signed log of {last} entries begins with that of {first}\n"
    assert cli.main(["audit", "verify", str(path)]) == 0
    assert "give --key" in capsys.readouterr().out
    path.write_text(path.read_text().replace(f'"first": {first}', f'"first": {first + 1}'))
    assert cli.main(["audit", "verify", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["problems"][0]["kind"] == "checkpoint"
    for wrong in ([], ["op_x", "--since", "3"], ["op_x", "--size", "3"], ["--since", "0"], ["--since", str(first + 1)]):
        assert cli.main(["audit", "proof", *wrong]) == 125, wrong
        assert capsys.readouterr().err.count("\n") == 1
