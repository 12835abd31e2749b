# SPDX-License-Identifier: Apache-2.0
"""`deadstop resume`: let a paused sandbox go on, or bring an ended one back from its last snapshot."""

from __future__ import annotations

import argparse

from . import common


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_server(parser)
    common.add_sandbox(parser)


def execute(arguments: argparse.Namespace) -> int:
    from ..client.synchronous import Sandbox

    sandbox = Sandbox.connect(arguments.sandbox, resume=True, server=arguments.server)
    if arguments.json:
        common.print_json(sandbox.document)
    else:
        print(f"{sandbox.id}: {sandbox.status}, {common.left(sandbox.document)} left")
    return 0
