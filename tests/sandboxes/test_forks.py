# SPDX-License-Identifier: Apache-2.0
"""Copies of a sandbox's files: as of one moment, apart from then on, all of them or none."""

from __future__ import annotations

import asyncio
import os

from keeper import Bench, on, refused, until

from deadstop.errors import DeadstopError, InvalidLimit, NotAllowed, NotFound, SandboxEnded
from deadstop.sandbox.sandbox import Sandbox
from deadstop.sandbox.states import State

KINDS = ("root", "user")  # for what does not depend on how processes are found

WRITER = """
import mmap, os, struct, time
os.chdir("/home/agent")
log = open("log", "w", buffering=1)
with open("shared", "wb") as file:
    file.truncate(4096)
shared = mmap.mmap(os.open("shared", os.O_RDWR), 4096)
number = 0
while True:
    number += 1
    log.write(f"{number}\\n")          # first the log,
    shared[0:8] = struct.pack("<q", number)  # then the mapping:
    if number == 50:
        print("on", flush=True)
"""
READER = """
import os, struct
lines = open("/home/agent/log").read().split("\\n")
whole = lines[:-1] if lines[-1] == "" else lines
numbers = [int(each) for each in whole]
assert numbers == list(range(1, len(numbers) + 1)), "the log has a gap"
shared = struct.unpack("<q", open("/home/agent/shared", "rb").read(8))[0]
print(numbers[-1] - shared)
"""


def adopt(bench: Bench, *sandboxes: Sandbox) -> None:
    bench.made.extend(sandboxes)


@on("root", "user", "no-cgroup")
async def test_a_fork_has_the_files_of_one_moment(keeper: Bench) -> None:
    """A log and a mapping that a live writer keeps one apart at most: so they are in the copy, too."""
    bench = keeper
    parent = await bench.create(ttl_s=30)
    writer = await bench.start(parent, f"exec python3 -c '{WRITER}'", "writer")
    await bench.printed(writer, "on")
    for _ in range(3):
        forked = await bench.host.forks.fork(parent)
        child = forked.children[0]
        adopt(bench, child)
        assert await bench.said(child, f"python3 -c '{READER}'") in ("0", "1"), forked.how
        assert len(bench.alive("writer")) == 1  # files only: no process goes along
        await child.kill()
    assert writer.result is None
    assert parent.status is State.RUNNING
    assert len(bench.alive("writer")) == 1
    before = await bench.said(parent, "wc -l < log")
    assert int(await bench.said(parent, "sleep 0.1; wc -l < log")) > int(before)  # it was let go


async def test_a_fork_inherits_the_deadline_and_says_where_it_is_from(keeper: Bench) -> None:
    bench = keeper
    parent = await bench.create(ttl_s=30, metadata={"a": "1"}, env={"GIVEN": "env"}, pids=77)
    await asyncio.sleep(0.3)
    forked = await bench.host.forks.fork(parent, metadata={"b": "2"}, name=f"f-{bench.mark[:8]}")
    child = forked.children[0]
    adopt(bench, child)
    assert child.record.expires_boot == parent.record.expires_boot
    assert abs(child.record.time_left() - parent.record.time_left()) < 0.1
    assert child.record.ttl_s < 29.8  # what was left, not a life of its own
    assert (child.record.parent, child.record.tree_id) == (parent.id, parent.record.tree_id)
    metadata = child.record.metadata
    assert (metadata["a"], metadata["b"], metadata["fork_parent_id"]) == ("1", "2", parent.id)
    assert await bench.said(child, "echo $GIVEN") == "env"
    assert child.wish.pids == 77
    await parent.extend(10)
    assert child.record.expires_boot < parent.record.expires_boot  # later extensions are each one's own
    await parent.kill()
    assert await bench.said(child, "echo lives") == "lives"


