# SPDX-License-Identifier: Apache-2.0
"""A sandbox of a running server, from its first command to its receipt. A few seconds; `deadstop serve` first.

DEADSTOP_SERVER says where the server is, if it is not this user's own. Whatever happens here, the sandbox is gone after
two minutes.
"""

from __future__ import annotations

import sys

import deadstop
from deadstop.errors import ServerUnreachable


def count(text: str) -> dict[str, int]:
    return {word: text.split().count(word) for word in text.split()}


def attempt(box: deadstop.Sandbox) -> deadstop.ToolResult:
    return box.exec("echo 'result of an attempt' > out.txt && cat out.txt", timeout=10)


def main() -> int:
    with deadstop.Task(wall_clock=60), deadstop.Sandbox.create("python", ttl=120, metadata={"task": "42"}) as sbx:
        print(f"{sbx.id} ends at {sbx.expires_at} at the latest")

        sbx.files.write("/home/agent/words.txt", "one two two\n")
        late = sbx.exec("cat words.txt; sleep 60", timeout=1)
        print(late.for_model())
        assert late.status == "timeout"
        assert late.receipt is not None
        assert late.receipt.survivors == 0

        print("a function inside:", deadstop.call(count, "one two two", sandbox=sbx).value)
        with sbx.session("python") as session:
            session.run("x = 41")
            print("a session keeps its state:", session.run("x + 1").value)

        sbx.snapshot("example")
        fresh = sbx.retry_fresh(attempt, attempts=2)
        print("a new machine for each attempt:", fresh.unwrap().stdout.tail.strip())

        race = sbx.race(["sleep 20; echo slow", "wc -w < words.txt"], timeout=30)
        assert race.winner is not None
        print("the first of two forks:", race.winner.stdout.tail.strip(), [str(each.status) for each in race.results])
        for fork in (fresh.sandbox, race.sandbox):
            if fork is not None:
                fork.kill()
    print(f"ended ({(sbx.end or {}).get('reason')}), proof: {sbx.receipt.proof if sbx.receipt else 'none'}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ServerUnreachable as problem:
        sys.exit(f"sandboxes.py: {problem}")
