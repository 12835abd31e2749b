# SPDX-License-Identifier: Apache-2.0
"""Servers that are made to be killed: `python -m crashing STATE`.

A line of JSON in (mark, seed, calm) forks one, which says what it found in the state folder, and then makes, forks,
snapshots, runs and ends sandboxes as fast as it can, and says each. `calm`: it only looks, and closes.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from typing import Any

from deadstop.errors import DeadstopError
from deadstop.sandbox.host import Host
from deadstop.sandbox.layers import private_mounts
from deadstop.sandbox.settings import Settings
from deadstop.sandbox.wishes import MIB, ExecWish, Wish

MARK = "DEADSTOP_TEST_MARK"
HOSTILE = "trap '' TERM HUP INT; (setsid sleep 300 &); nohup sleep 300 >/dev/null 2>&1 & while :; do sleep 300; done"


def say(**facts: Any) -> None:
    os.write(1, json.dumps(facts).encode() + b"\n")


def found(host: Host) -> dict[str, Any]:
    """What the state folder tells after the start."""
    records = {}
    for each in host.sandboxes("all"):
        record = each.record
        records[record.id] = {
            "state": str(record.state), "end": record.end, "expires_boot": record.expires_boot, "pid": record.pid,
        }  # fmt: skip
    layers = sorted(os.listdir(f"{host.store.place}/layers"))
    unknown = {image.id for image in host.store.images()} - host.snapshots.images()
    return {
        "records": records, "layers": layers, "images_of_nothing": sorted(unknown),
        "snapshots": [each.id for each in host.snapshots.items()], "unreadable": host.registry.unreadable,
        "half_written": [name for name in os.listdir(host.registry.folder) if not name.endswith(".json")],
    }  # fmt: skip


async def burst(host: Host, seed: int, mark: str) -> None:
    draw = random.Random(seed)
    wish = Wish(ttl_s=60, memory=64 * MIB, env={MARK: mark}, persistent=False)

    async def one() -> None:
        sandbox = await host.create(wish, key=f"{seed}-{draw.random()}")
        say(made=sandbox.id, expires_boot=sandbox.record.expires_boot)
        await sandbox.exec(ExecWish(("bash", "-c", HOSTILE), timeout_s=50))
        for _ in range(3):
            act = draw.choice(["fork", "snapshot", "kill", "exec", "extend", "pause"])
            if act == "fork":
                for child in (await host.forks.fork(sandbox, 2)).children:
                    say(made=child.id, expires_boot=child.record.expires_boot)
                    await child.exec(ExecWish(("bash", "-c", HOSTILE), timeout_s=50))
            elif act == "snapshot":
                say(snapshot=(await host.snapshots.take(sandbox, None)).id)
            elif act == "exec":
                await (await sandbox.exec(ExecWish(("true",), timeout_s=5))).wait()
            elif act == "extend":
                await sandbox.extend(5)
                say(made=sandbox.id, expires_boot=sandbox.record.expires_boot)
            elif act == "pause":
                await sandbox.pause()
                await sandbox.resume()
            else:
                await sandbox.kill()
                say(ended=sandbox.id)
                return

    async def forever() -> None:
        while True:
            try:
                await one()
            except DeadstopError as problem:
                say(problem=repr(problem))

    await asyncio.gather(forever(), forever(), forever())


async def serve(state: str, order: dict[str, Any]) -> None:
    host = await Host.start(Settings(state=state, image_size=1024 * MIB, max_sandboxes=24))
    say(started=found(host))
    if order["calm"]:
        await host.close()
    else:
        await burst(host, order["seed"], order["mark"])


def main(state: str) -> None:
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.environ[MARK] = order["mark"]
                private_mounts()
                asyncio.run(serve(state, order))
                from deadstop.executor.private import supervisor

                supervisor.shut_down()
                code = 0
            except BaseException as problem:
                say(failed=repr(problem))
                raise
            finally:
                os._exit(code)
        say(pid=pid)
        _, status = os.waitpid(pid, 0)
        say(dead=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(sys.argv[1])
