# SPDX-License-Identifier: Apache-2.0
"""Calls of tools with effects: what the authority has, what the ledger says, and what the caller is told agree."""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import effect_tools as tools
import pytest

import deadstop
from deadstop import Call, Effect, OutcomeUnknown, Status, UsageError
from deadstop.executor.declared import UnansweredEffect
from deadstop.executor.kept import KeptWorker
from deadstop.ledger import ledger as ledgers
from deadstop.ledger.ledger import Ledger

HERE = str(Path(__file__).parent)


def python(code: str) -> int:
    """The exit status of another process that runs this."""
    path = {**os.environ, "PYTHONPATH": str(Path(deadstop.__file__).parent.parent)}
    return subprocess.run([sys.executable, "-c", code], cwd=HERE, env=path, timeout=30).returncode


@pytest.fixture(autouse=True)
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    monkeypatch.setenv("DEADSTOP_LEDGER", str(tmp_path / "ledger.db"))
    monkeypatch.setenv("EFFECTS", str(tmp_path / "effects"))
    monkeypatch.setattr(ledgers, "_default", None)
    made = ledgers.default()
    yield made
    made.close()


def pay(amount: int = 5, how: str = "ok", **options) -> deadstop.ToolResult:
    return deadstop.call(Call(tools.pay_tool, amount, how).options(**options))


def test_what_is_done_is_applied_and_its_operation_in_the_result(ledger) -> None:
    result = pay()
    assert (result.status, result.effect, result.retry_allowed) == (Status.COMPLETED, "applied", False)
    assert result.operation["state"] == "SUCCEEDED"
    assert result.operation["target"] == "account 5"
    assert tools.lines() == [result.operation["key"]]
    assert ledger.get(result.operation["id"]).state == "SUCCEEDED"
    again = deadstop.ToolResult.from_dict(result.to_dict())
    assert again.operation == result.operation


@pytest.mark.parametrize(
    ("how", "status", "seen"),
    [
        ("raise", "error", "ack lost"), ("hang after", "timeout", "timed out"), ("hang before", "timeout", "timed out"),
        ("die", "crashed", ""), ("exit", "crashed", ""),
    ],
)  # fmt: skip
def test_a_lost_end_is_unknown_and_is_not_sent_again(ledger, how, status, seen) -> None:
    """Whatever the loop above does: also where the payload had not come as far as its effect, which nobody knows."""
    options = {"timeout": 0.5} if "hang" in how else {}
    first = pay(how=how, **options)
    assert (first.status, first.effect, first.retry_allowed) == (status, "unknown", False)
    with pytest.raises(OutcomeUnknown):
        first.unwrap()
    (attempt,) = ledger.attempts(first.operation["id"])
    assert attempt.outcome == "UNKNOWN"
    assert seen in attempt.observation
    if "hang" in how:
        assert attempt.receipt["survivors"] == 0
    for _ in range(3):
        again = pay(**options)
        assert (again.status, again.operation["id"]) == (Status.UNKNOWN, first.operation["id"])
        with pytest.raises(OutcomeUnknown):
            again.unwrap()
    assert len(tools.lines()) == (how != "hang before")
    assert "do not retry" in again.for_model()
    assert first.operation["id"] in again.for_model()


@pytest.mark.filterwarnings("ignore:tool 'blindly'")
def test_a_tool_that_must_not_be_run_again_is_not(ledger) -> None:
    """Case 80: three tries of a loop, one effect; and that nobody can be asked is said at once."""
    tool = deadstop.tool(tools.blindly, timeout=5, effect=Effect(fingerprint=["amount"], reconcile=None))
    results = [tool.call(7, "raise") for _ in range(3)]
    assert tools.lines() == ["7"]
    assert [each.effect for each in results] == ["unknown"] * 3
    assert results[1].operation["state"] == "NEEDS_HUMAN"
    assert "deadstop ops show" in results[1].hint


