# SPDX-License-Identifier: Apache-2.0
"""A server whose supervisor answers no more, and payloads that hide from a supervisor without cgroups."""

from __future__ import annotations

import json

from hosts import Host

PROLOGUE = """
import asyncio, json, os, signal, tempfile
from deadstop.boundary.reaper import state_of
from deadstop.executor.private import supervisor
from deadstop.sandbox import watchdog
from deadstop.sandbox.host import Host
from deadstop.sandbox.settings import Settings
from deadstop.sandbox.wishes import ExecWish, Wish

async def main():
    with tempfile.TemporaryDirectory() as state:
        host = await Host.start(Settings(state=state, layers="folder"))
        try:
            print(json.dumps(await show(host)))
        finally:
            await host.close()
"""
SILENT = """
watchdog.PING_EVERY_S, watchdog.SILENCE_S, watchdog.SECOND_S = 0.2, 0.4, 0.2

async def show(host):
    sandbox = await host.create(Wish(ttl_s=60))
    command = await sandbox.exec(ExecWish(("sleep", "50")))
    silent = supervisor._process.pid
    os.kill(silent, signal.SIGSTOP)
    await asyncio.wait_for(sandbox.gone.wait(), 15)
    result = await command.wait(15)
    again = await host.create(Wish(ttl_s=60))
    done = await (await again.exec(ExecWish(("true",)))).wait(15)
    return {
        "end": sandbox.document()["end"]["reason"], "command": str(result.status),
        "boundary": state_of(sandbox.record.pid), "supervisor": supervisor._process.pid != silent,
        "next": str(done.status),
    }
"""
# Twelve grandchildren with sessions of their own, no parents of ours, and nothing in their environment.
HIDDEN = r"""
HIDE = (
    "import os, time\nfor _ in range(12):\n if os.fork() == 0:\n  os.setsid()\n"
    "  if os.fork() == 0: os.execve('/usr/bin/sleep', ['sleep', '77'], {})\n  os._exit(0)\ntime.sleep(50)"
)
COUNT = ("sh", "-c", "ps -A -o comm= | grep -c sleep")

async def show(host):
    sandbox = await host.create(Wish(ttl_s=60))
    hidden = ExecWish(("python3", "-c", HIDE), timeout_s=0.5)
    alone = await (await sandbox.exec(hidden)).wait(15)
    left = await (await sandbox.exec(ExecWish(COUNT))).wait(15)
    await sandbox.exec(ExecWish(("sleep", "50")))
    beside = await (await sandbox.exec(hidden)).wait(15)
    ended = None
    if beside.receipt.proof == "none":
        await asyncio.wait_for(sandbox.gone.wait(), 15)
        ended = sandbox.document()["end"]
    return {
        "alone": alone.receipt.proof, "left": left.stdout.tail.strip(), "beside": beside.receipt.proof,
        "survivors": beside.receipt.survivors, "ended": ended,
    }
"""


def shown(host: Host, text: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(host.script(f"{PROLOGUE}{text}\nasyncio.run(main())\n").splitlines()[-1])
    return found


def test_a_supervisor_that_answers_no_more_is_ended_with_all_it_held(namespace_host: Host) -> None:
    found = shown(namespace_host, SILENT)
    assert found.pop("boundary") in ("Z", "X")
    assert found == {"end": "host_lost", "command": "unknown", "supervisor": True, "next": "completed"}


def test_who_wipes_his_environment_and_leaves_his_parents_is_killed_or_not_said_to_be(namespace_host: Host) -> None:
    found = shown(namespace_host, HIDDEN)
    assert found["alone"] in ("cgroup_empty", "scan")
    assert found["left"] == "0"
    if found["beside"] == "none":  # nobody can say whose they were: then all of it goes
        ended = found["ended"]
        assert isinstance(ended, dict)
        assert (ended["reason"], ended["receipt"]["proof"]) == ("failed", "pid_namespace_reaped")
        assert found["survivors"] is None
    else:
        assert (found["beside"], found["survivors"]) == ("cgroup_empty", 0)
