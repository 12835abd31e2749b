# SPDX-License-Identifier: Apache-2.0
"""Commands in a sandbox: how each ends by itself, and what is left of it and of the others."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from typing import Any

from keeper import LATE_S, Bench, alone, on, process_of_supervisor, refused, until

from deadstop.errors import InvalidLimit, KeyConflict, NotAllowed, SandboxEnded, UsageError
from deadstop.results import Status, ToolResult
from deadstop.sandbox.execs import Exec
from deadstop.sandbox.outputs import Outputs
from deadstop.sandbox.sandbox import Sandbox
from deadstop.sandbox.states import State
from deadstop.sandbox.wishes import MIB, ExecWish

ESCAPES = """
trap 'echo term' TERM
(setsid sleep 300 &)
(setsid sh -c 'sleep 300 & exec sleep 300' &)
nohup sleep 300 >/dev/null 2>&1 &
( ( (sleep 300 &) & ) & )
bash -c 'trap "" TERM INT HUP; while :; do sleep 300; done' &
disown -a
echo ready
while :; do sleep 300; done
"""


def timed_out(bench: Bench, result: ToolResult, seconds: float, late: float = LATE_S) -> None:
    """By its own limit, in time, with the receipt of its own processes."""
    assert result.status is Status.TIMEOUT, result
    assert result.limit is not None
    assert (result.limit.which, result.limit.seconds) == ("call", seconds)
    # 0.5: the grace. The limit counts from when the server had it, the duration from when the supervisor did.
    assert seconds - 0.2 <= result.duration_s < seconds + 0.5 + late
    receipt = result.receipt
    assert receipt is not None
    assert receipt.proof == ("cgroup_empty" if bench.has_groups else "scan")
    assert (receipt.survivors, receipt.unkillable) == (0, ())


# -- one of several --------------------------------------------------------------------------------------------------


async def test_the_end_of_one_command_is_its_own(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create()
    left = await bench.run(sandbox, "setsid sleep 300 >/dev/null 2>&1 & echo done", "left")
    assert (left.status, left.stdout.tail) == (Status.COMPLETED, "done\n")
    background = await bench.start(sandbox, "sleep 300", "background", background=True)
    talking = await bench.start(sandbox, "while read -r x; do echo got $x; done", "talking", keep_stdin=True)
    limited = await bench.start(sandbox, ESCAPES, "limited", timeout_s=1.0)
    await bench.printed(limited, "ready")
    await until(lambda: len(bench.alive("limited")) >= 7)
    timed_out(bench, await bench.end_of(limited), 1.0)
    assert bench.alive("limited") == []
    assert limited.result is not None
    assert limited.result.receipt is not None
    assert limited.result.receipt.escalated
    assert limited.result.receipt.processes >= 7
    assert len(bench.alive("left")) == 1
    assert bench.alive("background") != []
    await talking.write(b"this\n")
    await bench.printed(talking, "got this")
    background.cancel()
    assert (await bench.end_of(background)).status is Status.CANCELLED
    assert bench.alive("background") == []
    assert len(bench.alive("left")) == 1
    assert sandbox.status is State.RUNNING
    await sandbox.kill()
    assert bench.alive() == []


async def test_a_fork_bomb_ends_while_another_command_answers(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create(pids=64)
    await bench.bounded(sandbox)
    talking = await bench.start(sandbox, "exec cat", "talking", keep_stdin=True)
    await talking.write(b"before\n")
    await bench.printed(talking, "before")
    bomb = await bench.start(sandbox, "trap '' TERM; :(){ :|:& };: ; sleep 300", "bomb", timeout_s=1.0)
    await until(lambda: len(bench.alive("bomb")) > 20)
    await talking.write(b"during\n")
    await bench.printed(talking, "during")
    timed_out(bench, await bench.end_of(bomb), 1.0)
    assert bench.alive("bomb") == []
    await talking.write(b"after\n")
    await bench.printed(talking, "after")
    assert (await bench.said(sandbox, "echo next")) == "next"


async def test_an_end_is_cheap_for_the_next(keeper: Bench) -> None:
    """A limit, a cancel, a signal, a kill by itself, a missing program: each time the sandbox is as it was."""
    bench = keeper
    sandbox = await bench.create()
    missing = await sandbox.exec(ExecWish(("no-such-program",), timeout_s=5))
    result = await bench.end_of(missing)
    assert (result.status, result.start_errno) == (Status.ERROR, 2)
    result = await bench.run(sandbox, "kill -9 $$")
    assert (result.status, result.signal) == (Status.SIGNALED, 9)
    waiting = await bench.start(sandbox, "trap 'echo int; exit 7' INT; echo on; while :; do sleep 0.05; done")
    await bench.printed(waiting, "on")
    waiting.signal(2)
    result = await bench.end_of(waiting)
    assert (result.status, result.exit_code, result.stdout.tail) == (Status.COMPLETED, 7, "on\nint\n")
    with refused(UsageError):
        waiting.signal(12345)
    with refused(NotAllowed):
        waiting.signal(2)
    cancelled = await bench.start(sandbox, "trap '' TERM; echo on; sleep 300; sleep 300", "cancelled")
    await bench.printed(cancelled, "on")
    cancelled.cancel("caller")
    result = await bench.end_of(cancelled)
    assert (result.status, result.reason, result.stdout.tail) == (Status.CANCELLED, "caller", "on\n")
    assert bench.alive("cancelled") == []
    hurried = await bench.start(sandbox, "trap '' TERM; echo on; while :; do sleep 1; done", "hurried")
    await bench.printed(hurried, "on")
    began = time.monotonic()
    hurried.cancel()
    hurried.hurry()
    await bench.end_of(hurried)
    assert time.monotonic() - began < 0.4 + LATE_S
    assert await bench.said(sandbox, "echo fine; pwd; id -un") == "fine\n/home/agent\nagent"


# -- limits ----------------------------------------------------------------------------------------------------------


async def test_a_limit_that_is_over_starts_nothing(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create()
    started = await bench.start(sandbox, "touch /home/agent/ran", timeout_s=0)
    assert started.status == "ended"
    assert started.result is not None
    assert (started.result.status, started.result.reason) == (Status.REFUSED, "deadline_over")
    assert (await bench.run(sandbox, "test -e ran")).exit_code == 1
    for wrong in (-1, float("nan"), float("inf"), True, "3"):
        with refused(InvalidLimit):
            ExecWish(("true",), timeout_s=wrong)  # type: ignore[arg-type]
    for options in ({"rlimits": {"cpu_s": 0}}, {"rlimits": {"what": 1}}, {"cwd": "here"}, {"on_timeout": "no"}):
        with refused(UsageError):
            ExecWish(("true",), **options)  # type: ignore[arg-type]
    for argv in ((), ("",), ("a\0b",)):
        with refused(UsageError):
            ExecWish(argv)


async def test_a_limit_can_end_the_sandbox(keeper: Bench) -> None:
    bench = keeper
    whole, kept = await bench.create(), await bench.create()
    other = await bench.start(whole, "sleep 300", "other")
    limited = await bench.start(whole, "echo a; sleep 300", "destroy", timeout_s=0.4, on_timeout="destroy")
    kept_one = await bench.start(
        kept, "echo b; echo kept > file; sleep 300", "snapshot", timeout_s=0.4, on_timeout="snapshot_destroy"
    )
    for each, sandbox, text in ((limited, whole, "a\n"), (kept_one, kept, "b\n")):
        result = await bench.end_of(each)
        assert (result.status, result.stdout.tail) == (Status.TIMEOUT, text)
        end = await bench.gone(sandbox, 5)
        assert end["reason"] == "killed"
        assert each.id in end["detail"]
        assert end["receipt"]["survivors"] == 0
    assert bench.alive() == []
    assert (await bench.end_of(other)).status is Status.CANCELLED
    assert whole.record.last_snapshot is None
    again = await bench.host.resume(kept)
    bench.made.append(again)
    assert await bench.said(again, "cat file") == "kept"


async def test_what_a_command_may_use_is_bounded(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create()
    result = await bench.run(sandbox, "while :; do :; done", rlimits={"cpu_s": 1}, timeout_s=20)
    assert result.status is Status.RESOURCE_LIMIT
    assert result.limit is not None
    assert result.limit.which == "cpu"
    assert await bench.said(sandbox, "ulimit -n", rlimits={"open_files": 64}) == "64"
    result = await bench.run(sandbox, "head -c 1000000 /dev/zero > big", rlimits={"file_bytes": 4096})
    assert result.exit_code != 0
    assert await bench.said(sandbox, "stat -c %s big") == "4096"


@on("root")
async def test_memory_is_blamed_on_the_command_that_used_it(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create(memory=96 * MIB)
    small = await bench.start(sandbox, "echo on; read -r x; echo $x", "small", keep_stdin=True)
    await bench.printed(small, "on")
    assert (await bench.run(sandbox, "true")).limits["memory"].enforced_by == "cgroup"  # type: ignore[union-attr]
    hog = "import time\nx=[]\nwhile 1: x.append(b'x'*(4<<20))"
    eater = await sandbox.exec(ExecWish(("python3", "-c", hog), timeout_s=20))
    result = await bench.end_of(eater)
    assert result.status is Status.RESOURCE_LIMIT, result
    assert result.limit is not None
    assert result.limit.which == "memory"
    assert small.result is None
    await small.write(b"still here\n")
    result = await bench.end_of(small)
    assert (result.status, result.stdout.tail) == (Status.COMPLETED, "on\nstill here\n")
    result = await bench.run(sandbox, "kill -9 $$")  # not every kill is one for memory
    assert result.status is Status.SIGNALED


@on("user", "no-cgroup")
async def test_memory_of_one_process_is_bounded_without_a_cgroup(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create(memory=96 * MIB)
    assert await bench.said(sandbox, "ulimit -v") == str(96 * 1024)
    hog = "x=[]\nwhile 1: x.append(b'x'*(4<<20))"
    result = await bench.end_of(await sandbox.exec(ExecWish(("python3", "-c", hog), timeout_s=20)))
    assert result.exit_code == 1
    assert "MemoryError" in result.stderr.tail
    assert any("RLIMIT_AS" in each for each in result.degraded)


# -- what is printed -------------------------------------------------------------------------------------------------


async def test_output_stays_after_the_kill_and_after_the_end_and_after_the_server(keeper: Bench) -> None:
    bench = keeper
    async with bench.another_host("outputs") as host:
        sandbox = await bench.create(host=host)
        killed = await bench.start(sandbox, "echo out; echo err >&2; sleep 300", timeout_s=0.5)
        result = await bench.end_of(killed)
        assert (result.stdout.tail, result.stderr.tail) == ("out\n", "err\n")
        running = await bench.start(sandbox, "echo running; sleep 300")
        await bench.printed(running, "running")
        await sandbox.kill()
        assert (await bench.end_of(running)).stdout.tail == "running\n"
        documents = [each.document() for each in sandbox.execs.values()]
        assert [each["stdout_tail"] for each in documents] == ["out\n", "running\n"]
        identity = sandbox.id
    async with bench.another_host("outputs") as host:
        assert host.find(identity).record.end is not None
        kept = host.outputs.read(identity)
        assert [each["stdout_tail"] for each in kept] == ["out\n", "running\n"]
        assert kept[0]["stderr_tail"] == "err\n"
        assert [each["result"]["status"] for each in kept] == ["timeout", "cancelled"]
    assert Outputs(host.settings.path("outputs")).read("sbx_unknown") == []


def resident(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * 4096


async def test_a_flood_is_bounded_and_its_end_is_kept(keeper: Bench) -> None:
    """Case 11."""
    bench = keeper
    sandbox = await bench.create()
    supervisor = process_of_supervisor().pid
    before = resident(os.getpid()), resident(supervisor)
    text = "seq 1 100000000 & pid=$!; sleep 1; kill $pid; wait; echo; echo the end"
    flood = await bench.start(sandbox, text, timeout_s=20, tail=10_000)
    result = await bench.end_of(flood)
    assert result.status is Status.COMPLETED
    assert result.stdout.tail.endswith("\nthe end\n")
    assert len(result.stdout.raw) == 10_000
    assert result.stdout.bytes_total > 1_000_000
    assert result.stdout.bytes_total == result.stdout.bytes_dropped + 10_000
    assert flood.stdout.total == result.stdout.bytes_total  # nothing was lost on the way here
    after = resident(os.getpid()), resident(supervisor)
    assert max(late - early for late, early in zip(after, before, strict=True)) < 64 * MIB


async def collected(readers: AsyncIterator[tuple[str, bytes]], pause: float = 0.0) -> bytes:
    data = bytearray()
    async for _, piece in readers:
        data += piece
        await asyncio.sleep(pause)
    return bytes(data)


async def test_a_slow_reader_holds_up_its_own_command_alone(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create()
    flood = await bench.start(sandbox, "trap '' TERM; echo on; while :; do seq 1 100000; done", timeout_s=2.0)
    reader = flood.subscribe(whole=True)
    await until(lambda: flood.stdout.total > 0)
    whole = await bench.start(sandbox, "seq 1 200000", timeout_s=30)
    reading = asyncio.create_task(collected(whole.subscribe(whole=True), 0.001))
    await asyncio.sleep(0.7)
    held = flood.stdout.total
    for _ in range(3):
        began = time.monotonic()
        assert await bench.said(sandbox, "echo quick") == "quick"
        assert time.monotonic() - began < LATE_S
    assert flood.stdout.total - held < MIB
    assert held < 4 * MIB
    assert await reading == b"".join(b"%d\n" % number for number in range(1, 200001))
    timed_out(bench, await bench.end_of(flood, 6), 2.0)
    got = [piece async for _, piece in reader]  # what was kept for it is still there
    assert got[0].startswith(b"on\n")


async def test_readers_get_all_or_the_last(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create()
    talking = await bench.start(sandbox, "echo one; read -r x; echo two; echo err >&2", keep_stdin=True)
    await bench.printed(talking, "one")
    early, late = talking.subscribe(past=True), talking.subscribe(past=False)
    readings = [asyncio.create_task(collected(each)) for each in (early, late)]
    await talking.write(b"\n")
    result = await bench.end_of(talking)
    got = await asyncio.gather(*readings)
    assert sorted(got[0].split()) == [b"err", b"one", b"two"]
    assert sorted(got[1].split()) == [b"err", b"two"]
    assert await collected(talking.subscribe()) in (b"one\ntwo\nerr\n", b"err\none\ntwo\n")
    assert await collected(talking.subscribe(past=False)) == b""
    assert result.stdout.tail == "one\ntwo\n"


# -- what is given ---------------------------------------------------------------------------------------------------


async def test_stdin_is_closed_or_given_or_kept_open(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create()
    assert await bench.said(sandbox, "cat | wc -c") == "0"
    data = os.urandom(3 * MIB)
    assert await bench.said(sandbox, "cat | wc -c", stdin=data) == str(len(data))
    assert await bench.said(sandbox, "cat", stdin=b"text") == "text"
    kept = await bench.start(sandbox, "cat; echo over", stdin=b"first\n", keep_stdin=True)
    await bench.printed(kept, "first")
    await kept.write(b"second\n")
    await bench.printed(kept, "second")
    assert kept.result is None
    kept.close_stdin()
    assert (await bench.end_of(kept)).stdout.tail == "first\nsecond\nover\n"
    with refused(NotAllowed):
        await kept.write(b"x")
    many = await bench.start(sandbox, "cat | wc -c", keep_stdin=True)
    await many.write(data)
    many.close_stdin()
    assert (await bench.end_of(many)).stdout.tail.strip() == str(len(data))
    deaf = await bench.start(sandbox, "exec <&-; sleep 0.3", keep_stdin=True)
    with refused(NotAllowed):
        for _ in range(100):
            await deaf.write(b"x" * 100_000)
    assert (await bench.end_of(deaf)).status is Status.COMPLETED


async def test_what_is_asked_for_is_what_runs(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create(env={"GIVEN": "by the sandbox", "BOTH": "sandbox"})
    text = 'echo "$GIVEN,$BOTH,$DEADSTOP_SANDBOX,$(pwd)"'
    said = await bench.said(sandbox, text, env={"BOTH": "command"}, cwd="/tmp")
    assert said == f"by the sandbox,command,{sandbox.id},/tmp"
    result = await bench.run(sandbox, "true", cwd="/no/such/folder")
    assert result.status in (Status.ERROR, Status.REFUSED)
    assert await bench.said(sandbox, "ulimit -c; umask; tty || true") == "0\n0022\nnot a tty"
    with refused(UsageError):
        await bench.run(sandbox, "true", user="root")


async def test_a_key_starts_a_command_once(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create()
    text = "echo ran >> log; sleep 0.2; cat log"
    started = await asyncio.gather(*(bench.start(sandbox, text, key="k") for _ in range(6)))
    assert all(each is started[0] for each in started)
    assert (await bench.end_of(started[0])).stdout.tail == "ran\n"
    assert await bench.start(sandbox, text, key="k") is started[0]  # also when it is over
    with refused(KeyConflict):
        await bench.start(sandbox, "echo other", key="k")
    assert (await bench.end_of(await bench.start(sandbox, text, key="other"))).stdout.tail == "ran\nran\n"


async def test_a_background_command_has_a_handle(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create()
    started = await bench.start(sandbox, "i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done", background=True)
    await bench.printed(started, "5\n")
    assert sandbox.execs[started.id] is started
    document = started.document()
    assert (document["status"], document["background"], document["result"]) == ("running", True, None)
    assert document["stdout_tail"].startswith("1\n2\n")
    assert started.document(brief=True)["outcome"] is None
    assert await started.wait(0.05) is None
    assert started in sandbox.running()
    assert sandbox.document()["execs_running"] == 1
    started.signal(15)
    result = await bench.end_of(started)
    assert (result.status, result.signal) == (Status.SIGNALED, 15)
    assert sandbox.running() == []


# -- many, and races -------------------------------------------------------------------------------------------------


@alone
async def test_a_hundred_commands_at_once(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create(pids=2000, memory=1024 * MIB)
    texts = [f"echo {number}; sleep 0.3; echo {number}" for number in range(100)]
    started = await asyncio.gather(*(bench.start(sandbox, text, timeout_s=60) for text in texts))
    results = [await bench.end_of(each, 40) for each in started]
    assert [each.stdout.tail.split() for each in results] == [[str(number)] * 2 for number in range(100)]
    assert {each.status for each in results} == {Status.COMPLETED}
    assert bench.alive() == []


async def test_a_command_beside_the_end_of_its_sandbox_has_one_result(keeper: Bench) -> None:
    bench = keeper
    ends: list[str] = []

    async def one(sandbox: Sandbox, number: int) -> None:
        await asyncio.sleep(number * 0.002)
        try:
            started = await bench.start(sandbox, "echo a; sleep 300")
        except SandboxEnded:
            return
        told: list[Exec] = []
        first = started.on_end
        started.on_end = lambda ended: (told.append(ended), first(ended))  # type: ignore[func-returns-value,assignment]
        result = await bench.end_of(started, 8)
        assert result.status in (Status.CANCELLED, Status.REFUSED), result
        await asyncio.sleep(0.05)
        assert len(told) <= 1
        assert started.result is result
        ends.append(str(result.status))

    for turn in range(6):
        sandbox = await bench.create()
        await bench.run(sandbox, "true")
        running = [asyncio.create_task(one(sandbox, number)) for number in range(12)]
        await asyncio.sleep(0.003 * turn)
        receipts = await asyncio.gather(sandbox.kill(), sandbox.kill())
        assert receipts[0] == receipts[1]
        await asyncio.gather(*running)
        assert bench.alive() == []
    assert len(ends) >= 6


# -- cases -----------------------------------------------------------------------------------------------------------

CASES: dict[str, dict[str, Any]] = {
    "01-grandchild-holds-pipe": {"stdout": "started\n"},
    "02-fifo-writer-loop": {"ends": "tick\n"},
    "04-setsid-daemon-escape": {},
    "05-ignores-sigterm": {"escalated": True},
    "11-yes-flood": {"truncated": True},
    "16-partial-output-at-timeout": {"stdout": "step-1-ok\n", "stderr": "step-2-warn\n"},
    "21-many-children": {},
    "31-late-write-after-timeout": {"never": "/tmp/target"},
    "36-exec-replaces-session": {},
    "83-exec-limit-checked-too-late": {"stdout": "begin\n"},
}


async def test_the_cases_that_hang_end_at_their_limit(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create(pids=1000)
    inputs = os.path.join(bench.folder, "inputs")

    async def one(name: str, wanted: dict[str, Any]) -> None:
        with open(f"{inputs}/{name}.sh") as file:
            text = file.read()
        started = await bench.start(sandbox, text, name, timeout_s=2.0, env={"TARGET": "/tmp/target"})
        result = await bench.end_of(started)
        timed_out(bench, result, 2.0, late=4.0)  # ten that hang, flood and spin beside each other
        assert bench.alive(name) == [], name
        for stream in ("stdout", "stderr"):
            if stream in wanted:
                assert getattr(result, stream).tail == wanted[stream], name
        assert result.stdout.tail.endswith(wanted.get("ends", "")), name
        assert result.stdout.truncated == wanted.get("truncated", False), name
        assert result.receipt is not None
        assert result.receipt.escalated >= wanted.get("escalated", False), name
        if "never" in wanted:
            await asyncio.sleep(2.2)  # it was to be written four seconds after the start
            assert (await bench.run(sandbox, f"test -e {wanted['never']}")).exit_code == 1

    await asyncio.gather(*(one(*each) for each in CASES.items()))
    assert await bench.said(sandbox, "echo next") == "next"


async def test_the_cases_that_end_by_themselves_do_so_at_once(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create()
    inputs = os.path.join(bench.folder, "inputs")

    async def case(name: str, limit: float) -> ToolResult:
        with open(f"{inputs}/{name}.sh") as file:
            return await bench.run(sandbox, file.read(), name, timeout_s=limit)

    result = await case("03-leader-exits-bg-keeps-pipe", 20)
    assert (result.status, result.exit_code) == (Status.COMPLETED, 0)
    assert result.stdout.tail.startswith("bg=")
    assert result.duration_s < 1.5 + LATE_S
    assert len(bench.alive("03-leader-exits-bg-keeps-pipe")) == 1  # in a sandbox what it started goes on
    result = await case("08-reads-stdin-prompt", 20)
    assert (result.status, result.exit_code) == (Status.COMPLETED, 9)
    assert result.stdout.tail.endswith("eof\n")
    result = await case("35-unclosed-quote-in-session", 20)
    assert (result.status, result.exit_code) == (Status.COMPLETED, 2)
    assert result.duration_s < LATE_S + 1


async def test_a_life_is_the_outer_limit_and_says_so(keeper: Bench) -> None:
    """Case 72: of two limits the one that fired is named."""
    bench = keeper
    sandbox = await bench.short(1.5)
    inner = await bench.start(sandbox, "sleep 300", timeout_s=0.4)
    outer = await bench.start(sandbox, "trap '' TERM; sleep 300; sleep 300", timeout_s=40)
    results = [await bench.end_of(inner), await bench.end_of(outer)]
    assert [each.limit.which for each in results if each.limit] == ["call", "ttl"]
    assert {each.status for each in results} == {Status.TIMEOUT}
