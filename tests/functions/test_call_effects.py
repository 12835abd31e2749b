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
import time
import typing
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import effect_tools as tools
import pytest

import deadstop
from deadstop import Call, Effect, OutcomeUnknown, Status, UsageError
from deadstop.compat.praisonai import ToolTimeoutError, wrap_with_timeout
from deadstop.executor import effects, function, function_async
from deadstop.executor.declared import UnansweredEffect
from deadstop.executor.kept import KeptWorker
from deadstop.ledger import ledger as ledgers
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.records import Outcome
from deadstop.ledger.states import State

HERE = str(Path(__file__).parent)


def python(code: str) -> int:
    """The exit status of another process that runs this."""
    path = {**os.environ, "PYTHONPATH": str(Path(deadstop.__file__).parent.parent)}
    return subprocess.run([sys.executable, "-c", code], cwd=HERE, env=path, timeout=30).returncode


@pytest.fixture(autouse=True)
def ledger(own_ledger: Ledger) -> Ledger:
    return own_ledger


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


def test_the_ledger_is_the_one_that_is_named_now(ledger, monkeypatch, tmp_path) -> None:
    """As in a test suite that gives each test its own."""
    assert pay(key="k").effect == "applied"
    monkeypatch.setenv("DEADSTOP_LEDGER", str(tmp_path / "other.db"))
    assert (pay(key="k").effect, len(tools.lines())) == ("applied", 2)
    with Ledger.open(str(tmp_path / "other.db")) as other:
        assert [each.state for each in other.list()] == ["SUCCEEDED"]
    monkeypatch.setenv("DEADSTOP_LEDGER", ledger.store.where)
    assert (pay(key="k").operation["id"], len(tools.lines())) == (ledger.list()[0].op_id, 2)


@pytest.mark.parametrize("place", ["ledger.db", "~/ledger.db", "../ledger.db"])
def test_a_ledger_that_would_be_another_one_in_each_folder_is_refused(ledger, monkeypatch, place) -> None:
    monkeypatch.setenv("DEADSTOP_LEDGER", place)
    with pytest.raises(UsageError, match="not an absolute path"):
        pay()
    assert tools.lines() == []


def test_a_ledger_that_would_end_with_its_sandbox_is_refused(ledger, monkeypatch) -> None:
    monkeypatch.delenv("DEADSTOP_LEDGER")
    monkeypatch.setenv("DEADSTOP_SANDBOX", "1")
    with pytest.raises(deadstop.LedgerUnavailable, match="no lasting ledger"):
        pay()
    assert tools.lines() == []