def test_what_was_surely_not_sent_is_sent_by_the_next_call(ledger) -> None:
    first = pay(how="not sent")
    assert (first.status, first.effect, first.retry_allowed) == (Status.ERROR, "not_applied", True)
    second = pay()
    assert second.value["attempt"] == 2
    assert second.operation["key"] == first.operation["key"]
    assert len(tools.lines()) == 1


def test_a_refusal_is_an_answer(ledger) -> None:
    result = pay(how="rejected")
    assert (result.effect, result.operation["state"], result.retry_allowed) == ("not_applied", "FAILED", False)
    assert result.operation["reference"] == "err_1"
    assert tools.lines() == []


def test_a_call_that_never_started_has_sent_nothing(ledger) -> None:
    token = deadstop.CancelToken()
    token.set()
    assert pay(cancel=token).status is Status.CANCELLED
    assert ledger.list() == []  # not even an intent
    unpicklable = deadstop.call(Call(tools.pay_tool, 5, threading.Lock()))
    assert (unpicklable.status, unpicklable.effect, unpicklable.retry_allowed) == (Status.REFUSED, "not_applied", True)


def test_a_key_of_the_programs_own_binds_over_time_and_processes(ledger) -> None:
    first = pay(key="run_42/9")
    assert pay(key="run_42/9").value == first.value
    other = pay(6, key="run_42/9")
    assert (other.status, other.reason) == (Status.REFUSED, "key_conflict")
    code = (
        "import effect_tools as t, deadstop\n"
        "r = deadstop.call(deadstop.Call(t.pay_tool, 5).options(key='run_42/9'))\n"
        f"assert r.ok and r.operation['id'] == {first.operation['id']!r}, r"
    )
    assert python(code) == 0
    assert len(tools.lines()) == 1
    assert pay(key="run_42/10").operation["id"] != first.operation["id"]


def test_without_a_key_it_binds_as_long_as_the_run_or_the_open_operation(ledger) -> None:
    pay(), pay()
    assert len(tools.lines()) == 2  # two intents
    with deadstop.acting(correlation="run_7", asked_by="anna", authorised_by="policy 3"):
        one, two = pay(), pay()
    assert two.operation["id"] == one.operation["id"]
    assert "already done" in two.hint
    assert len(tools.lines()) == 3
    with deadstop.Task(steps=9):
        assert pay().operation["id"] == pay().operation["id"]
    trail = {entry.kind: entry.body for entry in ledger.trail(one.operation["id"])}
    assert "policy 3" in trail["authz.decision"]
    assert '"asked_by":"anna"' in trail["intent"]
    assert "policy 3" not in trail["settled"]


def test_many_threads_with_one_key_have_one_effect_and_one_answer(ledger) -> None:
    found: list[deadstop.ToolResult] = []
    threads = [threading.Thread(target=lambda: found.append(pay(key="k"))) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)
    assert len(tools.lines()) == 1
    assert [each.value for each in found] == [found[0].value] * 8


def test_every_way_to_call_goes_through_the_ledger(ledger) -> None:
    async def course() -> None:
        assert (await tools.pay_tool.call_async(1)).effect == "applied"
        assert await tools.async_tool(2) == 2
        assert (await deadstop.call_async(tools.async_tool, 3)).effect == "applied"

    asyncio.run(course())
    assert [each.effect for each in deadstop.batch([Call(tools.pay_tool, 4), Call(tools.pay_tool, 5)], parallel=2)] == [
        "applied"
    ] * 2
    worker = KeptWorker(tools.pay_tool)
    assert worker.run(Call(tools.pay_tool, 6)).effect == "applied"
    worker.close()
    inline = tools.pay_tool.with_options(isolation="inline")
    assert inline.call(7).effect == "applied"
    assert tools.pay_tool(8)["paid"] == 8
    assert len(tools.lines()) == len(ledger.list()) == 8
    with pytest.raises(UsageError, match="race"):
        deadstop.race([Call(tools.pay_tool, 1), Call(tools.pay_tool, 2)])


