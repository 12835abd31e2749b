# SPDX-License-Identifier: Apache-2.0
"""`deadstop.run(effect=...)`: whatever ends it, never twice under one key, and honest about what is not known."""

from __future__ import annotations

import asyncio
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import deadstop
from deadstop import OutcomeUnknown, Status, UsageError

pytest.importorskip("rfc8785")
pytest.importorskip("cryptography")

from effect_commands import AGAIN, LINE, TWICE, both, lines, once, once_async, op, other_process

from deadstop.errors import LedgerUnavailable
from deadstop.executor import run_effect as api
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.records import Outcome
from deadstop.ledger.states import State
from deadstop.testing import crash_at

pytestmark = pytest.mark.filterwarnings("ignore:tool 'bash")


@pytest.fixture(autouse=True)
def ledger(own_ledger: Ledger) -> Ledger:
    return own_ledger


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_kill_leaves_it_unknown_with_its_receipt_and_nothing_is_sent_again(
    ledger: Ledger, asynchronous: bool
) -> None:
    lost = both(f"{LINE}; sleep 60", asynchronous, timeout=0.5)
    assert (lost.status, lost.effect, lost.retry_allowed) == (Status.TIMEOUT, "unknown", False)
    (attempt,) = ledger.attempts(op(lost)["id"])
    assert (attempt.outcome, attempt.certain) == ("UNKNOWN", False)
    assert attempt.receipt is not None
    assert attempt.receipt["survivors"] == 0
    with pytest.raises(OutcomeUnknown):
        lost.unwrap()
    again = both(f"{LINE}; sleep 60", asynchronous, timeout=5)
    assert (again.status, op(again)["id"]) == (Status.UNKNOWN, op(lost)["id"])
    assert "deadstop ops show" in str(again.hint)
    assert len(lines()) == 1


@pytest.mark.parametrize(
    ("script", "effect", "state"),
    [(f"{LINE}; exit 3", "unknown", "UNKNOWN"), ("exit 2", "not_applied", "FAILED"),
     (f"{LINE}; kill -9 $$", "unknown", "UNKNOWN")],
)  # fmt: skip
def test_only_its_own_word_says_that_it_failed(ledger: Ledger, script: str, effect: str, state: str) -> None:
    result = once(script, failed_exit=[2])
    own = {"exit 2": (Status.COMPLETED, 2), f"{LINE}; exit 3": (Status.COMPLETED, 3)}.get(
        script, (Status.SIGNALED, None)
    )
    assert (result.effect, result.status, result.exit_code) == (effect, *own)
    (attempt,) = ledger.attempts(op(result)["id"])
    assert attempt.outcome == state
    assert once(script, failed_exit=[2]).environment == "nothing was started"
    assert not once(script, failed_exit=[2]).ok


@pytest.mark.parametrize("asynchronous", [False, True])
def test_without_a_ledger_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    monkeypatch.setenv("DEADSTOP_LEDGER", str(tmp_path / "effects" / "is" / "no" / "folder" / "x"))
    (tmp_path / "effects").touch()
    with deadstop.Task(steps=1) as task:
        with pytest.raises(LedgerUnavailable):
            both(LINE, asynchronous)
        assert task.left().steps == 1
    assert lines() == []


def test_processes_with_one_key_give_one_effect() -> None:
    several = [other_process(TWICE) for _ in range(3)]
    assert [each.wait(30) for each in several] == [0, 0, 0]
    assert len(lines()) == 1


def test_a_process_that_dies_leaves_it_unknown(ledger: Ledger) -> None:
    """Its command ends with it. Another process sees that it is gone, and that nobody knows how far it came."""
    code = TWICE.replace("sleep 0.3", "sleep 60").replace("timeout=20", "timeout=30")
    dying = other_process(code)
    end = threading.Event()
    for _ in range(2000):
        if lines():
            break
        end.wait(0.01)
    assert len(lines()) == 1
    dying.send_signal(signal.SIGKILL)
    dying.wait(10)
    again = once(f"{LINE}; sleep 60")
    assert (again.status, again.effect, again.environment) == (Status.UNKNOWN, "unknown", "nothing was started")
    assert len(lines()) == 1


@pytest.mark.parametrize(
    ("point", "effects", "known"),
    [("submit.before_commit", 1, "applied"), ("claim.committed", 0, "unknown"),
     ("finish.in_transaction", 1, "unknown"), ("finish.committed", 1, "applied")],
)  # fmt: skip
def test_a_death_at_any_place_leaves_one_effect_or_a_question(point: str, effects: int, known: str) -> None:
    code = TWICE.replace("sleep 0.3", "true")
    assert other_process(code, **crash_at(point)).wait(30) == -signal.SIGKILL
    again = once(f"{LINE}; true")
    assert (again.effect, len(lines())) == (known, effects)


