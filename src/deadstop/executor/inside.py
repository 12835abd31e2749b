# SPDX-License-Identifier: Apache-2.0
"""What a worker's process is like: as the caller, or, in a sandbox, an interpreter that finds the same modules."""

from __future__ import annotations

import importlib.util
import os
import resource
import sys
from typing import Any

from ..boundary.cgroup import read
from ..model import Place
from .environment import environment
from .folders import python_folders
from .prepare import current_umask

LIBRARY = "/opt/deadstop"  # where a sandbox is shown this package and what it needs of others
_CODE = f"import sys; sys.path.insert(0, {LIBRARY!r}); from deadstop.worker.start import start_in_sandbox as s; s()"


def inside(place: Place, path: list[str]) -> dict[str, Any]:
    """The part of a pool's document that `supervisor.pool` makes a worker's request of."""
    common = {
        "umask": current_umask(), "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "oom_score_adj": int(read("/proc/self/oom_score_adj").strip() or 0),
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE),
    }  # fmt: skip
    if place.isolation == "process":
        return {**common, "argv": [], "env": {}, "cwd_inside": "/", "inside_path": None}
    shown = [target for _, target, _ in place.binds]
    visible = [entry for entry in path if _is_shown(entry, shown)]
    env = environment("sandbox", {}, clear=False, defaults=True, python={})
    argv = [sys.executable, "-I", "-S", "-c", _CODE]
    cwd = os.getcwd() if _is_shown(os.getcwd(), shown) else "/home/agent"
    return {**common, "argv": argv, "env": env, "cwd_inside": cwd, "inside_path": [LIBRARY, *visible]}


def worker_binds() -> list[tuple[str, str, bool]]:
    """What a sandbox needs besides what it is asked to show: this interpreter, this package, cloudpickle."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    binds = [(package, f"{LIBRARY}/deadstop", False)]
    spec = importlib.util.find_spec("cloudpickle")
    if spec is not None and spec.origin:
        binds.append((os.path.dirname(os.path.realpath(spec.origin)), f"{LIBRARY}/cloudpickle", False))
    for folder in python_folders():
        binds.append((folder, folder, False))
    return binds


def _is_shown(path: str, shown: list[str]) -> bool:
    return path.startswith("/usr/") or any(path == place or path.startswith(place + "/") for place in shown)
