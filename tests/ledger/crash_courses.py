# SPDX-License-Identifier: Apache-2.0
"""Courses of operations, from an intent to its end, each of which can be cut off at a chosen place.

What is done here is what programs do that use deadstop; `crashing_run.py` does it in processes that die.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import deadstop
from deadstop.effects import deliver, http, settlement
from deadstop.effects.http import HttpEffects
from deadstop.effects.http_intent import Write, intent_of
from deadstop.executor import effects as effects_of_functions
from deadstop.executor import heartbeat
from deadstop.ledger import crash, owners, sqlite
from deadstop.ledger import ledger as ledgers
from deadstop.ledger.definition import Effect
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.queries import HttpQuery
from deadstop.ledger.records import Message
from deadstop.ledger.states import TERMINAL, State
from deadstop.ledger.store import default_place, open_store

SECONDS = 5.0  # a request's limit
RECONCILE_S = 3.0
LEASE_S = 1.2  # of whoever is on another machine: nothing but its end says there that a process is gone
LIFE_S = 30  # of any of these processes
RECOVERY_S = 12.0
HOOK = "/hook"


@dataclass(frozen=True)
class Case:
    """One course, and where it is cut off. `got`: the authority has done what it was asked before the end."""

    name: str
    where: str
    url: str
    course: str
    point: str
    n: int = 1
    got: bool = False
    fault: str = "kill"  # or "stop", or "full": from there on its disk is
    elsewhere: bool = False
    keys: tuple[str, ...] = ()
    asked: bool = True  # its authority can be asked; else a person has to be

    @property
    def tool(self) -> str:
        return f"http {self.url.removeprefix('http://')}"

    @property
    def dedup(self) -> str:
        return f"event of {self.name}"


# -- courses -----------------------------------------------------------------------------------------------------------


def effect_of(case: Case) -> Effect:
    query = HttpQuery(url=f"{case.url}/operations/by-key/{{key}}", state="state", reference="operation_id")
    return Effect(
        retry="if_not_accepted", reconcile=query if case.asked else None, consistent=True, reconcile_timeout=RECONCILE_S
    )


def client_of(case: Case, ledger: Ledger) -> HttpEffects:
    return HttpEffects(case.url, ledger=ledger, effect=effect_of(case), timeout=SECONDS, tool=case.tool)


def body_of(case: Case) -> dict[str, str]:
    return {"wanted": case.name}


def post(case: Case, ledger: Ledger) -> dict[str, Any]:
    result = client_of(case, ledger).post("/deployments", json=body_of(case), key=case.name)
    assert result.operation is not None, result
    return {"status": result.status.value, "effect": result.effect, "value": result.value, **result.operation}


def write(case: Case, ledger: Ledger) -> Any:
    arm(case)
    return post(case, ledger)


def submit(case: Case, ledger: Ledger) -> Any:
    """The intent now, the attempt later: as somebody does who queues."""
    arm(case)
    definition = ledger.define(effect_of(case).define(case.tool))
    wanted = Write(method="POST", url=f"{case.url}/deployments", json=body_of(case), key=case.name)
    return ledger.submit(intent_of(wanted, definition, SECONDS * 6, "queued")).why


def settle(case: Case, ledger: Ledger) -> Any:
    """An answer was lost, and its authority is asked."""
    lost = post(case, ledger)
    assert lost["state"] == "UNKNOWN", lost
    arm(case)
    return settlement.reconcile(ledger, lost["id"]).state.value


def decide(case: Case, ledger: Ledger) -> Any:
    """An answer was lost, nobody can be asked, and a person decides."""
    lost = post(case, ledger)
    assert lost["state"] == "NEEDS_HUMAN", lost
    arm(case)
    return by_hand(case, ledger, lost)


def by_hand(case: Case, ledger: Ledger, operation: dict[str, Any]) -> str:
    """Whoever decides has looked there himself."""
    decision = State.SUCCEEDED if at_authority(case.url) else State.PREPARED
    return ledger.resolve(operation["id"], decision, "operator", "looked it up").state.value


def at_authority(url: str) -> int:
    with urllib.request.urlopen(f"{url}/-/effects", timeout=SECONDS) as answer:
        return int(json.load(answer)["effects"])


def beat(case: Case, ledger: Ledger) -> Any:
    """A function as a tool, whose lease is kept while it takes its time."""
    heartbeat.EVERY_S = 0.02
    return call(case, ledger, hang=True)


def call(case: Case, ledger: Ledger, *, hang: bool = False) -> dict[str, Any]:
    def deploy(op: deadstop.Operation) -> str:
        if case.got or not hang:
            asked = urllib.request.Request(f"{case.url}/deployments", b"{}", op.headers(), method="POST")
            with urllib.request.urlopen(asked, timeout=SECONDS) as answer:
                answer.read()
        if hang:
            arm(case)
            threading.Event().wait(LIFE_S)
        return "deployed"

    ledgers._defaults[default_place()] = ledger
    tool = deadstop.tool(deploy, name=case.tool, isolation="inline", timeout=SECONDS * 4, effect=effect_of(case))
    result = deadstop.call(deadstop.Call(tool).options(key=case.name))
    assert result.operation is not None, result
    return {"status": result.status.value, "effect": result.effect, **result.operation}


def send(case: Case, ledger: Ledger) -> Any:
    """An event, to be delivered."""
    message = Message("test.event", case.dedup, {"of": case.name}, group=case.name, url=case.url + HOOK)
    name = ledger.publish(message)
    deliver.LEASE_SPARE_S = LEASE_S - SECONDS
    arm(case)
    deliver.Deliverer(ledger, timeout=SECONDS).run_once()
    return name


def sign(case: Case, ledger: Ledger) -> Any:
    """A checkpoint of what has ended well."""
    done = post(case, ledger)
    assert ledger.notary is not None
    arm(case)
    ledger.notary.checkpoint()
    return done


def until_settled(case: Case, ledger: Ledger) -> dict[str, Any]:
    """The same call again and again, looking up what is in doubt and deciding what nobody else can, within a bound."""
    end = time.monotonic() + RECOVERY_S
    again = call if case.course == "beat" else post
    told, decided, seen = {"state": "LOST"}, 0, []
    while time.monotonic() < end:
        told = again(case, ledger)
        seen.append(told["state"])
        if told["state"] in TERMINAL:
            break
        if told["state"] == "NEEDS_HUMAN":
            by_hand(case, ledger, told)
            decided += 1
        elif settlement.reconcile(ledger, told["id"]).state is State.UNKNOWN:
            time.sleep(0.02)
    return {"told": told, "decided": decided, "seen": seen}


def hammer(case: Case, ledger: Ledger) -> Any:
    """All the keys, in an order of its own, until each has its answer. Who is to die has some for itself at first."""
    arm(case)
    mine = random.Random(case.name)
    first = [key for key in case.keys if key.startswith(case.name)]
    last = [key for key in case.keys if not key.startswith("key") and key not in first]
    rest = [key for key in case.keys if key not in first and key not in last]
    answers = {}
    for key in [*first, *mine.sample(rest, len(rest)), *mine.sample(last, len(last))]:
        told = until_settled(replace(case, name=key), ledger)["told"]
        answers[key] = [told[name] for name in ("id", "key", "state", "reference", "status", "effect", "value")]
    return answers


COURSES: dict[str, Callable[[Case, Ledger], Any]] = {
    "write": write, "submit": submit, "settle": settle, "decide": decide, "beat": beat, "send": send, "sign": sign,
    "make": write, "hammer": hammer,
}  # fmt: skip


def run(case: Case) -> Any:
    lease = LEASE_S if case.elsewhere or case.fault == "stop" else 2 * LIFE_S
    http.LEASE_SPARE_S, settlement.SPARE_S = lease - SECONDS, lease - RECONCILE_S
    effects_of_functions.MARGIN_S = lease - 4 * SECONDS
    if case.elsewhere:
        owners._host = lambda: "another-machine"  # type: ignore[assignment]
    if case.point == "wal.checkpoint":
        sqlite.FOLD_EVERY = 1
    if case.course == "make":
        arm(case)
    # Nothing but what the course does: a checkpoint that comes by itself would pass some of these places, too.
    return COURSES[case.course](case, Ledger(open_store(case.where), notary=case.course == "sign"))


# -- where they end ----------------------------------------------------------------------------------------------------

noting: str | None = None


def arm(case: Case) -> None:
    if noting is None:
        return  # by the environment
    if case.fault == "kill":
        crash._where, crash._left, crash._record, crash._armed = case.point, case.n, noting, True
    else:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        crash.at = partial(_at, case)


def _at(case: Case, name: str) -> None:
    assert noting is not None
    with open(noting, "a") as file:
        file.write(f"{name}\n")
    if name != case.point:
        return
    if case.fault == "stop":
        # To this thread: one that is sent to the process may let this thread go on for some microseconds.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        return
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