async def test_what_one_changes_the_other_does_not_see(keeper: Bench) -> None:
    bench = keeper
    parent = await bench.create()
    await bench.said(parent, "mkdir d; echo old > d/file; echo gone > d/removed; ln -s file d/link; echo t > /tmp/t")
    forked = await bench.host.forks.fork(parent, 4)
    adopt(bench, *forked.children)
    assert len({child.id for child in forked.children}) == 4
    texts = [f"echo {number} > d/file; rm d/removed; echo x > /tmp/new{number}" for number in range(4)]
    await asyncio.gather(*(bench.said(each, text) for each, text in zip(forked.children, texts, strict=True)))
    await bench.said(parent, "echo parent > d/other")
    for number, child in enumerate(forked.children):
        said = await bench.said(child, "cat d/link /tmp/t; ls d /tmp")
        assert said.split() == [str(number), "t", "/tmp:", f"new{number}", "t", "d:", "file", "link"] or (
            said.split() == [str(number), "t", "d:", "file", "link", "/tmp:", f"new{number}", "t"]
        ), said
    said = await bench.said(parent, "cat d/file d/removed; ls d /tmp | grep -c new || true")
    assert said.split() == ["old", "gone", "0"]


@on("root", "user", "no-cgroup")
async def test_a_paused_one_is_forked_and_stays_paused(keeper: Bench) -> None:
    bench = keeper
    parent = await bench.create()
    counter = await bench.start(parent, "i=0; while :; do i=$((i+1)); echo $i >> n; [ $i = 20 ] && echo on; done")
    await bench.printed(counter, "on")
    await parent.pause()
    child = (await bench.host.forks.fork(parent)).children[0]
    adopt(bench, child)
    assert parent.status is State.PAUSED
    assert child.status is State.RUNNING
    lines = await bench.said(child, "wc -l < n")
    assert int(lines) >= 20
    await asyncio.sleep(0.1)
    other = (await bench.host.forks.fork(parent)).children[0]
    adopt(bench, other)
    assert await bench.said(other, "wc -l < n") == lines  # it has stood still
    await parent.resume()
    assert int(await bench.said(parent, "sleep 0.1; wc -l < n")) > int(lines)


def layers_of(bench: Bench, sandboxes: list[Sandbox]) -> set[str]:
    there = set(os.listdir(f"{bench.host.store.place}/layers"))
    return {each.record.layer_id for each in sandboxes if each.record.layer_id} & {
        name.removesuffix(".json") for name in there
    }


async def test_a_fork_beside_the_end_of_its_parent_is_whole_or_not_there(keeper: Bench) -> None:
    bench = keeper
    outcomes = []
    for turn in range(6):
        parent = await bench.create(metadata={"tag": f"{bench.mark}-{turn}"})
        await bench.said(parent, "head -c 3000000 /dev/zero > big; echo end > file")
        forking = asyncio.ensure_future(bench.host.forks.fork(parent, 2))
        await asyncio.sleep(0.016 * turn)
        await parent.kill()
        try:
            forked = await asyncio.wait_for(forking, 10)  # and not when some answer is given up on
        except DeadstopError:
            outcomes.append("none")
            children = [each for each in bench.host.by_id.values() if each.record.parent == parent.id]
            await until(lambda those=children: not any(each.record.live for each in those))  # type: ignore[misc]
        else:
            outcomes.append("all")
            children = forked.children
            for child in children:
                assert await bench.said(child, "cat file; stat -c %s big") == "end\n3000000"
                await child.kill()
        made = [parent, *children]
        await until(lambda those=made: layers_of(bench, those) == set(), 5, "the layers are still there")  # type: ignore[misc]
    assert "all" in outcomes


@on("root", "user", "no-cgroup")
async def test_a_promoted_one_stays_and_its_siblings_go_with_receipts(keeper: Bench) -> None:
    bench = keeper
    parent = await bench.create()
    forked = await bench.host.forks.fork(parent, 3)
    adopt(bench, *forked.children)
    winner, *losers = forked.children
    running = [await bench.start(each, "trap '' TERM; sleep 300; sleep 300", "loser") for each in losers]
    kept = await bench.host.forks.promote(winner)
    assert (kept["winner"], kept["deleted"]) == (winner.id, [])
    answer = await bench.host.forks.promote(winner, forked.tree_id, cleanup_siblings=True)
    assert answer["failures"] == {}
    assert sorted(answer["deleted"]) == sorted(each.id for each in losers)
    for each in losers:
        assert answer["receipts"][each.id]["survivors"] == 0
        assert answer["receipts"][each.id]["proof"] == "pid_namespace_reaped"
        assert each.record.end["reason"] == "killed"  # type: ignore[index]
    assert bench.alive("loser") == []
    assert all([(await bench.end_of(each)).receipt is not None for each in running])
    assert winner.record.live
    assert parent.record.live  # it is the trunk, not a sibling
    assert await bench.said(winner, "echo on") == "on"
    single = await bench.create()
    with refused(NotAllowed):
        await bench.host.forks.promote(single)