def test_a_cancelled_task_leaves_it_unknown_with_its_receipt(ledger: Ledger) -> None:
    async def cancelled() -> None:
        seen = asyncio.Event()
        running = asyncio.create_task(once_async(f"{LINE}; echo; sleep 60", on_output=lambda *_: seen.set()))
        await asyncio.wait_for(seen.wait(), 20)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancelled())
    (record,) = ledger.list()
    (attempt,) = ledger.attempts(record.op_id)
    assert (attempt.outcome, attempt.certain) == ("UNKNOWN", False)
    assert attempt.receipt is not None
    assert attempt.receipt["survivors"] == 0
    assert once(f"{LINE}; echo; sleep 60").status is Status.UNKNOWN
    assert len(lines()) == 1


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_observer_that_raises_does_not_unsend_it(ledger: Ledger, asynchronous: bool) -> None:
    def angry(*_: object) -> None:
        raise UsageError("not now")

    with pytest.raises(UsageError, match="not now"):
        both(f"{LINE}; echo; sleep 60", asynchronous, on_output=angry, effect=AGAIN)
    (record,) = ledger.list()
    assert ledger.attempts(record.op_id)[0].outcome == "UNKNOWN"
    assert both(f"{LINE}; echo; sleep 60", asynchronous, effect=AGAIN).environment == "nothing was started"
    assert len(lines()) == 1


def test_a_token_ends_it_and_leaves_it_unknown() -> None:
    token = deadstop.CancelToken()
    result = once(f"{LINE}; echo; sleep 60", cancel=token, on_output=lambda *_: token.set())
    assert (result.status, result.effect) == (Status.CANCELLED, "unknown")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_token_that_comes_before_the_start_leaves_it_unsent(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    token, begin = deadstop.CancelToken(), Ledger.begin
    monkeypatch.setattr(Ledger, "begin", lambda *given: (begin(*given), token.set())[0])
    result = both(LINE, asynchronous, cancel=token, effect=AGAIN)
    assert (result.status, result.effect, result.retry_allowed) == (Status.CANCELLED, "not_applied", True)
    assert lines() == []


@pytest.mark.parametrize("asynchronous", [False, True])
def test_nothing_is_started_under_a_lease_that_is_over(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    """As after a pause of the whole process: somebody else has settled the operation meanwhile."""
    start = api.Asked._start

    def stopped_before(asked: Any, under: Any) -> Any:
        ledger.finish(under.effected.claim, Outcome(State.UNKNOWN, certain=False, observation="taken over"))
        under.lease.renew()
        return start(asked, under)

    monkeypatch.setattr(api.Asked, "_start", stopped_before)
    result = both(LINE, asynchronous)
    assert (result.effect, result.environment) == ("unknown", "nothing was started")
    assert lines() == []


def test_the_loop_goes_on_while_another_run_is_waited_for() -> None:
    async def two() -> tuple[list[deadstop.ToolResult], int]:
        turns, over = 0, False

        async def count() -> None:
            nonlocal turns
            while not over:
                turns += 1
                await asyncio.sleep(0.01)

        counting = asyncio.create_task(count())
        results = await asyncio.gather(*(once_async(f"{LINE}; sleep 0.4") for _ in range(3)))
        over = True
        await counting
        return list(results), turns

    results, turns = asyncio.run(two())
    assert [each.effect for each in results] == ["applied"] * 3
    assert sorted(each.environment == "nothing was started" for each in results) == [False, True, True]
    assert len(lines()) == 1
    assert turns >= 10


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_token_ends_the_waiting_for_another_run_too(ledger: Ledger, asynchronous: bool) -> None:
    first, second = deadstop.CancelToken(), deadstop.CancelToken()
    seen = threading.Event()
    script = f"{LINE}; echo; sleep 60"
    options: dict[str, Any] = {"cancel": first, "on_output": lambda *_: seen.set()}
    running = threading.Thread(target=once, args=(script,), kwargs=options)
    running.start()
    try:
        assert seen.wait(20)
        threading.Timer(0.1, second.set).start()
        waited = both(script, asynchronous, cancel=second)
        assert (waited.status, waited.effect, waited.environment) == (Status.UNKNOWN, "unknown", "nothing was started")
        assert "is being sent by another run" in str(waited.error)
        assert ledger.get(op(waited)["id"]).state is State.DISPATCHING
    finally:
        first.set()
        running.join(20)
    assert len(lines()) == 1
