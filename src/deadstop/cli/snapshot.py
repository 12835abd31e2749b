# SPDX-License-Identifier: Apache-2.0
"""`deadstop snapshot`: keep the files of a sandbox as they are now, list what is kept, or delete it."""

from __future__ import annotations

import argparse

from . import common
from .tables import print_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Without a sandbox: the snapshots that are kept. `deadstop create --from-snapshot ID` starts from one."
    )
    parser.add_argument("--name", help="a name for the snapshot")
    parser.add_argument("--delete", metavar="SNAPSHOT", help="delete one; sandboxes made from it live on")
    parser.add_argument("sandbox", nargs="?", help="its id or name")
    common.add_server(parser)


def execute(arguments: argparse.Namespace) -> int:
    from ..client.synchronous import Sandbox

    if arguments.delete:
        Sandbox.delete_snapshot(arguments.delete, server=arguments.server)
        return 0
    if not arguments.sandbox:
        return _list(arguments)
    made = Sandbox.connect(arguments.sandbox, server=arguments.server).snapshot(arguments.name)
    if arguments.json:
        common.print_json(made)
    else:
        print(made["id"])
        common.say(f"{made.get('how')}, paused for {float(made.get('pause_ms') or 0):.1f} ms")
    return 0


def _list(arguments: argparse.Namespace) -> int:
    from ..client.synchronous import Sandbox

    found = Sandbox.snapshots(server=arguments.server)
    if arguments.json:
        common.print_json(list(found))
        return 0
    rows = [
        [str(each["id"]), str(each.get("name") or ""), str(each.get("sandbox_id") or ""),
         common.bytes_shown(each.get("size_bytes")), str(each.get("created_at", ""))]
        for each in found
    ]  # fmt: skip
    print_table(("ID", "NAME", "SANDBOX", "SIZE", "CREATED"), rows, empty="no snapshots")
    return 0
