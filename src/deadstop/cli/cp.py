# SPDX-License-Identifier: Apache-2.0
"""`deadstop cp`: a file or the contents of a folder, into a sandbox or out of it."""

from __future__ import annotations

import argparse
import os

from ..errors import UsageError
from . import common


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "One of the two is SANDBOX:/path. Out of a sandbox, links and devices that could lead astray stay out."
    )
    parser.add_argument("source", help="a path here, or SANDBOX:/path")
    parser.add_argument("target", help="the other one")
    common.add_server(parser)


def execute(arguments: argparse.Namespace) -> int:
    from ..client.synchronous import Sandbox

    source, target = _place(arguments.source), _place(arguments.target)
    if (source is None) == (target is None):
        raise UsageError("cp: one of the two must be SANDBOX:/path")
    ref, remote = source or target or ("", "")
    sandbox = Sandbox.connect(ref, server=arguments.server)
    left_out: list[str] = []
    if source is None:
        if not os.path.exists(arguments.source):
            raise UsageError(f"cp: {arguments.source!r} does not exist")
        if remote.endswith("/") and not os.path.isdir(arguments.source):
            remote += os.path.basename(arguments.source)
        sandbox.files.upload(arguments.source, remote)
    else:
        left_out = list(sandbox.files.download(remote, arguments.target))
    if arguments.json:
        common.print_json({"source": arguments.source, "target": arguments.target, "left_out": left_out})
    elif left_out:
        common.say(f"left out, as they lead outside or are no files: {', '.join(left_out[:20])}")
    return 0


def _place(word: str) -> tuple[str, str] | None:
    ref, colon, path = word.partition(":")
    return (ref, path) if colon and ref and "/" not in ref and path.startswith("/") else None
