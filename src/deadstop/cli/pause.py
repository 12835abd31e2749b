# SPDX-License-Identifier: Apache-2.0
"""`deadstop pause`: freeze all processes of a sandbox. Its life goes on passing."""

from __future__ import annotations

import argparse

from . import common


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_server(parser)
    common.add_sandbox(parser)


def execute(arguments: argparse.Namespace) -> int:
    from ..client.synchronous import Sandbox

    sandbox = Sandbox.connect(arguments.sandbox, server=arguments.server).pause()
    if arguments.json:
        common.print_json(sandbox.document)
    else:
        print(f"{sandbox.id}: {sandbox.status}, {common.left(sandbox.document)} left")
    return 0
