# SPDX-License-Identifier: Apache-2.0
"""The options of a command for type checkers: what `deadstop.run` takes by name, as its twins take it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from .prepare import Default


class CommandOptions(TypedDict, total=False):
    """What concerns one command, wherever it runs."""

    timeout: float | Default | None
    idle_timeout: float | None
    grace: float
    output_limit: int | None
    cwd: str | os.PathLike[str] | None
    env: Mapping[str, str | None] | None
    clear_env: bool
    env_defaults: bool
    tty: bool
    tail: int
    on_input_wait: Literal["wait", "kill"]
    evidence_paths: Sequence[str]
    tool: str | None


class PlaceOptions(TypedDict, total=False):
    """What concerns the boundary."""

    memory: int | Default | None
    pids: int | Default | None
    cpus: float | None
    disk: int | Default | None
    net: bool
    bind: Sequence[str]
    ro_bind: Sequence[str]
    bind_cwd: bool


class RunOptions(CommandOptions, PlaceOptions, total=False):
    """Both, and which kind of boundary."""

    isolation: Literal["process", "sandbox"]
