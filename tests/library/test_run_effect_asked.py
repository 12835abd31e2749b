# SPDX-License-Identifier: Apache-2.0
"""`deadstop.run(effect=...)`: which operation a command is, and what is refused before anything is written down."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import deadstop
from deadstop import Effect, Status, UsageError

pytest.importorskip("rfc8785")
pytest.importorskip("cryptography")

from effect_commands import AGAIN, LINE, ONCE, both, lines, once, once_async, op

from deadstop.ledger.ledger import Ledger

pytestmark = pytest.mark.filterwarnings("ignore:tool 'bash")


@pytest.fixture(autouse=True)
def ledger(own_ledger: Ledger) -> Ledger:
    return own_ledger


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_command_is_done_once_under_its_key(ledger: Ledger, asynchronous: bool) -> None:
    script = f'{LINE}; echo "$DEADSTOP_OPERATION_ID $DEADSTOP_OPERATION_FENCE $DEADSTOP_CORRELATION_ID"'
    with deadstop.acting(correlation="run-3", asked_by="ann", authorised_by="ticket 9"):
        first = both(script, asynchronous, clear_env=True, env={"EFFECTS": None})
    assert (first.status, first.effect, first.exit_code, first.retry_allowed) == (Status.COMPLETED, "applied", 0, False)
    operation = op(first)
    assert operation["state"] == "SUCCEEDED"
    assert lines() == [operation["key"]]
    assert first.stdout.tail.split() == [operation["id"], "1", "run-3"]
    told = "".join(entry.body for entry in ledger.trail(operation["id"]))
    assert '"asked_by":"ann"' in told
    assert "ticket 9" in told
    again = both(script, asynchronous, clear_env=True, env={"EFFECTS": None})
    assert (again.ok, again.effect, again.environment) == (True, "applied", "nothing was started")
    assert "already done: op_" in str(again.hint)
    assert again.unwrap() == ""
    assert len(lines()) == 1


def test_one_key_is_one_operation_whether_from_here_or_from_the_command_line(tmp_path: Path) -> None:
    from deadstop.cli import main

    first = once(cwd=tmp_path)
    assert first.effect == "applied"
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        assert (
            main(["run", "--effect", "once", "--key-from", "text:release-7", "--quiet", "--", "bash", "-c", LINE]) == 0
        )
    finally:
        os.chdir(here)
    assert len(lines()) == 1


@pytest.mark.filterwarnings("ignore:tool 'missing")
def test_what_could_not_be_started_may_be_started_again_where_that_is_declared() -> None:
    missing = ["./no-such-program"]
    first = deadstop.run(missing, effect=AGAIN, key="a", tool="missing")
    assert (first.status, first.effect, first.retry_allowed) == (Status.ERROR, "not_applied", True)
    second = deadstop.run(missing, effect=AGAIN, key="a", tool="missing")
    assert (op(second)["id"], op(second)["attempt"]) == (op(first)["id"], 2)


def test_another_command_under_the_key_is_refused() -> None:
    once()
    for other in (
        once(f"{LINE} "), once(cwd="/"), once(env={"TARGET": "prod"}), once(stdin="yes"), once(stdin=b"no"),
        asyncio.run(once_async(f"{LINE}; ")),
    ):  # fmt: skip
        assert (other.status, other.reason, other.effect) == (Status.REFUSED, "key_conflict", "not_applied")
    assert len(lines()) == 1


def test_what_makes_it_the_same_one_can_be_said() -> None:
    effect = Effect(fingerprint=["argv", "env.TARGET"], redact=["stdin"], target="{argv[0]} of a shop")
    first = once(effect=effect, cwd="/", env={"TARGET": "a", "TOKEN": "1"}, stdin="x")
    again = once(effect=effect, env={"TARGET": "a", "TOKEN": "2"})
    assert op(again)["id"] == op(first)["id"]
    assert (again.effect, op(first)["target"]) == ("applied", "bash of a shop")
    assert once(effect=effect, env={"TARGET": "b"}).reason == "key_conflict"
    assert len(lines()) == 1


def test_without_a_key_a_task_binds_it(ledger: Ledger) -> None:
    with deadstop.Task(steps=5) as task:
        first, again = once(key=None), once(key=None)
        assert (first.effect, again.environment) == ("applied", "nothing was started")
        assert first.task_id == task.task_id
        other = once(f"true; {LINE}", key=None)
        assert op(other)["id"] != op(first)["id"]
    assert ledger.get(op(first)["id"]).correlation == task.task_id
    assert len(lines()) == 2
    with deadstop.acting(correlation="run-1"):
        failed, again = (once(f"{LINE}; exit 2", key=None, failed_exit=[2]) for _ in range(2))
        assert [failed.effect, again.effect] == ["not_applied"] * 2  # what failed is followed by a new one
        assert op(failed)["id"] != op(again)["id"]
    assert len(lines()) == 4


def test_a_task_that_is_used_up_starts_and_records_nothing(ledger: Ledger) -> None:
    with deadstop.Task(steps=1):
        deadstop.run(["true"])
        assert once().reason == "budget"
        assert asyncio.run(once_async()).reason == "budget"
    assert ledger.list() == []
    token = deadstop.CancelToken()
    token.set()
    assert once(cancel=token).status is Status.CANCELLED
    assert ledger.list() == []


def test_bad_input_is_refused_before_anything_is_recorded(ledger: Ledger) -> None:
    read, write = os.pipe()
    for match, options in (
        ("needs key=", {"key": None}), ("is empty", {"key": " "}), ("not a text", {"key": 7}),
        ("neither 'none'", {"effect": "once"}), ("neither 'none'", {"effect": 5}),
        ("only with effect", {"effect": "none"}), ("failed_exit", {"effect": "none", "key": None, "failed_exit": [2]}),
        ("exit code", {"failed_exit": [0]}), ("exit codes", {"failed_exit": "2"}),
        ("no argument", {"effect": Effect(redact=["x"])}), ("no argument", {"effect": Effect(fingerprint=["env.X"])}),
        ("needs a limit", {"timeout": None}), ("descriptor", {"stdin": read}), ("not a folder", {"cwd": "/nowhere"}),
        ("neither bytes", {"stdin": 1.5}),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=match):
            once(**options)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=match):
            asyncio.run(once_async(**options))  # type: ignore[arg-type]
    os.close(read)
    os.close(write)
    with deadstop.Boundary() as boundary, pytest.raises(UsageError, match=r"deadstop\.run\(effect"):
        boundary.run(["true"], effect=ONCE)  # type: ignore[call-arg]
    assert ledger.list() == []
    assert lines() == []
    assert deadstop.run(["true"], effect="none").effect == "none"
    assert asyncio.run(deadstop.run_async(["true"], effect="undeclared")).effect == "undeclared"


def test_what_is_redacted_is_written_down_nowhere(tmp_path: Path) -> None:
    effect = Effect(redact=["argv", "env", "stdin"], target="{cwd}")
    secret = "s3cr3t-0f-y0urs"
    result = once(f": {secret}; {LINE}", effect=effect, env={"TOKEN": secret}, stdin=secret, cwd=tmp_path, key=secret)
    assert (result.effect, op(result)["target"]) == ("applied", str(tmp_path))
    again = once(f": other; {LINE}", effect=effect, env={"TOKEN": "other"}, stdin="other", cwd=tmp_path, key=secret)
    assert (again.effect, again.environment) == ("applied", "nothing was started")
    for file in tmp_path.glob("ledger.db*"):
        assert secret.encode() not in file.read_bytes()


def test_what_nothing_can_look_up_is_said_once() -> None:
    def twice() -> None:
        for key in "ab":
            deadstop.run(["true"], effect=ONCE, tool="a tool of its own", key=key)

    with pytest.warns(UserWarning, match="stays unknown") as told:
        twice()
    assert [each.filename for each in told] == [__file__]
