# SPDX-License-Identifier: Apache-2.0
"""Python stacks of commands and of workers that do not give their own, by py-spy where it is installed."""

from __future__ import annotations

import json
import os
import shutil
import sys
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
print(json.dumps([result.status, result.evidence.stacks or ""]))
"""


@needs_py_spy
def test_a_command_that_is_a_python_program_is_shown_with_its_stack(one_host: Host) -> None:
    if one_host.uid != os.geteuid():
        pytest.skip("py-spy beside this interpreter is not this host's")
    result = one_host.run("--timeout", "1", "--", one_host.python, "-c", SCRIPT)
    assert result["status"] == "timeout"
    assert "inner_most" in result["evidence"]["stacks"]
    assert "outer" in result["evidence"]["stacks"]


def test_another_program_has_none(one_host: Host) -> None:
    result = one_host.run("--timeout", "0.5", "--", "sleep", "30")
    assert result["evidence"]["stacks"] is None


@needs_py_spy
def test_a_worker_that_blocks_every_signal_is_shown_all_the_same(one_host: Host) -> None:
    status, stacks = json.loads(one_host.script(BLOCKS_THE_SIGNAL))
    assert status == "timeout"
    assert "hides" in stacks
