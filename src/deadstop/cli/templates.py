# SPDX-License-Identifier: Apache-2.0
"""`deadstop templates`: the same as `deadstop template list`."""

from __future__ import annotations

import argparse

from . import common
from .template import list_all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_server(parser)


def execute(arguments: argparse.Namespace) -> int:
    return list_all(arguments)
