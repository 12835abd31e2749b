# SPDX-License-Identifier: Apache-2.0
"""Python stacks of commands and of workers that do not give their own, by py-spy where it is installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hosts import Host

BESIDE = Path(sys.executable).parent / "py-spy"
needs_py_spy = pytest.mark.skipif(not (BESIDE.exists() or shutil.which("py-spy")), reason="py-spy is not installed")

SCRIPT = """
import time
def inner_most(): time.sleep(30)
def outer(): inner_most()
outer()
"""
BLOCKS_THE_SIGNAL = """
import json, signal, time
import deadstop
def hides():
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
    time.sleep(30)
result = deadstop.tool(hides, timeout=0.6).call()
print(json.dumps([result.status, result.evidence.stacks or "", result.evidence.complete]))
"""


def in_time(once: Callable[[], tuple[str, str, bool]]) -> str:
    """The stacks of a call. On a busy machine they may come too late, and then the evidence says so; not every time."""
    for _ in range(3):
        status, stacks, complete = once()
        assert status == "timeout"
        if stacks:
            return stacks
        assert complete is False
    raise AssertionError("three calls, and no stacks of any")


@needs_py_spy
@pytest.mark.alone
def test_a_command_that_is_a_python_program_is_shown_with_its_stack(one_host: Host) -> None:
    if one_host.uid != os.geteuid():
        pytest.skip("py-spy beside this interpreter is not this host's")

    def once() -> tuple[str, str, bool]:
        result = one_host.run("--timeout", "1", "--", one_host.python, "-c", SCRIPT)
        return result["status"], result["evidence"]["stacks"] or "", result["evidence"]["complete"]

    assert {"inner_most", "outer"} <= set(re.findall(r"\w+", in_time(once)))


def test_another_program_has_none(one_host: Host) -> None:
    result = one_host.run("--timeout", "0.5", "--", "sleep", "30")
    assert result["evidence"]["stacks"] is None


@needs_py_spy
@pytest.mark.alone
def test_a_worker_that_blocks_every_signal_is_shown_all_the_same(one_host: Host) -> None:
    assert "hides" in in_time(lambda: json.loads(one_host.script(BLOCKS_THE_SIGNAL)))
