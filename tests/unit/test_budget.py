# SPDX-License-Identifier: Apache-2.0
"""Budgets of a task: what is drawn, what is refused, what is left, and what survives a restart."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import pytest

from deadstop import budget, saving
from deadstop.budget import Left, Task, current, key_of, refused_result
from deadstop.clock import VirtualClock
from deadstop.deadlines import VARIABLE, deadline, entered, remaining, resolve
from deadstop.errors import InvalidLimit, UsageError
from deadstop.executor.admission import Admission
from deadstop.results import Diagnosis, Evidence, Output, Status, ToolResult

NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def no_outer_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def time() -> Iterator[VirtualClock]:
    with VirtualClock(1000.0) as clock:
        yield clock


class Host:
    """Stands for the clocks that a restart is measured with."""

    def __init__(self) -> None:
        self.wall, self.boot, self.boot_id = 1_700_000_000.0, 5000.0, "first"

    def passes(self, seconds: float) -> None:
        self.wall += seconds
        self.boot += seconds

    def restarts(self) -> None:
        self.boot, self.boot_id = 90_000.0, "second"


@pytest.fixture
def saved_on(monkeypatch: pytest.MonkeyPatch) -> Host:
    host = Host()
    monkeypatch.setattr("deadstop.saving.time.time", lambda: host.wall)
    monkeypatch.setattr(saving, "_since_boot", lambda: host.boot)
    monkeypatch.setattr(saving, "_boot_id", lambda: host.boot_id)
    return host


def refused(task: Task, tool: str = "bash", key: bytes | str | None = None) -> tuple[str, float, float]:
    refusal = task.admit(tool, key)
    assert refusal is not None
    return refusal.which, refusal.used, refusal.limit


# -- what is no budget -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["wall_clock", "cost"])
@pytest.mark.parametrize("bad", [0, -1, NAN, INF, -INF, True, "5", [], 1j])
def test_what_is_no_limit_is_refused(name: str, bad: object) -> None:
    with pytest.raises(InvalidLimit, match=f"^{name}") as caught:
        Task(**{name: bad})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["steps", "tokens", "repeat_limit"])
@pytest.mark.parametrize("bad", [0, -1, 1.0, NAN, INF, True, "5", [], 2**63, pytest.param(10**5000, id="huge")])
def test_what_is_no_count_is_refused(name: str, bad: object) -> None:
    with pytest.raises(InvalidLimit, match=f"^{name}"):
        Task(**{name: bad})  # type: ignore[arg-type]


def test_a_name_is_a_text() -> None:
    with pytest.raises(UsageError, match=r"^name"):
        Task(name=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["tokens", "steps"])
@pytest.mark.parametrize("bad", [-1, 1.5, NAN, True, False, "5", None, 2**63, pytest.param(10**5000, id="huge")])
def test_use_refuses_what_is_no_whole_amount_and_draws_nothing(name: str, bad: object) -> None:
    task = Task(tokens=10, cost=10, steps=10)
    with pytest.raises(UsageError, match=f"^{name}") as caught:
        task.use(cost=1.0, **{name: bad})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert task.left() == Left(None, 10, 10, 10.0)


@pytest.mark.parametrize("bad", [-0.5, NAN, INF, True, False, "5", None, 10**400])
def test_use_refuses_what_is_no_cost_and_draws_nothing(bad: object) -> None:
    task = Task(tokens=10, cost=10, steps=10)
    with pytest.raises(UsageError, match=r"^cost"):
        task.use(tokens=1, steps=1, cost=bad)  # type: ignore[arg-type]
    assert task.left() == Left(None, 10, 10, 10.0)


def test_use_takes_zero_and_other_real_numbers() -> None:
    task = Task(cost=1)
    task.use(tokens=0, cost=0, steps=0)
    task.use(cost=Fraction(1, 4))  # type: ignore[arg-type]
    assert task.left().cost == 0.75


# -- drawing -----------------------------------------------------------------------------------------------------------


def test_a_task_without_limits_refuses_nothing() -> None:
    task = Task()
    assert task.task_id.startswith("task_") and task.task_id != Task().task_id
    assert [task.admit("bash", b"k") for _ in range(50)] == [None] * 50
    task.use(tokens=10**9, cost=10**9, steps=10**9)
    assert task.admit("bash") is None
    assert (task.end, task.left()) == (None, Left(None, None, None, None))


def test_steps_are_counted_and_then_refused_by_how_much() -> None:
    task = Task(steps=25)
    assert [task.admit("bash") for _ in range(25)] == [None] * 25
    assert refused(task) == ("steps", 25, 25)
    refusal = task.admit("bash")
    assert refusal and refusal.message == "the task's budget is used up: 25 of 25 steps"
    task.use(steps=2)
    refusal = task.admit("bash")
    assert refusal and refusal.message == "the task's budget is used up: steps over by 2 (27 of 25)"
    assert task.left().steps == 0


def test_tokens_may_be_reported_over_their_limit() -> None:
    task = Task(tokens=200_000)
    task.use(tokens=199_999)
    assert task.admit("bash") is None
    task.use(tokens=313)
    assert refused(task) == ("tokens", 200_312, 200_000)
    refusal = task.used_up()
    assert refusal and refusal.message == "the task's budget is used up: tokens over by 312 (200312 of 200000)"


def test_cost_is_used_up_exactly_although_floats_are_not_exact() -> None:
    task = Task(cost=1.0)
    for _ in range(9):
        task.use(cost=0.1)
    assert task.admit("bash") is None
    task.use(cost=0.1)
    assert task.left().cost == 0
    refusal = task.admit("bash")
    assert refusal and refusal.message == "the task's budget is used up: 1 of 1 cost"
    task.use(cost=0.12)
    refusal = task.admit("bash")
    assert refusal and refusal.message == "the task's budget is used up: cost over by 0.12 (1.12 of 1)"


def test_the_wall_clock_begins_when_the_task_is_made(time: VirtualClock) -> None:
    task = Task(wall_clock=600)
    assert task.end == 1600.0
    time.advance(599)
    with task:
        assert task.left().wall_clock_s == 1.0
        assert task.admit("bash") is None
        time.advance(1)
        assert refused(task) == ("wall_clock", 600, 600)
        time.advance(2.5)
        refusal = task.admit("bash")
    assert refusal
    assert refusal.message == "the task's budget is used up: wall clock over by 2.5s (602.5s of 600s)"
    assert (task.end, task.left().wall_clock_s) == (1600.0, 0.0)


def test_a_step_that_was_not_needed_is_given_back() -> None:
    task = Task(steps=1)
    assert task.admit("bash") is None
    task.give_back()
    assert task.admit("bash") is None
    assert refused(task)[0] == "steps"


def test_huge_numbers_stay_short_and_can_be_saved() -> None:
    task = Task(wall_clock=1e300, tokens=2**63 - 1, cost=1e300)
    for _ in range(3):
        task.use(tokens=2**63 - 1, cost=1e308, steps=2**63 - 1)
    assert task.admit("bash") is not None
    assert len(task.for_model()) < 400
    assert Task.resume(task.save()).left().tokens == 0


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads change places so often that an unguarded count goes wrong."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(threads: int, body: Callable[[], None]) -> None:
    ready = threading.Barrier(threads)

    def run() -> None:
        ready.wait(10)
        body()

    running = [threading.Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(30)
    assert not any(thread.is_alive() for thread in running)


def test_twenty_threads_never_take_more_steps_than_there_are(hurried: None) -> None:
    with Task(steps=900) as outer:
        inner = [Task(steps=500), Task(steps=10_000)]
    admitted: list[int] = []
    turn = iter(range(20))

    def take() -> None:
        mine = next(turn) % 2
        with inner[mine]:
            for _ in range(100):
                if current().admit("bash") is None:  # type: ignore[union-attr]
                    admitted.append(mine)

    at_once(20, take)
    assert len(admitted) == 900
    assert admitted.count(0) <= 500
    assert outer.left().steps == 0
    assert inner[0]._used["steps"] == admitted.count(0) and inner[1]._used["steps"] == admitted.count(1)


def test_reports_of_twenty_threads_are_all_counted(hurried: None) -> None:
    task = Task(tokens=1_000_000, steps=1_000_000, cost=1_000_000)

    def report() -> None:
        for _ in range(200):
            task.use(tokens=3, steps=1, cost=0.5)

    at_once(20, report)
    assert task.left() == Left(None, 1_000_000 - 4000, 1_000_000 - 12_000, 998_000.0)


def test_a_forked_child_does_not_wait_for_a_lock_that_another_thread_held() -> None:
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with budget._lock:
            held.set()
            release.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(10)
    pid = os.fork()
    if pid == 0:
        import signal

        signal.alarm(10)
        os._exit(0 if Task(steps=1).admit("bash") is None else 1)
    release.set()
    holder.join(10)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# -- blocks and sub-tasks ----------------------------------------------------------------------------------------------


def test_the_innermost_entered_task_is_current() -> None:
    assert current() is None
    with Task() as outer:
        assert current() is outer
        with Task() as inner:
            assert current() is inner
            with outer:
                assert current() is outer
            assert current() is inner
        assert current() is outer
        with outer:
            assert current() is outer
        assert current() is outer
    assert current() is None


def test_a_block_is_left_also_by_an_exception_and_from_another_context() -> None:
    with pytest.raises(RuntimeError), Task():
        raise RuntimeError
    assert current() is None
    task = Task()
    task.__enter__()
    other = threading.Thread(target=task.__exit__)
    other.start()
    other.join(10)
    assert current() is task
    task.__exit__()
    task.__exit__()
    assert entered.get() == ()


def test_threads_enter_for_themselves_and_async_tasks_inherit() -> None:
    seen: list[Task | None] = []
    task = Task(steps=10)

    def in_thread() -> None:
        seen.append(current())
        with task:
            seen.append(current())
            assert task.admit("bash") is None

    async def ask() -> Task | None:
        await asyncio.sleep(0)
        task.admit("bash")
        return current()

    async def own() -> int | None:
        with Task(steps=3) as sub:
            await asyncio.sleep(0)
            sub.admit("bash")
            await asyncio.sleep(0)
            assert current() is sub
            return sub.left().steps

    async def all_of_them() -> list[Any]:
        return list(await asyncio.gather(ask(), own(), ask(), own()))

    with task:
        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join(10)
        assert asyncio.run(all_of_them()) == [task, 2, task, 2]
        assert current() is task
    assert seen == [None, task]
    assert task.left().steps == 5


def test_a_subtask_draws_on_all_outer_tasks_or_on_none() -> None:
    with Task(steps=10, tokens=1000, cost=5) as outer, Task(steps=4, tokens=400) as middle:
        inner = Task(steps=8, name="inner")
    assert [inner.admit("bash") for _ in range(4)] == [None] * 4
    inner.use(tokens=100, cost=1.5)
    assert inner.left() == Left(None, 0, 300, 3.5)
    refusal = inner.admit("bash")
    assert refusal and refusal.message == "the budget of the outer task is used up: 4 of 4 steps"
    assert (refusal.limit, refusal.used, refusal.task_id) == (4, 4, inner.task_id)
    assert [task.left().steps for task in (outer, middle)] == [6, 0]
    assert inner._used["steps"] == 4


def test_an_outer_task_is_called_by_its_name() -> None:
    with Task(tokens=5, name="nightly\n\x1b[31mrun"):
        inner = Task()
    inner.use(tokens=6)
    refusal = inner.admit("bash")
    assert refusal
    words = "the budget of the outer task 'nightly run' is used up: tokens over by 1 (6 of 5)"
    assert refusal.message == words


def test_a_subtask_ends_no_later_than_its_parent(time: VirtualClock) -> None:
    with Task(wall_clock=10) as outer:
        time.advance(4)
        long, short, none = Task(wall_clock=600), Task(wall_clock=2), Task()
    assert [task.end for task in (outer, long, short, none)] == [1010.0, 1010.0, 1006.0, 1010.0]
    assert [task.end_seconds for task in (outer, long, short, none)] == [10, 10, 2, 10]
    assert [task.left().wall_clock_s for task in (long, short, none)] == [6, 2, 6]
    time.advance(6)
    refusal = none.admit("bash")
    assert refusal and refusal.message == "the budget of the outer task is used up: 10s of 10s wall clock"
    assert refused(long)[2] == 10 and refused(short) == ("wall_clock", 6, 2)


def test_a_task_that_would_not_draw_on_the_one_around_it_is_refused() -> None:
    stranger = Task(steps=5)
    with Task(steps=5) as outer:
        first, second = Task(), Task()
        with pytest.raises(UsageError, match="made outside of the one it is entered in"), stranger:
            pytest.fail("the block was entered")
        with first, pytest.raises(UsageError), second:
            pytest.fail("the block was entered")
        with first, outer, first:
            assert current() is first
    with stranger:
        assert current() is stranger


def test_a_task_is_not_pickled_or_copied() -> None:
    for move in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="save"):
            move(Task())


# -- deadlines ---------------------------------------------------------------------------------------------------------


def test_calls_and_remaining_are_clamped_to_the_task(time: VirtualClock) -> None:
    with Task(wall_clock=5.0) as task:
        time.advance(1.0)
        assert remaining() == 4.0
        end, hard_end, limit = resolve(60.0, "given")
        assert (end, hard_end) == (task.end, None)
        assert limit and (limit.which, limit.seconds, limit.source) == ("task", 5.0, "inherited")
        assert resolve(None, "given")[0] == 1005.0
        end, _, limit = resolve(2.0, "given")
        assert end == 1003.0 and limit and limit.which == "call"
        with deadline(3.0):
            assert remaining() == 3.0
            end, _, limit = resolve(None, "given")
            assert end == 1004.0 and limit and limit.which == "parent"
        with Task(wall_clock=60.0), deadline(30.0):
            assert remaining() == 4.0
            end, _, limit = resolve(10.0, "given")
            assert end == 1005.0 and limit and (limit.which, limit.seconds) == ("task", 5.0)
        time.advance(10.0)
        assert remaining() == 0.0
    assert remaining() is None
    assert resolve(None, "given") == (None, None, None)


def test_a_task_without_a_wall_clock_is_no_deadline(time: VirtualClock) -> None:
    with Task(steps=3):
        assert remaining() is None
        assert resolve(None, "given") == (None, None, None)


# -- the same call again -----------------------------------------------------------------------------------------------


def test_a_failing_call_is_counted_told_and_refused() -> None:
    task = Task(repeat_limit=3, steps=20)
    words = []
    for _ in range(3):
        assert task.admit("bash", b"key") is None
        words.append(task.note("bash", b"key", failed=True))
    assert words == [
        None,
        "this same call has failed 2 times in a row; if nothing it depends on has changed, "
        "change the arguments or do something else",
        "this same call has failed 3 times in a row; made again it will be refused: "
        "change the arguments or do something else",
    ]
    refusal = task.admit("bash", b"key")
    assert refusal and (refusal.which, refusal.used, refusal.limit) == ("repeat", 3, 3)
    assert refusal.message == "this same call has failed 3 of 3 times that the task allows in a row"
    assert task.admit("bash", b"other") is None
    assert task.admit("python", b"key") is None
    assert task.admit("bash", None) is None
    assert task.left().steps == 14, "a refused call takes no step"
    assert refused(task, key=b"key")[1] == 3, "a refused call does not fail once more"


def test_a_success_in_between_begins_anew() -> None:
    task = Task(repeat_limit=2)
    for failed in (True, False, True):
        assert task.admit("bash", "key") is None
        assert task.note("bash", "key", failed) is None
    assert task.admit("bash", "key") is None


def test_other_calls_in_between_do_not_hide_a_repetition() -> None:
    task = Task(repeat_limit=2)
    for key in ("a", "b", "a", "b"):
        assert task.admit("bash", key) is None
        task.note("bash", key, failed=True)
    assert [refused(task, key=key)[0] for key in ("a", "b")] == ["repeat", "repeat"]


def test_without_a_repeat_limit_it_is_only_told() -> None:
    task = Task()
    for times in range(1, 30):
        assert task.admit("bash", b"key") is None
        words = task.note("bash", b"key", failed=True)
        assert (words is None) if times < 2 else f"failed {times} times" in words  # type: ignore[operator]


def test_a_call_without_a_key_is_not_compared() -> None:
    task = Task(repeat_limit=1)
    for _ in range(5):
        assert task.admit("bash", None) is None
        assert task.note("bash", None, failed=True) is None


def test_repetitions_in_new_subtasks_are_seen_by_the_outer_task() -> None:
    words = []
    with Task(repeat_limit=3) as outer:
        for _ in range(3):
            with Task() as attempt:
                assert attempt.admit("bash", b"key") is None
                words.append(attempt.note("bash", b"key", failed=True))
        last = Task()
    assert words[0] is None and words[2] is not None and "failed 3 times" in words[2] and "will be refused" in words[2]
    assert refused(last, key=b"key")[0] == "repeat"
    assert last.admit("bash", b"other") is None
    last.note("bash", b"key", failed=False)
    assert outer.admit("bash", b"key") is None


def test_the_counts_are_bounded_and_the_last_failures_stay() -> None:
    task = Task(repeat_limit=2)
    for number in range(1000):
        task.note("x" * 10_000, f"{number}" * 1000, failed=True)
        task.note("bash", b"steady", failed=True)
    assert len(task._failing) == budget.KEPT_FAILURES
    assert refused(task, key=b"steady")[:2] == ("repeat", 1000)
    assert len(task.save()) < 40_000


def test_a_key_is_the_same_only_for_the_same_parts() -> None:
    assert key_of("a", b"b") == key_of(b"a", "b") != key_of("ab") != key_of("", "ab")
    assert key_of("a", "b") != key_of("b", "a")
    assert len(key_of("\udc80" * 100_000)) == 16


# -- what is told ------------------------------------------------------------------------------------------------------


def test_for_model_tells_what_is_left_what_is_gone_and_what_keeps_failing(time: VirtualClock) -> None:
    task = Task(wall_clock=600, steps=25, tokens=200_000, cost=2.5)
    assert task.for_model() == (
        "left of the task's budget: 600s of 600s wall clock, 25 of 25 steps, 200000 of 200000 tokens, 2.5 of 2.5 cost"
    )
    time.advance(348.16)
    task.use(tokens=200_312, cost=1.3, steps=13)
    for _ in range(3):
        task.note("bash\n\x1b[1mforged", b"1", failed=True)
    task.note("python", b"2", failed=True)
    assert task.for_model().split("\n") == [
        "left of the task's budget: 251.8s of 600s wall clock, 12 of 25 steps, 1.2 of 2.5 cost",
        "used up: tokens over by 312 (200312 of 200000); "
        "no further call will be started in this task: finish with what there is",
        "the same call keeps failing: bash forged (3 times in a row)",
    ]
    assert Task().for_model() == "the task has no limits of its own"


def test_for_model_of_a_subtask_tells_the_least(time: VirtualClock) -> None:
    with Task(wall_clock=60, steps=5):
        inner = Task(wall_clock=600, steps=3)
    assert inner.for_model() == "left of the task's budget: 60s of 60s wall clock, 3 of 3 steps"


def test_a_result_tells_what_is_left_of_the_current_task(time: VirtualClock) -> None:
    result = ToolResult(tool="bash", status=Status.COMPLETED, exit_code=0, stdout=Output(b"hi", 2))
    with Task(wall_clock=90, steps=3) as task:
        task.admit("bash")
        time.advance(30.5)
        assert result.for_model().endswith("\nleft of the task's budget: 59.5s, 2 steps")
        assert result.for_model(steps_left=7).endswith("\nleft of the task's budget: 59.5s, 7 steps")
    assert "budget" not in result.for_model()
    with Task(tokens=5):
        assert "budget" not in result.for_model()


def test_a_refusal_as_a_result(time: VirtualClock) -> None:
    task = Task(steps=1, wall_clock=600, repeat_limit=1)
    task.admit("bash")
    refusal = task.admit("bash")
    assert refusal
    result = refused_result(refusal, "bash", "call_1")
    assert (result.status, result.reason, result.task_id) == (Status.REFUSED, "budget", task.task_id)
    assert (result.call_id, result.environment, result.limit) == ("call_1", "nothing was started", None)
    assert result.error and result.error["message"] == "the task's budget is used up: 1 of 1 steps"
    assert "25" not in result.for_model() and "used up: 1 of 1 steps" in result.for_model()
    assert ToolResult.from_dict(result.to_dict()).to_dict() == result.to_dict()
    time.advance(601)
    refusal = task.admit("bash")
    assert refusal
    limit = refused_result(refusal, "bash").limit
    assert limit and (limit.which, limit.seconds, limit.source) == ("task", 600, "inherited")


def test_a_repeated_call_is_refused_by_a_rule_not_by_the_budget() -> None:
    task = Task(repeat_limit=1)
    task.note("bash", b"key", failed=True)
    refusal = task.admit("bash", b"key")
    assert refusal
    result = refused_result(refusal, "bash")
    assert (result.reason, result.hint) == ("policy", "change the arguments or do something else")


def ended(**what: Any) -> ToolResult:
    return ToolResult(tool="bash", **{"status": Status.COMPLETED, "exit_code": 3, **what})


def settled_twice(result: ToolResult) -> ToolResult:
    with Task() as task:
        for _ in range(2):
            admission = Admission()
            assert admission.refusal("bash", "call_1", lambda: b"key") is None
            settled = admission.settled(result)
            assert settled.task_id == task.task_id
    return settled


def test_words_about_repetition_are_added_to_what_the_result_says_already() -> None:
    diagnosed = Evidence(Diagnosis("cpu_spin", "pid 4 spins", hint="profile it"))
    words = "this same call has failed 2 times in a row; if nothing it depends on has changed, "
    words += "change the arguments or do something else"
    assert settled_twice(ended()).hint == words
    assert settled_twice(ended(hint="read the log")).hint == f"read the log; {words}"
    assert settled_twice(ended(evidence=diagnosed)).hint == f"profile it; {words}"
    assert settled_twice(ended(exit_code=0, hint="read the log")).hint == "read the log"


@pytest.mark.parametrize("reason", ["caller", "race_lost", "owner_gone", "shutdown", "token_error", "input_wait"])
def test_of_the_cancelled_calls_only_one_that_waited_for_input_has_failed(reason: str) -> None:
    result = settled_twice(ended(status=Status.CANCELLED, reason=reason, exit_code=None))
    assert bool(result.hint) is (reason == "input_wait")


def test_outside_of_a_task_a_result_stays_what_it_is() -> None:
    result = ended()
    admission = Admission()
    assert admission.refusal("bash", "call_1", lambda: pytest.fail("a key was made")) is None
    assert admission.settled(result) is result


# -- save and resume ---------------------------------------------------------------------------------------------------


def test_a_resumed_task_is_the_same_task(time: VirtualClock, saved_on: Host) -> None:
    task = Task(wall_clock=600, steps=5, tokens=100, cost=2.5, repeat_limit=2, name="nightly")
    task.admit("bash", b"key")
    task.note("bash", b"key", failed=True)
    task.note("bash", b"key", failed=True)
    task.use(tokens=130, cost=0.5, steps=1)
    time.advance(100)
    text = task.save()
    assert json.loads(text)["schema"] == "deadstop.task/1"
    time.advance(10_000)
    saved_on.passes(50)
    again = Task.resume(text)
    assert (again.task_id, again.name, again.repeat_limit) == (task.task_id, "nightly", 2)
    assert again.left() == Left(450.0, 3, 0, 2.0)
    assert again.end == time.now + 450 and again.end_seconds == 600
    refusal = again.admit("bash")
    assert refusal and refusal.message.endswith("tokens over by 30 (130 of 100)")
    repeat = again._repeated(budget._digest("bash", b"key"))
    assert repeat and repeat.used == 2
    assert Task.resume(again.save()).left() == again.left()


def test_the_restarted_clock_is_not_a_new_one(time: VirtualClock, saved_on: Host) -> None:
    text = Task(wall_clock=60).save()
    saved_on.passes(59)
    assert Task.resume(text).left().wall_clock_s == 1.0
    saved_on.passes(4)
    task = Task.resume(text)
    assert task.left().wall_clock_s == 0
    refusal = task.admit("bash")
    assert refusal and refusal.message == "the task's budget is used up: wall clock over by 3s (63s of 60s)"
    saved_on.passes(2)
    again = Task.resume(task.save())
    assert refused(again) == ("wall_clock", 63, 60), "saved and resumed when it was over already"


def test_on_the_same_boot_the_wall_clock_does_not_matter(time: VirtualClock, saved_on: Host) -> None:
    text = Task(wall_clock=60).save()
    saved_on.passes(10)
    for moved in (-100_000, 100_000):
        saved_on.wall += moved
        assert Task.resume(text).left().wall_clock_s == 50


def test_after_a_restart_of_the_host_the_wall_clock_is_used_and_never_gives_more(
    time: VirtualClock, saved_on: Host
) -> None:
    text = Task(wall_clock=60).save()
    saved_on.passes(10)
    saved_on.restarts()
    assert Task.resume(text).left().wall_clock_s == 50
    saved_on.wall -= 100_000
    assert Task.resume(text).left().wall_clock_s == 60
    saved_on.boot_id = ""
    assert Task.resume(text).left().wall_clock_s == 60


def test_a_boot_clock_that_was_set_back_is_not_believed(time: VirtualClock, saved_on: Host) -> None:
    """A container may have a boot clock of its own with the same boot id."""
    text = Task(wall_clock=60).save()
    saved_on.passes(10)
    saved_on.boot = 1.0
    assert Task.resume(text).left().wall_clock_s == 50


def test_the_real_clocks_of_this_host() -> None:
    task = Task.resume(Task(wall_clock=60, steps=3).save())
    left = task.left().wall_clock_s
    assert left is not None and 50 < left <= 60
    assert len(saving._boot_id()) == 36 and saving._since_boot() > 0


def test_a_resumed_task_draws_on_the_one_it_is_resumed_in(time: VirtualClock, saved_on: Host) -> None:
    with Task(wall_clock=500, steps=7):
        inner = Task(wall_clock=100, steps=50)
        text = inner.save()
    assert Task.resume(text).left() == Left(100, 50, None, None), "only its own numbers are saved"
    with Task(wall_clock=30, steps=2):
        again = Task.resume(text)
    assert again.left() == Left(30, 2, None, None)
    assert [again.admit("bash"), again.admit("bash")] == [None, None]
    assert refused(again) == ("steps", 2, 2)


def resealed(text: str, **changes: object) -> str:
    """As somebody who knows the format would change it."""
    document = {**json.loads(text), **changes}
    document.pop("check")
    return json.dumps({**document, "check": saving._check(document)})


def test_what_is_no_saved_task_is_refused() -> None:
    text = Task(steps=5, wall_clock=60).save()
    cases: list[Any] = ["", "{}", "[]", "null", "7", "soon", text[:-1], text.replace('"steps": 5', '"steps": 500')]
    cases += [text.encode(), None, 7, "[" * 100_000, text + " {}", text.replace("deadstop.task/1", "deadstop.result/1")]
    for case in cases:
        with pytest.raises(UsageError) as caught:
            Task.resume(case)
        assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match=r"'deadstop\.task/2'; this version reads deadstop\.task/1"):
        Task.resume(resealed(text, schema="deadstop.task/2"))


@pytest.mark.parametrize(
    "changes",
    [
        {"limits": {"steps": -5}},
        {"limits": {"speed": 5}},
        {"limits": None},
        {"used": {"steps": -5, "tokens": 0, "cost": 0.0}},
        {"used": {"steps": 5}},
        {"left_s": None},
        {"left_s": "sixty"},
        {"task_id": 7},
        {"name": 7},
        {"failing": [["a"]]},
        {"failing": [["a", "bash", -1]]},
        {"failing": [[f"{n}", "bash", 1] for n in range(101)]},
        {"saved_at": "soon"},
        {"saved_at": None},
        {"boot": []},
        {"boot": None},
        {"boot": [saving._boot_id(), "soon"]},
    ],
)
def test_values_that_no_task_has_are_refused(changes: dict[str, object]) -> None:
    text = Task(steps=5, wall_clock=60).save()
    assert Task.resume(resealed(text)).left().steps == 5
    with pytest.raises(UsageError):
        Task.resume(resealed(text, **changes))


def test_more_time_than_the_limit_is_not_given() -> None:
    text = Task(wall_clock=60).save()
    left = Task.resume(resealed(text, left_s=1e9)).left().wall_clock_s
    assert left is not None and left <= 60
