# SPDX-License-Identifier: Apache-2.0
"""Programs that call functions (callers/), run on a host as its user. Each tells what it saw, section by section.

Starting one costs a third of a second, so a program runs once for a host and every test looks at its own section.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import hosts
from hosts import Host

CALLERS = Path(__file__).resolve().parent / "callers"
_told: dict[tuple[str, str], dict[str, Any]] = {}

# What depends on the clock is measured on one host, with nothing beside it, and on the others beside other tests.
MEASURED = hosts.each_kind()[0]
BESIDE_S = 1.5
measured_once = pytest.mark.parametrize(
    "host",
    [pytest.param(name, marks=pytest.mark.alone) if name == MEASURED else name for name in hosts.available()],
    indirect=True,
)


def measured(host: Host) -> bool:
    return host.name == MEASURED


def at_most(host: Host, seconds: float) -> float:
    """The bound that is promised, where it is measured; one that holds on a busy machine elsewhere."""
    return seconds if measured(host) else seconds + BESIDE_S


def place(host: Host) -> Path:
    """The folder with the programs that this host's user may read; cloudpickle lies beside it."""
    folder = host.folder.parent / "callers"
    if not folder.exists():
        shutil.copytree(CALLERS, folder, ignore=shutil.ignore_patterns("__pycache__"))
        spec = importlib.util.find_spec("cloudpickle")
        assert spec is not None and spec.origin is not None, "these tests need cloudpickle"
        shutil.copytree(Path(spec.origin).parent, folder.parent / "site" / "cloudpickle")
        for path in [folder, folder.parent / "site", *folder.rglob("*"), *(folder.parent / "site").rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def variables(host: Host, **more: str) -> dict[str, str]:
    site = place(host).parent / "site"
    return {"PYTHONPATH": f"{host.source}:{site}", "PYTHONUNBUFFERED": "", "TMPDIR": str(host.folder),
            "IN_FULL": "yes" if measured(host) else "", **more}  # fmt: skip


def start(host: Host, program: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """A caller that a test can stop and kill. Its stdout is a pipe."""
    options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("stdout", subprocess.PIPE)
    words = [host.python, str(place(host) / f"{program}.py"), *arguments]
    return host.popen(words, env=variables(host), **options)


def run(host: Host, program: str, *sections: str, bound: float = 50) -> dict[str, Any]:
    """Run a program to its end: what its sections told, and `_exit_s`, how long it took to end after that."""
    process = start(host, program, *sections, stderr=subprocess.PIPE)
    try:
        out, err = process.communicate(timeout=bound)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate(timeout=10)
        raise
    ended = time.monotonic()
    assert process.returncode == 0, (process.returncode, err.decode("utf-8", "replace")[-4000:])
    told: dict[str, Any] = json.loads(out.splitlines()[-1])
    told["_exit_s"] = ended - told["_told_at"]
    return told


def facts(host: Host, program: str, section: str, *, by_itself: bool = False, together: tuple[str, ...] = ()) -> Any:
    """What one section saw; its program is run if it has not been on this host.

    `by_itself`: then only this section, for a test that is run apart from the others. `together`: only these.
    """
    key = (host.mark, " ".join((program, *together)))
    if by_itself and key not in _told:
        key, together = (host.mark, f"{program} {section}"), (section,)
    if key not in _told:
        try:
            _told[key] = run(host, program, *together)
        except BaseException as problem:
            _told[key] = {"_failed": repr(problem)}
            raise
    told = _told[key]
    assert "_failed" not in told, f"the program did not end well: {told['_failed']}"
    found = told[section]
    assert not (isinstance(found, dict) and "problem" in found), found["problem"]
    return found
