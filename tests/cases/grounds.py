# SPDX-License-Identifier: Apache-2.0
"""Where the cases run (a host and a boundary on it), how one is measured, and what every ended call must show.

Most cases spend their time waiting for a limit, so those of one ground run four at a time, once, when the first of them
is asked for; each test then looks at its own. Every run has a mark of its own, so what is left behind has a culprit.
"""

from __future__ import annotations

import dataclasses
import os
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import hosts
from deadstop.results import ToolResult
from deadstop.schema import result_schema

INPUTS = Path(__file__).resolve().parent / "inputs"
AT_ONCE = 4
SLACK_S = 1.0  # what a call may take beyond its limit and grace, start of the interpreter included
START_S = 2.0  # for two interpreters to start beside as many others as the test run has workers
VALIDATOR = jsonschema.Draft202012Validator(result_schema())

Ground = tuple[str, str]  # host name, isolation
NAMESPACES = [name for name in hosts.available() if "no-userns" not in name]
PROCESS: list[Ground] = [(name, "process") for name in hosts.available()]
SANDBOX: list[Ground] = [(name, "sandbox") for name in NAMESPACES]
EVERYWHERE = PROCESS + SANDBOX
# One of each kind, where who the user is does not decide.
SPREAD = [
    ground
    for ground in EVERYWHERE
    if ground in {("user", "process"), ("no-userns-no-cgroup", "process"), ("root", "sandbox")}
    or (ground == ("user", "sandbox") and ("root", "sandbox") not in EVERYWHERE)
]
CONTAINED: list[Ground] = [(name, level) for name in NAMESPACES for level in ("process", "sandbox")]
BARE: list[Ground] = [ground for ground in PROCESS if "no-userns" in ground[0]]


class CutShort(AssertionError):
    """The evidence says that its time was over before what is asked for: a busy machine may do that to one call.

    It never delays a kill, so that is all that is promised of one; but it must not be so every time.
    """


@dataclass(frozen=True)
class Ended:
    """One call after its end, as seen from outside. `host` carries this run's own mark."""

    host: hosts.Host
    isolation: str
    timeout: float | None
    grace: float
    result: dict[str, Any]
    exit_status: int
    began: float
    elapsed: float
    survivors: list[str]

    @property
    def status(self) -> str:
        return str(self.result["status"])

    @property
    def out(self) -> str:
        return str(self.result["stdout"]["tail"])

    @property
    def err(self) -> str:
        return str(self.result["stderr"]["tail"])

    @property
    def receipt(self) -> dict[str, Any]:
        receipt: dict[str, Any] = self.result["receipt"]
        assert receipt is not None, self.result
        return receipt

    @property
    def processes(self) -> list[dict[str, Any]]:
        """Those that were seen before the kill."""
        evidence = self.result["evidence"]
        if evidence and not evidence["processes"] and evidence["complete"] is False:
            raise CutShort(self.result)
        assert evidence and evidence["processes"], self.result
        processes: list[dict[str, Any]] = evidence["processes"]
        return processes

    @property
    def diagnosis(self) -> dict[str, Any]:
        evidence = self.result["evidence"]
        if evidence and evidence["diagnosis"] is None and evidence["complete"] is False:
            raise CutShort(self.result)
        assert evidence and evidence["diagnosis"], self.result
        diagnosis: dict[str, Any] = evidence["diagnosis"]
        return diagnosis


def interpreter(host: hosts.Host, isolation: str) -> str:
    """A Python that the payload can run: in a sandbox its own."""
    return "python3" if isolation == "sandbox" else host.python


def words_for(
    host: hosts.Host, isolation: str, words: Sequence[str], *options: str,
    timeout: float | None, grace: float = 0.5, json: bool = True,
) -> list[str]:  # fmt: skip
    """The words after `deadstop` for one run; the mark is passed on into sandboxes, too."""
    limit = "none" if timeout is None else f"{timeout}s"
    return [
        "run", *(["--json"] if json else []), "--isolation", isolation, "--timeout", limit, "--grace", f"{grace}s",
        "--env", hosts.MARK, *options, "--", *words,
    ]  # fmt: skip


