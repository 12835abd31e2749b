# SPDX-License-Identifier: Apache-2.0
"""Courses of operations that are cut off at a chosen place, and what sets them right again.

    python crashing_run.py FOLDER          commands from stdin, answers on stdout, one JSON document a line
    python crashing_run.py FOLDER CASE     one course in this very process, which DEADSTOP_CRASH_AT may end

Every course runs in a process of its own, forked from this one, which has imported everything and started no thread:
a new interpreter for each of some hundred deaths would take minutes.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import crash_courses
from crash_courses import LIFE_S, RECOVERY_S, SECONDS, Case, post, run, until_settled

import deadstop
from deadstop.effects import deliver, http_exchange
from deadstop.effects.reconciler import Reconciler
from deadstop.ledger import outbox
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.verify import verify

AT_ONCE = 3


# -- setting it right --------------------------------------------------------------------------------------------------


def recover(cases: list[Case]) -> dict[str, Any]:
    """What a worker does who finds all this: the same calls again, looking up what is in doubt, deciding what nobody
    else can. How each was found, and how it ended."""
    places = {case.where: Ledger.open(case.where) for case in cases}
    found = {case.name: [each.state.value for each in places[case.where].list(tool=case.tool)] for case in cases}
    with ThreadPoolExecutor(8) as threads:
        ends = list(threads.map(lambda case: _recovered(case, places[case.where]), cases))
    for each in places.values():
        each.close()
    return {case.name: {"found": found[case.name], **end} for case, end in zip(cases, ends, strict=True)}


def _recovered(case: Case, ledger: Ledger) -> dict[str, Any]:
    if case.course != "send":
        return until_settled(case, ledger)
    end = time.monotonic() + RECOVERY_S
    while time.monotonic() < end and not _delivered(case, ledger):
        time.sleep(0.02)
    return {"delivered": _delivered(case, ledger)}


def _delivered(case: Case, ledger: Ledger) -> bool:
    deliver.Deliverer(ledger, timeout=SECONDS).run_once()
    return not sum(ledger.read(outbox.counts).values())


def checked(places: list[str]) -> dict[str, Any]:
    """What the check of the log says of each, after a last checkpoint, and whether every operation is in its place."""
    told = {}
    for place in places:
        with Ledger.open(place) as ledger:
            swept = [record.op_id for record in ledger.sweep()]
            Reconciler(ledger).run_once()
            assert ledger.notary is not None
            ledger.notary.checkpoint()
            told[place] = {**verify(ledger).to_dict(), "swept": swept, "conservation": ledger.conservation(),
                           "alerts": [alert.kind for alert in ledger.alerts()]}  # fmt: skip
    return told


# -- processes ---------------------------------------------------------------------------------------------------------


def children(
    folder: Path, works: dict[str, Callable[[], Any]], at_once: int = AT_ONCE,
    successors: dict[str, Callable[[], Any]] | None = None,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Each in a process of its own, some at a time: how it ended, the places it passed, and what it gave.

    Whoever is killed is followed by its successor at once."""
    successors, works = dict(successors or {}), dict(works)
    waiting, running, ended = list(works), dict[int, str](), dict[str, dict[str, Any]]()
    while waiting or running:
        while waiting and len(running) < at_once:
            name = waiting.pop(0)
            running[_child(folder / _file(name), works[name])] = name
        pid, status = os.waitpid(-1, os.WUNTRACED)
        name = running.pop(pid)
        stopped = os.WIFSTOPPED(status)
        ended[name] = {"pid": pid, "exit": None if stopped else os.waitstatus_to_exitcode(status),
                       **outcome(folder / _file(name))}  # fmt: skip
        if ended[name]["exit"] == -signal.SIGKILL and name in successors:
            works[f"{name}, again"] = successors.pop(name)
            waiting.append(f"{name}, again")
    return ended


def outcome(file: Path) -> dict[str, Any]:
    points, result = Path(f"{file}.points"), Path(f"{file}.json")
    return {
        "points": points.read_text().split() if points.exists() else [],
        "result": json.loads(result.read_text()) if result.exists() else None,
    }


def _file(name: str) -> str:
    return "".join(each if each.isalnum() else "_" for each in name)


def _child(file: Path, work: Callable[[], Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        signal.alarm(LIFE_S)
        crash_courses.noting = f"{file}.points"
        told = json.dumps(_told(work), default=str)
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        Path(f"{file}.json").write_text(told)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _told(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except deadstop.DeadstopError as problem:
        return {"raised": type(problem).__name__, "text": str(problem)}


def go_on(folder: Path, pids: dict[str, int]) -> dict[str, Any]:
    """Those that were stopped."""
    for pid in pids.values():
        os.kill(pid, signal.SIGCONT)
    ends = {name: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for name, pid in pids.items()}
    return {name: {"exit": end, **outcome(folder / _file(name))} for name, end in ends.items()}


def _unharmed(case: Case) -> Case:
    return replace(case, point="")


def _answer(folder: Path, command: dict[str, Any]) -> Any:
    cases = [Case(**each) for each in command.get("cases", ())]
    match command["do"]:
        case "warm up":
            return _import_all(children(folder, {case.name: partial(_modules, case) for case in cases}))
        case "run":
            return children(folder, {case.name: partial(run, case) for case in cases})
        case "hammer":
            works, again = ({case.name: partial(run, each(case)) for case in cases} for each in (replace, _unharmed))
            return children(folder, works, len(cases), again)
        case "recover":
            return children(folder, {"recovery": partial(recover, cases)})["recovery"]
        case "check":
            return children(folder, {"check": partial(checked, command["places"])})["check"]
        case "go on":
            return go_on(folder, command["pids"])


def _modules(case: Case) -> list[str]:
    with Ledger.open(case.where) as ledger:
        assert post(case, ledger)["state"] == "SUCCEEDED"
    return sorted(sys.modules)


def _import_all(ended: dict[str, Any]) -> bool:
    """What a whole course has imported, so that no other one has to."""
    for each in ended.values():
        for name in each["result"]:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    return all(each["exit"] == 0 for each in ended.values())


def main() -> None:
    folder = Path(sys.argv[1])
    if len(sys.argv) > 2:
        signal.alarm(LIFE_S)
        run(Case(**json.loads(sys.argv[2])))
        sys.exit(0)
    http_exchange.certificates()  # tens of milliseconds, once
    for line in sys.stdin:
        assert threading.active_count() == 1  # or what is forked might not live
        print(json.dumps(_answer(folder, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
