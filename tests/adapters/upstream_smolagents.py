# SPDX-License-Identifier: Apache-2.0
"""Where smolagents' own executor tests can be had: they are not kept here, and only read."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

NAME = "test_local_python_executor.py"
VARIABLE = "DEADSTOP_SMOLAGENTS_TESTS"  # a folder that has them
DOWNLOAD_S = 90


def find() -> Path | str:
    """The file, for the installed version; or why it cannot be had."""
    folder = os.environ.get(VARIABLE)
    if folder:
        file = Path(folder) / NAME
        return file if file.is_file() else f"{VARIABLE}: there is no {NAME} in {folder}"
    cached = _cache() / f"smolagents-{version('smolagents')}" / NAME
    if cached.is_file():
        return cached
    try:
        return _download(version("smolagents"), cached)
    except (OSError, subprocess.SubprocessError, tarfile.TarError, KeyError) as problem:
        return f"smolagents' source archive could not be had through pip ({type(problem).__name__}); set {VARIABLE}"


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "deadstop-tests"


def _download(wanted: str, to: Path) -> Path:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        subprocess.run(
            [*command, "--dest", folder, f"smolagents=={wanted}"],
            check=True, timeout=DOWNLOAD_S, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        (archive,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            member = packed.extractfile(f"smolagents-{wanted}/tests/{NAME}")
            assert member is not None
            text = member.read()
    to.parent.mkdir(parents=True, exist_ok=True)
    unfinished = to.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(text)
    unfinished.replace(to)
    return to
