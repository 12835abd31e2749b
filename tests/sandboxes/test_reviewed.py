# SPDX-License-Identifier: Apache-2.0
"""Defects that a reading of the whole found, one test each."""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
import signal
import socket
import subprocess
import time

from keeper import LATE_S, Bench, alone, boottime, on, process_of_supervisor, refused, until

from deadstop import wire
from deadstop.boundary.cgroup import Hierarchies
from deadstop.errors import DeadstopError, InternalError
from deadstop.executor.client import Channel
from deadstop.results import Status
from deadstop.sandbox import link
from deadstop.sandbox.wishes import MIB, Hooks

# -- the supervisor --------------------------------------------------------------------------------------------------


@alone
async def test_an_extension_of_one_life_leaves_the_end_of_the_next_where_it_was(keeper: Bench) -> None:
    """The one timer of all lives was armed for the extended one."""
    bench = keeper
    first, second = await bench.create(), await bench.create()
    await first.set_ttl(0.6)
    await second.set_ttl(0.9)
    expires = second.record.expires_boot
    await first.extend(30)
    end = await bench.gone(second, 0.9 + LATE_S)
    assert end["reason"] == "ttl"
    assert boottime() < expires + LATE_S
    assert first.record.live


@on("root")
async def test_groups_of_commands_go_when_what_they_left_in_the_background_has_ended(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create()
    folder = Hierarchies().v2
    assert folder is not None
    with open(f"/proc/{sandbox.record.pid}/cgroup") as file:
        own = next(line.rpartition("/")[2].strip() for line in file if line.startswith("0:"))
    for _ in range(60):
        await bench.run(sandbox, "sleep 300 & echo $! >> pids")
        await bench.run(sandbox, "kill -9 $(cat pids)")
    parts = [name for name in os.listdir(f"{folder}/{own}") if name.startswith("call-")]
    assert len(parts) < 40


@on("root")
async def test_a_command_does_not_end_for_the_memory_of_an_earlier_one(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create(memory=64 * MIB)
    hog = "exec python3 -c 'x = bytearray(200 << 20)'"
    assert (await bench.run(sandbox, hog)).status is Status.RESOURCE_LIMIT
    result = await bench.run(sandbox, "sleep 0.3", on_timeout="destroy")
    assert (result.status, result.exit_code) == (Status.COMPLETED, 0)
    assert sandbox.record.live


@alone
async def test_a_command_that_the_supervisor_cannot_start_has_an_end(keeper: Bench) -> None:
    """It is told on the command's own link, where its end is waited for."""
    bench = keeper
    sandbox = await bench.create()
    supervisor = process_of_supervisor().pid
    before = resource.prlimit(supervisor, resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir(f"/proc/{supervisor}/fd")}
    free = [number for number in range(len(used) + 3) if number not in used]
    resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (free[1] + 1, before[1]))  # its link, and one more
    try:
        started = await bench.start(sandbox, "true")
        result = await bench.end_of(started, 3)
    finally:
        resource.prlimit(supervisor, resource.RLIMIT_NOFILE, before)
    assert result.status is Status.REFUSED
    assert "could not start" in (result.error or {})["message"]
    assert await bench.said(sandbox, "echo well") == "well"


async def test_the_supervisor_writes_no_output_twice(keeper: Bench) -> None:
    """Eight megabytes as JSON kept it from every deadline for a second and more."""
    bench = keeper
    sandbox, sizes = await bench.create(), {}
    started = await bench.start(sandbox, "head -c 3000000 /dev/urandom | tee copy; md5sum copy >&2", tail=2 * MIB)
    assert started._link is not None
    take = started._link.on_frame

    def seen(kind: bytes, body: bytes) -> None:
        sizes[kind] = len(body)
        take(kind, body)

    started._link.on_frame = seen
    result = await bench.end_of(started)
    assert (result.stdout.bytes_total, len(result.stdout.raw)) == (3_000_000, 2 * MIB)
    assert result.stdout.bytes_dropped == 3_000_000 - 2 * MIB
    tail = await bench.run(sandbox, f"tail -c {2 * MIB} copy | md5sum")
    assert tail.stdout.tail.split()[0] == hashlib.md5(result.stdout.raw).hexdigest()
    assert result.stderr.tail.endswith("copy\n")
    assert sizes[wire.DONE] < 1 << 16


@alone
async def test_a_supervisor_that_is_stopped_stops_nobody_else(keeper: Bench) -> None:
    """What is sent to it waits without this process waiting: for other sandboxes' clients it was ten seconds."""
    bench = keeper
    sandbox, stalls = await bench.create(), [0.0]
    supervisor = process_of_supervisor().pid
    os.kill(supervisor, signal.SIGSTOP)
    try:
        asked = [asyncio.create_task(bench.start(sandbox, "true", env={"A": "a" * 8000})) for _ in range(80)]
        end = time.monotonic() + 0.6
        while (before := time.monotonic()) < end:
            await asyncio.sleep(0.01)
            stalls.append(time.monotonic() - before)
    finally:
        os.kill(supervisor, signal.SIGCONT)
    assert max(stalls) < 0.5
    for started in await asyncio.gather(*asked):
        assert (await bench.end_of(started)).ok


# -- the server's side of it -----------------------------------------------------------------------------------------


async def test_a_boundary_is_shown_to_be_gone_when_it_is(keeper: Bench) -> None:
    """The descriptor that shows it was closed first, and its absence taken for the proof."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(["sleep", "0.5"])
    lost = link.Link(Channel(ours, process_of_supervisor()))
    lost.channel.root, lost.channel.root_is_all = os.pidfd_open(process.pid), True
    seen: list[asyncio.Task[bool]] = []
    lost.on_lost = lambda: seen.append(asyncio.create_task(link.shown_gone(lost.channel)))
    theirs.close()  # as when the supervisor ends
    await until(lambda: seen)
    assert lost.closed
    await asyncio.sleep(0)
    assert not seen[0].done()
    assert await seen[0] is True
    assert process.wait(1) == 0
    assert await link.shown_gone(lost.channel) is False  # nothing to see it by


@alone
async def test_an_extension_that_the_supervisor_took_late_counts(keeper: Bench) -> None:
    """Whoever asked for it was told of a failure; what the record says of its end is true all the same."""
    bench = keeper
    sandbox = await bench.create()
    before, patience = sandbox.record.expires_boot, link.ANSWER_S
    supervisor = process_of_supervisor().pid
    link.ANSWER_S = 0.2
    os.kill(supervisor, signal.SIGSTOP)
    try:
        with refused(InternalError):
            await sandbox.extend(100)
    finally:
        os.kill(supervisor, signal.SIGCONT)
        link.ANSWER_S = patience
    await until(lambda: sandbox.record.expires_boot == before + 100, 3)
    assert abs(sandbox.record.ttl_s - 160) < 1


async def test_two_who_end_it_wait_for_one_last_hook(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create(hooks=Hooks(before_stop="sleep 0.6; echo stopped"))
    await asyncio.gather(sandbox.kill(), sandbox.kill())
    (hook,) = sandbox.execs.values()
    result = await bench.end_of(hook)
    assert (result.status, result.stdout.tail) == (Status.COMPLETED, "stopped\n")


async def test_idleness_is_over_when_somebody_comes_before_the_end(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create(idle_s=0.4, hooks=Hooks(before_stop="sleep 0.8"))
    await until(lambda: sandbox.execs, what="the hook before an idle end")
    used = await bench.start(sandbox, "sleep 1.5; echo done")
    result = await bench.end_of(used)
    assert (result.status, result.stdout.tail) == (Status.COMPLETED, "done\n")
    assert (await bench.gone(sandbox, 10))["reason"] == "idle"


async def test_one_that_becomes_persistent_has_the_time_for_its_snapshot_before_an_idle_end(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create(idle_s=1.2)
    await sandbox.set_persistent(True)
    await bench.said(sandbox, "echo kept > kept")
    assert (await bench.gone(sandbox, 10))["reason"] == "idle"
    again = await bench.host.resume(sandbox)
    bench.made.append(again)
    assert await bench.said(again, "cat kept") == "kept"
    assert again.record.persistent  # as the one before was in the end


async def test_one_whose_life_is_over_before_it_is_made_ends_for_that(keeper: Bench) -> None:
    bench = keeper
    known = set(bench.host.by_id)
    try:
        sandbox = await bench.create(ttl_s=0.002)
    except DeadstopError:
        (sandbox,) = (each for key, each in bench.host.by_id.items() if key not in known and each.wish.ttl_s < 0.01)
    assert (await bench.gone(sandbox, 5))["reason"] == "ttl"


async def test_a_pool_that_could_not_be_filled_is_filled_later(keeper: Bench) -> None:
    bench = keeper
    async with bench.another_host(warm=1) as host:
        await until(lambda: host.warm._ready)
        host.warm._ready.popleft().link.close()  # as if it could not have been made
        sandbox = await bench.create(host=host, memory=host.settings.memory)
        assert sandbox.record.boot_mode == "cold"
        await until(lambda: host.warm._ready)
        await sandbox.kill()


async def test_a_command_that_was_just_given_does_not_cost_a_paused_sandbox_its_life(keeper: Bench) -> None:
    """It was stopped before it was born, and what is not born could not be shown to be dead."""
    bench = keeper
    sandbox = await bench.create()
    started = await bench.start(sandbox, "sleep 300", timeout_s=0.5)
    await sandbox.pause()
    result = await bench.end_of(started, 8)
    assert result.status is Status.TIMEOUT
    assert result.receipt is not None
    assert result.receipt.proof != "none"
    assert sandbox.status == "paused"


async def test_what_is_made_from_a_snapshot_has_what_its_template_has(keeper: Bench) -> None:
    bench, name = keeper, f"own-{keeper.mark[:8]}"
    host, folder = bench.host, f"{bench.folder}/{bench.mark}"
    os.mkdir(folder)
    await host.templates.add_from_folder(name, folder, env={"FLAVOUR": "own"})
    found = await host.snapshots.take(await bench.create(template=name), None)
    again = await bench.create(from_snapshot=found.id)
    assert await bench.said(again, "echo $FLAVOUR") == "own"
    assert again.record.template == name
    await host.templates.delete(name)
    bare = await bench.create(from_snapshot=found.id)
    assert await bench.said(bare, "echo [$FLAVOUR]") == "[]"


async def test_an_end_says_why_it_came_and_not_why_another_was_asked_for(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create(hooks=Hooks(before_stop="sleep 1.2"))
    await sandbox.set_ttl(0.4)
    await sandbox.kill(detail="no longer needed")  # its hook has the time that its life has not
    assert sandbox.record.end is not None
    assert (sandbox.record.end["reason"], sandbox.record.end["detail"]) == ("ttl", "its life was over")
