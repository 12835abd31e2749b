# SPDX-License-Identifier: Apache-2.0
"""`deadstop audit`: what it prints, and its exit status."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from audit_ground import SECRET, Copy, closed_ledger, history, intent

from deadstop import cli
from deadstop.errors import OperationConflict
from deadstop.ledger import alerts
from deadstop.ledger.definition import Effect
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.queries import HttpQuery
from deadstop.ledger.records import Intent, Outcome
from deadstop.ledger.states import State
from deadstop.ledger.store import open_store


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return closed_ledger(tmp_path_factory.mktemp("audited"), 12)


@pytest.fixture
def copy(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Copy:
    made = Copy.of(original, tmp_path)
    monkeypatch.setenv("DEADSTOP_LEDGER", str(made.path))
    return made


def audit(*words: str) -> int:
    return cli.main(["audit", *words])


def test_a_sound_ledger(copy: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit("verify") == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("ok: 68 entries of 12 operations, 68 of them covered by 1 signed checkpoints")
    assert shown.err == "", "no progress line where there is no terminal"
    assert audit("verify", "--json", "--log-only") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"]
    assert not report["full"]


def test_a_broken_one_is_told_place_by_place(copy: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    with copy.edit() as database:
        database.execute("UPDATE leaf SET hash = substr(hash, 2) || substr(hash, 1, 1) WHERE seq = 9")
        database.execute("UPDATE operation SET tool = char(27) || '[2J'")
    assert audit("verify", "--ledger", str(copy.path)) == 1
    shown = capsys.readouterr().out
    assert "leaf 9 (" in shown
    assert "\x1b" not in shown
    assert audit("verify", "--json") == 1
    assert json.loads(capsys.readouterr().out)["problems"][0]["kind"] == "leaf"


def test_the_sum_tells_of_a_reconciler_that_went_silent(copy: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    audit()
    assert "silent" not in capsys.readouterr().out
    with copy.edit() as database:
        database.execute("INSERT INTO beat (name, owner, at_ms, every_ms) VALUES ('reconciler', 'x', 1, 5000)")
    audit("--json")
    told = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in told["silent"]] == ["reconciler"]
    audit()
    assert ("the reconciler has been silent for" in capsys.readouterr().out) is (told["open"] > 0)


def test_unknown_operations_that_nobody_asks_about_are_not_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DEADSTOP_LEDGER", str(tmp_path / "asked.db"))
    look_up = HttpQuery(url="http://127.0.0.1:1/{key}")
    with Ledger.open() as ledger:
        version = ledger.define(Effect(reconcile=look_up).define("pay")).version
        claim = ledger.begin(Intent("s/pay", "b", "f", "pay", version)).claim
        assert claim is not None
        ledger.finish(claim, Outcome(State.UNKNOWN))
        ledger.write(lambda tx: alerts.beat(tx, alerts.RECONCILER, "me", 5000))
    assert audit() == 0
    with contextlib.closing(sqlite3.connect(tmp_path / "asked.db")) as database, database:
        database.execute("UPDATE beat SET at_ms = 1")
    assert audit() == 1
    assert "silent" in capsys.readouterr().out


def test_what_cannot_be_read_is_125(copy: Copy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("no database, but long enough to be looked at" * 100)
    missing = str(tmp_path / "missing")
    text = str(tmp_path / "text")
    refused = [
        ["verify", "--ledger", missing], ["--ledger", missing], ["verify", "--ledger", text],
        ["verify", "--key", missing], ["verify", "--checkpoints", missing], ["verify", missing],
        ["verify", text], ["proof", "op_none"], ["export", str(copy.path)],
    ]  # fmt: skip
    for words in refused:
        assert audit(*words) == 125, words
        assert capsys.readouterr().err.count("\n") == 1
    assert not Path(missing).exists(), "auditing makes no ledger"


def test_an_export_and_a_proof_are_verified_by_the_same_verb(
    copy: Copy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    assert audit("export", str(log)) == 0
    assert capsys.readouterr() == ("", f"deadstop: 68 entries in {log}\n")
    assert audit("export") == 0
    assert capsys.readouterr().out == log.read_text()
    assert audit("verify", str(log), "--key", str(copy.public_key), "--checkpoints", str(copy.checkpoints)) == 0
    assert "note" not in capsys.readouterr().out
    op_id = json.loads(json.loads(log.read_text().splitlines()[7])["body"])["op"]
    assert audit("proof", op_id) == 0
    (tmp_path / "proof.json").write_text(capsys.readouterr().out)
    assert audit("verify", str(tmp_path / "proof.json")) == 0
    assert "give --key to know who signed" in capsys.readouterr().out
    (tmp_path / "proof.json").write_text((tmp_path / "proof.json").read_text().replace("deploy", "destroy"))
    assert audit("verify", str(tmp_path / "proof.json"), "--json") == 1
    assert not json.loads(capsys.readouterr().out)["ok"]


def test_the_sum_holds_while_operations_are_open(copy: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit() == 0
    assert "12 started = 10 ended + 2 open" in capsys.readouterr().out


def test_an_alert_is_attention_until_somebody_has_acknowledged_it(
    copy: Copy, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also of an operation that has ended, for which nobody waits."""
    assert audit() == 0
    ledger = Ledger(open_store(str(copy.path)), notary=False)
    (done,) = [each for each in ledger.list([State.SUCCEEDED]) if each.correlation == "run-0"]
    with pytest.raises(OperationConflict):
        ledger.begin(replace(intent(0, done.definition), fingerprint="e" * 64))
    capsys.readouterr()
    assert audit("--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["holds"], found["waiting"], found["lapsed"]) == (False, True, [], 0)
    assert [(each["kind"], each["operation"]) for each in found["alerts"]] == [("key_conflict", done.op_id)]
    assert ledger.acknowledge("key_conflict", done.op_id, "anna")
    ledger.close()
    assert audit() == 0


def test_what_needs_a_person_is_said(copy: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = Ledger(open_store(str(copy.path)), notary=False)
    (op_id,) = history(ledger, 17, 1)  # in the hands of a process that is gone
    ledger.close()
    with copy.edit() as database:
        database.execute("UPDATE operation SET lease_ms = 1 WHERE op_id = ?", (op_id,))
    assert audit() == 1
    assert "1 are past a deadline" in capsys.readouterr().out
    with copy.edit() as database:
        database.execute(
            "UPDATE operation SET state = 'NEEDS_HUMAN', owner = NULL, lease_ms = NULL WHERE op_id = ?", (op_id,)
        )
    assert audit("--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["waiting"] == [{"operation": op_id, "tool": "deploy", "target": "production"}]
    assert SECRET not in json.dumps(found)
