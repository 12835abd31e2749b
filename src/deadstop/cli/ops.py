# SPDX-License-Identifier: Apache-2.0
"""`deadstop ops`: calls that change the world: what is open, what is known of it, and what a person decides."""

from __future__ import annotations

import argparse
from typing import Any

from . import common
from .effect import add_place


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from . import Parser

    parser.epilog = "OP is an operation's id, or a beginning of it that no other has. Times are UTC."
    verbs = parser.add_subparsers(dest="what", metavar="WHAT", required=True, parser_class=Parser)

    def verb(name: str, text: str, epilog: str = "") -> Any:
        long = f"{text[0].upper()}{text[1:]}."
        made = verbs.add_parser(name, help=text, description=long, epilog=epilog, allow_abbrev=False)
        add_place(made)
        made.add_argument("--json", action="store_true", help="print JSON")
        return made

    _list(verb("list", "list operations, the open ones first"))
    _operation(verb("show", "everything that is known of one operation"))
    statuses = "Exit status: 0 settled, 1 still unknown or waiting for a person, 125 it could not be asked."
    _reconcile(verb("reconcile", "ask its authority what became of it", statuses))
    _resolve(verb("resolve", "decide, as a person, how it ended", "It is written down who decided, and why."))
    cancel = verb("cancel", "give up what was never sent")
    _operation(cancel)
    cancel.add_argument("--reason", metavar="TEXT", help="why", default=None)
    _operator(cancel)
    _shred(verb("shred", "delete what is kept sealed of it; every proof goes on to hold"))
    _alerts(verb("alerts", "list what needs a person, or acknowledge it"))
    _outbox(verb("outbox", "how many events wait to be delivered, and which were given up"))


def _operation(parser: Any) -> None:
    parser.add_argument("operation", metavar="OP", help="its id, or a beginning of it")


def _operator(parser: Any) -> None:
    parser.add_argument("--operator", metavar="NAME", help="who decides (default: your login name)")


def _list(parser: Any) -> None:
    add = parser.add_argument
    add("--unknown", action="store_true", help="only UNKNOWN, RECONCILING and NEEDS_HUMAN")
    add("--needs-human", action="store_true", help="only those that wait for a person")
    add("--state", action="append", default=[], metavar="STATE", type=str.upper, help="only these (repeatable)")
    add("--tool", metavar="NAME", help="only those of this tool")
    add("--all", action="store_true", help="as many as there are")
    add("--limit", type=common.count, default=50, metavar="N", help="at most so many (default: 50)")


def _reconcile(parser: Any) -> None:
    parser.add_argument("operations", metavar="OP", nargs="*", help="ids, or beginnings of them")
    parser.add_argument("--all", action="store_true", help="all that are unknown or wait for a person")
    _operator(parser)


def _resolve(parser: Any) -> None:
    _operation(parser)
    group = parser.add_mutually_exclusive_group(required=True)
    decisions = {"succeeded": "it happened", "failed": "it did not happen", "abandoned": "nobody will know",
                 "retry": "it did not happen, and the same key may send it again"}  # fmt: skip
    for name, text in decisions.items():
        group.add_argument(f"--{name}", dest="decision", action="store_const", const=name, help=text)
    add = parser.add_argument
    add("--reason", metavar="TEXT", required=True, help="what was seen, and where")
    add("--ver", type=common.count, metavar="N", help="only if its version is still this one (see `ops show`)")
    add("--authorised-by", metavar="NAME", help="who or what allows the decision, such as a ticket")
    _operator(parser)


def _shred(parser: Any) -> None:
    _operation(parser)
    parser.add_argument("--name", action="append", metavar="NAME", help="only this part of it (repeatable)")
    _operator(parser)


def _alerts(parser: Any) -> None:
    add = parser.add_argument
    add("--all", action="store_true", help="also those that were acknowledged, and whose cause has ended")
    add("--ack", nargs=2, metavar=("KIND", "OP"), action="append", default=[], help="a person has seen it (repeatable)")
    add("--ack-all", action="store_true", help="a person has seen all of them")
    _operator(parser)


def _outbox(parser: Any) -> None:
    parser.add_argument("--retry", metavar="ID", action="append", default=[],
                        help="try this one again, which was given up (repeatable)")  # fmt: skip


def execute(arguments: argparse.Namespace) -> int:
    match arguments.what:
        case "list":
            from .ops_list import list_operations as work
        case "show":
            from .ops_show import show as work
        case "alerts":
            from .ops_alerts import alerts_verb as work
        case "outbox":
            from .ops_alerts import outbox_verb as work
        case _:
            from .ops_settle import settle as work
    return work(arguments)
