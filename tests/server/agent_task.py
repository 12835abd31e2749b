# SPDX-License-Identifier: Apache-2.0
"""An agent's task with a limit on each command, a TTL, a budget: a program written for the PandaStack SDK, run as such.

It knows nothing of deadstop. `agent_task.py LIMIT COMMAND...` runs the commands in turn, each with that limit in
seconds, and prints one JSON line for each: what a model would be given, and how long it took.
"""

import json
import sys
import time

from pandastack import Sandbox
from pandastack.exceptions import SandboxTimeout

BUDGET_S = 600
STEPS = 25
TTL_S = 900
SHOWN = 2000


class OutOfBudget(Exception):
    pass


class Task:
    def __init__(self):
        self.end = time.monotonic() + BUDGET_S
        self.steps = 0
        self.sandbox = Sandbox.create(
            template="code-interpreter", ttl_seconds=TTL_S, metadata={"surface": "agent-task"}
        )

    def step(self, command, most):
        left = self.end - time.monotonic()
        if self.steps >= STEPS or left <= 0:
            raise OutOfBudget
        self.steps += 1
        limit = int(min(most, left))
        try:
            result = self.sandbox.exec(command, timeout_seconds=limit)
        except SandboxTimeout:
            return self.timed_out(command, limit)
        return {
            "exit_code": result.exit_code,
            "stdout": result.stdout[-SHOWN:],
            "stderr": result.stderr[-SHOWN:],
        }

    def timed_out(self, command, limit):
        tail = ""
        try:
            tail = self.sandbox.exec("tail -c 4000 /tmp/tool.log 2>/dev/null || true", timeout_seconds=2).stdout
        except Exception:
            pass
        self.sandbox.kill()
        self.sandbox = None
        return {
            "exit_code": None,
            "status": "timeout",
            "error": f"timed out after {limit} s",
            "command": command,
            "stdout_tail": tail[-SHOWN:] or "[nothing]",
            "truncated": True,
        }

    def close(self):
        if self.sandbox is not None:
            self.sandbox.kill()


def main():
    most, commands = int(sys.argv[1]), sys.argv[2:]
    task = Task()
    try:
        for command in commands:
            began = time.monotonic()
            answer = task.step(command, most)
            print(json.dumps({**answer, "seconds": time.monotonic() - began}), flush=True)
    finally:
        task.close()


main()
