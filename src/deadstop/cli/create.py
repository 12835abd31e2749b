# SPDX-License-Identifier: Apache-2.0
"""`deadstop create`: a sandbox that lives until its TTL, or until it is killed."""

from __future__ import annotations

import argparse
from typing import Any

from . import common


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Prints its id. It outlives this command: `deadstop kill ID` ends it before its TTL does."
    add: Any = parser.add_argument
    add("--template", default=None, metavar="NAME", help="what it starts from (default: base)")
    add("--ttl", type=common.seconds, default=3600.0, metavar="TIME", help="how long it lives (default: 1h)")
    add("--idle-timeout", type=common.duration, metavar="TIME", help="end it after this long without a command")
    add("--name", help="a name to call it by")
    add("--metadata", action="append", default=[], metavar="KEY=VALUE", help="a label of yours (repeatable)")
    add("--from-snapshot", metavar="ID", help="start with the files of a snapshot")
    add("--on-expiry", choices=("kill", "snapshot"), help="at its TTL: kill it (default), or keep its files first")
    add("--persistent", action="store_true", default=None, help="take a snapshot before its time is over")
    add("--memory", type=common.size, metavar="SIZE", help="memory of all its processes")
    add("--cpus", type=common.number, metavar="N", help="processors it may use, such as 0.5")
    add("--pids", type=common.count, metavar="N", help="number of processes")
    add("--disk", type=common.size, metavar="SIZE", help="size of its files")
    add("--network", choices=("off", "host"), help="none, or this host's with loopback (default: the server's)")
    add("--env", action="append", default=[], metavar="NAME[=VALUE]", help="a variable for its commands (repeatable)")
    for name, when in _HOOKS.items():
        add(f"--{name}", metavar="COMMAND", help=f"run inside {when}")
    add("--hook-timeout", type=common.seconds, default=10.0, metavar="TIME", help="for each hook (default: 10s)")
    common.add_server(parser)


_HOOKS = {
    "on-timeout": "shortly before its TTL",
    "on-extended": "after each extension",
    "before-stop": "before it is ended",
}


def execute(arguments: argparse.Namespace) -> int:
    from ..client.synchronous import Sandbox

    sandbox = Sandbox.create(
        arguments.template or "base", arguments.ttl, idle_timeout=arguments.idle_timeout, name=arguments.name,
        metadata=common.pairs(arguments.metadata, "--metadata"), detached=True, from_snapshot=arguments.from_snapshot,
        persistent=arguments.persistent, on_expiry=arguments.on_expiry, memory=arguments.memory, cpus=arguments.cpus,
        pids=arguments.pids, disk=arguments.disk, network=arguments.network, env=common.variables(arguments.env),
        on_timeout=arguments.on_timeout, on_extended=arguments.on_extended, before_stop=arguments.before_stop,
        hook_seconds=arguments.hook_timeout, server=arguments.server,
    )  # fmt: skip
    if arguments.json:
        common.print_json(sandbox.document)
    else:
        print(sandbox.id)
    return 0
