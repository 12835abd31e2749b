# SPDX-License-Identifier: Apache-2.0
"""Sessions: what stays from run to run, what ends one, and what its answers say."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import deadstop
from deadstop.errors import CapacityError, NotAllowed, NotFound, SandboxEnded, SandboxPaused
from deadstop.results import Status
from deadstop.sandbox.host import Host
from deadstop.sandbox.sessions import LOST, Session, SessionAnswer, Sessions
from deadstop.sandbox.settings import Settings
from deadstop.sandbox.wishes import Wish

CASES = Path(__file__).parent.parent / "cases" / "inputs"
Code = str | tuple[str, float]


@pytest.fixture(scope="module")
def state() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="deadstop-test-") as folder:
        yield folder


@asynccontextmanager
async def place(state: str) -> AsyncIterator[Any]:
    """A sandbox of a server that is only there for this."""
    host = await Host.start(Settings(state=state, layers="folder"))
    try:
        yield await host.create(Wish(ttl_s=50.0))
    finally:
        await host.close()


def within(state: str, scenario: Callable[[Any, Sessions], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with place(state) as sandbox:
            return await scenario(sandbox, Sessions(sandbox))

    return asyncio.run(run())


def runs(state: str, language: str, *codes: Code) -> list[SessionAnswer]:
    """The answers of one session, asked one thing after another."""

    async def scenario(sandbox: Any, sessions: Sessions) -> list[SessionAnswer]:
        session = await sessions.open(language)
        return [await session.run(*(each if isinstance(each, tuple) else (each, 8.0))) for each in codes]

    found: list[SessionAnswer] = within(state, scenario)
    return found


def shown(answer: SessionAnswer) -> list[str]:
    return [each["data"] for each in answer.results]


# -- Python ----------------------------------------------------------------------------------------------------------


def test_python_keeps_its_state_and_shows_the_last_value(state: str) -> None:
    set_up, value, nothing, last, empty = runs(state, "python", "x = [1]\nx.append(2)", "x", "x = 5", "_", "")
    assert set_up.exit == 0 and set_up.results == () and set_up.error is None
    assert value.results == ({"type": "text/plain", "data": "[1, 2]"},)
    assert nothing.results == () and shown(last) == ["[1, 2]"] and empty.exit == 0
    assert {each.generation for each in (set_up, value, last)} == {1} and not value.session_ended
    assert value.result.status is Status.COMPLETED and value.result.exit_code == 0


def test_python_output_of_every_kind_is_captured_per_run(state: str) -> None:
    code = """
import ctypes, os, subprocess, sys
print("printed \u00e9")
print("aside", file=sys.stderr)
ctypes.CDLL(None).printf(b"native\\n")
subprocess.run(["sh", "-c", "echo child; echo child aside >&2"])
os.write(1, b"\\xff\\n")
"""
    answer, after = runs(state, "python", code, "1")
    assert sorted(answer.stdout.split("\n")) == sorted(["printed é", "native", "child", "\ufffd", ""])
    assert answer.stderr == "aside\nchild aside\n"
    assert after.stdout == after.stderr == after.background == ""


def test_python_errors_show_their_own_lines(state: str) -> None:
    raised, syntax, after = runs(state, "python", "def f():\n    return 1 / 0\nf()", "f(", "f.__name__")
    assert raised.exit == 1 and raised.error is not None and not raised.session_ended
    assert "ZeroDivisionError" in raised.error and "return 1 / 0" in raised.error and "deadstop" not in raised.error
    assert syntax.exit == 1 and "SyntaxError" in (syntax.error or "") and "deadstop" not in (syntax.error or "")
    assert shown(after) == ["'f'"]
    assert raised.result.status is Status.COMPLETED and raised.result.exit_code == 1


def test_python_exit_ends_the_run_and_not_the_session(state: str) -> None:
    three, none, text, quits, after = runs(
        state, "python", "x = 1\nimport sys\nsys.exit(3)", "sys.exit()", "sys.exit('why')", "exit()", "x, input"
    )
    assert [each.exit for each in (three, none, text, quits)] == [3, 0, 1, 0]
    assert three.error == "SystemExit: 3" and none.error is None and text.error == "SystemExit: why"
    assert not quits.session_ended and shown(after)[0].startswith("(1, ")


def test_python_input_is_at_its_end(state: str) -> None:
    asked, again = runs(state, "python", "input('name? ')", ("exit()\n", 3.0))
    assert asked.exit == 1 and "EOFError" in (asked.error or "") and asked.stdout == "name? "
    assert again.exit == 0


def test_python_awaits_at_the_top(state: str) -> None:
    first, second = runs(
        state, "python",
        "import asyncio\nasync def later(x):\n    await asyncio.sleep(0.01)\n    return x\nawait later(1)",
        "task = asyncio.ensure_future(later(2))\nawait task",
    )  # fmt: skip
    assert shown(first) == ["1"] and shown(second) == ["2"]


def test_python_shows_pictures_and_pages(state: str) -> None:
    code = """
