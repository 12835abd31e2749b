# SPDX-License-Identifier: Apache-2.0
"""What is handed out of a ledger: it is verified with nothing but a public key, and holds no secret."""

from __future__ import annotations

import copy as copying
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import stores
from audit_ground import SECRET, closed_ledger, history

from deadstop.errors import LedgerError, OperationNotFound, UsageError
from deadstop.ledger.export import export, operation_proof, verify_export, verify_operation_proof
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.notary import Notary
from deadstop.ledger.signing import public_keys
from deadstop.ledger.store import open_store
from deadstop.ledger.verify import verify


@pytest.fixture(scope="module")
def ledger_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return closed_ledger(tmp_path_factory.mktemp("exported"), 6, 6)


@pytest.fixture(scope="module")
def lines(ledger_file: Path) -> list[str]:
    stream = io.StringIO()
    assert export(str(ledger_file), stream) == len(stream.getvalue().splitlines()) - 3
    return stream.getvalue().splitlines(keepends=True)


def key_of(path: Path) -> str:
    return f"{path}.key.pub"


def written(folder: Path, lines: list[str]) -> str:
    path = folder / "export.jsonl"
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)


def test_an_export_is_verified_without_the_database(lasting_ground: stores.Ground, tmp_path: Path) -> None:
    ledger = lasting_ground.ledger()
    notary = Notary(ledger)
    history(ledger, 0, 6)
    made = notary.checkpoint()
    assert made is not None
    with (tmp_path / "log.jsonl").open("w") as file:
        count = export(ledger, file)
    report = verify_export(str(tmp_path / "log.jsonl"), f"{notary.key_path}.pub", notary.checkpoints_path)
    assert report.problems == ()
    assert (report.leaves, report.operations, report.anchored_size, report.checkpoints) == (count, 6, made.size, 1)
    notary.close()


def test_it_has_no_secret_in_it(lines: list[str]) -> None:
    text = "".join(lines)
    assert SECRET not in text
    assert "PRIVATE" not in text
    assert "sealed.arguments" in text


@pytest.mark.parametrize(
    ("edit", "kind", "where"),
    [
        (lambda a: [*a[:5], a[5].replace("2", "3", 1).replace(":1", ":7"), *a[6:]], "evidence", "line 6"),
        (lambda a: [*a[:5], a[5].replace('"hash":"', '"hash":"0'), *a[6:]], "evidence", "line 6"),
        (lambda a: [*a[:5], *a[6:]], "order", "line 6"),
        (lambda a: [*a[:5], a[6], a[5], *a[7:]], "order", "line 6"),
        (lambda a: [*a[:6], a[5], *a[6:]], "order", "line 7"),
        (lambda a: [*a[:5], "[]\n", *a[6:]], "evidence", "line 6"),
        (lambda a: [a[0], *a[1:40], *a[-2:]], "leaf", "leaf 39"),
        (lambda a: [*a[:-1], a[-1].replace("\\n\\n", "\\nx\\n")], "checkpoint", "checkpoints, line"),
    ],
)
def test_every_edit_is_located(
    lines: list[str], ledger_file: Path, tmp_path: Path, edit: Callable[[list[str]], list[str]], kind: str, where: str
) -> None:
    changed = edit(lines)
    assert changed != lines
    report = verify_export(written(tmp_path, changed), key_of(ledger_file))
    assert any(each.kind == kind and where in each.where for each in report.problems), report.problems


def test_a_log_that_was_renumbered_and_hashed_anew_is_not_the_signed_one(
    lines: list[str], ledger_file: Path, tmp_path: Path
) -> None:
    header, entries, notes = json.loads(lines[0]), [json.loads(each) for each in lines[1:-2]], lines[-2:]
    del entries[-3:]
    header["size"] = len(entries)
    cut = [json.dumps(each) + "\n" for each in (header, *entries)]
    report = verify_export(written(tmp_path, [*cut, notes[0]]), key_of(ledger_file), f"{ledger_file}.checkpoints")
    assert [each.where for each in report.problems] == [f"leaves {len(entries)} to {len(entries) + 2}"]
    assert verify_export(written(tmp_path, [*cut, notes[0]]), key_of(ledger_file)).problems == (), (
        "without the checkpoints that were kept elsewhere, a cut end cannot be seen"
    )


def test_a_key_of_somebody_else_signs_nothing(lines: list[str], tmp_path: Path) -> None:
    other = closed_ledger(tmp_path, 1)
    report = verify_export(written(tmp_path, lines), key_of(other))
    assert report.anchored_size == 0
    assert {each.kind for each in report.problems} == {"checkpoint"}


