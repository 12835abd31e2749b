# SPDX-License-Identifier: Apache-2.0
"""The program of `functions_kill`: so many calls that all time out, then a line of JSON, then its end.

`python -m benchmarks.functions_program ours|praison COUNT FILE`
"""

from __future__ import annotations

import json
import sys
import threading
import time

from .functions_work import hang_with_mark, marks

LIMIT_S = 0.005
HANG_S = 6.0


def ours(path: str, count: int) -> None:
    import deadstop

    tool = deadstop.tool(hang_with_mark, timeout=LIMIT_S)
    for number in range(count):
        result = tool.call(path, number, HANG_S)
        if result.status is not deadstop.Status.TIMEOUT:
            raise RuntimeError(f"not a timeout: {result}")


def praison(path: str, count: int) -> None:
    from praisonaiagents.tools.call_executor import SequentialToolCallExecutor, ToolCall

    def execute(name: str, arguments: dict[str, int], tool_call_id: str | None = None) -> None:
        hang_with_mark(path, arguments["number"], HANG_S)

    executor = SequentialToolCallExecutor()
    for number in range(count):
        call = ToolCall("hang_with_mark", {"number": number}, f"c{number}")
        executor.execute_batch([call], execute, timeout_ms=int(LIMIT_S * 1000))


def main(who: str, count: str, path: str) -> None:
    open(path, "x").close()
    before = threading.active_count()
    run = {"ours": ours, "praison": praison}[who]
    start = time.monotonic()
    run(path, int(count))
    wall = time.monotonic() - start
    begun, alive = marks(path, int(count))  # before anything else: these may not be any more
    threads = threading.active_count() - before
    print(json.dumps({"wall_s": wall, "begun": begun, "alive": alive, "threads": threads}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
