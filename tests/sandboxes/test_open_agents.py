# SPDX-License-Identifier: Apache-2.0
"""The weaknesses that were measured in another project's sandboxes (Open Agents), each with the right behaviour.

One test for each row, named after it. What only a client can show is in the tests of the server: here the same is asked
of what the server is made of.
"""

from __future__ import annotations

import asyncio
import json
import math
import time

from keeper import LATE_S, Bench, alone, boottime, process_of_supervisor, refused, state_of, until

from deadstop.errors import CapacityError, DeadstopError, InvalidLimit, NotAllowed, NotFound, SandboxEnded
from deadstop.results import Status
from deadstop.sandbox.states import State
from deadstop.sandbox.wishes import ExecWish, Hooks

KINDS = ("root", "user")


async def test_create_timeout_0_or_minus_5_or_nan(keeper: Bench) -> None:
    bench = keeper
    before = set(bench.host.by_id)
    for wrong in (0, -5, math.nan):
        with refused(InvalidLimit):
            await bench.create(ttl_s=wrong)
    assert [each for each in bench.host.by_id.values() if each.id not in before and each in bench.made] == []


async def test_create_beyond_the_maximum_or_infinity(keeper: Bench) -> None:
    """Clamped to what the server keeps, which is said at once; infinity is no number of seconds."""
    bench = keeper
    with refused(InvalidLimit):
        await bench.create(ttl_s=math.inf)
    for much in (17_970_001.0, 18e6):
        sandbox = await bench.create(ttl_s=much)
        document = sandbox.document()
        assert document["ttl_seconds"] == bench.host.settings.max_ttl_s
        assert document["time_left_s"] <= bench.host.settings.max_ttl_s


async def test_setup_took_long(keeper: Bench) -> None:
    """The one clock of a life starts before anything is made: what is told is what is kept, however long that took."""
    bench = keeper
    async with bench.another_host() as host:
        create = host.store.create

        async def slow(*given: object, **more: object) -> object:
            await asyncio.sleep(0.4)
            return await create(*given, **more)  # type: ignore[arg-type]

        host.store.create = slow  # type: ignore[method-assign,assignment]
        began = boottime()
        sandbox = await bench.create(host=host, ttl_s=3, hooks=Hooks(on_timeout="echo hook"))
        assert sandbox.record.time_left() <= 2.6
        assert (await bench.gone(sandbox, 8))["reason"] == "ttl"
        assert 3 <= boottime() - began < 3 + LATE_S
        assert [each.stdout.text() for each in sandbox.execs.values()] == ["hook\n"]  # not lost to the set-up
        with refused(DeadstopError):  # over before it was made: never given out, nothing left
            await bench.create(host=host, ttl_s=0.2)
        assert host.live() == []