def marked(host: hosts.Host) -> hosts.Host:
    """The same host with a mark of its own."""
    return dataclasses.replace(host, mark=uuid.uuid4().hex)


def variables(host: hosts.Host, env: dict[str, str] | None = None) -> dict[str, str]:
    """The interpreter that this user may execute comes first; temporary files land where they are cleaned up."""
    path = f"{os.path.dirname(host.python)}:{os.environ['PATH']}"
    return {"PATH": path, "TMPDIR": str(host.folder), **(env or {})}


def left_with(mark: str) -> list[tuple[int, str]]:
    """Live processes that carry this mark. In bytes throughout: a process may have any name."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if not name.isdigit() or f"{hosts.MARK}={mark}".encode() not in Path(f"/proc/{name}/environ").read_bytes():
                continue
            if Path(f"/proc/{name}/stat").read_bytes().rpartition(b") ")[2][:1] != b"Z":
                command = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ")
                found.append((int(name), command.decode("utf-8", "replace")))
        except OSError:
            continue
    return found


def run(
    host: hosts.Host, isolation: str, words: Sequence[str], *options: str,
    timeout: float | None = 1.0, grace: float = 0.5, env: dict[str, str] | None = None, **start: Any,
) -> Ended:  # fmt: skip
    """One run to its end, measured. Nothing is judged here."""
    import json

    own = marked(host)
    line = words_for(host, isolation, words, *options, timeout=timeout, grace=grace)
    began = time.monotonic()
    done = own.cli(*line, env=variables(host, env), bound=(timeout or 5) + 12, **start)
    elapsed = time.monotonic() - began
    survivors = [command for _, command in left_with(own.mark)]
    lines = done.stdout.splitlines()
    assert len(lines) == 1, (done.returncode, done.stdout[-2000:], done.stderr[-4000:])
    result = json.loads(lines[0])
    return Ended(own, isolation, timeout, grace, result, done.returncode, began, elapsed, survivors)


def check(ended: Ended, *, slack: float = SLACK_S) -> None:
    """What holds for every call that ended, however it did."""
    result = ended.result
    VALIDATOR.validate(result)
    assert ended.survivors == []
    if ended.timeout is not None:
        assert result["duration_s"] <= ended.timeout + ended.grace + slack, result
        assert ended.elapsed <= ended.timeout + ended.grace + slack + START_S, (ended.elapsed, result)
    assert ended.exit_status == ToolResult.from_dict(result).exit_status()
    if result["receipt"]:
        assert result["receipt"]["survivors"] == 0 and result["receipt"]["unkillable"] == []
        assert result["receipt"]["proof"] in (ended.host.proof, "scan")


def timed_out(ended: Ended, which: str = "call") -> None:
    """By its time limit, on time, with the strongest proof that this host gives."""
    assert ended.status == "timeout", ended.result
    assert ended.exit_status == 124
    assert ended.result["limit"]["which"] == which
    assert ended.result["exit_code"] is None and ended.result["signal"] is None
    assert ended.receipt["proof"] == ended.host.proof
    assert ended.receipt["boundary"] == ended.isolation
    if which == "call" and ended.timeout:
        assert ended.timeout <= ended.elapsed  # measured outside: duration_s begins when the boundary is there
        assert ended.result["duration_s"] <= ended.timeout + ended.grace + 0.5


def completed(ended: Ended, exit_code: int = 0) -> None:
    assert (ended.status, ended.result["exit_code"]) == ("completed", exit_code), ended.result
    assert ended.exit_status == exit_code


def judge(once: Callable[[], Ended], verify: Callable[[Ended], None], *, slack: float = SLACK_S) -> None:
    """Check and verify one call; where its evidence was cut short, another, and a third at most."""
    for attempt in range(3):
        ended = once()
        check(ended, slack=slack)
        try:
            verify(ended)
            return
        except CutShort:
            if attempt == 2:
                raise


@dataclass(frozen=True)
class Case:
    """A payload, how it is run, and what must be seen of it."""

    name: str
    words: Callable[[hosts.Host, str], Sequence[str]]
    options: tuple[str, ...]
    timeout: float | None
    grace: float
    env: dict[str, str]
    slack: float
    alone: bool
    verify: Callable[[Ended], None]

    def start(self, host: hosts.Host, isolation: str) -> Ended | BaseException:
        try:
            words = self.words(host, isolation)
            options = {"timeout": self.timeout, "grace": self.grace, "env": self.env}
            return run(host, isolation, words, *self.options, **options)  # type: ignore[arg-type]
        except BaseException as problem:
            return problem


class Table:
    """Cases of one file. `case` is a decorator for the function that checks what was seen."""

    def __init__(self, on: list[Ground] = EVERYWHERE) -> None:
        """`on`: the grounds of a case that names none."""
        self.on = on
        self.rows: list[tuple[str, str, Case]] = []
        self._ended: dict[tuple[str, str, str], Ended | BaseException] = {}

    def case(
        self, payload: str, *options: str, timeout: float | None = 1.0, grace: float = 0.5,
        on: list[Ground] | None = None, env: dict[str, str] | None = None, python: bool = False,
        arguments: tuple[str, ...] = (), background: bool = False, slack: float = SLACK_S, alone: bool = False,
    ) -> Callable[[Callable[[Ended], None]], Callable[[Ended], None]]:  # fmt: skip
        """`payload` is the name of an input file, or text, for bash or (`python`) for Python.

        `background`: as a job of a shell. `alone`: it takes all processors there are, so nothing runs beside it.
        """
        if (INPUTS / payload[:100].split("\n")[0]).is_file():
            python = payload.endswith(".py")
            payload = (INPUTS / payload).read_text()
        payload = f"({payload}) &\nwait" if background else payload

        def words(host: hosts.Host, isolation: str) -> Sequence[str]:
            return [interpreter(host, isolation) if python else "bash", "-c", payload, *arguments]

        def add(verify: Callable[[Ended], None]) -> Callable[[Ended], None]:
            case = Case(verify.__name__, words, options, timeout, grace, env or {}, slack, alone, verify)
            self.rows += [(host, isolation, case) for host, isolation in on or self.on]
            return verify

        return add

    def every_case(self) -> pytest.MarkDecorator:
        """Parametrises a test with (host, isolation, case), grounds together."""
        rows = sorted(self.rows, key=lambda row: EVERYWHERE.index((row[0], row[1])))
        names = [f"{host}-{isolation}-{case.name}" for host, isolation, case in rows]
        return pytest.mark.parametrize(("host", "isolation", "case"), rows, indirect=["host"], ids=names)

    def verify(self, request: pytest.FixtureRequest, host: hosts.Host, isolation: str, case: Case) -> None:
        """Run this ground's cases if they have not been, then judge this one."""
        if (host.name, isolation, case.name) not in self._ended:
            self._run(host, isolation, self._selected(request, host, isolation))
        ended = self._ended[host.name, isolation, case.name]
        seen = iter([ended])

        def once() -> Ended:
            one = next(seen, None) or case.start(host, isolation)
            if isinstance(one, BaseException):
                raise one
            return one

        judge(once, case.verify, slack=case.slack)

    def _selected(self, request: pytest.FixtureRequest, host: hosts.Host, isolation: str) -> list[Case]:
        """The cases of this ground that were asked for."""
        mine = [item for item in request.session.items if getattr(item, "obj", None) is request.function]
        params = [item.callspec.params for item in mine]  # type: ignore[attr-defined]
        return [row["case"] for row in params if (row["host"], row["isolation"]) == (host.name, isolation)]

    def _run(self, host: hosts.Host, isolation: str, cases: list[Case]) -> None:
        for alone, at_once in ((False, AT_ONCE), (True, 1)):
            some = [case for case in cases if case.alone is alone]
            with ThreadPoolExecutor(at_once) as pool:
                ended = pool.map(lambda case: case.start(host, isolation), some)
                for case, one in zip(some, ended, strict=True):
                    self._ended[host.name, isolation, case.name] = one


def on(grounds: list[Ground]) -> pytest.MarkDecorator:
    """Parametrises a test of its own with (host, isolation)."""
    names = [f"{host}-{isolation}" for host, isolation in grounds]
    return pytest.mark.parametrize(("host", "isolation"), grounds, indirect=["host"], ids=names)
