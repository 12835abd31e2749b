# SPDX-License-Identifier: Apache-2.0
"""Who runs a benchmark: root, an ordinary user without an account, and that user on hosts that refuse things.

Everything is copied into one temporary folder that an ordinary user may read, with its byte code: without that every
start of Python would compile the package anew, and that is not what a user has.
"""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
ORDINARY_UID = 41_732  # no account, and not the one that the tests use: a limit on processes counts per user
DENIED = {"root": "", "user": "", "no-userns": "userns", "no-userns-no-cgroup": "userns,cgroup"}


def available() -> list[str]:
    return [name for name in DENIED if name != "root" or os.geteuid() == 0]


@contextmanager
def folder() -> Iterator[tuple[Path, bool]]:
    """The temporary folder with `src`, `benchmarks` and `payloads`, and whether the payloads could be compiled."""
    place = Path(tempfile.mkdtemp(prefix="deadstop-bench-"))
    try:
        place.chmod(0o755)
        for name in ("src", "benchmarks"):
            shutil.copytree(PROJECT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        (place / "home").mkdir()
        if os.geteuid() == 0:
            os.chown(place / "home", ORDINARY_UID, ORDINARY_UID)
        yield place, _payloads(place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _payloads(place: Path) -> bool:
    """Compile the C payloads; without a compiler their slower Python versions serve."""
    shutil.copytree(place / "benchmarks" / "payloads", place / "payloads")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return False
    for source in (place / "payloads").glob("*.c"):
        done = subprocess.run(
            [compiler, "-O1", "-o", str(source.with_suffix("")), str(source)], capture_output=True, timeout=60
        )
        if done.returncode != 0:
            return False
    return True


def python_for(host: str) -> str | None:
    """An interpreter that this host's user may execute."""
    for candidate in dict.fromkeys([sys.executable, "/usr/bin/python3", shutil.which("python3") or sys.executable]):
        check = [candidate, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        try:
            done = subprocess.run(check, stderr=subprocess.DEVNULL, timeout=20, cwd="/", **_user(host))
            if done.returncode == 0:
                return candidate
        except OSError:
            continue
    return None


def compile_for(python: str, place: Path) -> None:
    """Byte code for this interpreter, in the copy."""
    if python == sys.executable:
        compileall.compile_dir(str(place / "src"), quiet=1)
    else:
        command = [python, "-m", "compileall", "-q", str(place / "src")]
        subprocess.run(command, capture_output=True, timeout=60)


def start(host: str, python: str, place: Path, words: list[str]) -> subprocess.Popen[str]:
    """A benchmark process of this host: `python -m benchmarks` with these words, its lines on a pipe."""
    keep = {name: os.environ[name] for name in ("PATH", "LANG", "TERM") if name in os.environ}
    env = {**keep, "HOME": str(place / "home"), "PYTHONPATH": f"{place / 'src'}:{place}"}
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    env["DEADSTOP_BENCH_PACKAGES"] = sysconfig.get_path("purelib")  # for an interpreter that has no aiohttp of its own
    if DENIED[host]:
        env["DEADSTOP_DENY"] = DENIED[host]
    return subprocess.Popen(
        [python, "-m", "benchmarks", *words], env=env, cwd=place / "home", stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, text=True, **_user(host),
    )  # fmt: skip


def _user(host: str) -> dict[str, Any]:
    if os.geteuid() != 0 or host == "root":
        return {}
    return {"user": ORDINARY_UID, "group": ORDINARY_UID, "extra_groups": []}
