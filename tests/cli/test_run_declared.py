# SPDX-License-Identifier: Apache-2.0
"""What `deadstop run --effect once` refuses or says before the command starts, and what asks a function afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rfc8785")
pytest.importorskip("cryptography")

import deadstop
from deadstop.cli import main
from deadstop.ledger.definition import Effect
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.queries import FunctionQuery
from deadstop.ledger.records import Intent, Outcome
from deadstop.ledger.states import State

SOURCE = str(Path(deadstop.__file__).parent.parent)
ONCE = ("run", "--effect", "once", "--key-from", "text:k")


def program(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """As the console script: a file of another folder than the one in which it is called."""
    script = folder / "bin" / "deadstop"
    script.parent.mkdir(exist_ok=True)
    script.write_text("import sys\nfrom deadstop.cli import main\nsys.exit(main())\n")
    return subprocess.run([sys.executable, str(script), *words], cwd=folder, capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": SOURCE, **env}, stdin=subprocess.DEVNULL)  # fmt: skip


@pytest.mark.parametrize("check", [(), ("--check",)])
@pytest.mark.parametrize("by", ["option", "variable"])
def test_a_ledger_that_is_gone_with_the_process_keeps_no_key(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, check: tuple[str, ...], by: str
) -> None:
    monkeypatch.setenv("DEADSTOP_LEDGER", ":memory:" if by == "variable" else "/nowhere/ledger.db")
    place = ("--ledger", ":memory:") if by == "option" else ()
    assert main([*ONCE, *place, *check, "--", "true"]) == 125
    said = capsys.readouterr().err
    assert "is :memory:, which is gone when this process ends" in said
    assert ("--ledger" if by == "option" else "DEADSTOP_LEDGER") in said


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--reconcile-http", "a.example/{key}"), "is not http://HOST"),
        (("--reconcile-http", "https://a.example/{kye}"), "{kye} is not one of {key}"),
        (("--reconcile-sql", "a.db", "DELETE FROM t WHERE k = :key"), "is no SELECT"),
        (("--reconcile-ssh", "-oProxyCommand=x"), "expected one argument"),  # argparse's own word for it
        (("--reconcile-ssh=-oProxyCommand=x",), "begins with no '-'"),
        (("--reconcile-function", "module"), "is not MODULE:NAME"),
    ],
)
def test_a_query_that_could_never_be_asked_starts_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...], why: str
) -> None:
    file, ledger = tmp_path / "effects", tmp_path / "ledger.db"
    try:
        status = main([*ONCE, "--ledger", str(ledger), *words, "--", "touch", str(file)])
    except SystemExit as end:
        status = int(str(end.code))
    assert status == 125 and why in capsys.readouterr().err
    assert not file.exists() and not ledger.exists()


def test_a_check_says_what_becomes_of_a_lost_outcome(tmp_path: Path) -> None:
    words = (*ONCE, "--ledger", "ledger.db", "--check")
    nobody = program(tmp_path, *words, "--", "true")
    assert nobody.returncode == 0 and "lost outcome  waits for a person" in nobody.stdout and nobody.stderr == ""
    asked = program(tmp_path, *words, "--reconcile-http", "https://a.example/status", "--", "true")
    assert "lost outcome  looked up: GET https://a.example/status; not finding it proves nothing" in asked.stdout
    assert "names nothing of the operation" in asked.stderr


def test_who_types_it_at_a_terminal_is_told_and_a_script_is_not(tmp_path: Path) -> None:
    def told(*words: str) -> bytes:
        terminal, other = os.openpty()
        try:
            subprocess.run([sys.executable, "-m", "deadstop", *ONCE, "--ledger", "ledger.db", *words, "--", "true"],
                           cwd=tmp_path, env={**os.environ, "PYTHONPATH": SOURCE}, stdin=subprocess.DEVNULL, timeout=60,
                           stdout=subprocess.DEVNULL, stderr=other, check=True)  # fmt: skip
            os.write(other, b"|")
            return os.read(terminal, 1 << 16)
        finally:
            os.close(terminal)
            os.close(other)

    assert b"a lost outcome waits for a person: nothing says where it could be looked up" in told()
    assert b"waits for a person" not in told("--quiet")


def test_a_function_of_this_folder_is_asked_from_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("def find(op):\n    return 'in_progress'\n")
    (tmp_path / "json.py").write_text("raise SystemExit('what is installed comes first')\n")
    place = str(tmp_path / "ledger.db")
    with Ledger.open(place) as ledger:
        definition = ledger.define(Effect(reconcile=FunctionQuery(name="shop:find")).define("pay"))
        begun = ledger.begin(Intent("default", "b", "f" * 64, "pay", definition.version))
        assert begun.claim is not None
        op_id = ledger.finish(begun.claim, Outcome(State.UNKNOWN)).op_id
    asked = program(tmp_path, "ops", "reconcile", op_id, "--ledger", "ledger.db")
    assert (asked.returncode, asked.stderr) == (1, "")
    first, finding = asked.stdout.splitlines()
    assert first == f"{op_id} UNKNOWN (last finding: in_progress)" and finding == "  function shop:find"
    (tmp_path / "shop.py").unlink()
    missing = program(tmp_path, "ops", "reconcile", op_id, "--ledger", "ledger.db")
    assert "cannot be loaded in this process: ModuleNotFoundError: No module named 'shop'" in missing.stdout
    safe = program(tmp_path, *ONCE, "--ledger", "l", "--check", "--reconcile-function", "shop:find", "--", "true")
    assert "there is no module shop" in safe.stderr


def test_the_completion_offers_files_and_states(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    for option in ("run___ledger", "ops_list___ledger", "audit_verify___key", "audit_verify___checkpoints"):
        assert f"_shtab_deadstop_{option}_COMPGEN=_shtab_compgen_files" in script
    assert "NEEDS_HUMAN" in next(line for line in script.splitlines() if "ops_list___state_choices" in line)
