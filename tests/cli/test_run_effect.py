# SPDX-License-Identifier: Apache-2.0
"""`deadstop run --effect once`: on record before it starts, never twice under one key, and honest about what is not
known. The effect of these commands is a line in a file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deadstop.errors import OperationConflict
from hosts import Host, within

pytest.importorskip("rfc8785")
pytest.importorskip("cryptography")

EFFECT = "echo done >> effects"
SLOW = ("--", "bash", "-c", f"{EFFECT}; sleep 60")
EXIT_STATUS = {"refused": 125, "unknown": 123, "timeout": 124, "error": 127}
# As whoever runs the tests, with namespaces and without: another user's Python may lack what the ledger needs.
KINDS = {"namespaces": "", "none": "userns,cgroup"}


class Place:
    """A folder with a ledger in it, in which commands leave their effects."""

    def __init__(self, host: Host) -> None:
        self.host, self.folder = host, host.folder / f"place-{os.urandom(4).hex()}"
        self.folder.mkdir()
        self.ledger = str(self.folder / "ledger.db")
        self.env = {"DEADSTOP_LEDGER": self.ledger}

    def words(self, key: str, *words: str) -> list[str]:
        return ["run", "--effect", "once", "--key-from", f"text:{key}", *words]

    def start(self, key: str, *words: str) -> subprocess.Popen[bytes]:
        return self.host.start(*self.words(key, *words), env=self.env, cwd=self.folder, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip

    def once(self, key: str, *words: str) -> subprocess.CompletedProcess[bytes]:
        return self.host.cli(*self.words(key, *words), env=self.env, cwd=self.folder)

    def result(self, key: str, *words: str) -> dict[str, Any]:
        done = self.once(key, "--json", *words)
        result: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == EXIT_STATUS.get(result["status"], result["exit_code"])
        return result

    def effects(self) -> int:
        file = self.folder / "effects"
        return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.fixture
def place(one_host: Host) -> Place:
    return Place(one_host)


@pytest.fixture(params=KINDS)
def any_place(one_host: Host, request: pytest.FixtureRequest) -> Place:
    made = Place(one_host)
    made.env["DEADSTOP_DENY"] = KINDS[request.param]
    return made


@pytest.fixture
def ops(place: Place, capsys: pytest.CaptureFixture[str]) -> Any:
    """`deadstop ops ... --json` on the ledger of this place, in this process: (exit status, answer, stderr)."""
    return lambda *words, at=place: run_ops(capsys, at, *words)


def run_ops(capsys: pytest.CaptureFixture[str], place: Place, *words: str) -> tuple[int, Any, str]:
    from deadstop.cli import main

    capsys.readouterr()
    status = main(["ops", *words, "--ledger", place.ledger, "--json"])
    out, err = capsys.readouterr()
    return status, json.loads(out or "null"), err


def test_a_success_is_on_record_and_is_not_done_again(place: Place) -> None:
    words = ("--target", "shop", "--clear-env", "--", "bash", "-c", f'{EFFECT}; echo "$DEADSTOP_OPERATION_KEY"')
    first = place.once("pay-1", *words)
    assert (first.returncode, first.stderr) == (0, b"")
    again = place.once("pay-1", *words)
    assert (again.returncode, again.stdout) == (0, b"")
    assert b"already done: op_" in again.stderr
    result = place.result("pay-1", *words)
    assert (result["status"], result["exit_code"], result["effect"]) == ("completed", 0, "applied")
    assert (result["environment"], result["retry_allowed"]) == ("nothing was started", False)
    operation = result["operation"]
    assert (operation["state"], operation["attempt"], operation["target"]) == ("SUCCEEDED", 1, "shop")
    assert first.stdout.decode().strip() == operation["key"]
    assert place.effects() == 1


def test_a_check_foresees_what_the_ledger_will_say_and_writes_nothing(place: Place) -> None:
    done, lost = ("--", "bash", "-c", EFFECT), ("--", "bash", "-c", f"{EFFECT}; exit 3")

    def foreseen(key: str, *words: str) -> tuple[int, str]:
        checked = place.once(key, "--check", *words)
        return checked.returncode, checked.stdout.decode()

    assert "the first operation makes it" in foreseen("a", *done)[1]
    assert not Path(place.ledger).exists()
    assert place.result("a", *done)["effect"] == "applied"
    assert place.result("b", *lost)["effect"] == "unknown"
    before = Path(place.ledger).read_bytes()
    for key, words, status, said in (
        ("new", done, 0, "none under this key yet: it would run"),
        ("a", done, 0, "SUCCEEDED: it would not run again"),
        ("a", lost, 125, "is a different request"),
        ("b", lost, 125, "waits for a person"),
    ):
        code, text = foreseen(key, *words)
        assert code == status, text
        assert said in text
    assert Path(place.ledger).read_bytes() == before
    assert place.effects() == 2


def test_the_same_key_for_another_command_is_refused(place: Place) -> None:
    assert place.once("pay-1", "--", "bash", "-c", EFFECT).returncode == 0
    refused = place.result("pay-1", "--", "bash", "-c", f"{EFFECT};")
    assert (refused["status"], refused["reason"]) == ("refused", "key_conflict")
    assert place.effects() == 1
    assert place.once("pay-1", "--scope", "other", "--", "bash", "-c", EFFECT).returncode == 0
    assert place.effects() == 2


def test_what_was_cut_short_is_unknown_and_stays_so(place: Place, ops: Any) -> None:
    result = place.result("pay-1", "--timeout", "1.5", *SLOW)
    assert place.effects() == 1
    assert (result["status"], result["effect"], result["retry_allowed"]) == ("timeout", "unknown", False)
    assert result["error"]["type"] == "OutcomeUnknown"
    operation = result["operation"]
    assert (operation["state"], operation["phase_certain"]) == ("NEEDS_HUMAN", False)
    again = place.once("pay-1", *SLOW)
    assert again.returncode == 123
    assert f"deadstop ops show {operation['id']}".encode() in again.stderr
    assert place.effects() == 1
    _, seen, _ = ops("show", operation["id"])
    assert seen["attempts_made"][0]["receipt"]["survivors"] == 0


def test_a_failing_command_may_have_done_half_of_it(place: Place) -> None:
    half = place.result("pay-1", "--", "bash", "-c", f"{EFFECT}; exit 3")
    assert (half["status"], half["exit_code"], half["effect"]) == ("completed", 3, "unknown")
    named = place.result("pay-2", "--failed-exit", "2,64-78", "--", "bash", "-c", "exit 65")
    assert (named["exit_code"], named["effect"], named["operation"]["state"]) == (65, "not_applied", "FAILED")
    replayed = place.result("pay-2", "--", "bash", "-c", "exit 65")
    assert (replayed["status"], replayed["reason"], replayed["effect"]) == ("refused", "replay", "not_applied")


def test_what_could_not_be_started_may_be_sent_again_where_that_is_declared(place: Place) -> None:
    missing = place.folder / "deploy"
    declared = ("--retry", "if_not_accepted", "--", str(missing))
    first = place.result("pay-1", *declared)
    assert (first["status"], first["effect"], first["retry_allowed"]) == ("error", "not_applied", True)
    never = place.result("pay-2", "--", str(missing))
    assert (never["effect"], never["retry_allowed"], never["operation"]["state"]) == ("not_applied", False, "FAILED")
    missing.write_text(f"#!/bin/sh\n{EFFECT}\n")
    missing.chmod(0o755)
    second = place.result("pay-1", *declared)
    assert (second["exit_code"], second["operation"]["attempt"], place.effects()) == (0, 2, 1)
    assert second["operation"]["id"] == first["operation"]["id"]


def test_four_at_once_do_it_once(place: Place) -> None:
    runs = [place.start("pay-1", "--json", "--", "bash", "-c", f"{EFFECT}; sleep 0.3") for _ in range(4)]
    ended = [run.communicate(timeout=30) for run in runs]
    statuses = sorted(run.returncode for run in runs)
    assert place.effects() == 1, ended
    assert statuses[0] == 0
    assert set(statuses) <= {0, 123}
    assert len({json.loads(out)["operation"]["id"] for out, _ in ended}) == 1


def test_killed_in_the_middle_it_is_found_and_not_run_again(any_place: Place, ops: Any) -> None:
    run = any_place.start("pay-1", *SLOW)
    within(20, lambda: any_place.effects() == 1)
    run.send_signal(signal.SIGKILL)
    run.communicate(timeout=10)
    status, [operation], said = ops("list", "--unknown", at=any_place)
    assert (status, operation["state"]) == (0, "NEEDS_HUMAN")
    assert "the process that held it is gone" in said
    assert any_place.once("pay-1", *SLOW).returncode == 123
    assert any_place.effects() == 1
    assert ops("resolve", operation["id"], "--retry", "--reason", "looked", at=any_place)[0] == 0
    assert any_place.once("pay-1", "--timeout", "1.5", *SLOW).returncode == 124
    assert any_place.effects() == 2


def test_without_a_limit_the_lease_is_kept(any_place: Place, ops: Any) -> None:
    program = (
        "import sys; from deadstop.cli import main, recorded; recorded.LEASE_S = 5; recorded.BEAT_S = 0.2\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    script = f"{EFFECT}; until [ -e gate ]; do sleep 0.05; done"
    words = any_place.words("pay-1", "--timeout", "none", "--", "bash", "-c", script)
    run = any_place.host.popen([any_place.host.python, "-c", program, *words], env=any_place.env, cwd=any_place.folder)
    leases = set()

    def renewed() -> bool:
        [operation] = ops("list", at=any_place)[1]
        leases.add(operation["lease_until"])
        return len(leases) > 2

    try:
        within(20, lambda: any_place.effects() == 1)
        within(20, renewed)
    finally:
        (any_place.folder / "gate").touch()
        run.wait(20)
    assert None not in leases
    assert run.returncode == 0
    assert ops("list", at=any_place)[1][0]["state"] == "SUCCEEDED"


def test_without_a_ledger_nothing_is_started(place: Place) -> None:
    Path(place.ledger).write_text("this is no database" * 100)
    result = place.result("pay-1", "--", "bash", "-c", EFFECT)
    assert (result["status"], result["environment"]) == ("refused", "nothing was started")
    assert "ledger" in result["error"]["message"]
    assert place.effects() == 0


def test_a_success_that_cannot_be_written_down_is_unknown(place: Place) -> None:
    result = place.result("pay-1", "--", "bash", "-c", f"{EFFECT}; mv ledger.db away; echo junk > ledger.db")
    assert (result["status"], result["effect"], result["retry_allowed"]) == ("unknown", "unknown", False)
    assert "could not be written down" in result["error"]["message"]


# -- without any command -------------------------------------------------------------------------------------------


@pytest.fixture
def intent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from deadstop.cli import build_parser, declared
    from deadstop.cli.run import _prepared

    monkeypatch.chdir(tmp_path)

    def made(source: str, *words: str) -> Any:
        options = ["run", "--effect", "once", "--key-from", source]
        arguments = build_parser("run").parse_args([*options, *(words or ("--", "true", "1"))])
        prepared = _prepared(arguments)
        definition = declared.declared(arguments, prepared.command.tool)
        return declared.intent_of(arguments, prepared, definition), definition

    return made


def test_a_key_is_what_it_says_wherever_it_comes_from(
    intent: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("42\n")
    monkeypatch.setenv("BUILD", "42")
    same = {intent(source)[0].binding for source in ("env:BUILD", "file:key", "text:42")}
    others = {intent("text:43")[0].binding, intent("argv")[0].binding, intent("argv", "--", "true", "2")[0].binding}
    assert (len(same), len(others), same & others) == (1, 3, set())
    before = intent("argv")[0].binding
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    assert intent("argv")[0].binding != before
    assert "42" not in repr(intent("text:42")[0].binding)


def test_what_has_to_be_the_same_can_be_chosen(intent: Any, tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    plan.write_text("a")
    words = ("--fingerprint", "file:plan", "--", "true")
    first = intent("text:1", *words)[0].fingerprint
    assert intent("text:1", *words, "more")[0].fingerprint == first
    plan.write_text("b")
    assert intent("text:1", *words)[0].fingerprint != first


def test_two_scripts_of_one_shell_do_not_tighten_each_other(intent: Any) -> None:
    _, plain = intent("text:1", "--", "bash", "a.sh")
    http = ("--reconcile-http", "http://127.0.0.1/{key}", "--reconcile-header", "Authorization=env:TOKEN")
    _, asked = intent("text:1", "--retry", "if_not_accepted", *http, "--reconcile-consistent", "--", "bash", "b.sh")
    _, named = intent("text:1", "--tool", "deploy", "--reconcile-sql", "x.db", "SELECT 1", "--", "bash", "c.sh")
    assert plain.tool == "bash"
    assert asked.tool.startswith("bash+")
    assert named.tool == "deploy"
    assert (asked.retry, asked.consistent, asked.query.headers) == (
        "if_not_accepted",
        True,
        {"Authorization": "env:TOKEN"},
    )


def test_an_intent_is_accepted_by_a_ledger_and_tells_no_command(intent: Any) -> None:
    from dataclasses import replace

    from deadstop.ledger.ledger import Ledger

    with Ledger.in_memory() as ledger:
        given, definition = intent("argv", "--fingerprint", "argv", "--", "echo", "canary\udc80")
        begun = ledger.begin(replace(given, definition=ledger.define(definition).version))
        assert begun.claim is not None
        assert all("canary" not in entry.body for entry in ledger.trail(begun.record.op_id))
        with pytest.raises(OperationConflict):
            ledger.begin(replace(given, definition=1, fingerprint="0" * 64))


REFUSED = [
    (["--effect", "once"], ["--key-from", "env:NAME"]),
    (["--effect", "once", "--key-from", "env:NOT_SET_ANYWHERE"], ["env:NOT_SET_ANYWHERE", "empty"]),
    (["--effect", "once", "--key-from", "file:nowhere"], ["nowhere", "cannot be read"]),
    (["--effect", "once", "--key-from", "moon"], ["'moon'", "text:VALUE"]),
    (["--effect", "once", "--key-from", "text:  "], ["empty"]),
    (["--effect", "once", "--key-from", "argv", "--fingerprint", "moon"], ["'moon'", "argv+cwd"]),
    (["--effect", "once", "--key-from", "argv", "--failed-exit", "0"], ["'0'", "64-78"]),
    (
        ["--effect", "once", "--key-from", "argv", "--reconcile-settle", "3s"],
        ["--reconcile-settle", "--reconcile-http"],
    ),
    (["--key-from", "argv"], ["--key-from", "--effect once"]),
    (["--effect", "none", "--retry", "never"], ["--retry", "--effect once"]),
]


@pytest.mark.parametrize(("words", "named"), REFUSED, ids=[" ".join(words) for words, _ in REFUSED])
def test_what_is_missing_or_would_be_ignored_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str],
    named: list[str],
) -> None:  # fmt: skip
    from deadstop.cli import main

    monkeypatch.setenv("DEADSTOP_LEDGER", str(tmp_path / "ledger.db"))
    monkeypatch.chdir(tmp_path)
    try:
        status: Any = main(["run", *words, "--", "touch", "started"])
    except SystemExit as end:
        status = end.code
    lines = capsys.readouterr().err.splitlines()
    assert (status, len(lines), os.listdir(tmp_path)) == (125, 1, [])
    assert [text for text in named if text not in lines[0]] == [], lines[0]


def test_a_run_without_an_effect_loads_no_ledger(place: Place) -> None:
    program = (
        "import sys; from deadstop.cli import main\n"
        "assert main(['run', '--json', '--effect', 'none', '--', 'true']) == 0\n"
        "print([name for name in sys.modules if 'ledger' in name or 'sqlite' in name])"
    )
    result, loaded = place.host.script(program).splitlines()
    assert json.loads(result)["effect"] == "none"
    assert loaded == "[]"
