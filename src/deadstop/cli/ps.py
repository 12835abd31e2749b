# SPDX-License-Identifier: Apache-2.0
"""`deadstop ps`: the sandboxes there are, or the commands of one of them."""

from __future__ import annotations

import argparse
from typing import Any

from . import common
from .tables import print_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add: Any = parser.add_argument
    add("--all", action="store_true", help="also those that were ended on purpose, as long as they are remembered")
    add("--metadata", action="append", default=[], metavar="KEY=VALUE", help="only those with this label (repeatable)")
    add("sandbox", nargs="?", help="id or name: the commands of this one")
    common.add_server(parser)


def execute(arguments: argparse.Namespace) -> int:
    from ..client.synchronous import Sandbox

    if arguments.sandbox:
        found = Sandbox.connect(arguments.sandbox, server=arguments.server)
        return _commands([process.document for process in found.processes()], arguments.json)
    state = "all" if arguments.all else "present"
    labels = common.pairs(arguments.metadata, "--metadata")
    documents = [each.document for each in Sandbox.list(state, labels, server=arguments.server)]
    if arguments.json:
        common.print_json(documents)
        return 0
    rows = [_row(document) for document in documents]
    print_table(("ID", "NAME", "TEMPLATE", "STATUS", "LEFT", "EXECS", "CREATED"), rows, empty="no sandboxes")
    return 0


def _row(document: dict[str, Any]) -> list[str]:
    end = document.get("end")
    status = f"ended ({end.get('reason')})" if end else str(document.get("status"))
    words = [document.get("id"), document.get("name") or "", document.get("template"), status, common.left(document),
             document.get("execs_running", ""), document.get("created_at", "")]  # fmt: skip
    return [str(word) for word in words]


def _commands(documents: list[dict[str, Any]], as_json: bool) -> int:
    if as_json:
        common.print_json(documents)
        return 0
    rows = []
    for document in documents:
        code = document.get("exit_code")
        status = str(document.get("outcome") or document.get("status")) + ("" if code is None else f" ({code})")
        rows.append([str(document.get("exec_id")), status, str(document.get("started_at", "")),
                     str(document.get("cmd", ""))[:100]])  # fmt: skip
    print_table(("EXEC", "STATUS", "STARTED", "COMMAND"), rows, empty="no commands")
    return 0
