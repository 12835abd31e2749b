# SPDX-License-Identifier: Apache-2.0
"""What a sandbox may use, how many there may be, and those that are held ready."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time

from keeper import LATE_S, Bench, boottime, on, refused, until

from deadstop.boundary.reaper import pid_of
from deadstop.errors import CapacityError, UsageError
from deadstop.results import Status
from deadstop.sandbox.host import Host
from deadstop.sandbox.states import State
from deadstop.sandbox.wishes import MIB

KINDS = ("root", "user")  # what is shown here has nothing to do with cgroups


def what_there_is(host: Host) -> tuple[list[str], list[str], list[str]]:
    layers = f"{host.store.place}/layers"
    return sorted(host.by_id), sorted(os.listdir(host.registry.folder)), sorted(os.listdir(layers))


# -- admission -------------------------------------------------------------------------------------------------------


async def test_one_too_many_is_refused_before_anything_exists(keeper: Bench) -> None:
    bench = keeper
    async with bench.another_host(max_sandboxes=3) as host:
        made = await asyncio.gather(*(bench.create(host=host) for _ in range(5)), return_exceptions=True)
        refusals = [each for each in made if isinstance(each, CapacityError)]
        assert (len(host.live()), len(refusals)) == (3, 2)
        before = what_there_is(host)
        with refused(CapacityError) as caught:
            await bench.create(host=host)
        assert caught[0].full == "sandboxes"  # type: ignore[attr-defined]
        assert caught[0].retry_after is not None  # type: ignore[attr-defined]
        with refused(CapacityError):
            await host.forks.fork(host.live()[0])
        assert what_there_is(host) == before
        await host.live()[0].kill()
        await bench.create(host=host)
        with refused(UsageError):  # never possible: no use in waiting
            await host.forks.fork(host.live()[0], 4)


async def test_a_fork_beside_a_create_stays_within_the_maximum(keeper: Bench) -> None:
    bench = keeper
    async with bench.another_host(max_sandboxes=3) as host:
        parent = await bench.create(host=host)
        await asyncio.gather(
            host.forks.fork(parent, 2), bench.create(host=host), bench.create(host=host), return_exceptions=True
        )
        assert len(host.live()) <= 3
        assert all(each.status is State.RUNNING for each in host.live())


async def test_memory_is_promised_once(keeper: Bench) -> None:
    bench = keeper
    async with bench.another_host(max_memory=600 * MIB) as host:
        made = [await bench.create(host=host) for _ in range(2)]
        before = what_there_is(host)
        with refused(CapacityError) as caught:
            await bench.create(host=host)
        assert caught[0].full == "memory"  # type: ignore[attr-defined]
        with refused(UsageError):
            await bench.create(host=host, memory=601 * MIB)
        assert what_there_is(host) == before
        await made[0].kill()
        await bench.create(host=host)
    async with bench.another_host(spare_memory=1 << 50) as host:
        with refused(CapacityError) as caught:
            await bench.create(host=host)
        assert caught[0].full == "memory"  # type: ignore[attr-defined]
    async with bench.another_host(spare_disk=1 << 60) as host:
        with refused(CapacityError) as caught:
            await bench.create(host=host)
        assert caught[0].full == "disk"  # type: ignore[attr-defined]
        assert caught[0].retry_after is None  # type: ignore[attr-defined]
        assert what_there_is(host) == ([], [], [])


@on("root")
async def test_a_full_disk_refuses_the_new_and_keeps_the_old(keeper: Bench) -> None:
    bench = keeper
    place = f"{bench.folder}/full-{bench.mark}"
    os.mkdir(place)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160m", "none", place], check=True, timeout=10)
    try:
        async with bench.another_host(f"full-{bench.mark}/state", spare_disk=1 * MIB) as host:
            sandbox = await bench.create(host=host, ttl_s=3)
            with open(f"{place}/filler", "wb", buffering=0) as file:
                try:
                    while True:
                        file.write(b"x" * MIB)
                except OSError:
                    pass
            before = what_there_is(host)
            with refused(CapacityError) as caught:
                await bench.create(host=host)
            assert (caught[0].full, caught[0].retry_after) == ("disk", None)  # type: ignore[attr-defined]
            with refused(CapacityError):
                await host.forks.fork(sandbox)
            with refused(CapacityError):
                await host.snapshots.take(sandbox, None)
            assert what_there_is(host) == before
            assert await bench.said(sandbox, "echo on") == "on"
            await sandbox.extend(0.5)
            end = await bench.gone(sandbox, 5)
            assert (end["reason"], end["receipt"]["survivors"]) == ("ttl", 0)
            assert sandbox.execs  # what it printed can still be read here
            object.__setattr__(host.settings, "spare_disk", 0)
            with refused(CapacityError):  # one that is found out only when its record is written
                await bench.create(host=host)
            os.unlink(f"{place}/filler")
            again = await bench.create(host=host)
            assert await bench.said(again, "echo on") == "on"
        async with bench.another_host(f"full-{bench.mark}/state", spare_disk=1 * MIB) as host:
            assert host.registry.unreadable == []
            assert {each.record.end["reason"] for each in host.sandboxes("all")} >= {"killed"}  # type: ignore[index]
    finally:
        subprocess.run(["umount", "-l", place], check=True, timeout=10)


# -- of one ----------------------------------------------------------------------------------------------------------


async def test_processes_are_bounded(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create(pids=20)
    await bench.bounded(sandbox)
    text = "for i in $(seq 60); do sleep 300 & done; jobs -p | wc -l"
    result = await bench.run(sandbox, text, timeout_s=3)
    assert result.limits["pids"] is not None
    assert result.limits["pids"].value == 20
    assert len(bench.alive()) <= 20 + 6  # our own helpers are counted there, too
    await sandbox.kill()
    assert bench.alive() == []


async def test_bytes_are_bounded_as_a_sum_or_said_not_to_be(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create(disk=24 * MIB)
    result = await bench.run(sandbox, "head -c 60000000 /dev/urandom > one; code=$?; stat -c %s one; exit $code")
    assert not result.ok
    assert int(await bench.said(sandbox, "stat -c %s one")) <= 24 * MIB
    assert result.limits["disk"] is not None
    by = result.limits["disk"].enforced_by
    if bench.host.store.kind == "btrfs":
        assert by == "quota"
        assert not any("disk" in each for each in result.degraded)
        assert not (await bench.run(sandbox, "head -c 9000000 /dev/urandom > two")).ok
        assert int(await bench.said(sandbox, "stat -c %s two 2>/dev/null || echo 0")) < 9_000_000
        await bench.said(sandbox, "rm one two; sync; head -c 4000000 /dev/urandom > three")
    else:
        assert by == "rlimit"
        assert any("RLIMIT_FSIZE" in each for each in result.degraded)
        assert any("not bounded" in each for each in bench.host.store.remarks)
    assert (await bench.said(sandbox, "echo on")) == "on"


@on("root")
async def test_processor_time_is_bounded(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create(cpus=0.25)
    text = "timeout 1 sh -c 'while :; do :; done'; times | tail -1"
    said = await bench.said(sandbox, text)
    minutes, _, seconds = said.split()[0].partition("m")
    assert float(minutes) * 60 + float(seconds.rstrip("s")) < 0.6  # of one second


# -- held ready ------------------------------------------------------------------------------------------------------


async def ready(host: Host, count: int) -> None:
    await until(lambda: len(host.warm._ready) == count, 15, "the warm pool is full")


async def test_one_that_was_held_ready_is_as_a_new_one(keeper: Bench) -> None:
    bench = keeper
    async with bench.another_host(warm=1, memory=256 * MIB) as host:
        await ready(host, 1)
        assert host.sandboxes("all") == []  # no record, no life, until somebody takes it
        began = boottime()
        warm = await bench.create(host=host, ttl_s=2.5, env={"A": "b"}, metadata={"c": "d"}, idle_s=1.0)
        assert warm.record.boot_mode == "warm"
        assert await bench.said(warm, "echo $A; pwd; ls -A; ls -A /tmp") == "b\n/home/agent"
        await ready(host, 1)  # another in its place
        cold = await bench.create(host=host, pids=99)
        assert cold.record.boot_mode == "cold"
        running = await bench.start(warm, "(setsid sleep 300 &); sleep 300")
        end = await bench.gone(warm, 5)
        assert end["reason"] == "ttl"
        assert end["receipt"]["survivors"] == 0
        assert 2.5 <= boottime() - began < 2.5 + 2 * LATE_S
        assert (await bench.end_of(running)).status is Status.TIMEOUT
        assert bench.alive() == []
        idle = await bench.create(host=host, idle_s=0.5)
        assert idle.record.boot_mode == "warm"
        assert (await bench.gone(idle, 5))["reason"] == "idle"


async def test_a_dead_one_is_not_given_out(keeper: Bench) -> None:
    bench = keeper
    async with bench.another_host(warm=2, memory=256 * MIB) as host:
        await ready(host, 2)
        first = host.warm._ready[0]
        pid = pid_of(first.link.channel.root)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: first.gone or first.link.closed, 5)
        sandbox = await bench.create(host=host)
        assert sandbox.record.pid != pid
        assert await bench.said(sandbox, "echo on") == "on"
        await until(lambda: first.layer.id not in os.listdir(f"{host.store.place}/layers"), 5)
        await ready(host, 2)
        began = time.monotonic()
    assert time.monotonic() - began < 5
