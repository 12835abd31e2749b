# SPDX-License-Identifier: Apache-2.0
"""What a server makes of the records it finds, and what it does when its supervisor dies."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

from keeper import Bench, alone, process_of_supervisor, refused, state_of, until

from deadstop.errors import NotAllowed, SandboxEnded
from deadstop.results import Status
from deadstop.sandbox.host import Host

KINDS = ("root", "user")  # what is shown here has nothing to do with cgroups


@alone
async def test_a_supervisor_that_is_killed_takes_its_sandboxes_along_and_the_next_ones_live(keeper: Bench) -> None:
    bench = keeper
    made = [await bench.create() for _ in range(3)]
    paused = made[2]
    running = [await bench.start(each, "trap '' TERM; (setsid sleep 300 &); sleep 300; sleep 300") for each in made]
    await until(lambda: len(bench.alive()) >= 9)
    await paused.pause()
    process = process_of_supervisor()
    process.kill()
    for each in made:
        end = await bench.gone(each, 5)
        assert (end["reason"], end["detail"]) == ("host_lost", "its supervisor ended")
        assert end["receipt"]["proof"] == "pid_namespace_reaped"
    await until(lambda: bench.alive() == [], 2)
    assert [(await bench.end_of(each, 5)).status for each in running] == [Status.UNKNOWN] * 3
    for each in made:
        with refused(SandboxEnded):
            await bench.start(each, "true")
        assert state_of(each.record.pid) in ("", "Z")  # its next parent is not ours to hurry
    again = await bench.create()
    assert await bench.said(again, "echo on") == "on"
    assert process_of_supervisor() is not process
    assert bench.host.find(made[0].id).document()["end"]["reason"] == "host_lost"
    process.wait(5)


@alone
async def test_a_supervisor_that_dies_while_one_is_made_is_a_failure_that_says_so(keeper: Bench) -> None:
    bench = keeper
    outcomes = set()
    for turn in range(5):
        await (await bench.create()).kill()  # there is a supervisor, again
        making = asyncio.ensure_future(bench.create(metadata={"tag": bench.mark}))
        await asyncio.sleep(0.012 * turn)
        process = process_of_supervisor()
        process.kill()
        process.wait(5)
        made = (await asyncio.wait_for(asyncio.gather(making, return_exceptions=True), 8))[0]
        if isinstance(made, BaseException):
            outcomes.add("failed")
            assert "supervisor" in str(made), repr(made)
        elif process_of_supervisor() is process:
            outcomes.add("lost")
            assert (await bench.gone(made, 5))["reason"] == "host_lost"
        else:
            outcomes.add("of the next")
            assert await bench.said(made, "echo on") == "on"
    known = bench.host.sandboxes("ended", {"tag": bench.mark})
    assert {each.record.end["reason"] for each in known} <= {"failed", "host_lost"}  # type: ignore[index]
    assert "failed" in outcomes


async def test_a_state_folder_has_one_server(keeper: Bench) -> None:
    bench = keeper
    async with bench.another_host("single") as host:
        with refused(NotAllowed):
            await Host.start(dataclasses.replace(host.settings))
        sandbox = await bench.create(host=host)
        assert await bench.said(sandbox, "echo on") == "on"  # it has not been disturbed
    async with bench.another_host("single"):
        pass


GARBAGE = {
    "sbx_empty.json": b"",
    "sbx_cut.json": b'{"id": "sbx_cut", "wish": {',
    "sbx_list.json": b"[]",
    "sbx_null.json": b"null",
    "sbx_number.json": b"5",
    "sbx_fields.json": b'{"id": "sbx_fields"}',
    "sbx_bytes.json": b"\xff\xfe\x00",
    "sbx_state.json": b'{"state": "no such state"}',
}


async def test_a_record_that_cannot_be_read_is_named_and_left(keeper: Bench) -> None:
    bench = keeper
    async with bench.another_host("garbage") as host:
        sandbox = await bench.create(host=host)
        folder, settings = host.registry.folder, host.settings
    with open(f"{folder}/{sandbox.id}.json") as file:
        whole = json.load(file)
    garbage = dict(GARBAGE)
    for number, (field, value) in enumerate([("wish", {}), ("wish", None), ("wish", {"hooks": 3}), ("state", "odd"),
                                             ("end", None), ("end", {})]):  # fmt: skip
        damaged = {**whole, "id": f"sbx_damaged{number}", field: value}
        garbage[f"sbx_damaged{number}.json"] = json.dumps(damaged).encode()
    for name, data in garbage.items():
        Path(folder, name).write_bytes(data)
    Path(folder, "sbx_half.json.new").write_bytes(b'{"id":')
    logged: list[dict[str, Any]] = []

    def log(event: str, **facts: Any) -> None:
        logged.append({"event": event, **facts})

    host = await Host.start(dataclasses.replace(settings), log)
    try:
        assert [each.id for each in host.sandboxes("all") if "damaged" not in each.id] == [sandbox.id]
        named = " ".join(each["problem"] for each in logged if each["event"] == "record_unreadable")
        for name in GARBAGE:
            assert name in named
        assert host.sandboxes("live") == []
        assert all(Path(folder, name).read_bytes() == data for name, data in GARBAGE.items())
        another = await bench.create(host=host)
        assert await bench.said(another, "echo on") == "on"
    finally:
        await host.close()


async def test_a_record_of_another_boot_is_closed_for_what_it_is(keeper: Bench) -> None:
    bench = keeper
    async with bench.another_host("boots") as host:
        sandbox = await bench.create(host=host, ttl_s=600)
        path = f"{host.registry.folder}/{sandbox.id}.json"
        with open(path) as file:
            open_record = json.load(file)
    bystander = os.getpid()
    open_record.update(boot_id="another", created_boot=5.0, expires_boot=605.0, created_at=time.time() - 5000)
    open_record.update(pid=bystander, pid_start="1")
    with open(path, "w") as file:
        json.dump(open_record, file)
    async with bench.another_host("boots") as host:
        record = host.find(sandbox.id).record
        assert record.end is not None
        assert record.end["reason"] == "host_lost"
        assert abs(record.expires_at() - (open_record["created_at"] + 600)) < 1
        assert record.time_left() == 0.0
        assert state_of(bystander) != ""


async def test_a_process_that_only_has_the_number_is_left_alone(keeper: Bench) -> None:
    bench = keeper
    async with bench.another_host("numbers") as host:
        sandbox = await bench.create(host=host)
        path = f"{host.registry.folder}/{sandbox.id}.json"
        with open(path) as file:
            open_record = json.load(file)
    other = await asyncio.create_subprocess_exec("sleep", "30")
    try:
        open_record.update(pid=other.pid, pid_start="12345")
        with open(path, "w") as file:
            json.dump(open_record, file)
        async with bench.another_host("numbers") as host:
            assert host.find(sandbox.id).record.end["reason"] == "host_lost"  # type: ignore[index]
        assert other.returncode is None
        assert state_of(other.pid) not in ("", "Z")
    finally:
        other.kill()
        await other.wait()


async def test_what_ended_long_ago_is_forgotten_with_its_output(keeper: Bench) -> None:
    bench = keeper
    async with bench.another_host("retention") as host:
        sandbox = await bench.create(host=host)
        await bench.run(sandbox, "echo a")
    async with bench.another_host("retention", retention_s=3600.0) as host:
        assert host.outputs.read(sandbox.id) != []
    async with bench.another_host("retention", retention_s=0.001) as host:
        assert host.sandboxes("all") == []
        assert host.outputs.read(sandbox.id) == []
        assert os.listdir(host.registry.folder) == []
