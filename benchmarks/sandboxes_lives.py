# SPDX-License-Identifier: Apache-2.0
"""How late the ends of lives are kept while the server is stopped or flooded: 100 sandboxes, 25 ends in a second.

The end of a life is read from the server's own record of it. Dead is the first process of the boundary, which ends
last, when its pidfd says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from .harness import Bench, Figure, Series
from .sandboxes_deadlines import COUNT, EVERY_S, LATE_S, QUICK_COUNT, Trouble, in_time, troubled
from .sandboxes_ends import Watch, boottime
from .sandboxes_served import Client, Served, Unavailable, in_parallel, serving

HOSTS = ("root", "user")


def measure(bench: Bench) -> Iterator[Figure]:
    count = QUICK_COUNT if bench.quick else COUNT
    try:
        with serving(bench) as served:
            yield from troubled("life", lambda trouble: _lives(served, trouble, count), served)
    except Unavailable as reason:
        yield Figure("lives", Series(()), note=str(reason))


def _lives(served: Served, trouble: Trouble, count: int) -> list[float]:
    began = boottime()
    served.client.delete(served.client.create(ttl_seconds=60)["id"])
    begin = boottime() + 1.5 + count * (boottime() - began)

    def create(client: Client, number: int) -> str:
        left = begin + EVERY_S * number - boottime()
        return str(client.create(ttl_seconds=left)["id"])

    records = [served.record(sandbox) for sandbox in in_parallel(served, count, 2, create)]
    due = {int(record["pid"]): float(record["expires_boot"]) for record in records}
    watch = Watch(due)
    with trouble(served):
        in_time(min(due.values()))
        ended = watch.ends(begin + EVERY_S * count + LATE_S)
    return [(at - due[pid]) * 1000 for pid, at in ended.items()]