class Rich:
    def __repr__(self): return "rich"
    def _repr_html_(self): return "<b>"
    def _repr_png_(self): return b"png"
class Bad:
    def __repr__(self): raise ValueError("no")
display(1)
Rich()"""
    rich, bad, long = runs(state, "python", code, "Bad()", "'x' * 2_000_000")
    kinds = ["text/plain", "text/plain", "text/html", "image/png"]
    assert [each["type"] for each in rich.results] == kinds and shown(rich) == ["1", "rich", "<b>", "cG5n"]
    assert bad.exit == 1 and "ValueError: no" in (bad.error or "")
    assert len(shown(long)[0]) < 1_100_000 and "more characters" in shown(long)[0]


@pytest.mark.parametrize(
    ("code", "exit_code", "status"),
    [
        ("import os\nprint('bye', flush=True)\nos._exit(4)", 4, Status.COMPLETED),
        ("import os, signal\nprint('bye', flush=True)\nos.kill(os.getpid(), signal.SIGSEGV)", 139, Status.SIGNALED),
        ("import os\nprint('bye', flush=True)\nos.closerange(3, 300)\nos.close(0)", None, None),
    ],
    ids=["_exit", "crash", "closes everything"],
)
def test_python_that_ends_itself_says_so_and_the_next_run_has_a_new_one(
    state: str, code: str, exit_code: int | None, status: Status | None
) -> None:
    _, gone, after, later = runs(state, "python", "x = 1", code, "'x' in globals()", "2")
    assert gone.session_ended and gone.error is not None and "its state is lost" in gone.error
    assert gone.stdout == "bye\n"
    assert exit_code is None or (gone.exit == exit_code and gone.result.status is status)
    assert shown(after) == ["False"] and after.generation == 2 and after.notes == (LOST,) and LOST in after.stderr
    assert after.result.degraded == (LOST,)
    assert shown(later) == ["2"] and later.notes == () and later.stderr == ""


def test_python_at_its_limit_is_interrupted_and_keeps_its_state(state: str) -> None:
    loop = "x = 7\ndef spin():\n    n = 0\n    while True:\n        n += 1\nprint('begun', flush=True)\nspin()"
    spun, slept, waited, after = runs(
        state, "python", (loop, 0.4), ("import time\ntime.sleep(60)", 0.3),
        ("import subprocess\nsubprocess.run(['sleep', '60'])", 0.3), "x",
    )  # fmt: skip
    for each in (spun, slept, waited):
        assert each.result.status is Status.TIMEOUT and not each.session_ended and each.exit == 130
        assert each.error is not None and each.error.startswith("timeout: ") and "keeps its state" in each.error
        assert each.result.limit is not None and each.result.limit.which == "call"
    assert spun.stdout == "begun\n" and 400 <= spun.duration_ms < 1400
    assert shown(after) == ["7"] and after.generation == 1


def test_a_flood_is_interrupted_too(state: str) -> None:
    flood, after = runs(state, "python", ("x = 1\nwhile True:\n    print('y' * 1000)", 0.5), "x")
    assert flood.result.status is Status.TIMEOUT and not flood.session_ended and shown(after) == ["1"]
    assert flood.result.stdout.truncated and len(flood.stdout) <= 65536 and after.stdout == after.background == ""


def test_python_that_cannot_be_interrupted_is_killed_with_its_session(state: str) -> None:
    stubborn = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('on')\ntime.sleep(60)"
    killed, after = runs(state, "python", (stubborn, 0.4), "1")
    assert killed.result.status is Status.TIMEOUT and killed.session_ended and killed.stdout == "on\n"
    assert killed.error is not None and killed.error.startswith("timeout: ") and "killed" in killed.error
    assert killed.result.receipt is not None and killed.result.receipt.survivors == 0
    assert killed.duration_ms < 2500 and after.generation == 2


def test_python_forks(state: str) -> None:
    forked, after = runs(state, "python", "import os\npid = os.fork()\nif pid: os.wait()\nbool(pid)", "2")
    assert shown(forked) == ["True"] and shown(after) == ["2"]


def test_what_earlier_runs_left_behind_prints_apart(state: str) -> None:
    async def scenario(sandbox: Any, sessions: Sessions) -> None:
        session = await sessions.open("python")
        left = "import subprocess\np = subprocess.Popen(['sh', '-c', 'read x; echo late'], stdin=subprocess.PIPE)"
        await session.run(left)
        await session.run("p.stdin.close()\nimport time\nwhile p.poll() is None: time.sleep(0.01)")
        answer = await session.run("import threading\nthreading.Timer(0.2, print, ['later']).start()")
        assert answer.stdout == ""
        await asyncio.sleep(0.5)
        answer = await session.run("1")
        assert answer.background == "later\n" and answer.stdout == "" and shown(answer) == ["1"]

    within(state, scenario)


# -- bash ------------------------------------------------------------------------------------------------------------


def test_bash_keeps_its_state(state: str) -> None:
    _, kept, status = runs(
        state, "bash", "cd /tmp; A=1; export B=2; f() { echo f$A; }; shopt -s nullglob; declare -a list=(x y); false",
        'echo $?; pwd; f; sh -c "echo \\$B"; shopt nullglob; echo ${list[1]}', "exec 3>&1; false",
    )  # fmt: skip
    assert kept.stdout.split() == ["1", "/tmp", "f1", "2", "nullglob", "on", "y"]
    assert status.exit == 1 and not status.session_ended


@pytest.mark.parametrize("code", ['echo "never closed', "if true", "echo $(", "((", "cat <<'E' && ("])
def test_what_is_not_complete_is_a_syntax_error_at_once(state: str, code: str) -> None:
    answer, after = runs(state, "bash", (code, 5.0), "echo ok")
    assert answer.exit in (1, 2) and "unexpected" in answer.stderr and not answer.session_ended
    assert answer.duration_ms < 1000 and after.stdout == "ok\n" and after.generation == 1


def test_bash_case_35_and_36(state: str) -> None:
    found = runs(state, "bash", ('echo "never closed', 2.0), ("exec sleep 51", 0.5), "echo next; pwd")
    assert found[0].exit == 2 and not found[0].session_ended
    assert found[1].result.status is Status.TIMEOUT and found[1].session_ended and found[1].duration_ms < 2000
    assert found[1].result.receipt is not None and found[1].result.receipt.survivors == 0
    assert found[2].stdout.startswith("next\n") and found[2].notes == (LOST,)


def test_bash_case_82_a_prompt_that_asks_again_for_ever(state: str) -> None:
    code = 'a=\nwhile [ -z "$a" ]; do printf "* Project name: "; read -r a; echo "* Please enter some text."; done'
    answer, after = runs(state, "bash", (code, 1.0), "echo ok")
    assert answer.result.status is Status.TIMEOUT and answer.duration_ms < 3000
    assert "Project name" in answer.stdout and len(answer.stdout) <= 65536 and answer.result.stdout.truncated
    assert after.stdout == "ok\n"


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("exit 7", 7), ("exec true", 0), ("set -e; false; echo not", 1), ("set -u; echo $nope", 1), ("kill -9 $$", 137)],
)
def test_bash_that_ends_says_so_and_the_next_run_has_a_new_one(state: str, code: str, exit_code: int) -> None:
    answer, after = runs(state, "bash", code, "echo $-")
    assert answer.session_ended and answer.exit == exit_code and "its state is lost" in (answer.error or "")
    assert "not" not in answer.stdout and after.notes == (LOST,) and after.generation == 2


def test_a_failed_exec_leaves_the_shell(state: str) -> None:
    answer, after = runs(state, "bash", "A=1; exec /no/such/program", "echo $A")
    assert answer.exit == 127 and not answer.session_ended and after.stdout == "1\n"


def test_bash_stdin_is_empty_and_redirections_stay(state: str) -> None:
    empty, there, to_file, file = runs(
        state, "bash", ("cat; read x; echo got:$x", 3.0), "cat <<E\nhere\nE\necho x | cat", "exec >/tmp/f; echo hidden",
        "exec >&2; cat /tmp/f",
    )  # fmt: skip
    assert empty.stdout == "got:\n" and there.stdout == "here\nx\n"
    assert to_file.exit == 0 and to_file.stdout == "" and "hidden" in file.stderr


def test_bash_jobs_live_on(state: str) -> None:
    _, jobs, over = runs(
        state, "bash", "sleep 0.3 && echo done >/tmp/done & disown", "sleep 0.6; cat /tmp/done", "wait"
    )
    assert jobs.stdout == "done\n" and over.exit == 0


def test_bash_code_cannot_take_the_next_one_for_its_own(state: str) -> None:
    """Neither by reading what the session itself reads, nor by leaving something open."""
    codes = ("break; continue; return 5", "cat /proc/self/fd/0; ls -l /proc/self/fd | grep -c pipe", "}; {", "echo ok")
    broken, seen, odd, after = runs(state, "bash", *codes)
    assert not any(each.session_ended for each in (broken, seen, odd))
    assert seen.stdout.split()[-1] == "2"  # stderr and the pipe to grep: none of ours
    assert odd.exit in (1, 2) and after.stdout == "ok\n"


def test_much_output_is_counted_and_its_end_kept(state: str) -> None:
    answer, after = runs(state, "bash", "yes | head -c 5000000; echo end", "echo ok")
    out = answer.result.stdout
    assert out.bytes_total == 5_000_004 and out.bytes_dropped == out.bytes_total - len(out.raw)
    assert answer.stdout.endswith("end\n") and answer.document()["truncated"] is True and after.stdout == "ok\n"


# -- many ------------------------------------------------------------------------------------------------------------


def test_sessions_are_counted_found_and_closed(state: str) -> None:
    async def scenario(sandbox: Any, _: Sessions) -> None:
        sessions = Sessions(sandbox, most=2)
        one, two = await sessions.open("py"), await sessions.open("sh")
        assert (one.language, two.language) == ("python", "bash")
        with pytest.raises(CapacityError):
            await sessions.open()
        with pytest.raises(deadstop.UsageError):
            await sessions.open("ruby")
        assert sessions.get(one.id) is one and sessions.all() == [one, two]
        assert one.document()["exec_id"] in sandbox.execs
        assert await sessions.close(one.id) and not await sessions.close(one.id)
        assert all(each.result for each in sandbox.execs.values() if each.cmd == "session python")
        with pytest.raises(NotFound):
            sessions.get(one.id)
        with pytest.raises(NotFound):
            await one.run("1")
        three = await sessions.open()
        assert shown(await three.run("1")) == ["1"]
        await sessions.close_all()
        assert sessions.all() == [] and not sandbox.running()

    within(state, scenario)


def test_runs_of_one_session_wait_for_each_other_and_those_of_two_do_not(state: str) -> None:
    async def scenario(sandbox: Any, sessions: Sessions) -> None:
        one, two = await sessions.open(), await sessions.open()
        code = "import time\na = time.monotonic()\ntime.sleep(0.3)\n(a, time.monotonic())"
        begun = time.monotonic()
        found = await asyncio.gather(one.run(code), one.run(code), two.run(code))
        assert 0.6 <= time.monotonic() - begun < 0.89
        first, second, _ = (eval(shown(each)[0]) for each in found)
        assert first[1] <= second[0]
        assert found[1].result.queued_s >= 0.25 > found[2].result.queued_s

    within(state, scenario)


@pytest.mark.parametrize("language", ["python", "bash"])
def test_a_run_that_nobody_waits_for_is_ended(state: str, language: str) -> None:
    async def scenario(sandbox: Any, sessions: Sessions) -> None:
        session = await sessions.open(language)
        sleep = "import time; time.sleep(60)" if language == "python" else "sleep 60"
        task = asyncio.create_task(session.run(sleep, 60.0))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 5)
        answer = await session.run("1" if language == "python" else "pgrep sleep")
        assert shown(answer) == ["1"] if language == "python" else answer.stdout == ""

    within(state, scenario)


def test_closing_ends_the_run_that_is_made(state: str) -> None:
    async def scenario(sandbox: Any, sessions: Sessions) -> SessionAnswer:
        session = await sessions.open("bash")
        task = asyncio.create_task(session.run("echo on; sleep 60", 60.0))
        await asyncio.sleep(0.2)
        await sessions.close(session.id)
        return await asyncio.wait_for(task, 5)

    answer = within(state, scenario)
    assert answer.session_ended and answer.result.status is Status.CANCELLED and answer.stdout == "on\n"


def test_the_end_of_the_sandbox_ends_the_run_and_the_session(state: str) -> None:
    async def scenario(sandbox: Any, sessions: Sessions) -> None:
        session: Session = await sessions.open()
        task = asyncio.create_task(session.run("import time; time.sleep(60)", 60.0))
        await asyncio.sleep(0.2)
        await sandbox.kill()
        answer = await asyncio.wait_for(task, 5)
        assert answer.session_ended and answer.result.status is not Status.COMPLETED
        with pytest.raises(SandboxEnded):
            await session.run("1")
        with pytest.raises(SandboxEnded):
            await sessions.open()

    within(state, scenario)


def test_a_paused_sandbox_takes_no_run(state: str) -> None:
    async def scenario(sandbox: Any, sessions: Sessions) -> None:
        session = await sessions.open()
        await session.run("x = 3")
        await sandbox.pause()
        with pytest.raises(SandboxPaused):
            await session.run("x")
        await sandbox.resume()
        assert shown(await session.run("x")) == ["3"]

    within(state, scenario)


def test_limits_that_are_none(state: str) -> None:
    async def scenario(sandbox: Any, sessions: Sessions) -> None:
        session = await sessions.open()
        over = await session.run("print(1)", 0)
        assert over.result.status is Status.REFUSED and over.result.reason == "deadline_over"
        assert over.stdout == "" and not over.session_ended and over.error is not None and "timeout" in over.error
        for limit in (-1.0, float("nan"), float("inf")):
            with pytest.raises(deadstop.UsageError):
                await session.run("1", limit)
        with pytest.raises(deadstop.UsageError):
            await session.run("1" * (5 << 20))
        with pytest.raises(deadstop.UsageError):
            await (await sessions.open("bash")).run("echo \0")

    within(state, scenario)


def test_without_the_interpreter_it_says_so(state: str) -> None:
    async def scenario(sandbox: Any, sessions: Sessions) -> None:
        with pytest.raises(NotAllowed, match="no python3"):
            await sessions.open("python", env={"PATH": "/nowhere"})
        assert sessions.all() == []

    within(state, scenario)


def test_cwd_and_variables_of_a_session(state: str) -> None:
    async def scenario(sandbox: Any, sessions: Sessions) -> None:
        session = await sessions.open("bash", cwd="/tmp", env={"GIVEN": "yes"})
        assert (await session.run("pwd; echo $GIVEN")).stdout == "/tmp\nyes\n"

    within(state, scenario)
