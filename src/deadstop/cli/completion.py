# SPDX-License-Identifier: Apache-2.0
"""`deadstop completion SHELL`: a script for the shell to load, made from the options themselves."""

from __future__ import annotations

import argparse
from typing import Any

from ..errors import UsageError
from ..ledger.states import State

SHELLS = ("bash", "zsh", "tcsh")
FILES = frozenset({"FILE", "PATH", "PLACE", "LEDGER"})
FOLDERS = frozenset({"DIR", "FOLDER"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help='for example: eval "$(deadstop completion bash)"')


def execute(arguments: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError:
        raise UsageError("completion needs the package shtab: install deadstop[completion]") from None
    from . import build_parser

    parser = build_parser()
    _offer(parser, shtab.FILE, shtab.DIRECTORY)
    print(shtab.complete(parser, arguments.shell))
    return 0


def _offer(parser: argparse.ArgumentParser, file: Any, folder: Any) -> None:
    """Names of files and folders, and the states of operations, where an option takes one."""
    for action in parser._actions:
        for verb in action.choices.values() if isinstance(action, argparse._SubParsersAction) else ():
            _offer(verb, file, folder)
        if action.nargs == 0:
            continue
        if action.dest == "state" and action.metavar == "STATE":
            action.choices = list(State)
        elif action.metavar in FILES:
            action.complete = file  # type: ignore[attr-defined]
        elif action.metavar in FOLDERS:
            action.complete = folder  # type: ignore[attr-defined]
