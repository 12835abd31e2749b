# SPDX-License-Identifier: Apache-2.0
"""The same accident for three programs: killed after the payment and before the note of it, then started again.

What others do here is what the ledger is for. They are run as they come, in versions that are pinned: when one of them
changes its mind, this test says so.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import deadstop

PROGRAM = Path(__file__).with_name("baseline_program.py")
BOUND_S = 40.0


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"{module} is not installed")


@dataclass
class Program:
    which: str
    folder: Path

    def run(self, amount: int = 10, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(PROGRAM), self.which, str(self.folder), str(amount), *words]
        env = {**os.environ, "PYTHONPATH": str(Path(deadstop.__file__).parent.parent), "HOME": str(self.folder)}
        return subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, cwd=self.folder, env=env)

    def killed(self) -> None:
        """It dies between the effect and the record of it; the effect is there."""
        ended = self.run(10, "kill")
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        assert self.payments() == ["paid 10"]

    def answer(self, amount: int = 10, *words: str) -> object:
        ended = self.run(amount, *words)
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    def payments(self) -> list[str]:
        return (self.folder / "payments").read_text().splitlines()


@needs("dbos")
def test_dbos_pays_twice_after_a_kill_and_answers_another_request_with_the_first_ones_result(tmp_path):
    program = Program("dbos", tmp_path)
    program.killed()
    assert program.answer() == "paid 10"
    assert program.payments() == ["paid 10", "paid 10"]
    assert program.answer(999) == "paid 10"  # another request under the same id: the first one's result
    assert program.payments() == ["paid 10", "paid 10"]


@needs("agent_outbox")
def test_agent_outbox_pays_twice_when_the_lease_of_a_killed_run_is_over(tmp_path):
    program = Program("agent_outbox", tmp_path)
    program.killed()
    assert program.answer() == "paid 10"
    assert program.payments() == ["paid 10", "paid 10"]


@pytest.mark.parametrize("which", ["deadstop", "deadstop_inline"])
def test_ours_pays_once_and_finds_out_that_it_did(tmp_path, which):
    """With the tool in a worker that dies with it, and in the process itself."""
    program = Program(which, tmp_path)
    program.killed()
    assert program.answer() == {"state": "SUCCEEDED", "attempts": 1}
    assert program.answer() == {"state": "SUCCEEDED", "attempts": 1}
    assert program.payments() == ["paid 10"]


def test_ours_pays_once_and_says_unknown_where_nobody_can_be_asked(tmp_path):
    program = Program("deadstop_blind", tmp_path)
    program.killed()
    for _ in range(2):
        answer = program.answer()
        assert answer["attempts"] == 1 and answer["state"] in ("UNKNOWN", "NEEDS_HUMAN")
    assert program.payments() == ["paid 10"]


def test_ours_refuses_another_request_under_the_same_key(tmp_path):
    program = Program("deadstop", tmp_path)
    assert program.answer(10) == {"state": "SUCCEEDED", "attempts": 1}
    assert program.answer(999) == {"refused": "key_conflict"}
    assert program.payments() == ["paid 10"]
