# SPDX-License-Identifier: Apache-2.0
"""Commands made within a task draw on its budget, and what it refuses never starts."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import pytest
from asking import ask

import hosts
from hosts import Host

HOSTS = hosts.each_kind()

BUDGET = """
from deadstop.budget import Task, current

# Every start of a command leaves one line here: that nothing was started is seen, not believed.
STARTS = os.path.abspath("starts-" + os.urandom(4).hex())
def starts():
    return len(open(STARTS).readlines()) if os.path.exists(STARTS) else 0
def counted(then):
    return ["bash", "-c", f"echo x >> {STARTS}; {then}"]
def short(r):
    return [str(r.status), r.reason, r.exit_code, r.hint]
"""


def within(host: Host, text: str, *arguments: str) -> Any:
    return ask(host, BUDGET + dedent(text), *arguments)


def test_the_same_command_failing_again_and_again_is_refused(host: Host) -> None:
    got = within(
        host,
        """
        with Task(repeat_limit=2, steps=10) as task:
            results = [run(counted("exit 3")) for _ in range(3)]
            after = starts()
            other = run(counted("exit 0"), cwd="/")
            told = task.for_model()
        tell(ends=[short(r) for r in results], after=after, message=results[2].error["message"],
             environment=results[2].environment, other=other.ok, left=task.left().steps, told=told,
             ids=[r.task_id == task.task_id for r in results], model=results[1].for_model(),
             outside=run(counted("exit 3")).task_id)
        """,
    )
    words = (
        "this same call has failed 2 times in a row; made again it will be refused: "
        "change the arguments or do something else"
    )
    assert got["ends"] == [
        ["completed", None, 3, None],
        ["completed", None, 3, words],
        ["refused", "policy", None, "change the arguments or do something else"],
    ]
    assert got["after"] == 2, "the third was started"
    assert got["message"] == "this same call has failed 2 of 2 times that the task allows in a row"
    assert got["environment"] == "nothing was started"
    assert (got["other"], got["left"], got["ids"], got["outside"]) == (True, 7, [True] * 3, None)
    assert "the same call keeps failing: bash (2 times in a row)" in got["told"]
    assert f"hint: {words}" in got["model"]


def test_every_face_draws_on_the_same_task(host: Host) -> None:
    """run, run_async and a kept boundary; each of them refuses, and starts nothing, when the steps are over."""
    got = within(
        host,
        """
        async def in_loop(boundary=None):
            return await (boundary.run_async if boundary else run_async)(counted("exit 0"))
        with Boundary() as boundary, Task(steps=4) as task:
            def each():
                return [run(counted("exit 0")), asyncio.run(in_loop()), boundary.run(counted("exit 0")),
                        asyncio.run(in_loop(boundary))]
            first, second = each(), each()
            last = starts()
        tell(first=[r.ok for r in first], second=[short(r)[:2] for r in second], starts=last,
             messages=sorted({r.error["message"] for r in second}),
             ids={r.task_id for r in first + second} == {task.task_id}, kinds=sorted({r.error["type"] for r in second}))
        """,
    )
    assert got["first"] == [True] * 4
    assert got["second"] == [["refused", "budget"]] * 4
    assert got["starts"] == 4
    assert got["messages"] == ["the task's budget is used up: 4 of 4 steps"]
    assert (got["ids"], got["kinds"]) == (True, ["ToolRefusedError"])


def test_the_same_failing_command_is_recognised_by_every_face(host: Host) -> None:
    got = within(
        host,
        """
        async def in_loop():
            return await run_async(counted("exit 3"))
        with Boundary() as boundary, Task(repeat_limit=3):
            results = [run(counted("exit 3")), asyncio.run(in_loop()), boundary.run(counted("exit 3")),
                       asyncio.run(in_loop()), boundary.run(counted("exit 3")), run(counted("exit 3"))]
        tell(ends=[short(r)[:3] for r in results], starts=starts(), hints=[bool(r.hint) for r in results])
        """,
    )
    assert got["ends"] == [["completed", None, 3]] * 3 + [["refused", "policy", None]] * 3
    assert got["starts"] == 3
    assert got["hints"] == [False, True, True, True, True, True]


@pytest.mark.alone
def test_a_command_ends_with_the_wall_clock_of_its_task(host: Host) -> None:
    got = within(
        host,
        """
        run(["true"])
        with Task(wall_clock=0.7) as task:
            time.sleep(0.2)
            began = time.monotonic()
            r = run(["bash", "-c", "echo $DEADSTOP_DEADLINE; sleep 30"], timeout=10, grace=0, env=MARKED)
            took = time.monotonic() - began
            late = run(counted("exit 0"), timeout=10)
            text = r.for_model()
        left = marked()
        clean_up()
        tell(took=took, left=left, status=r.status, limit=[r.limit.which, r.limit.seconds, r.limit.source],
             message=r.error["message"], given=abs(float(r.stdout.tail) - task.end) < 0.001, text=text,
             late=short(late)[:2], late_limit=late.limit.which, late_message=late.error["message"], starts=starts(),
             same=[r.task_id == task.task_id, late.task_id == task.task_id])
        """,
    )
    assert 0.3 <= got["took"] < 1.0
    assert got["left"] == []
    assert (got["status"], got["limit"]) == ("timeout", ["task", 0.7, "inherited"])
    assert got["message"] == "timed out: the 700ms of its task were over"
    assert got["given"], "a nested deadstop would not end before it"
    assert "left of the task's budget: 0ms" in got["text"]
    assert (got["late"], got["late_limit"], got["starts"]) == (["refused", "budget"], "task", 0)
    assert got["late_message"].startswith("the task's budget is used up: wall clock over by ")
    assert got["late_message"].endswith(" of 0.7s)")
    assert got["same"] == [True, True]


def test_the_nearer_of_a_call_a_block_and_a_task_ends_it(host: Host) -> None:
    got = within(
        host,
        """
        def ended(timeout, block, clock):
            with Task(wall_clock=clock) as task, deadstop.deadline(block):
                r = run(["sleep", "20"], timeout=timeout, grace=0)
                return [r.limit.which, r.limit.seconds]
        with Task(wall_clock=0.1) as over:
            time.sleep(0.11)
        tell(call=ended(0.2, 9, 9), block=ended(9, 0.2, 9), task=ended(9, 9, 0.2),
             nested=deadstop.remaining() is None)
        """,
    )
    assert got == {"call": ["call", 0.2], "block": ["parent", 0.2], "task": ["task", 0.2], "nested": True}


def test_a_deadline_that_is_over_takes_no_step_and_says_whose_it_was(one_host: Host) -> None:
    got = within(
        one_host,
        """
        with Task(wall_clock=60, steps=5) as task:
            with deadstop.deadline(0.001):
                time.sleep(0.01)
                block = run(counted("exit 0"))
        with Task(wall_clock=0.001, steps=5) as short_task:
            time.sleep(0.01)
            own = run(counted("exit 0"))
        tell(block=short(block)[:2], own=short(own)[:2], left=[task.left().steps, short_task.left().steps],
             starts=starts())
        """,
    )
    assert got == {
        "block": ["refused", "deadline_over"],
        "own": ["refused", "budget"],
        "left": [5, 5],
        "starts": 0,
    }


def test_what_is_not_started_or_was_cancelled_does_not_count(one_host: Host) -> None:
    got = within(
        one_host,
        """
        async def cancelled():
            mine = asyncio.ensure_future(run_async(hanging))
            await asyncio.sleep(0)
            until(lambda: starts() == 2)
            mine.cancel()
            try:
                await mine
            except asyncio.CancelledError:
                return "cancelled"
        hanging = counted("sleep 20")
        stopped = CancelToken(); stopped.set()
        with Task(steps=10, repeat_limit=1) as task:
            early = run(hanging, cancel=stopped)
            told = [short(early)[:2]]
            after_token = task.left().steps
            try:
                run(["bash", 5])
            except deadstop.UsageError:
                told.append("usage")
            after_usage = task.left().steps
            token = CancelToken()
            thread, got = in_thread(lambda: until(lambda: starts() == 1) and token.set())
            told.append(short(run(hanging, cancel=token))[:2])
            thread.join(10)
            told.append(asyncio.run(cancelled()))
            boundary = Boundary()
            boundary.kill()
            told.append(short(boundary.run(counted("exit 1")))[:2])
            steps = task.left().steps
            with Boundary() as boundary:
                boundary.run(["sleep", "20"], timeout=0.2, grace=0)
                late = [boundary.run(counted("exit 1")) for _ in range(2)]
            told += [short(r)[:2] for r in late]
            ids = {r.task_id for r in (early, *late)} == {task.task_id}
            after_late = task.left().steps
            again = run(hanging, timeout=0.3, grace=0)
        tell(told=told, steps=[after_token, after_usage, steps, after_late], again=again.status, ids=ids)
        """,
    )
    assert got["told"] == [
        ["cancelled", "caller"],
        "usage",
        ["cancelled", "caller"],
        "cancelled",
        *[["refused", "policy"]] * 3,
    ]
    assert got["steps"] == [10, 10, 8, 7], "of those that were ended from outside two had started, then one more"
    assert got["ids"]
    assert got["again"] == "timeout", "it was counted as failed"


def test_what_makes_a_command_the_same_call(one_host: Host) -> None:
    """Arguments, folder, environment, input and limits; not the call's own name for itself in the results."""
    got = within(
        one_host,
        """
        reading, writing = os.pipe()
        os.close(writing)
        def repeats(*variants):
            with Task(repeat_limit=1):
                return [run(["bash", "-c", "exit 3"], **options).status == "refused" for options in variants]
        tell(
            same=repeats({}, {}, {"tail": 100}, {"on_output": print}),
            folder=repeats({"cwd": "/"}, {"cwd": "/tmp"}, {"cwd": "/"}),
            environment=repeats({"env": {"A": "1", "B": "2"}}, {"env": {"A": "2"}}, {"env": {"B": "2", "A": "1"}}),
            input=repeats({"stdin": b"a"}, {"stdin": b"b"}, {"stdin": b"a"}),
            limits=repeats({"timeout": 5}, {"timeout": 9}, {"timeout": 5}),
            long=repeats({"stdin": b"a" * 2_000_000}, {"stdin": b"a" * 2_000_000}),
            descriptor=repeats({"stdin": reading}, {"stdin": reading}),
        )
        """,
    )
    assert got == {
        "same": [False, True, True, True],
        "folder": [False, False, True],
        "environment": [False, False, True],
        "input": [False, False, True],
        "limits": [False, False, True],
        "long": [False, False],
        "descriptor": [False, False],
    }