def test_cancelling_an_async_call_leaves_it_unknown(ledger) -> None:
    async def course() -> None:
        running = asyncio.ensure_future(deadstop.call_async(tools.pay_tool, 5, "hang after"))
        while not tools.lines():
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(course())
    (record,) = ledger.list()
    assert record.state == "UNKNOWN"
    assert len(tools.lines()) == 1


def test_a_caller_that_is_killed_leaves_an_unknown_operation(ledger) -> None:
    code = (
        "import effect_tools as t, deadstop, threading, os\n"
        "def end():\n"
        "    while not t.lines(): pass\n"
        "    os.kill(os.getpid(), 9)\n"
        "threading.Thread(target=end, daemon=True).start()\n"
        "deadstop.call(deadstop.Call(t.pay_tool, 5, 'hang after').options(key='k'))"
    )
    assert python(code) == -9
    result = pay(key="k")  # at once: that its holder is gone can be seen
    assert (result.status, result.effect, result.operation["state"]) == (Status.UNKNOWN, "unknown", "UNKNOWN")
    assert len(tools.lines()) == 1


def test_without_a_ledger_nothing_is_run(ledger, monkeypatch, tmp_path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DEADSTOP_LEDGER", str(tmp_path / "file" / "ledger.db"))
    monkeypatch.setattr(ledgers, "_default", None)
    with pytest.raises(deadstop.LedgerUnavailable):
        pay()
    assert tools.lines() == []


def test_an_end_that_cannot_be_written_down_is_unknown(ledger, monkeypatch) -> None:
    """The effect is there and the answer was seen; but a success that could be forgotten is none."""
    finish = Ledger.finish

    def full(self, claim, outcome):
        self.store.close()
        return finish(self, claim, outcome)

    monkeypatch.setattr(Ledger, "finish", full)
    result = pay()
    assert (result.status, result.effect, result.value) == (Status.UNKNOWN, "unknown", None)
    assert len(tools.lines()) == 1


def test_the_operation_is_nobody_elses_to_give(ledger) -> None:
    assert str(inspect.signature(tools.pay_tool)) == "(amount: 'int', how: 'str' = 'ok') -> 'dict[str, object]'"
    for bad in ({"op": "op_of_another"}, {"amont": 5}):
        with pytest.raises(UsageError):
            deadstop.call(tools.pay_tool, 5, **bad)
    with pytest.raises(UsageError):
        tools.pay_tool.call(5, "ok", "one too many")
    assert ledger.list() == []


def test_a_declaration_that_does_not_fit_is_refused_when_it_is_made() -> None:
    with pytest.raises(UsageError, match="no parameter 'amuont'"):
        deadstop.tool(tools.pay, timeout=1, effect=Effect(fingerprint=["amuont"]))
    with pytest.raises(UsageError, match="neither"):
        deadstop.tool(tools.pay, timeout=1, effect=5)
    unlimited = deadstop.tool(tools.pay, timeout=None, effect=tools.SAFE)
    with pytest.raises(UsageError, match="limit"):
        unlimited.call(5)


def test_questions_without_an_answer_are_told_once_when_it_is_registered() -> None:
    def send(to: str) -> None: ...

    with pytest.warns(UnansweredEffect, match="looked up nowhere") as told:
        deadstop.tool(send, timeout=1, name="told_once", effect=Effect(fingerprint=["to"])).with_options(timeout=2)
    assert len(told) == 1
    assert told[0].filename == __file__


def test_errors_that_say_what_they_know_survive_the_way_home() -> None:
    sent = deadstop.NotSent("x", phase="connect", retry_after=3.0)
    back = pickle.loads(pickle.dumps(sent))
    assert (type(back), str(back), back.phase, back.retry_after) == (deadstop.NotSent, "x", "connect", 3.0)


def test_a_forked_child_opens_a_ledger_of_its_own(ledger) -> None:
    pid = os.fork()
    if pid == 0:
        ok = False
        try:
            ok = ledgers.default() is not ledger and pay(9).effect == "applied"
        finally:
            os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert pay().effect == "applied"
    assert len(ledger.list()) == 2
