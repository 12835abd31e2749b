# SPDX-License-Identifier: Apache-2.0
"""300 sandboxes that do nothing: what each costs, what another one costs then, and 200 of them ending at one moment."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from .harness import Bench, Figure, Series
from .sandboxes_ends import Watch, boottime
from .sandboxes_served import Client, Served, Unavailable, in_parallel, serving, timed, until

HOSTS = ("root", "user")
MANY, AT_ONCE, FEW = 300, 200, 10
QUICK = 10  # a quick run has a tenth of them
MEMORY_MB, TIMES = 15.0, 2.0
LEAD_S = 3.0


def measure(bench: Bench) -> Iterator[Figure]:
    try:
        with serving(bench) as served:
            yield from _all(bench, served)
    except Unavailable as reason:
        yield Figure("idle sandboxes", Series(()), note=str(reason))


def _all(bench: Bench, served: Served) -> Iterator[Figure]:
    many, at_once = (MANY // QUICK, AT_ONCE // QUICK) if bench.quick else (MANY, AT_ONCE)
    samples = 8 if bench.quick else 25
    alone, few = _creates(served, samples), _expiries(served)
    before, available = _memory(served), _available()
    idle = in_parallel(served, many, 2, lambda client, _: str(client.create(ttl_seconds=600)["id"]))
    _quiet(served)
    after, left = _memory(served), _available()
    grown = {name: (after[name] - before[name]) / many for name in after}
    fell, readable = (available - left) / many, bench.host == "root"
    note = f"front {grown['front']:.2f}, supervisor {grown['supervisor']:.2f}, page tables {grown['tables']:.2f}; "
    note += f"MemAvailable fell by {fell:.1f}" if readable else "by MemAvailable: ours are not readable for their user"
    each = Series((grown["pss"] + grown["tables"] if readable else fell,))
    yield Figure(f"memory of each of {many} idle", each, (MEMORY_MB,), unit="MB", note=note)
    crowded, lot = _creates(served, samples), _expiries(served)
    beside = {"create at 1": alone}
    yield Figure(f"create at {many}", crowded, (TIMES * alone.p50, TIMES * alone.p99), beside=beside)
    yield from _cost(many, few, lot, _idle_cost(served))
    yield from _together(served, idle, at_once)
    in_parallel(served, many - at_once, 4, lambda client, number: client.delete(idle[at_once + number]))


def _memory(served: Served) -> dict[str, float]:
    """MB that all processes have among themselves: shared pages are counted once, those of others in part."""
    pids = served.ours()
    return {
        "pss": sum(_lines(f"/proc/{pid}/smaps_rollup", "Pss:") for pid in pids),
        "tables": sum(_lines(f"/proc/{pid}/status", "VmPTE:") for pid in pids),
        "front": _lines(f"/proc/{served.process.pid}/status", "RssAnon:"),
        "supervisor": _lines(f"/proc/{served.supervisor}/status", "RssAnon:"),
    }


def _lines(path: str, name: str) -> float:
    try:
        with open(path) as file:
            return next((int(line.split()[1]) for line in file if line.startswith(name)), 0) / 1024
    except OSError:
        return 0.0


def _available() -> float:
    return _lines("/proc/meminfo", "MemAvailable:")


def _quiet(served: Served) -> None:
    """Wait until the server and its supervisor have nothing left to do."""

    def still() -> bool:
        before = _cpu_ms(served.supervisor) + _cpu_ms(served.process.pid)
        time.sleep(0.2)
        return _cpu_ms(served.supervisor) + _cpu_ms(served.process.pid) - before < 2

    until(still, 20, "an idle server")


def _creates(served: Served, samples: int) -> Series:
    found = []
    for _ in range(samples + 1):
        made: list[str] = []
        found.append(timed(lambda: made.append(str(served.client.create(ttl_seconds=120)["id"]))))  # noqa: B023
        served.client.delete(made[0])
    return Series(tuple(found[1:]))


# -- what the end of a life costs --------------------------------------------------------------------------------------


def _cpu_ms(pid: int) -> float:
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[0]) / 1e6


def _expiries(served: Served) -> tuple[Series, Series]:
    """FEW lives that end in turn: how late each was, and what the supervisor's processor time for it was."""
    begin = boottime() + LEAD_S + 3 * FEW * _creates(served, 1).p50 / 1000
    made = [served.client.create(ttl_seconds=begin + 0.1 * number - boottime())["id"] for number in range(FEW)]
    due = _due(served, made)
    watch = Watch(due)
    time.sleep(max(0.0, begin - 0.3 - boottime()))
    before = _cpu_ms(served.supervisor)
    ended = watch.ends(begin + 15)
    time.sleep(0.2)
    costs = Series(((_cpu_ms(served.supervisor) - before) / FEW,))
    return Series(tuple((at - due[pid]) * 1000 for pid, at in ended.items())), costs


def _due(served: Served, sandboxes: Iterable[str]) -> dict[int, float]:
    records = [served.record(sandbox) for sandbox in sandboxes]
    return {int(record["pid"]): float(record["expires_boot"]) for record in records}


def _idle_cost(served: Served) -> float:
    """Milliseconds of processor time in a second in which nothing is due."""
    _quiet(served)
    before = _cpu_ms(served.supervisor)
    time.sleep(1.0)
    return _cpu_ms(served.supervisor) - before


def _cost(many: int, few: tuple[Series, Series], lot: tuple[Series, Series], idle: float) -> Iterator[Figure]:
    note = f"with all of them idle the supervisor takes {idle:.2f} ms a second"
    cost, late = f"processor time of a TTL's end at {many}", f"  TTL to dead at {many}"
    beside = {f"at {FEW}": few[1]}
    yield Figure(cost, lot[1], (TIMES * few[1].p50,), beside=beside, note=note)
    yield Figure(late, lot[0], (25.0,), beside={f"at {FEW}": few[0]})


def _together(served: Served, idle: list[str], count: int) -> Iterator[Figure]:
    """Lives moved so that all end at one moment."""
    begin = boottime() + LEAD_S + count * 0.02

    def move(client: Client, number: int) -> None:
        client.ask("PATCH", f"/sandboxes/{idle[number]}/lifecycle", {"ttl_seconds": begin - boottime()})

    in_parallel(served, count, 2, move)
    due = _due(served, idle[:count])
    watch = Watch(due)
    if boottime() > begin - 0.2:
        raise RuntimeError("the machine is too busy: the lives were not moved in time")
    ended = watch.ends(begin + 20)
    spread = (max(due.values()) - min(due.values())) * 1000
    last = Series(((max(ended.values()) - min(due.values())) * 1000,))
    proofs = {_end(served, sandbox) for sandbox in idle[:count]}
    median = Series(tuple((ended[pid] - due[pid]) * 1000 for pid in due)).p50
    note = f"median {median:.0f} ms; ends due within {spread:.0f} ms; {', '.join(sorted(proofs))}"
    yield Figure(f"{count} TTLs at once, until the last is dead", last, (1000.0,), note=note)


def _end(served: Served, sandbox: str) -> str:
    end = until(lambda: served.client.ask("GET", f"/sandboxes/{sandbox}")["end"], 10, "the end in the record")
    return f"{end['reason']} {end['receipt']['proof']}"
