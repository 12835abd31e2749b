# SPDX-License-Identifier: Apache-2.0
"""`deadstop logs`: what the commands of a sandbox printed, also after its end."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from . import common

if TYPE_CHECKING:
    from ..client.synchronous import Sandbox


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add: Any = parser.add_argument
    add("-f", "--follow", action="store_true", help="go on as output comes, until it ends")
    add("--stream", choices=("both", "stdout", "stderr"), default="both", help="only one of them (default: both)")
    common.add_server(parser)
    common.add_sandbox(parser)
    add("exec", nargs="?", help="only those of this command")


def execute(arguments: argparse.Namespace) -> int:
    from ..client.synchronous import Sandbox

    sandbox = Sandbox.connect(arguments.sandbox, server=arguments.server)
    for text in _command(sandbox, arguments) if arguments.exec else _all(sandbox, arguments):
        if arguments.json:
            common.print_json({"text": text})
        else:
            sys.stdout.write(text)
        sys.stdout.flush()
    return 0


def _all(sandbox: Sandbox, arguments: argparse.Namespace) -> Any:
    if arguments.follow:
        return (f"{line}\n" for line in sandbox.follow_logs(arguments.stream))
    return [sandbox.logs(arguments.stream)]


def _command(sandbox: Sandbox, arguments: argparse.Namespace) -> Any:
    from ..errors import NotFound

    for process in sandbox.processes():
        if process.id == arguments.exec:
            return (text for _, text in process.output(arguments.stream, follow=arguments.follow))
    raise NotFound("exec", arguments.exec)
