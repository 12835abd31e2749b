# SPDX-License-Identifier: Apache-2.0
"""`deadstop fork`: twins of a sandbox, with its files and its end."""

from __future__ import annotations

import argparse

from . import common


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "They live until the end of the sandbox, with or without an owner."
    parser.add_argument("--count", type=common.count, metavar="N", help="several of one moment, at most 16")
    parser.add_argument("--name", help="a name for the twin")
    parser.add_argument("--metadata", action="append", default=[], metavar="KEY=VALUE", help="a label (repeatable)")
    common.add_server(parser)
    common.add_sandbox(parser)


def execute(arguments: argparse.Namespace) -> int:
    from ..client.synchronous import Sandbox
    from ..errors import UsageError

    if arguments.count and arguments.name:
        raise UsageError("--name: several twins cannot have one name")
    sandbox = Sandbox.connect(arguments.sandbox, server=arguments.server)
    labels = common.pairs(arguments.metadata, "--metadata")
    if arguments.count:
        children = list(sandbox.fork_tree(arguments.count, metadata=labels, detached=True))
    else:
        children = [sandbox.fork(name=arguments.name, metadata=labels, detached=True)]
    if arguments.json:
        common.print_json([child.document for child in children])
    else:
        print("\n".join(child.id for child in children))
    return 0
