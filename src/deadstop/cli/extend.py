# SPDX-License-Identifier: Apache-2.0
"""`deadstop extend`: more life for a sandbox, up to the server's maximum."""

from __future__ import annotations

import argparse

from . import common


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_server(parser)
    common.add_sandbox(parser)
    parser.add_argument("time", type=common.seconds, help="how much longer, such as 5m")


def execute(arguments: argparse.Namespace) -> int:
    from ..client.synchronous import Sandbox

    answer = Sandbox.connect(arguments.sandbox, server=arguments.server).extend(arguments.time)
    if arguments.json:
        common.print_json(answer)
        return 0
    clamped = " (the server's maximum)" if answer.get("clamped") else ""
    print(f"{common.left(answer)} left, until {answer['expires_at']}{clamped}")
    return 0
