# SPDX-License-Identifier: Apache-2.0
"""The life of a sandbox: when it ends, what moves that, and what runs before it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import random
import time
from typing import Any

from keeper import (
    LATE_S,
    Bench,
    Stopper,
    alone,
    boottime,
    on,
    process_of_supervisor,
    refused,
    state_of,
    until,
)

from deadstop.errors import FileProblem, InvalidLimit, NotAllowed, SandboxEnded, SandboxPaused
from deadstop.results import Status
from deadstop.sandbox.sandbox import Sandbox
from deadstop.sandbox.states import State
from deadstop.sandbox.wishes import Hooks

KINDS = ("root", "user")  # for what does not depend on how processes are found

# -- the end of a life -----------------------------------------------------------------------------------------------


async def ended_on_time(bench: Bench, sandbox: Sandbox, expires: float) -> dict[str, Any]:
    """Wait for its end, and see that it was that of its life: on time, with a receipt that shows it."""
    end = await bench.gone(sandbox, expires - boottime() + LATE_S + 5)
    now = boottime()
    assert expires <= now < expires + LATE_S, f"{now - expires:+.3f} s from its time"
    receipt = end["receipt"]
    assert end["reason"] == "ttl"
    assert receipt["proof"] == "pid_namespace_reaped"
    assert receipt["survivors"] == 0
    assert receipt["unkillable"] == []
    assert 0 <= receipt["deadline_to_dead_ms"] < LATE_S * 1000
    assert state_of(sandbox.record.pid) == ""
    assert sandbox.record.state is State.ENDED
    return receipt


@on("root", "user", "no-cgroup")
async def test_a_life_ends_at_its_time_whatever_runs_in_it(keeper: Bench) -> None:
    bench = keeper
    ends = [await _end_with_something_running(bench) for _ in range(2)]
    if not any(ends):  # what it was doing is read within milliseconds, or not at all
        assert await _end_with_something_running(bench), "no evidence, three times"


async def _end_with_something_running(bench: Bench) -> bool:
    """Whether what ran in it was seen before the end."""
    sandbox = await bench.short(1.5)
    text = "echo begun; trap '' TERM INT; (setsid sleep 300 &) ; while :; do sleep 300; done"
    running = await bench.start(sandbox, text, timeout_s=50)
    await bench.printed(running, "begun")
    await until(lambda: len(bench.alive()) >= 3)
    receipt = await ended_on_time(bench, sandbox, sandbox.record.expires_boot)
    assert receipt["processes"] >= 3
    assert bench.alive() == []
    result = await bench.end_of(running)
    assert result.status is Status.TIMEOUT
    assert result.limit is not None
    assert (result.limit.which, result.limit.source) == ("ttl", "given")
    assert result.stdout.tail == "begun\n"
    with refused(SandboxEnded) as caught:
        await bench.start(sandbox, "true")
    assert caught[0].reason == "ttl"  # type: ignore[attr-defined]
    assert result.evidence is not None
    assert result.receipt is not None
    assert result.receipt.survivors == 0
    return result.evidence.complete and any("sleep" in each.cmd for each in result.evidence.processes)


async def test_use_moves_no_end(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.short(1.5, metadata={"a": "b"})
    expires, lefts = sandbox.record.expires_boot, [sandbox.record.time_left()]
    while sandbox.record.live and len(lefts) < 1000:
        async with sandbox.attachment():
            lefts.append(bench.host.find(sandbox.id).document()["time_left_s"])
            try:
                await bench.run(sandbox, "echo x", timeout_s=0.8)
                assert sandbox.files is not None
                await asyncio.to_thread(sandbox.files.listdir, "/home/agent")
            except (SandboxEnded, FileProblem):
                break
            sandbox.touch()
            lefts.append(sandbox.lifecycle()["time_left_s"])
            bench.host.sandboxes("all", {"a": "b"})
            assert sandbox.record.expires_boot == expires
    assert len(lefts) > 10
    assert all(later <= before + 0.001 for before, later in itertools.pairwise(lefts))
    await ended_on_time(bench, sandbox, expires)


@alone
async def test_a_life_ends_on_time_while_its_server_is_frozen(keeper: Bench) -> None:
    bench = keeper
    sandbox, limited = await bench.create(), await bench.create()
    running = await bench.start(sandbox, "echo a; sleep 300")
    await bench.printed(running, "a")
    record = sandbox.record
    stopper = Stopper(os.getpid(), 1.8, record.pid, record.pid_start)  # this very process
    late = await bench.start(limited, "echo b; sleep 300", "late", timeout_s=0.5)
    await sandbox.set_ttl(0.8)
    seen = stopper.stop()
    assert seen["stopped"] < record.expires_boot < seen["continued"]
    assert seen["gone"] is not None, "it was still there when its server went on"
    assert record.expires_boot <= seen["gone"]
    end = await bench.gone(sandbox, 5)
    assert end["reason"] == "ttl"
    assert end["receipt"]["survivors"] == 0
    result = await bench.end_of(late, 5)
    assert result.status is Status.TIMEOUT
    assert result.duration_s < 0.5 + 0.5 + 0.8  # in time, although nobody here could look
    assert limited.record.live


@alone
async def test_a_frozen_supervisor_ends_what_is_overdue_as_soon_as_it_goes_on(keeper: Bench) -> None:
    """Case 73: the gap is said, and nothing that is overdue lives on."""
    bench = keeper
    sandbox, limited = await bench.create(), await bench.create()
    supervisor = process_of_supervisor().pid
    stopper = Stopper(supervisor, 1.3, sandbox.record.pid, sandbox.record.pid_start)
    running = await bench.start(limited, "echo b; sleep 300", timeout_s=0.6)
    await bench.printed(running, "b")
    await sandbox.set_ttl(0.6)
    expires = sandbox.record.expires_boot
    seen = await asyncio.to_thread(stopper.stop)
    assert seen["stopped"] < expires < seen["continued"]
    end = await bench.gone(sandbox, 5)
    assert boottime() - seen["continued"] < LATE_S
    assert end["reason"] == "ttl"
    assert end["receipt"]["deadline_to_dead_ms"] >= (seen["continued"] - expires) * 1000 - 50
    result = await bench.end_of(running, 5)
    assert result.status is Status.TIMEOUT
    assert result.gap_s is not None
    assert 0.4 < result.gap_s < 1.3 + LATE_S  # of it, from when something was due


@alone
async def test_a_life_that_is_extended_puts_off_no_other(keeper: Bench) -> None:
    bench = keeper
    first, second = await bench.short(1.0), await bench.short(1.2)
    await first.extend(1000)
    await first.extend(1000)
    await ended_on_time(bench, second, second.record.expires_boot)
    assert first.record.live


@alone
async def test_many_lives_end_in_one_moment(keeper: Bench) -> None:
    bench = keeper
    count = 50 if bench.kind == "root" else 12
    many = list(await asyncio.gather(*(bench.create(memory=64 << 20) for _ in range(count))))
    running = [await bench.start(each, "sleep 300 & sleep 300 & wait", timeout_s=50) for each in many]
    at = boottime() + 1.5
    await asyncio.gather(*(each.set_ttl(at - boottime()) for each in many))
    ends = [await bench.gone(each, 8) for each in many]
    late = boottime() - at
    assert late < LATE_S + count * 0.03, f"the last of {count} was gone {late:.2f} s late"
    assert [end["reason"] for end in ends] == ["ttl"] * count
    assert all(end["receipt"]["survivors"] == 0 for end in ends)
    assert [(await bench.end_of(each, 5)).limit.which for each in running] == ["ttl"] * count  # type: ignore[union-attr]
    assert bench.alive() == []


# -- extend ----------------------------------------------------------------------------------------------------------


async def test_an_extension_adds_up_to_the_maximum(keeper: Bench) -> None:
    bench = keeper
    async with bench.another_host(max_ttl_s=60.0) as host:
        sandbox = await bench.create(host=host, ttl_s=20)
        before, created = sandbox.record.expires_boot, sandbox.record.created_boot
        answer = await sandbox.extend(10)
        assert (answer["added_s"], answer["clamped"]) == (10.0, False)
        assert math.isclose(sandbox.record.expires_boot, before + 10)
        assert 28 < answer["time_left_s"] <= 30
        assert answer["ttl_seconds"] == 30.0
        answer = await sandbox.extend(1e9)
        assert answer["clamped"] is True
        assert math.isclose(sandbox.record.expires_boot, created + 60)  # since it was created
        answer = await sandbox.extend(5)
        assert (answer["added_s"], answer["clamped"]) == (0.0, True)
        long = await bench.create(host=host, ttl_s=1e6)
        assert 59 < long.record.time_left() <= 60


async def test_what_is_no_number_of_seconds_extends_nothing(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create(ttl_s=30)
    before = sandbox.record.expires_boot
    for wrong in (0, -1, -0.0, math.nan, math.inf, -math.inf, True, False, "10", "", None, [1], 1j):
        with refused(InvalidLimit):
            await sandbox.extend(wrong)  # type: ignore[arg-type]
        with refused(InvalidLimit):
            await sandbox.set_ttl(wrong)  # type: ignore[arg-type]
        if wrong is not None:
            with refused(InvalidLimit):
                await bench.create(ttl_s=wrong)
    assert sandbox.record.expires_boot == before
    assert (await bench.said(sandbox, "echo on")) == "on"


async def test_the_same_extension_twice_adds_once(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create(ttl_s=30)
    before = sandbox.record.expires_boot
    answers = await asyncio.gather(*(sandbox.extend(10, key="k") for _ in range(5)))
    assert all(each == answers[0] for each in answers)
    assert math.isclose(sandbox.record.expires_boot, before + 10)
    await asyncio.gather(sandbox.extend(10), sandbox.extend(10))  # without a key each counts
    assert math.isclose(sandbox.record.expires_boot, before + 30)


async def test_an_extension_waits_for_no_snapshot(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create(ttl_s=30)
    async with sandbox.capturing():  # as a long copy holds it
        assert (await asyncio.wait_for(sandbox.extend(10), 2))["added_s"] == 10.0


async def test_what_has_ended_is_not_extended(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create()
    await sandbox.kill()
    for act in (sandbox.extend(10), sandbox.set_ttl(10), sandbox.pause(), sandbox.set_persistent(True)):
        with refused(SandboxEnded) as caught:
            await act
        assert caught[0].reason == "killed"  # type: ignore[attr-defined]
    assert sandbox.record.time_left() == 0.0


async def test_an_extension_and_the_end_never_both_happen(keeper: Bench) -> None:
    """Hundreds of rounds around the very moment, some of them tried by two at once."""
    bench = keeper
    rounds = 120 if bench.kind == "root" else 40
    draw, count, lead = random.Random(4), {"alive": 0, "dead": 0}, [0.004]

    async def round_of(sandbox: Sandbox) -> bool:
        with contextlib.suppress(SandboxEnded):  # on a machine so busy that it is over before this is answered
            await sandbox.set_ttl(0.1 + 2 * lead[0])
        moment = sandbox.record.expires_boot - lead[0] * draw.uniform(0.8, 1.2)
        await asyncio.sleep(max(0.0, moment - boottime()))
        tried = await asyncio.gather(sandbox.extend(30), sandbox.extend(30), return_exceptions=True)
        for each in tried:
            assert isinstance(each, dict | SandboxEnded), repr(each)
        if any(isinstance(each, dict) for each in tried):
            assert all(isinstance(each, dict) for each in tried)  # what was extended is there for the other, too
            await asyncio.sleep(0.02)
            assert sandbox.record.live, sandbox.record.end
            assert state_of(sandbox.record.pid) not in ("", "Z")
            assert (await bench.said(sandbox, "echo alive")) == "alive"
            return True
        assert (await bench.gone(sandbox, 10))["reason"] == "ttl"
        assert sandbox.record.time_left() == 0
        return False

    async def worker() -> None:
        sandbox = await bench.create(memory=64 << 20)
        while sum(count.values()) < rounds:
            alive = await round_of(sandbox)
            count["alive" if alive else "dead"] += 1
            lead[0] = max(0.002, lead[0] * 0.8) if alive else min(1.0, lead[0] * 1.5)  # stay at the edge
            if not alive:
                sandbox = await bench.create(memory=64 << 20)

    await asyncio.gather(*(worker() for _ in range(4)))
    assert min(count.values()) >= 3, count


async def test_an_extension_in_the_last_seconds_takes_it_back_from_there(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create(ttl_s=6, buffer_s=5.9)
    assert sandbox.hooks.buffer_s < 0.61  # of a short life it is a tenth
    sandbox = await bench.old(3, buffer=2.0)
    first = sandbox.record.expires_boot
    await until(lambda: sandbox.status is State.EXPIRING, 4)
    assert boottime() >= first - 2.06
    assert (await bench.said(sandbox, "echo still")) == "still"
    await sandbox.extend(10)
    assert sandbox.status is State.RUNNING
    await asyncio.sleep(max(0.0, first - boottime()) + 0.1)
    assert sandbox.status is State.RUNNING
    assert (await bench.said(sandbox, "echo on")) == "on"


async def test_only_what_says_so_moves_the_end(keeper: Bench) -> None:
    """set_ttl counts from now and may shorten; nothing else, and no clock of the wall, changes the time left."""
    bench = keeper
    sandbox = await bench.create(ttl_s=50)
    answer = await sandbox.set_ttl(20)
    assert 19 < answer["time_left_s"] <= 20
    left, real = sandbox.record.time_left(), time.time
    try:
        time.time = lambda: real() - 3600  # case 73: the clock is put back
        assert sandbox.record.time_left() <= left
        time.time = lambda: real() + 86400
        assert 0 < sandbox.record.time_left() <= left
    finally:
        time.time = real
    left = sandbox.record.time_left()
    await sandbox.pause()
    await sandbox.resume()
    await sandbox.set_persistent(True)
    await bench.host.snapshots.take(sandbox, None)
    await bench.host.snapshots.delete(sandbox.record.last_snapshot or "")
    await sandbox.set_persistent(False)
    assert sandbox.record.time_left() < left
    await sandbox.set_ttl(0.3)
    await ended_on_time(bench, sandbox, sandbox.record.expires_boot)


# -- hooks -----------------------------------------------------------------------------------------------------------


def hook_of(sandbox: Sandbox) -> Any:
    """The command that its one hook was run as."""
    found = [each for each in sandbox.execs.values() if each.cmd.startswith("hook: ")]
    assert len(found) == 1, [each.cmd for each in found]
    return found[0]


async def test_on_timeout_runs_in_the_buffer_with_a_limit_of_its_own(keeper: Bench) -> None:
    bench = keeper
    quick = await bench.old(3, buffer=2.0, hooks=Hooks(on_timeout="cat /proc/uptime"))
    hangs = await bench.old(3, buffer=2.0, hooks=Hooks(on_timeout="echo in; sleep 300"))
    for sandbox in (quick, hangs):
        await ended_on_time(bench, sandbox, sandbox.record.expires_boot)
    hook = await bench.end_of(hook_of(quick))
    left = quick.record.expires_boot - float(hook.stdout.tail.split()[0])
    assert hook.ok
    assert 0 <= left <= 2.0 + 0.06
    hook = await bench.end_of(hook_of(hangs))
    assert hook.stdout.tail == "in\n"
    assert hook.status is Status.TIMEOUT
    assert hook.limit is not None
    assert hook.limit.which == "call"
    assert hook.duration_s < 1.9  # half of the buffer, and the grace


async def test_before_stop_runs_before_every_end(keeper: Bench) -> None:
    bench = keeper
    hooks = Hooks(before_stop="echo bye")
    killed = await bench.create(hooks=hooks)
    expired = await bench.old(3, buffer=3.0, hooks=hooks)
    idle = await bench.create(hooks=hooks, idle_s=2)
    left = await bench.create(hooks=hooks, attached=True)
    async with left.attachment():
        pass
    await killed.kill()
    for sandbox, reason in ((killed, "killed"), (left, "owner_gone"), (idle, "idle"), (expired, "ttl")):
        assert (await bench.gone(sandbox, 8))["reason"] == reason
        hook = await bench.end_of(hook_of(sandbox))
        assert (hook.status, hook.stdout.tail) == (Status.COMPLETED, "bye\n"), reason


async def test_a_bad_hook_delays_no_end(keeper: Bench) -> None:
    bench = keeper
    bad = ["exit 3", "sleep 300", ":(){ :|:& };:", "/no/such/file", "kill -9 $$", "while :; do :; done"]
    hooks = [Hooks(on_timeout=each, before_stop=each) for each in bad]
    killed = [await bench.create(hooks=each, pids=64) for each in hooks]
    await bench.bounded(killed[0])
    living = [await bench.create(ttl_s=3, hooks=each, pids=64) for each in hooks]
    began = time.monotonic()
    receipts = await asyncio.gather(*(each.kill() for each in killed))
    assert time.monotonic() - began < 2.0 + 0.5 + 2 * LATE_S  # STOP_MOST_S and the grace
    assert all(receipt is not None and receipt["survivors"] == 0 for receipt in receipts)
    for each in living:
        await bench.gone(each, 8)
        assert each.record.end is not None
        assert each.record.end["reason"] == "ttl"
        assert each.record.end["at"] - (each.record.created_at + 3) < LATE_S
    assert bench.alive() == []


async def test_on_extended_runs_after_each_extension(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create(hooks=Hooks(on_extended="echo longer >> /home/agent/log"))
    await sandbox.extend(1)
    await sandbox.extend(1)
    text = "for i in $(seq 100); do [ $(grep -c longer log) = 2 ] && exit; sleep 0.05; done; cat log; exit 9"
    await bench.said(sandbox, f"touch log; {text}")


async def test_what_is_persistent_comes_back_from_the_snapshot_before_its_end(keeper: Bench) -> None:
    bench = keeper
    made = [
        await bench.old(4, buffer=4.9, on_expiry="snapshot", name=f"p-{bench.mark[:8]}"),
        await bench.old(4, buffer=4.9, persistent=True),
        await bench.old(4, buffer=4.9),
    ]
    for each in made:
        await bench.said(each, "echo kept > /home/agent/file; echo tmp > /tmp/file")
        busy = await bench.start(each, "while :; do date +%s%N >> /home/agent/log; echo on; sleep 0.02; done")
        await bench.printed(busy, "on")
    for each in made:
        await ended_on_time(bench, each, each.record.expires_boot)
    for each in made[:2]:
        assert each.record.last_snapshot is not None, bench.host
        again = await bench.host.resume(each)
        bench.made.append(again)
        assert (again.record.resumed_from, each.record.resumed_as) == (each.id, again.id)
        assert again.record.name == each.record.name
        assert bench.host.find(each.id) is again
        assert 50 < again.record.time_left() <= 60  # a whole life, as was asked for then
        assert (await bench.said(again, "cat /home/agent/file /tmp/file; test -s log")) == "kept\ntmp"
    assert made[2].record.last_snapshot is None
    with refused(NotAllowed):
        await bench.host.resume(made[2])


# -- the idle clock --------------------------------------------------------------------------------------------------


async def test_idle_is_a_clock_of_its_own(keeper: Bench) -> None:
    bench = keeper
    made = await asyncio.gather(*(bench.create(idle_s=1.5) for _ in range(4)))
    idle, touched, often, busy = made
    running = await bench.start(busy, "sleep 3; echo done")

    async def use() -> None:
        while True:  # short commands between looks count, too
            await bench.run(often, "true")
            await asyncio.sleep(0.2)

    using = asyncio.create_task(use())
    last, began = 0.0, idle.record.created_boot
    while boottime() - began < 3.2:
        touched.touch()
        last = boottime()
        await asyncio.sleep(0.1)
    kept = touched.record.live, often.record.live, using.done()
    using.cancel()
    await asyncio.gather(using, return_exceptions=True)
    assert kept == (True, True, False)
    end = await bench.gone(idle, 5)
    assert (end["reason"], end["receipt"]["survivors"]) == ("idle", 0)
    assert end["at"] - idle.record.created_at >= 1.5
    result = await bench.end_of(running)
    assert (result.status, result.stdout.tail) == (Status.COMPLETED, "done\n")
    assert (await bench.gone(touched, 6))["reason"] == "idle"
    assert boottime() - last >= 1.5
    for each in (often, busy):
        assert (await bench.gone(each, 6))["reason"] == "idle"
    assert busy.record.end["at"] - busy.record.created_at >= 4.5  # type: ignore[index]


async def test_a_short_command_is_activity_for_a_while_after_it(keeper: Bench) -> None:
    bench = keeper

    async def one(hooks: Hooks) -> None:
        sandbox = await bench.create(idle_s=2.0, hooks=hooks)
        await asyncio.sleep(max(0.0, sandbox.record.created_boot + 1.0 - boottime()))
        used = boottime()
        await bench.said(sandbox, "echo used")
        assert (await bench.gone(sandbox, 8))["reason"] == "idle"
        assert boottime() - used >= 2.0, hooks

    await asyncio.gather(one(Hooks()), one(Hooks(before_stop="true")))


# -- pause -----------------------------------------------------------------------------------------------------------

COUNTER = "trap '' TERM; i=0; echo 0 > /home/agent/n; echo on; while :; do i=$((i+1)); echo $i > /home/agent/n; done"


async def count_in(sandbox: Sandbox) -> bytes:
    assert sandbox.files is not None
    fd, size = await asyncio.to_thread(sandbox.files.read, "/home/agent/n")
    try:
        return b"".join(sandbox.files.pieces(fd, size))
    except FileProblem:  # cut off while it was read: it is being written
        return b""


@on("root", "user", "no-cgroup")
async def test_what_is_paused_stands_still(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create()
    running = await bench.start(sandbox, f"(setsid sleep 300 &); {COUNTER}", "count")
    await bench.printed(running, "on")
    await sandbox.pause()
    await sandbox.pause()  # it is
    assert sandbox.status is State.PAUSED
    before = await count_in(sandbox)
    await asyncio.sleep(0.25)
    assert await count_in(sandbox) == before
    if not bench.has_groups:
        assert {state_of(pid) for pid in bench.alive()} == {"T"}
    with refused(SandboxPaused):
        await bench.start(sandbox, "true")
    assert sandbox.record.live
    await sandbox.resume()
    assert sandbox.status is State.RUNNING

    async def moved() -> None:
        while await count_in(sandbox) in (before, b""):
            await asyncio.sleep(0.01)

    await asyncio.wait_for(moved(), 5)
    assert (await bench.said(sandbox, "echo on")) == "on"
    assert running.result is None


@on("root", "user", "no-cgroup")
async def test_limits_go_on_while_paused(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create()
    limited = await bench.start(sandbox, "echo on; trap '' TERM; while :; do sleep 1; done", "limited", timeout_s=1.5)
    other = await bench.start(sandbox, COUNTER, "other")
    await bench.printed(limited, "on")
    await bench.printed(other, "on")
    await sandbox.pause()
    result = await bench.end_of(limited, 4)
    assert result.status is Status.TIMEOUT
    assert result.receipt is not None
    assert result.receipt.survivors == 0
    assert bench.alive("limited") == []
    assert bench.alive("other") != []
    before = await count_in(sandbox)
    await asyncio.sleep(0.1)
    assert await count_in(sandbox) == before  # the kill has let nothing else go on
    assert sandbox.status is State.PAUSED
    await sandbox.set_ttl(0.7)
    await ended_on_time(bench, sandbox, sandbox.record.expires_boot)
    assert (await bench.end_of(other)).limit.which == "ttl"  # type: ignore[union-attr]


@on("root", "user", "no-cgroup")
async def test_a_pause_right_after_a_snapshot_is_one(keeper: Bench) -> None:
    """The answer to letting go must not be taken for the answer to stopping."""
    bench = keeper
    sandbox = await bench.create()
    await bench.printed(await bench.start(sandbox, COUNTER), "on")
    for _ in range(6):
        snapshot = await bench.host.snapshots.take(sandbox, None)
        await sandbox.pause()
        before = await count_in(sandbox)
        await asyncio.sleep(0.03)
        assert await count_in(sandbox) == before
        await sandbox.resume()
        await bench.host.snapshots.delete(snapshot.id)


async def test_a_kill_reaches_what_is_paused_or_being_made(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create()
    running = await bench.start(sandbox, "sleep 300")
    await sandbox.pause()
    began = time.monotonic()
    receipt = await sandbox.kill()
    assert receipt is not None
    assert receipt["survivors"] == 0
    assert (await bench.end_of(running)).status is Status.CANCELLED
    making = asyncio.ensure_future(bench.create(name=f"n-{bench.mark[:8]}"))
    await until(lambda: any(each.record.name == f"n-{bench.mark[:8]}" for each in bench.host.live()))
    young = bench.host.find(f"n-{bench.mark[:8]}")
    assert young.status is State.CREATING
    await young.kill(detail="too early")
    with refused(SandboxEnded, NotAllowed):
        await making
    assert time.monotonic() - began < 5
    assert young.record.end is not None
    assert young.record.end["reason"] == "killed"
