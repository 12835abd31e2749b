# SPDX-License-Identifier: Apache-2.0
"""The tests' side of a process that keeps sandboxes: started as some kind of host, told what to run, and looked after.

Most tests of sandboxes wait for a limit, so those of one module and kind run in one such process, several at a time.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import hosts

HERE = Path(__file__).resolve().parent
INPUTS = HERE.parent / "cases" / "inputs"
START_S, ANSWER_S, CLOSE_S = 20.0, 50.0, 20.0

# root: btrfs and cgroups. user: overlays, and what this machine gives an ordinary user. no-cgroup: without any group.
KINDS = (["root"] if os.geteuid() == 0 else []) + ["user", "no-cgroup"]


def host_of(kind: str, made: dict[str, hosts.Host | str]) -> hosts.Host | str:
    """One with a mark of its own, so that what is left of it has a culprit."""
    name = kind if kind in hosts.available() else next(iter(hosts.available()))
    found = made.setdefault(name, hosts.make(name)) if name not in made else made[name]
    if isinstance(found, str):
        return found
    return dataclasses.replace(found, deny="cgroup" if kind == "no-cgroup" else "", mark=uuid.uuid4().hex)


class Keeper:
    """One process (keeper.py, or another program) with a state folder of its own."""

    def __init__(self, host: hosts.Host, kind: str, program: str = "keeper") -> None:
        self.host, self.kind, self.program = host, kind, program
        self.folder = Path(tempfile.mkdtemp(prefix="keeper-", dir=host.folder))
        shutil.copytree(HERE, self.folder / "tests", ignore=shutil.ignore_patterns("__pycache__", "test_file*"))
        shutil.copytree(INPUTS, self.folder / "inputs")
        if os.geteuid() == 0:
            subprocess.run(["chown", "-R", str(host.uid), self.folder], check=True, timeout=20)
        self.errors = (self.folder / "errors").open("w+b")
        self.process = self._start()
        self._buffer = b""
        self._answers: dict[str, dict[str, Any]] = {}

    def _start(self) -> subprocess.Popen[bytes]:
        env = {"PYTHONPATH": f"{self.folder}/tests{os.pathsep}{self.host.source}", "DEADSTOP_TEST_KIND": self.kind}
        return self.host.popen(
            [self.host.python, "-m", self.program, str(self.folder / "state")], env=env,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
        )  # fmt: skip

    def begin(self, module: str, tests: list[str]) -> None:
        """Run these, several at a time."""
        self.tell({"module": module, "tests": tests})

    def tell(self, order: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # its end is found out when the answer is waited for

    def outcome_of(self, test: str) -> None:
        """Wait for the end of a test; fail as it did."""
        answer = self.answer(test)
        if answer["problem"]:
            raise AssertionError(f"in the process of host kind {self.kind}:\n{answer['problem']}")

    def answer(self, name: str, bound: float = ANSWER_S) -> dict[str, Any]:
        end = time.monotonic() + bound
        while name not in self._answers:
            line = self.line(end - time.monotonic())
            assert line, f"no answer about {name} from the {self.kind} keeper ({self.process.poll()}): {self.said()}"
            document = json.loads(line)
            self._answers[document["test"]] = document
        return self._answers.pop(name)

    def line(self, seconds: float) -> bytes:
        assert self.process.stdout is not None
        while b"\n" not in self._buffer:
            if seconds <= 0 or not select.select([self.process.stdout], [], [], seconds)[0]:
                return b""
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                return b""
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def said(self) -> str:
        return (self.folder / "errors").read_text(errors="replace")[-3000:]

    def close(self) -> None:
        """It ends by itself when its orders end, with all it kept."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            code = self.process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(CLOSE_S)
            raise
        finally:
            self.process.stdout.close()
            self.errors.close()
        said = self.said()
        self.host.no_survivors(within=3)
        shutil.rmtree(self.folder, ignore_errors=True)
        assert code == 0, said
        assert "Traceback" not in said, said