def test_words_about_repetition_do_not_hide_what_was_diagnosed(one_host: Host) -> None:
    got = within(
        one_host,
        """
        asking = ["bash", "-c", "read -p 'Proceed? ' answer < <(sleep 20)"]
        with Task():
            first, second = [run(asking, timeout=0.6, grace=0) for _ in range(2)]
        diagnosis = second.evidence.diagnosis
        tell(first=first.for_model(), second=second.for_model(), base=second.hint,
             diagnosis=diagnosis and (diagnosis.hint or diagnosis.detail))
        """,
    )
    assert got["diagnosis"]
    words = "this same call has failed 2 times in a row; if nothing it depends on has changed, "
    assert got["base"].endswith(f"; {words}change the arguments or do something else")
    assert len(got["base"]) > 130, "the diagnosis is gone from the hint"
    assert "hint: " in got["first"] and "failed 2 times" in got["second"]


def test_twenty_threads_start_exactly_as_many_commands_as_there_are_steps(one_host: Host) -> None:
    got = within(
        one_host,
        """
        task = Task(steps=12)
        def mine(number):
            with task, Task(steps=3) as sub:
                return [run(counted(f"exit {number % 2}")) for _ in range(2)]
        running = [in_thread(mine, number) for number in range(20)]
        for thread, _ in running:
            thread.join(40)
        results = [r for _, [pair] in running for r in pair]
        tell(started=sum(r.status == "completed" for r in results), refused=sum(r.reason == "budget" for r in results),
             starts=starts(), left=task.left().steps)
        """,
    )
    assert got == {"started": 12, "refused": 28, "starts": 12, "left": 0}