def test_without_a_ledger_nothing_is_run(ledger, monkeypatch, tmp_path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DEADSTOP_LEDGER", str(tmp_path / "file" / "ledger.db"))
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


def test_a_wrapper_does_not_lose_the_effect_and_no_hint_names_the_operation(ledger) -> None:
    assert "op" not in typing.get_type_hints(tools.pay_tool) and "amount" in typing.get_type_hints(tools.pay_tool)
    with pytest.raises(UsageError, match="has effects"):
        deadstop.tool(tools.pay_tool, timeout=3)
    limited = wrap_with_timeout(tools.pay_tool, 3)
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            limited(5, "raise")
    assert len(tools.lines()) == len(ledger.list()) == 1


@pytest.mark.parametrize("run", [lambda: deadstop.acting(correlation="run-42"), lambda: deadstop.Task()])
def test_a_run_reaches_the_calls_that_its_calls_make(ledger, run) -> None:
    with run() as task:
        names = {tools.step(5) for _ in range(2)}
    assert names == {"run-42" if task is None else task.task_id}
    assert len(tools.lines()) == len(ledger.list()) == 1


@pytest.mark.parametrize("how", ["not sent", "rejected"])
def test_what_another_operation_says_of_itself_says_nothing_of_the_one_around_it(ledger, how) -> None:
    for _ in range(2):
        result = deadstop.call(Call(tools.within, 5, how).options(key="outer"))
        assert (result.effect, result.retry_allowed) == ("unknown", False)
    assert tools.lines() == [result.operation["key"]]
    inner = next(each for each in ledger.list() if each.op_id != result.operation["id"])
    assert inner.state == ("PREPARED" if how == "not sent" else "FAILED")


def test_a_timeout_told_to_a_model_says_what_became_of_the_effect(ledger) -> None:
    limited = wrap_with_timeout(tools.pay_tool, 0.5)
    with pytest.raises(ToolTimeoutError, match="do not send it again") as raised:
        limited(5, "hang after")
    assert raised.value.result.operation["id"] in str(raised.value)
    with pytest.raises(OutcomeUnknown):
        limited(5, "hang after")
    assert len(tools.lines()) == len(ledger.list()) == 1


def test_a_declaration_that_does_not_fit_is_refused_when_it_is_made() -> None:
    with pytest.raises(UsageError, match="no parameter 'amuont'"):
        deadstop.tool(tools.pay, timeout=1, effect=Effect(fingerprint=["amuont"]))
    with pytest.raises(UsageError, match="neither"):
        deadstop.tool(tools.pay, timeout=1, effect=5)
    unlimited = deadstop.tool(tools.pay, timeout=None, effect=tools.SAFE)
    with pytest.raises(UsageError, match="limit"):
        unlimited.call(5)


def test_what_could_not_be_kept_is_said_when_it_is_declared() -> None:
    def in_steps(op: deadstop.Operation) -> Iterator[int]:
        yield 1

    with pytest.raises(UsageError, match="generator"):
        deadstop.tool(in_steps, timeout=1, effect=Effect())

    def without_a_key(amount: int) -> None: ...

    with pytest.warns(UnansweredEffect, match="cannot send the key"):
        deadstop.tool(without_a_key, timeout=1, effect=Effect(retry="same_key_safe", key_ttl=60))


def test_an_argument_that_cannot_be_told_apart_is_named() -> None:
    with pytest.raises(UsageError, match=r"argument 'amount' \(Decimal\)"):
        pay(Decimal("1.50"))
    assert tools.lines() == []


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


def test_what_a_callback_raises_does_not_say_that_nothing_was_sent(ledger) -> None:
    """Not even where it is an error that deadstop itself raises before anything runs."""

    def broken(progress) -> None:
        raise UsageError("the callback's own")

    for _ in range(2):
        try:
            result = deadstop.call(Call(tools.telling_tool, 5).options(on_progress=broken))
        except UsageError:
            result = None
    assert result.operation["state"] == "UNKNOWN"
    assert len(tools.lines()) == 1


def test_an_error_of_a_sandbox_does_not_say_that_nothing_was_sent(ledger) -> None:
    class Lost:
        def run_function(self, asked):
            tools.pay(*asked.args, **asked.kwargs)
            raise deadstop.SandboxError("the server is gone")

    with pytest.raises(deadstop.SandboxError):
        pay(sandbox=Lost())
    assert ledger.list()[0].state == "UNKNOWN"
    assert pay().effect == "unknown"
    assert len(tools.lines()) == 1


def test_who_was_stopped_after_his_claim_and_lost_it_sends_nothing(ledger, monkeypatch) -> None:
    """As by SIGSTOP or a machine that slept: when he goes on, the operation is another's."""
    monkeypatch.setattr(effects, "MARGIN_S", 0.1)
    begin, opened = Ledger.begin, []

    def stopped(self, intent, lease_s):
        found = begin(self, intent, lease_s)
        if not opened:
            opened.append(found)
            while not self.sweep():
                pass
            self.settle(self.take(found.record.op_id, force=True), deadstop.Finding(deadstop.Verdict.DEFINITELY_ABSENT))
        return found

    monkeypatch.setattr(Ledger, "begin", stopped)
    for each in (pay, lambda **options: asyncio.run(deadstop.call_async(Call(tools.pay_tool, 5).options(**options)))):
        opened.clear()
        result = each(timeout=0.1)
        assert (result.status, result.operation["state"]) == (Status.UNKNOWN, "PREPARED")
        assert tools.lines() == []


@pytest.mark.parametrize("how", ["blocking", "async", "inline"])
def test_who_was_stopped_while_he_waited_for_a_worker_and_lost_his_claim_sends_nothing(
    ledger, monkeypatch, how
) -> None:
    monkeypatch.setattr(effects, "MARGIN_S", 0.1)
    module, name = {
        "blocking": (function, "launch"), "async": (function_async, "launch"), "inline": (function, "run_inline")
    }[how]  # fmt: skip
    go = getattr(module, name)

    def stopped(*given):
        while not ledger.sweep():
            pass
        (record,) = ledger.list()
        absent = deadstop.Finding(deadstop.Verdict.DEFINITELY_ABSENT)
        ledger.settle(ledger.take(record.op_id, force=True), absent)
        return go(*given)

    monkeypatch.setattr(module, name, stopped)
    asked = Call(tools.pay_tool, 5).options(timeout=0.1, **({"isolation": "inline"} if how == "inline" else {}))
    result = asyncio.run(deadstop.call_async(asked)) if how == "async" else deadstop.call(asked)
    assert tools.lines() == []
    assert (result.status, result.operation["state"], result.effect) == (Status.UNKNOWN, "PREPARED", "not_applied")


def test_who_answers_late_is_told_what_is_known_meanwhile(ledger, monkeypatch) -> None:
    finish = Ledger.finish

    def overtaken(self, claim, outcome):
        finish(self, claim, Outcome(State.UNKNOWN))
        self.settle(self.take(claim.op_id, force=True), deadstop.Finding(deadstop.Verdict.APPLIED))
        return finish(self, claim, outcome)

    monkeypatch.setattr(Ledger, "finish", overtaken)
    result = pay()
    assert (result.status, result.effect, result.operation["state"]) == (Status.COMPLETED, "applied", "SUCCEEDED")


def test_whatever_happens_after_the_effect_its_caller_gets_a_result(ledger, monkeypatch) -> None:
    def broken(self, claim, outcome):
        raise TypeError("nobody expected this")

    monkeypatch.setattr(Ledger, "finish", broken)
    assert pay().effect == "unknown"
    assert len(tools.lines()) == 1


def test_many_that_wait_on_one_loop_do_not_keep_up_the_one_they_wait_for(ledger) -> None:
    async def course() -> list[deadstop.ToolResult]:
        calls = [deadstop.call_async(Call(tools.pay_tool, 5).options(key="k")) for _ in range(40)]
        return await asyncio.wait_for(asyncio.gather(*calls), 4)

    assert {each.effect for each in asyncio.run(course())} == {"applied"}
    assert len(tools.lines()) == 1


def test_a_call_that_is_cancelled_while_its_operation_is_opened_has_sent_nothing(ledger, monkeypatch) -> None:
    """Also where its loop ends at once."""
    begin, begun = Ledger.begin, threading.Event()

    def slow(self, intent, lease_s):
        found = begin(self, intent, lease_s)
        begun.set()
        left.wait(5)
        return found

    left = threading.Event()
    monkeypatch.setattr(Ledger, "begin", slow)

    async def course() -> None:
        running = asyncio.ensure_future(deadstop.call_async(tools.pay_tool, 5))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(course())
    left.set()
    until = time.monotonic() + 5
    while ledger.list()[0].state == "DISPATCHING" and time.monotonic() < until:
        time.sleep(0.005)
    assert ledger.list()[0].state == "PREPARED"


def test_another_instance_is_another_effect(ledger) -> None:
    with deadstop.Task(steps=9):
        one, other = tools.Account("a").pay.call(5), tools.Account("b").pay.call(5)
    assert one.operation["id"] != other.operation["id"]
    assert tools.lines() == ["a", "b"]
    with pytest.raises(UsageError, match="instance"):
        deadstop.tool(tools.Account.pay.function, timeout=5, effect=Effect())


def test_odd_signatures_get_their_operation_and_no_argument_hides_another(ledger) -> None:
    odd = deadstop.tool(tools.odd, timeout=5, effect=tools.SAFE)
    assert odd(1) == (1, 3, "Operation", {})
    assert odd(1, 2, note=4) == (1, 2, "Operation", {"note": 4})
    with pytest.raises(UsageError, match="amount"):
        odd.call(1, amount=7)


def test_a_call_that_goes_on_without_its_caller_keeps_its_operation(ledger) -> None:
    first = tools.slow_tool.call(5)
    assert (first.effect, first.retry_allowed, first.operation["state"]) == ("unknown", False, "DISPATCHING")
    assert ledger.take(first.operation["id"], force=True) is None  # that it is absent yet would mean nothing
    again = tools.slow_tool.call(5)  # waits for it
    assert (again.effect, again.value, again.operation["id"]) == ("applied", 5, first.operation["id"])
    assert len(tools.lines()) == 1


def test_what_was_only_begun_is_not_applied(ledger) -> None:
    result = tools.deferred_tool.call(5)
    assert (result.status, result.effect, result.deferred is None) == (Status.UNKNOWN, "unknown", False)


def test_tools_are_told_apart_by_name_and_so_they_need_one() -> None:
    with pytest.raises(UsageError, match="name="):
        deadstop.tool(lambda amount: amount, timeout=1, effect=tools.SAFE)
    deadstop.tool(tools.pay, timeout=1, effect=tools.SAFE, name="one_name")
    with pytest.warns(UnansweredEffect, match="takes them for one"):
        deadstop.tool(tools.slow, timeout=1, effect=tools.SAFE, name="one_name")


class Cashier:
    @deadstop.tool(
        timeout=5, name="cashier", effect=Effect(fingerprint=["amount"], reconcile=tools.find, consistent=True)
    )
    def pay(self, op: deadstop.Operation, amount: int) -> str:
        return op.key


def test_a_method_shows_neither_itself_nor_the_operation() -> None:
    assert str(inspect.signature(Cashier().pay)) == "(amount: 'int') -> 'str'"


def test_a_batch_says_what_it_does_not_know_and_its_token_reaches_every_call(ledger) -> None:
    def angry(_) -> None:
        raise UsageError("not now")

    (result,) = deadstop.batch([Call(tools.telling_tool, 5).options(on_progress=angry)])
    assert (result.status, result.effect) == (Status.UNKNOWN, "unknown")
    whole, own = deadstop.CancelToken(), deadstop.CancelToken()
    threading.Timer(0.3, whole.set).start()
    (result,) = deadstop.batch([Call(tools.pay_tool, 6, "hang after").options(cancel=own)], cancel=whole)
    assert (result.status, result.effect) == (Status.CANCELLED, "unknown")
