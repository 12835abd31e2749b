# SPDX-License-Identifier: Apache-2.0
"""Commands with an effect, for the tests of `deadstop.run(effect=...)`: a line in a file, the key they were given."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import deadstop
from deadstop import Effect

LINE = 'echo "$DEADSTOP_OPERATION_KEY" >> "$EFFECTS"'
ONCE = Effect()
AGAIN = Effect(retry="if_not_accepted")


def lines() -> list[str]:
    file = Path(os.environ["EFFECTS"])
    return file.read_text().splitlines() if file.exists() else []


def once(script: str = LINE, key: str | None = "release-7", **options: Any) -> deadstop.ToolResult:
    options = {"effect": ONCE, "timeout": 20, **options}
    return deadstop.run(["bash", "-c", script], key=key, **options)


async def once_async(script: str = LINE, key: str | None = "release-7", **options: Any) -> deadstop.ToolResult:
    options = {"effect": ONCE, "timeout": 20, **options}
    return await deadstop.run_async(["bash", "-c", script], key=key, **options)


def op(result: deadstop.ToolResult) -> dict[str, Any]:
    return dict(result.operation)


def both(script: str, asynchronous: bool, **options: Any) -> deadstop.ToolResult:
    return asyncio.run(once_async(script, **options)) if asynchronous else once(script, **options)


def other_process(code: str, **more: str) -> subprocess.Popen[bytes]:
    path = {**os.environ, "PYTHONPATH": str(Path(deadstop.__file__).parent.parent), **more}
    return subprocess.Popen([sys.executable, "-W", "ignore", "-c", code], env=path)


TWICE = f"""
import deadstop
result = deadstop.run(["bash", "-c", {f"{LINE}; sleep 0.3"!r}], effect=deadstop.Effect(), key="release-7", timeout=20)
assert (result.effect, result.exit_code) == ("applied", 0), result
"""