async def test_extend_0_or_minus_1000_or_nan_or_1e9(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create(ttl_s=30)
    expires = sandbox.record.expires_boot
    for wrong in (0, -1000, math.nan):
        with refused(InvalidLimit):
            await sandbox.extend(wrong)
    assert sandbox.record.expires_boot == expires
    answer = await sandbox.extend(1e9)
    assert answer["clamped"] is True
    assert sandbox.record.expires_boot <= sandbox.record.created_boot + bench.host.settings.max_ttl_s


async def test_extend_racing_stop(keeper: Bench) -> None:
    bench = keeper
    for turn in range(12):
        sandbox = await bench.create(ttl_s=30)
        killing = asyncio.ensure_future(sandbox.kill())
        for _ in range(turn % 4):
            await asyncio.sleep(0)
        answer = (await asyncio.gather(sandbox.extend(10), return_exceptions=True))[0]
        if isinstance(answer, SandboxEnded):
            assert answer.reason == "killed"
        else:
            assert math.isfinite(answer["time_left_s"])  # type: ignore[index]
        receipt = await killing
        assert receipt is not None
        assert receipt["survivors"] == 0
        assert sandbox.status is State.ENDED  # an extension brings nothing back
        assert sandbox.record.time_left() == 0.0
        assert math.isfinite(sandbox.record.expires_at())


async def test_extend_begun_before_expiry_and_answered_after(keeper: Bench) -> None:
    """It counts from when the supervisor has taken it, and the hook of the old end does not run."""
    bench = keeper
    sandbox = await bench.create(ttl_s=8, hooks=Hooks(on_timeout="touch /home/agent/expired"))
    await sandbox.set_ttl(1.5)
    assert sandbox.link is not None
    real, link = sandbox.link.ask, sandbox.link

    async def slow(*given: object) -> bytes:
        answer = await real(*given)  # type: ignore[arg-type]
        await asyncio.sleep(1.6)  # the old end passes
        return answer

    link.ask = slow  # type: ignore[method-assign,assignment]
    old = sandbox.record.expires_boot
    await sandbox.extend(30)
    assert boottime() > old
    assert sandbox.status is State.RUNNING
    link.ask = real  # type: ignore[method-assign]
    assert 25 < sandbox.record.time_left() < 30
    await asyncio.sleep(0.1)
    assert sandbox.record.live


async def test_extend_after_proactive_expiry(keeper: Bench) -> None:
    """In the buffer an extension adds to the time that is really left, all of it."""
    bench = keeper
    sandbox = await bench.old(2.5, buffer=2.0)
    await until(lambda: sandbox.status is State.EXPIRING, 5)
    expires = sandbox.record.expires_boot
    answer = await sandbox.extend(1)
    assert math.isclose(sandbox.record.expires_boot, expires + 1)
    assert answer["time_left_s"] > 1
    assert sandbox.status is State.RUNNING
    end = await bench.gone(sandbox, 8)
    assert end["reason"] == "ttl"
    assert expires + 1 <= boottime() < expires + 1 + LATE_S
    with refused(SandboxEnded):
        await sandbox.extend(1)


async def test_reconnect_with_12_or_9_seconds_left(keeper: Bench) -> None:
    """Whoever finds it again is told the time it has, to the end."""
    bench = keeper
    sandbox = await bench.create(ttl_s=40)
    for seconds in (12, 9, 1.2):
        await sandbox.set_ttl(seconds)
        for _ in range(3):
            async with sandbox.attachment():
                found = bench.host.find(sandbox.id).document()
            assert seconds - LATE_S < found["time_left_s"] <= seconds
    assert (await bench.gone(sandbox, 5))["reason"] == "ttl"


async def test_reconnect_after_the_hard_limit(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.short(0.5)
    await bench.gone(sandbox, 4)
    found = bench.host.find(sandbox.id)
    assert (str(found.status), found.document()["time_left_s"]) == ("ended", 0.0)
    with refused(SandboxEnded):
        async with found.attachment():
            pass
    with refused(NotAllowed):
        await bench.host.resume(found)  # there is no snapshot: nothing is made up


async def test_metadata_missing_or_a_skewed_clock(keeper: Bench) -> None:
    """The record is the server's own; a clock of the wall that is wrong by an hour changes no time left."""
    bench = keeper
    with refused(NotFound):
        bench.host.find("sbx_that_nobody_has_heard_of")
    sandbox = await bench.create(ttl_s=30)
    sandbox.record.created_at += 3600  # as a clock that was ahead then would have it
    assert 25 < sandbox.record.time_left() <= 30
    real = time.time
    try:
        time.time = lambda: real() - 60.0
        assert 25 < sandbox.record.time_left() <= 30
    finally:
        time.time = real
    async with bench.another_host("cut") as host:
        other = await bench.create(host=host)
        path = f"{host.registry.folder}/{other.id}.json"
    with open(path) as file:
        document = json.load(file)
    del document["expires_boot"]
    with open(path, "w") as file:
        json.dump(document, file)
    async with bench.another_host("cut") as host:
        with refused(NotFound):  # not: three hundred seconds more
            host.find(other.id)


async def test_saved_state_expires_in_9_seconds(keeper: Bench) -> None:
    """After a server was started anew what was saved lives no longer, whatever it says: its end is known instead."""
    bench = keeper
    async with bench.another_host("saved") as host:
        sandbox = await bench.create(host=host, ttl_s=9)
        path = f"{host.registry.folder}/{sandbox.id}.json"
        with open(path) as file:
            running = file.read()
    with open(path, "w") as file:
        file.write(running)  # as a server leaves it that was killed
    async with bench.another_host("saved") as host:
        found = host.find(sandbox.id)
        assert found.status is State.ENDED
        assert found.record.end is not None
        assert found.record.end["reason"] == "host_lost"
        assert found.record.time_left() == 0.0


async def test_stop_that_fails(keeper: Bench) -> None:
    """A kill whose answer is lost is no end: it is asked again, and the second finds the truth."""
    bench = keeper
    sandbox = await bench.create(hooks=Hooks(before_stop="echo bye"))
    with refused(asyncio.TimeoutError, TimeoutError):
        await asyncio.wait_for(sandbox.kill(), 0.0001)
    receipt = await sandbox.kill()
    assert receipt is not None
    assert receipt["survivors"] == 0
    assert state_of(sandbox.record.pid) in ("", "Z")
    hooks = [each for each in sandbox.execs.values() if each.cmd.startswith("hook: ")]
    assert len(hooks) == 1


async def test_expiry_with_an_on_timeout_that_throws(keeper: Bench) -> None:
    bench = keeper
    hooks = Hooks(on_timeout="exit 7", before_stop="echo bye")
    sandbox = await bench.old(3, buffer=2.5, hooks=hooks)
    expires = sandbox.record.expires_boot
    assert (await bench.gone(sandbox, 8))["reason"] == "ttl"
    assert expires <= boottime() < expires + LATE_S
    results = [await bench.end_of(each) for each in sandbox.execs.values()]
    assert sorted((str(each.status), each.exit_code, each.stdout.tail) for each in results) == [
        ("completed", 0, "bye\n"), ("completed", 7, ""),
    ]  # fmt: skip


async def test_exec_timeout_minus_1_or_nan(keeper: Bench) -> None:
    """Refused before anything starts, and never as the failure of a command."""
    bench = keeper
    for wrong in (-1, math.nan):
        with refused(InvalidLimit):
            ExecWish(("true",), timeout_s=wrong)
    sandbox = await bench.create()
    over = await bench.start(sandbox, "touch ran", timeout_s=0)
    assert over.result is not None
    assert over.result.status is Status.REFUSED
    assert (await bench.run(sandbox, "test -e ran")).exit_code == 1


async def test_exec_timeout_loses_partial_output(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create()
    result = await bench.run(sandbox, "echo partial; echo also >&2; sleep 300", timeout_s=0.4)
    assert (result.status, result.stdout.tail, result.stderr.tail) == (Status.TIMEOUT, "partial\n", "also\n")


async def test_active_stream_at_hard_expiry(keeper: Bench) -> None:
    """Work in progress does not keep it from its last snapshot, nor the snapshot from its end."""
    bench = keeper
    sandbox = await bench.old(4, buffer=4.9, on_expiry="snapshot")
    await bench.said(sandbox, "echo work > file")
    busy = await bench.start(sandbox, "while :; do echo x; sleep 0.01; done")
    reading = asyncio.ensure_future(_drain(busy.subscribe(whole=True)))
    expires = sandbox.record.expires_boot
    end = await bench.gone(sandbox, 8)
    assert end["reason"] == "ttl"
    assert boottime() < expires + LATE_S
    assert sandbox.record.last_snapshot is not None
    await asyncio.wait_for(reading, 5)
    again = await bench.host.resume(sandbox)
    bench.made.append(again)
    assert await bench.said(again, "cat file") == "work"


async def _drain(reader: object) -> None:
    async for _ in reader:  # type: ignore[attr-defined]
        pass


async def test_a_crash_while_it_is_being_stopped(keeper: Bench) -> None:
    """There is no state between that could get stuck: a record that is not ended is closed by the next server."""
    bench = keeper
    async with bench.another_host("stuck") as host:
        sandbox = await bench.create(host=host)
        path = f"{host.registry.folder}/{sandbox.id}.json"
        with open(path) as file:
            running = json.load(file)
    for state in ("creating", "running", "paused", "expiring"):
        with open(path, "w") as file:
            json.dump({**running, "state": state}, file)
        async with bench.another_host("stuck") as host:
            assert host.live() == []
            assert host.find(sandbox.id).record.end["reason"] == "host_lost"  # type: ignore[index]


async def test_two_claim_it_at_once(keeper: Bench) -> None:
    """Bringing one back is done once, however many ask in the same moment."""
    bench = keeper
    sandbox = await bench.create()
    await bench.host.snapshots.take(sandbox, None)
    await sandbox.kill()
    made = await asyncio.gather(*(bench.host.resume(sandbox) for _ in range(4)))
    bench.made.extend(made)
    assert len({each.id for each in made}) == 1


@alone
async def test_transient_failure_is_reported_as_connected(keeper: Bench) -> None:
    """A supervisor that is stopped answers nothing, and nothing is made up for it: no extension is said to be one."""
    bench = keeper
    sandbox = await bench.short(1.2)
    supervisor = process_of_supervisor()
    expires = sandbox.record.expires_boot
    supervisor.send_signal(19)  # SIGSTOP
    try:
        extending = asyncio.ensure_future(sandbox.extend(30))
        await asyncio.sleep(1.3)
        assert not extending.done()
        assert sandbox.record.expires_boot == expires
    finally:
        supervisor.send_signal(18)  # SIGCONT
    with refused(SandboxEnded):
        await asyncio.wait_for(extending, 5)
    assert (await bench.gone(sandbox, 5))["reason"] == "ttl"


async def test_a_double_click_extends_twice(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create(ttl_s=30)
    expires = sandbox.record.expires_boot
    first = await sandbox.extend(20, key="click")
    assert await sandbox.extend(20, key="click") == first
    assert math.isclose(sandbox.record.expires_boot, expires + 20)


async def test_the_shown_timeout_ignores_extensions(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create(ttl_s=30)
    await sandbox.extend(20)
    document = sandbox.document()
    assert document["ttl_seconds"] == 50.0
    assert 45 < document["time_left_s"] <= 50


async def test_a_failed_create_leaves_nothing(keeper: Bench) -> None:
    bench = keeper
    async with bench.another_host(max_sandboxes=1) as host:
        await bench.create(host=host)
        with refused(CapacityError):
            await bench.create(host=host)
        assert len(host.sandboxes("all")) == 1