async def test_what_cannot_be_forked_is_refused(keeper: Bench) -> None:
    bench = keeper
    parent = await bench.create()
    for wrong in (0, -1, 17, True, 1.5, "2", None):
        with refused(InvalidLimit):
            await bench.host.forks.fork(parent, wrong)  # type: ignore[arg-type]
    twice = await asyncio.gather(*(bench.host.forks.fork(parent, key="k") for _ in range(3)))
    assert all(each is twice[0] for each in twice)
    adopt(bench, *twice[0].children)
    await parent.kill()
    with refused(SandboxEnded):
        await bench.host.forks.fork(parent)
    assert len([each for each in bench.host.by_id.values() if each.record.parent == parent.id]) == 1


async def test_a_snapshot_makes_others_and_can_be_deleted_under_them(keeper: Bench) -> None:
    bench = keeper
    parent = await bench.create()
    await bench.said(parent, "echo one > file; head -c 200000 /dev/urandom > data; sha256sum data > sum")
    name = f"snap-{bench.mark[:8]}"
    taken = await bench.host.snapshots.take(parent, name)
    document = taken.document()
    assert document["sandbox_id"] == parent.id
    assert document["size_bytes"] > 100_000
    assert bench.host.snapshots.get(name) is taken
    assert bench.host.snapshots.items(parent.id) == [taken]
    assert parent.record.last_snapshot == taken.id
    await bench.said(parent, "echo two > file")
    await parent.kill()
    made = [await bench.create(from_snapshot=taken.id) for _ in range(2)]
    await bench.said(made[0], "echo three > file")
    await bench.host.snapshots.delete(taken.id)
    with refused(NotFound):
        bench.host.snapshots.get(taken.id)
    with refused(NotFound):
        await bench.create(from_snapshot=taken.id)
    with refused(NotFound):
        await bench.host.resume(parent)
    assert await bench.said(made[0], "cat file; sha256sum --quiet -c sum") == "three"
    assert await bench.said(made[1], "cat file; sha256sum --quiet -c sum") == "one"
    further = (await bench.host.forks.fork(made[1])).children[0]
    adopt(bench, further)
    assert await bench.said(further, "cat file; sha256sum --quiet -c sum") == "one"


async def test_snapshots_outlive_the_server(keeper: Bench) -> None:
    bench = keeper
    async with bench.another_host("snapshots") as host:
        sandbox = await bench.create(host=host, name="kept")
        await bench.said(sandbox, "echo kept > file")
        taken = await host.snapshots.take(sandbox, "mine")
        first = sandbox.id
    async with bench.another_host("snapshots") as host:
        assert [each.id for each in host.snapshots.items()] == [taken.id]
        again = await host.resume(host.find("kept"))
        bench.made.append(again)
        assert host.find(first) is again
        assert await bench.said(again, "cat file") == "kept"


async def test_an_idle_one_is_forked_without_standing_still(keeper: Bench) -> None:
    bench = keeper
    parent = await bench.create()
    chain = []
    for turn in range(4):
        await bench.said(parent, f"echo {turn} >> file")
        forked = await bench.host.forks.fork(parent)
        adopt(bench, *forked.children)
        chain.append(forked)
        expected = {"btrfs": "snapshot", "overlay": "layered"}.get(bench.host.store.kind)
        assert expected in (forked.how, None)
    for turn, forked in enumerate(chain):
        said = await bench.said(forked.children[0], "cat file")
        assert said.split() == [str(number) for number in range(turn + 1)]
