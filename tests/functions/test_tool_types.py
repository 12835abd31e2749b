# SPDX-License-Identifier: Apache-2.0
"""What a type checker makes of a decorated function: the same arguments, the same result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="mypy is not installed")

import deadstop

USES = """
import deadstop
@deadstop.tool(timeout=5, effect="none")
def length(url: str) -> int: return len(url)
@deadstop.tool
def repeat(a: int, b: str = "x") -> str: return b * a
@deadstop.tool(isolation="inline")
async def listed(a: int) -> list[int]: return [a]
number: int = length("x")
text: str = repeat(1)
result: deadstop.ToolResult = length.call("x")
async def use() -> list[int]: return await listed(3)
"""


def checked(folder: Path, text: str) -> str:
    (folder / "uses.py").write_text(text)
    env = {**os.environ, "MYPYPATH": str(Path(deadstop.__file__).parent.parent)}
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), "uses.py"]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=50).stdout


def test_a_decorated_function_keeps_its_type(tmp_path: Path) -> None:
    assert "uses.py" not in checked(tmp_path, USES)
    said = checked(tmp_path, USES + "\nlength(3)\n")
    assert 'expected "str"' in said