@pytest.mark.parametrize(
    "text", ["", "{}\n", "no json\n", '{"format": "deadstop.ledger/9", "origin": "x", "size": 0}\n']
)
def test_what_is_no_export_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="not an exported ledger"):
        verify_export(written(tmp_path, [text]))
    with pytest.raises(UsageError, match="No such file"):
        verify_export(str(tmp_path / "missing"))


# -- one operation ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def proof(ledger_file: Path) -> dict[str, Any]:
    with Ledger.open(str(ledger_file)) as ledger:
        op_id = max(ledger.list(), key=lambda record: record.evidence).op_id
    return operation_proof(str(ledger_file), op_id)


def test_an_operation_is_proved_with_nothing_but_the_key(proof: dict[str, Any], ledger_file: Path) -> None:
    assert len(proof["entries"]) > 5
    assert verify_operation_proof(json.loads(json.dumps(proof)), key_of(ledger_file)) == ()
    assert verify_operation_proof(proof, public_keys(key_of(ledger_file))) == ()
    assert len(json.dumps(proof)) < 2000 * len(proof["entries"])


@pytest.mark.parametrize(
    ("edit", "kind"),
    [
        (lambda a: a["entries"][2].update(body=a["entries"][2]["body"].replace('"n":3', '"n":8')), "leaf"),
        (lambda a: a["entries"][2].update(seq=a["entries"][2]["seq"] + 1), "leaf"),
        (lambda a: a["entries"][2]["proof"].reverse(), "leaf"),
        (lambda a: a["entries"].pop(2), "chain"),
        (lambda a: a["entries"].clear(), "leaf"),
        (lambda a: a.update(operation="op_other"), "chain"),
        (lambda a: a.update(checkpoint=a["checkpoint"].replace("\n\n", "0\n\n", 1)), None),
        (lambda a: a.update(origin="deadstop/other"), "checkpoint"),
        (lambda a: a.pop("entries"), None),
        (lambda a: a.update(format="other"), None),
    ],
)
def test_a_changed_proof_proves_nothing(
    proof: dict[str, Any], ledger_file: Path, edit: Callable[[Any], Any], kind: str | None
) -> None:
    changed = copying.deepcopy(proof)
    edit(changed)
    if kind is None:
        with pytest.raises(UsageError):
            verify_operation_proof(changed, key_of(ledger_file))
    else:
        assert kind in {each.kind for each in verify_operation_proof(changed, key_of(ledger_file))}


def test_there_is_no_proof_of_what_no_checkpoint_covers(tmp_path: Path) -> None:
    path = closed_ledger(tmp_path, 2)
    ledger = Ledger(open_store(str(path)), notary=False)
    (op_id,) = history(ledger, 2, 1)
    with pytest.raises(LedgerError, match=f"no checkpoint covers entry 1 of {op_id}"):
        operation_proof(ledger, op_id)
    with pytest.raises(OperationNotFound):
        operation_proof(ledger, "op_other")
    ledger.close()


def test_what_was_shredded_breaks_no_proof(tmp_path: Path) -> None:
    path = closed_ledger(tmp_path, 6)
    before = {each: operation_proof(str(path), each) for each in _ids(path)}
    with Ledger.open(str(path)) as ledger:
        for op_id in before:
            ledger.shred(op_id, by="ann")
            assert ledger.value(op_id) == (False, None)
    assert verify(str(path)).problems == ()
    stream = tmp_path / "log.jsonl"
    with stream.open("w") as file:
        export(str(path), file)
    assert verify_export(str(stream), key_of(path), f"{path}.checkpoints").problems == ()
    for op_id, old in before.items():
        assert verify_operation_proof(old, key_of(path)) == ()
        assert verify_operation_proof(operation_proof(str(path), op_id), key_of(path)) == ()


def _ids(path: Path) -> list[str]:
    with Ledger.open(str(path)) as ledger:
        return [each.op_id for each in ledger.list()]


@pytest.mark.parametrize(
    "change",
    [
        lambda header, entry: header.update(keys=None),
        lambda header, entry: header.update(keys=[5]),
        lambda header, entry: header.update(size=None),
        lambda header, entry: header.update(size="2"),
        lambda header, entry: entry.update(body=entry["body"] + "\ud800"),
    ],
)
def test_no_edit_of_an_export_stops_its_verification(lines: list[str], tmp_path: Path, change: Any) -> None:
    header, entry = json.loads(lines[0]), json.loads(lines[1])
    change(header, entry)
    path = written(tmp_path, [json.dumps(header) + "\n", json.dumps(entry) + "\n", *lines[2:]])
    if isinstance(header["size"], int):
        assert verify_export(path).problems
    else:
        with pytest.raises(UsageError, match="not an exported ledger"):
            verify_export(path)
