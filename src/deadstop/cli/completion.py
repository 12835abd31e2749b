# SPDX-License-Identifier: Apache-2.0
"""`deadstop completion SHELL`: a script for the shell to load, made from the options themselves."""

from __future__ import annotations

import argparse

from ..errors import UsageError

SHELLS = ("bash", "zsh", "tcsh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help='for example: eval "$(deadstop completion bash)"')


def execute(arguments: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError:
        raise UsageError("completion needs the package shtab: install deadstop[completion]") from None
    from . import build_parser

    print(shtab.complete(build_parser(), arguments.shell))
    return 0
