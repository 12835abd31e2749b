# SPDX-License-Identifier: Apache-2.0
"""The example of the docs says what the docs say it does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import deadstop

EXAMPLE = Path(__file__).parents[2] / "examples" / "effects.py"


def test_the_example_of_a_lost_answer() -> None:
    path = {**os.environ, "PYTHONPATH": str(Path(deadstop.__file__).parents[1])}
    done = subprocess.run([sys.executable, str(EXAMPLE)], env=path, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "first call:  error, effect unknown, operation UNKNOWN",
        "second call: unknown, effect unknown; requests sent so far: 1",
        "looked up:   applied, operation SUCCEEDED",
        "third call:  completed, effect applied; effects at the service: 1",
        "trail:       intent, attempt.started, attempt.ended, reconcile.started, reconcile.finding, settled",
    ]
