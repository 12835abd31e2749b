# SPDX-License-Identifier: Apache-2.0
"""Run the zoo once and print a table of hits and misses: python zoo_figures.py [part of a name]. Any user may
run it.
"""

from __future__ import annotations

import os
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "src")]

import zoo_cases as cases  # noqa: E402
import zoo_field as field  # noqa: E402


def main(wanted: str) -> None:
    held_out = [*cases.HELD_OUT, *cases.HELD_OUT_LATER]
    servers = field.Servers()
    chosen = [
        case
        for case in cases.ALL
        if (wanted in case.name or (wanted == "later" and case in cases.HELD_OUT_LATER)) and not field.missing(case)
    ]
    ground = field.Field(servers.ports, lambda case: batch(case, chosen))
    hits, blamed_right, costs, walls = {True: [0, 0], False: [0, 0]}, 0, [], []
    try:
        for case in chosen:
            running = ground.take(case)
            found = field.look(running)
            diagnosis = found["diagnosis"]
            kinds = (case.kinds,) if isinstance(case.kinds, str) else case.kinds
            command = {entry["pid"]: entry["cmd"] for entry in found["processes"]}.get(diagnosis["pid"], "")
            right, blamed = diagnosis["kind"] in kinds, case.blamed in command
            hits[case in held_out][0] += right
            hits[case in held_out][1] += 1
            blamed_right += blamed
            costs.append(found["cpu_ms"])
            walls.append(found["took_ms"])
            if not (right and blamed and found["complete"]):
                print(f"{case.name}: {diagnosis['kind']} not {kinds}, blamed {command!r}: {diagnosis['detail']}")
            ground.end(case)
    finally:
        ground.close()
        servers.close()
    print(f"kind right: zoo {hits[False]}, held out {hits[True]}; blamed right {blamed_right} of {len(chosen)}")
    print(f"cpu ms median {statistics.median(costs):.1f} max {max(costs):.1f}")
    print(f"wall ms median {statistics.median(walls):.1f} max {max(walls):.1f}")


def batch(case: cases.Zoo, chosen: list[cases.Zoo]) -> list[cases.Zoo]:
    """Neighbours of a case: a dozen quiet ones at a time, or three busy ones."""
    alike = [other for other in chosen if other.busy == case.busy]
    size = 3 if case.busy else 12
    start = alike.index(case) // size * size
    return alike[start : start + size]


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
