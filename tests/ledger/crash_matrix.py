# SPDX-License-Identifier: Apache-2.0
"""Many processes that die in one ledger, each with an authority of its own, and what becomes of their operations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import stores
from crash_courses import Case

import hosts
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.records import Record
from deadstop.ledger.store import open_store
from deadstop.testing import Authority, crash_at

PROGRAM = Path(__file__).resolve().parent / "crashing_run.py"
ANYWHERE = ("send", "sign", "make")  # where nobody looks at who it was: each in a ledger of its own


class Death(NamedTuple):
    """`left` is the state in which the operation is found, None if there is none. `got` and the authority's first
    behaviour: whether it was done before the death."""

    point: str
    left: str | None
    got: bool = False
    behaves: str = "normal"
    course: str = "write"
    n: int = 1
    asked: bool = True
    stores: tuple[str, ...] = stores.LASTING


@dataclass
class Matrix:
    """All deaths in one kind of store, and what became of them."""

    kind: str
    folder: Path
    databases: stores.Databases | None
    cases: dict[str, Case] = field(default_factory=dict)
    deaths: dict[str, Death] = field(default_factory=dict)
    authorities: dict[str, Authority] = field(default_factory=dict)
    died: dict[str, Any] = field(default_factory=dict)
    before: dict[str, tuple[int, int]] = field(default_factory=dict)  # effects and requests when they had died,
    after: dict[str, tuple[int, int]] = field(default_factory=dict)  # and when all was right again
    ends: dict[str, Any] = field(default_factory=dict)
    checks: dict[str, Any] = field(default_factory=dict)
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.where = self.place("shared")
        self.folder.mkdir()
        self.problems = (self.folder / "stderr").open("w")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("DEADSTOP_")}
        self.environment["DEADSTOP_STATE"] = str(self.folder / "state")
        self.environment["PYTHONPATH"] = f"{hosts.SOURCE}:{PROGRAM.parent}"
        self.runner = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(self.folder)], env=self.environment, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self.problems,
        )  # fmt: skip

    def place(self, name: str) -> str:
        folder = self.folder.parent / f"{self.folder.name}-{name}"
        folder.mkdir()
        return stores.place(self.kind, folder, self.databases)

    def add(self, name: str, death: Death, **more: Any) -> Case:
        authority = self.authorities[name] = Authority("duplicate_intolerant", death.behaves)
        authority.behave(death.behaves, times=1, retry_after=0.0)
        where = self.place(death.point) if death.course in ANYWHERE else self.where
        self.deaths[name] = death
        self.cases[name] = Case(name, where, authority.url, death.course, death.point, death.n, death.got,
                                asked=death.asked, **more)  # fmt: skip
        return self.cases[name]

    def ask(self, what: str, cases: list[Case] | None = None, **more: Any) -> Any:
        assert self.runner.stdin is not None
        assert self.runner.stdout is not None
        told = {"cases": [asdict(case) for case in cases]} if cases is not None else {}
        self.runner.stdin.write(json.dumps({"do": what, **told, **more}) + "\n")
        self.runner.stdin.flush()
        answer = json.loads(self.runner.stdout.readline() or "null")
        assert answer is not None, self.stderr
        return answer

    def run_all(self, deaths: Mapping[str, tuple[Death, bool]], fresh_ones: Collection[str]) -> None:
        """All of them, here or as if elsewhere; some in interpreters of their own, told by their environment."""
        for name, (death, elsewhere) in deaths.items():
            self.add(name, death, elsewhere=elsewhere)
        self.warm_up()
        fresh = {name: self.start(self.cases[name]) for name in fresh_ones}
        self.died = self.ask("run", [case for name, case in self.cases.items() if name not in fresh])
        for name, process in fresh.items():
            self.died[name] = {"exit": process.wait(20), "points": [self.cases[name].point]}
        for name in self.cases:
            self.settle_down(name)
        self.ends = self.recover(list(self.cases.values()))
        self.after = {name: self.done(name) for name in self.cases}
        self.checks = self.check()
        self.ledgers = {where: Ledger(open_store(where), notary=False) for where in self.checks}

    def warm_up(self) -> None:
        """The ledger is there before anybody dies in it, with an operation that has gone well."""
        with Authority() as authority:
            assert self.ask("warm up", [Case("well", self.where, authority.url, "write", "")])

    def recover(self, cases: list[Case]) -> dict[str, Any]:
        """See `crashing_run.recover`."""
        answer = self.ask("recover", cases)
        assert answer["exit"] == 0, self.stderr
        return dict(answer["result"])

    def check(self) -> dict[str, Any]:
        """See `crashing_run.checked`."""
        answer = self.ask("check", places=sorted({self.where, *(case.where for case in self.cases.values())}))
        assert answer["exit"] == 0, self.stderr
        return dict(answer["result"])

    def hammer(self, url: str, processes: int, keys: tuple[str, ...], ends: Mapping[str, str]) -> dict[str, Any]:
        """So many processes with the same keys, of which those named in `ends` die there, and are followed."""
        names = [f"w{number}" for number in range(processes)]
        cases = [Case(name, self.where, url, "hammer", ends.get(name, ""), 2, keys=keys) for name in names]
        return dict(self.ask("hammer", cases))

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()

    def start(self, case: Case) -> subprocess.Popen[bytes]:
        """In a process that has its point from the environment."""
        arguments = [sys.executable, str(PROGRAM), str(self.folder), json.dumps(asdict(case))]
        self.started.append(subprocess.Popen(arguments, env=crash_at(case.point, case.n, self.environment)))
        return self.started[-1]

    def settle_down(self, name: str) -> None:
        """What had left is there, and whoever acts early has acted: then that is noted."""
        death, authority = self.deaths[name], self.authorities[name]
        sent = death.point.startswith(("http.half", "http.wr")) or death.got
        until = time.monotonic() + 5
        while sent and not authority.requests(writes=True) and time.monotonic() < until:
            time.sleep(0.005)
        if death.point == "http.half_written" and death.got:
            self.act_early(authority)
        while death.got and not authority.effects() and time.monotonic() < until:
            time.sleep(0.005)
        self.before[name] = self.done(name)

    def done(self, name: str) -> tuple[int, int]:
        authority = self.authorities[name]
        return authority.effects(), len(authority.requests(writes=True))

    def act_early(self, authority: Authority) -> None:
        """Upon half of a request."""
        (half,) = authority.requests(writes=True)
        authority.record.accept(half["key"], half["correlation"], "POST", "/deployments", "", once=False)

    def record_of(self, name: str) -> Record:
        case = self.cases[name]
        (record,) = self.ledgers[case.where].list(tool=case.tool)
        return record

    def close(self) -> None:
        try:
            self.runner.communicate(timeout=10)  # the end of its commands
        finally:
            for each in (self.runner, *self.started):
                each.kill()
                each.communicate()
            self.problems.close()
            for each in (*self.authorities.values(), *self.ledgers.values()):
                each.close()


@contextmanager
def matrix_of(kind: str, request: pytest.FixtureRequest, factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    databases = request.getfixturevalue("databases") if kind == "postgresql" else None
    made = Matrix(kind, factory.mktemp("matrix") / kind, databases)
    try:
        yield made
    finally:
        made.close()