def test_a_saved_task_goes_on_in_another_process(one_host: Host) -> None:
    saving = """
        with Task(wall_clock=60, steps=3, repeat_limit=2, tokens=100) as task:
            for _ in range(2):
                run(["bash", "-c", "exit 3"])
            task.use(tokens=40)
        tell(saved=task.save(), id=task.task_id)
        """
    first = within(one_host, saving)
    got = within(
        one_host,
        """
        with Task.resume(sys.argv[1]) as task:
            before = task.left()
            results = [run(["bash", "-c", "exit 3"]), run(counted("exit 0")), run(counted("exit 0"))]
        tell(ends=[short(r)[:2] for r in results], id=task.task_id, starts=starts(),
             left=[before.wall_clock_s, before.steps, before.tokens])
        """,
        first["saved"],
    )
    assert got["id"] == first["id"]
    assert got["ends"] == [["refused", "policy"], ["completed", None], ["refused", "budget"]]
    assert got["starts"] == 1
    assert 40 < got["left"][0] < 60 and got["left"][1:] == [1, 60]


def test_a_nested_deadstop_ends_before_the_task_of_its_parent(one_host: Host) -> None:
    got = within(
        one_host,
        """
        inner = [sys.executable, "-m", "deadstop", "run", "--json", "--", "sleep", "20"]
        with Task(wall_clock=1.5):
            r = run(inner, timeout=20)
        tell(status=r.status, code=r.exit_code, limit=json.loads(r.stdout.tail)["limit"]["which"])
        """,
    )
    assert got == {"status": "completed", "code": 124, "limit": "parent"}
