# SPDX-License-Identifier: Apache-2.0
"""`deadstop schema`: the published form of a result."""

from __future__ import annotations

import argparse
import json

from ..schema import result_schema


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def execute(arguments: argparse.Namespace) -> int:
    print(json.dumps(result_schema(), indent=2))
    return 0
