# SPDX-License-Identifier: Apache-2.0
"""Whose a sandbox is: attached and detached ones, how they are found again, and by what name."""

from __future__ import annotations

import asyncio
import time

from keeper import LATE_S, Bench, boottime, refused, until

from deadstop.errors import KeyConflict, NotAllowed, NotFound, SandboxEnded
from deadstop.results import Status
from deadstop.sandbox.sandbox import Sandbox
from deadstop.sandbox.states import State

KINDS = ("root", "user")  # what is shown here has nothing to do with cgroups


async def test_an_attached_one_ends_with_its_last_owner(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create(attached=True)
    expires = sandbox.record.expires_boot
    running = await bench.start(sandbox, "trap '' TERM HUP; (setsid sleep 300 &); while :; do sleep 300; done")
    async with sandbox.attachment():
        async with sandbox.attachment():
            assert await bench.said(sandbox, "echo a") == "a"
        await asyncio.sleep(0.1)
        assert sandbox.status is State.RUNNING  # one is left
        assert sandbox.record.expires_boot == expires
        left = boottime()
    end = await bench.gone(sandbox, 5)
    assert boottime() - left < LATE_S
    assert end["reason"] == "owner_gone"
    assert end["receipt"]["survivors"] == 0
    assert bench.alive() == []
    assert (await bench.end_of(running)).status is Status.CANCELLED
    with refused(SandboxEnded) as caught:
        async with sandbox.attachment():
            pass
    assert caught[0].reason == "owner_gone"  # type: ignore[attr-defined]


async def test_a_detached_one_outlives_every_connection(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create()
    expires = sandbox.record.expires_boot
    for _ in range(3):
        async with sandbox.attachment():
            pass
    await asyncio.sleep(0.1)
    assert sandbox.status is State.RUNNING
    assert sandbox.record.expires_boot == expires


async def test_an_attached_one_that_nobody_claims_ends(keeper: Bench) -> None:
    bench = keeper
    async with bench.another_host(attach_grace_s=1.0) as host:
        unclaimed = await bench.create(host=host, attached=True)
        claimed = await bench.create(host=host, attached=True)
        detached = await bench.create(host=host)
        async with claimed.attachment():
            end = await bench.gone(unclaimed, 4)
            assert (end["reason"], end["detail"]) == ("owner_gone", "its owner never attached to it")
            assert claimed.record.live
            assert detached.record.live


async def test_an_attached_one_ends_at_its_time_all_the_same(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.short(0.8, attached=True)
    async with sandbox.attachment():
        end = await bench.gone(sandbox, 4)
    assert end["reason"] == "ttl"


async def test_it_is_found_by_id_and_name_with_the_time_it_has(keeper: Bench) -> None:
    bench = keeper
    name = f"box-{bench.mark[:8]}"
    sandbox = await bench.create(name=name, ttl_s=20, metadata={"task": bench.mark})
    await asyncio.sleep(0.2)
    for found in (bench.host.find(sandbox.id), bench.host.find(name)):
        assert found is sandbox
        document = found.document()
        assert 15 < document["time_left_s"] <= 19.8
        assert document["ttl_seconds"] == 20.0
        assert document["expires_at"].endswith("Z")
    assert bench.host.sandboxes("live", {"task": bench.mark}) == [sandbox]
    assert bench.host.sandboxes("live", {"task": "another"}) == []
    with refused(NotFound):
        bench.host.find("sbx_0000000000")
    with refused(NotAllowed):
        await bench.create(name=name)
    await sandbox.kill()
    assert bench.host.find(name) is sandbox  # what has ended is known
    document = sandbox.document()
    assert (document["status"], document["time_left_s"]) == ("ended", 0.0)
    assert document["expires_at"] is not None
    newer = await bench.create(name=name)
    assert bench.host.find(name) is newer
    assert bench.host.find(sandbox.id) is sandbox


async def test_lists_tell_what_ended_unasked(keeper: Bench) -> None:
    bench = keeper
    tag = {"tag": bench.mark}
    killed, expired = await bench.create(metadata=tag), await bench.short(0.6, metadata=tag)
    living = await bench.create(metadata=tag)
    await killed.kill()
    await bench.gone(expired, 5)
    host = bench.host
    assert host.sandboxes("present", tag) == [expired, living]
    assert host.sandboxes("live", tag) == [living]
    assert host.sandboxes("ended", tag) == [killed, expired]
    assert host.sandboxes("all", tag) == [killed, expired, living]
    assert host.sandboxes("running", tag) == [living]


async def test_one_that_ended_is_resumed_under_its_name(keeper: Bench) -> None:
    bench = keeper
    name = f"again-{bench.mark[:8]}"
    first = await bench.create(name=name, ttl_s=30, metadata={"a": "b"})
    with refused(NotAllowed):
        await first.kill()
        await bench.host.resume(first)  # nothing to be resumed from
    first = await bench.create(name=name, ttl_s=30, metadata={"a": "b"})
    assert await bench.host.resume(first) is first  # it is there
    await bench.said(first, "echo one > file")
    await bench.host.snapshots.take(first, None)
    await bench.said(first, "echo later > file")
    await first.kill()
    again = await asyncio.gather(*(bench.host.resume(first) for _ in range(3)))
    assert all(each is again[0] for each in again)  # re-sent, it is one
    second = again[0]
    bench.made.append(second)
    assert second.id != first.id
    assert (second.record.name, dict(second.record.metadata)) == (name, {"a": "b"})
    assert 29 < second.record.time_left() <= 30
    assert await bench.said(second, "cat file") == "one"
    assert bench.host.find(name) is second
    assert bench.host.find(first.id) is second
    assert (first.record.resumed_as, second.record.resumed_from) == (second.id, first.id)
    await second.kill()
    third = await bench.host.resume(second)
    bench.made.append(third)
    assert bench.host.find(first.id) is third
    assert await bench.said(third, "cat file") == "one"


async def test_a_create_that_is_sent_again_makes_one(keeper: Bench) -> None:
    bench = keeper
    key = f"key-{bench.mark}"

    async def one() -> Sandbox:
        sandbox = await bench.create(key=key, metadata={"tag": bench.mark})
        assert sandbox.status is State.RUNNING  # nobody was given one that is not there yet
        return sandbox

    first = asyncio.create_task(one())
    await until(lambda: bench.host.sandboxes("all", {"tag": bench.mark}) != [])
    made = await asyncio.gather(first, *(one() for _ in range(4)))
    assert all(each is made[0] for each in made)
    assert len(bench.host.sandboxes("all", {"tag": bench.mark})) == 1
    with refused(KeyConflict):
        await bench.create(key=key, metadata={"tag": "other"})
    await made[0].kill()
    assert await bench.create(key=key, metadata={"tag": bench.mark}) is made[0]


async def test_a_create_that_failed_can_be_sent_again(keeper: Bench) -> None:
    bench = keeper
    key = f"key-{bench.mark}"
    async with bench.another_host() as host:
        store_create = host.store.create

        async def broken(*given: object, **more: object) -> object:
            raise OSError("a disk that fails once")

        host.store.create = broken  # type: ignore[method-assign,assignment]
        with refused(OSError):
            await bench.create(host=host, key=key)
        assert [str(each.status) for each in host.sandboxes("all")] == ["ended"]
        assert host.sandboxes("all")[0].record.end["reason"] == "failed"  # type: ignore[index]
        host.store.create = store_create  # type: ignore[method-assign]
        sandbox = await bench.create(host=host, key=key)
        assert sandbox.status is State.RUNNING
        assert await bench.said(sandbox, "echo a") == "a"


async def test_a_create_that_is_sent_again_to_the_next_server_is_known(keeper: Bench) -> None:
    bench = keeper
    async with bench.another_host("keys") as host:
        first = await bench.create(host=host, key="k", ttl_s=1e6)
    async with bench.another_host("keys") as host:
        found = await host.create(bench.wish(ttl_s=1e6), "k")
        assert found.id == first.id
        assert found.status is State.ENDED


async def test_a_kill_is_the_same_whoever_asks(keeper: Bench) -> None:
    bench = keeper
    sandbox = await bench.create()
    await bench.start(sandbox, "trap '' TERM; (setsid sleep 300 &); sleep 300; sleep 300")
    await until(lambda: len(bench.alive()) >= 3)
    began = time.monotonic()
    receipts = await asyncio.gather(*(sandbox.kill() for _ in range(5)))
    assert time.monotonic() - began < 2 * LATE_S
    assert receipts[0] is not None
    assert receipts[0]["proof"] == "pid_namespace_reaped"
    assert receipts[0]["survivors"] == 0
    assert all(each == receipts[0] for each in receipts)
    assert await sandbox.kill(detail="again") == receipts[0]
    assert sandbox.record.end["detail"] == ""  # type: ignore[index]
    assert bench.alive() == []


async def test_events_tell_a_life_in_order(keeper: Bench) -> None:
    bench = keeper
    listener = bench.host.events.listen(None)
    sandbox = await bench.create(ttl_s=6)
    own = bench.host.events.listen(sandbox.id)
    await bench.run(sandbox, "true")
    await sandbox.pause()
    await sandbox.resume()
    await sandbox.extend(1)
    await bench.host.snapshots.take(sandbox, None)
    await sandbox.kill()
    kinds = [event["type"] async for event in own]
    assert kinds == ["exec_started", "exec_ended", "paused", "resumed", "extended", "snapshot", "ended"]
    async for event in listener:
        if event["sandbox_id"] == sandbox.id:
            assert event["type"] == "created"
            break
    await listener.aclose()  # type: ignore[attr-defined]
