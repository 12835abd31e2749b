# SPDX-License-Identifier: Apache-2.0
"""Test files of other projects, fetched with pip when they can be had. None of them is kept in this repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

FETCH_S = 100


def sdist_tests(name: str, version: str) -> Path | str:
    """The folder of the tests in a project's source distribution; or why it cannot be had.

    Fetched once, into `deadstop/upstream` in the user's cache folder (DEADSTOP_UPSTREAM_CACHE names another).
    """
    cache = Path(os.environ.get("DEADSTOP_UPSTREAM_CACHE") or _user_cache() / "deadstop" / "upstream")
    kept = cache / f"{name}-{version}"
    if kept.is_dir():
        return kept
    try:
        cache.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=cache))
    except OSError as problem:
        return f"no cache folder: {problem}"
    try:
        return _fetched(name, version, work) or _moved(work / f"{name}-{version}" / "tests", kept)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _fetched(name: str, version: str, work: Path) -> str | None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--timeout=15", "--retries=1"]
    asked = ["download", "-q", "--no-deps", "--no-binary=:all:", f"--dest={work}", f"{name}=={version}"]
    try:
        done = subprocess.run([*pip, *asked], capture_output=True, text=True, timeout=FETCH_S, check=False)
    except subprocess.TimeoutExpired:
        return f"pip did not fetch {name} {version} within {FETCH_S} s"
    archives = list(work.glob("*.tar.gz"))
    if done.returncode or not archives:
        last = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        return f"pip could not fetch {name} {version}: {last[:200]}"
    with tarfile.open(archives[0]) as archive:
        wanted = [each for each in archive.getmembers() if each.name.startswith(f"{name}-{version}/tests/")]
        archive.extractall(work, wanted, filter="data")
    return None if (work / f"{name}-{version}" / "tests").is_dir() else f"{name} {version} comes without its tests"


def _moved(folder: Path, kept: Path) -> Path:
    try:
        folder.rename(kept)
    except OSError:  # another process was quicker
        if not kept.is_dir():
            raise
    return kept
