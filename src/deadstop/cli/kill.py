# SPDX-License-Identifier: Apache-2.0
"""`deadstop kill`: end sandboxes now; the receipts say what was killed and with which proof."""

from __future__ import annotations

import argparse
from typing import Any

from . import common

FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Exit status: 0 when all are gone, 1 when something was left or could not be killed."
    parser.add_argument("--all", action="store_true", help="all that live")
    parser.add_argument("sandbox", nargs="*", help="ids or names")
    common.add_server(parser)


def execute(arguments: argparse.Namespace) -> int:
    from ..client.portal import portal
    from ..errors import UsageError

    if bool(arguments.sandbox) == arguments.all:
        raise UsageError("kill: name sandboxes, or give --all")
    killed = portal.run(_kill(arguments))
    if arguments.json:
        common.print_json([document for document, _ in killed])
    for document, problem in killed:
        if problem:
            common.say(problem)
        elif not arguments.json:
            print(common.receipt_line(document))
    return FAILED if any(problem or not _gone(document) for document, problem in killed) else 0


async def _kill(arguments: argparse.Namespace) -> list[tuple[dict[str, Any], str]]:
    import asyncio

    from ..client.asynchronous import AsyncSandbox

    if not arguments.all:
        return list(await asyncio.gather(*(_one(ref, arguments.server) for ref in arguments.sandbox)))
    found = await AsyncSandbox.list("live", server=arguments.server)
    return list(await asyncio.gather(*(_one(each.id, arguments.server) for each in found)))


async def _one(ref: str, server: str | None) -> tuple[dict[str, Any], str]:
    from ..client.asynchronous import AsyncSandbox
    from ..errors import SandboxError, ServerUnreachable

    try:
        sandbox = await AsyncSandbox.connect(ref, server=server)
        await sandbox.kill()
    except ServerUnreachable:
        raise
    except SandboxError as problem:
        return {"id": ref, "error": str(problem)}, str(problem)
    return sandbox.document, ""


def _gone(document: dict[str, Any]) -> bool:
    receipt = (document.get("end") or {}).get("receipt")
    return receipt is None or receipt.get("survivors") in (0, None)
