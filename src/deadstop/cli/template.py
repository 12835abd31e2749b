# SPDX-License-Identifier: Apache-2.0
"""`deadstop template`: what sandboxes are made from: list, build, delete."""

from __future__ import annotations

import argparse
from typing import Any

from . import common
from .tables import print_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from . import Parser

    verbs = parser.add_subparsers(dest="what", metavar="WHAT", required=True, parser_class=Parser)
    common.add_server(verbs.add_parser("list", help="those there are", allow_abbrev=False))
    build = verbs.add_parser("build", help="make one, from a folder or from packages", allow_abbrev=False)
    add: Any = build.add_argument
    add("name", help="what to call it")
    add("--base", metavar="TEMPLATE", help="what to start from (default: base)")
    add("--folder", metavar="DIR", help="put the contents of this folder into its home")
    add("--pypi", action="append", default=[], metavar="PACKAGE", help="a Python package (repeatable)")
    add("--debian", action="append", default=[], metavar="PACKAGE", help="a Debian package (repeatable)")
    common.add_server(build)
    delete = verbs.add_parser("delete", help="forget one", allow_abbrev=False)
    delete.add_argument("name", help="which")
    common.add_server(delete)


def execute(arguments: argparse.Namespace) -> int:
    return {"list": list_all, "build": _build, "delete": _delete}[arguments.what](arguments)


def list_all(arguments: argparse.Namespace) -> int:
    from ..client.templates import list_templates

    found = list_templates(server=arguments.server)
    if arguments.json:
        common.print_json(list(found))
        return 0
    rows = [
        [str(each["name"]), common.bytes_shown(each.get("size_bytes")), str(each.get("created_at") or ""),
         str(each.get("description") or "")]
        for each in found
    ]  # fmt: skip
    print_table(("NAME", "SIZE", "CREATED", "DESCRIPTION"), rows, empty="no templates")
    return 0


def _build(arguments: argparse.Namespace) -> int:
    from ..client.templates import build_template

    lines = build_template(
        arguments.name, base=arguments.base, folder=arguments.folder, pypi=arguments.pypi, debian=arguments.debian,
        server=arguments.server,
    )  # fmt: skip
    for line in lines:
        if isinstance(line, dict):
            if arguments.json:
                common.print_json(line)
            else:
                print(line.get("name", arguments.name))
        else:
            common.say(line)
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    from ..client.templates import delete_template

    delete_template(arguments.name, server=arguments.server)
    if arguments.json:
        common.print_json({"deleted": arguments.name})
    return 0
