# SPDX-License-Identifier: Apache-2.0
"""What surrounds a call in its caller (environment, folder, import path), for workers to be given the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import InternalError
from ..model import Place

if TYPE_CHECKING:
    from .workers import Pool, Worker


def about_this_interpreter(pool: Pool, place: Place) -> dict[str, Any]:
    """What it takes to run the caller's functions elsewhere as if they were run here."""
    from .inside import inside

    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    path = [os.path.abspath(entry) for entry in sys.path]
    if not sys.executable:
        raise InternalError("sys.executable is empty: there is no interpreter to run functions in")
    return {
        "interpreter": {
            "executable": sys.executable, "flags": flags, "cwd": pool.cwd, "sys_path": path, "home": home,
            "environ": [(os.fsdecode(name), os.fsdecode(value)) for name, value in pool.environ.items()],
        },
        **inside(place, path),
    }  # fmt: skip


def environment_now() -> Mapping[bytes, bytes]:
    found: Mapping[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
    return found


def folder_now() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/"


def surroundings(worker: Worker) -> dict[str, Any] | None:
    """What differs from what the worker has: environment, folder, import path. It is taken to have it from now on."""
    changed: dict[str, Any] | None = None
    environ = environment_now()
    if environ != worker.environ:
        worker.environ = dict(environ)
        changed = {"environ": worker.environ}
    cwd = folder_now()
    if cwd != worker.cwd:
        worker.cwd = cwd
        changed = {**(changed or {}), "cwd": cwd}
    if sys.path != worker.path:
        worker.path = list(sys.path)
        changed = {**(changed or {}), "sys_path": [os.path.abspath(entry) for entry in sys.path]}
    return changed if worker.level == "process" else None
