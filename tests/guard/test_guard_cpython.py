# SPDX-License-Identifier: Apache-2.0
"""CPython's own tests of the language, compiled by the guard: they must pass as they do without it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import deadstop

MODULES = (
    "augassign class contextlib coroutines dataclasses decorators fractions fstring generators grammar heapq patma "
    "scope super textwrap"
)
LIBRARY = "contextlib dataclasses fractions heapq textwrap"  # guarded as well

RUNNER = """
import importlib.machinery, io, sys, unittest
from deadstop import guard

tests, library = ({f"test.test_{name}" for name in sys.argv[1].split()}, set(sys.argv[2].split()))
# Some of them compute what is large on purpose; what matters here is that nothing else changes.
limits = guard.GuardLimits(int_bits=10**9, sequence_bytes=10**11, iterations=10**10, format_width=10**10)

class Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, name):
        return guard.compile(self.get_data(self.path).decode(), self.path, limits=limits)

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in tests | library:
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            spec.loader = Loader(name, spec.origin)
            return spec

sys.meta_path.insert(0, Finder)
for name in library:
    sys.modules.pop(name, None)
suite = unittest.defaultTestLoader.loadTestsFromNames(sorted(tests))
result = unittest.TextTestRunner(stream=sys.stderr).run(suite)
print(result.testsRun, len(result.failures), len(result.errors))
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("test.test_grammar") is None, reason="this Python came without its tests")
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the selection is known to pass on 3.11")
def test_the_language_is_the_same() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUNNER, MODULES, LIBRARY],
        env={"PYTHONPATH": str(Path(deadstop.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    run, failures, errors = map(int, done.stdout.split()[-3:])
    assert run > 1000
    assert (failures, errors) == (0, 0), done.stderr[-3000:]
