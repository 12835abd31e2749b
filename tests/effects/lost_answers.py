# SPDX-License-Identifier: Apache-2.0
"""Operations whose answers were lost, and what is on record of them."""

from __future__ import annotations

import http.client
import itertools
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from deadstop.ledger.definition import Effect
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.queries import HttpQuery
from deadstop.ledger.records import Begun, Claim, Intent, Outcome, Record
from deadstop.ledger.states import State

_bindings = itertools.count(1)


def by_key(url: str) -> HttpQuery:
    """Where the testing authority can be asked."""
    return HttpQuery(url=f"{url}/operations/by-key/{{key}}", state="state", reference="operation_id")


def effect(**changes: Any) -> Effect:
    first = {"retry": "if_not_accepted", "fingerprint": ["n"], "recovery_deadline": 60.0, "reconcile_timeout": 5.0}
    return Effect(**{**first, **changes})


def begun(ledger: Ledger, declared: Effect, tool: str = "deploy", binding: str | None = None) -> Begun:
    definition = ledger.define(declared.define(tool))
    binding = f"n={next(_bindings)}" if binding is None else binding
    recovery_s = definition.recovery_s
    return ledger.begin(
        Intent(declared.scope, binding, "f" * 64, tool, definition.version, recovery_s=recovery_s), lease_s=30
    )


def send(url: str, claim: Claim, body: bytes = b"") -> Exception | None:
    """One POST under its key; the exception of the client, None if there was an answer."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=2)
    try:
        headers = {"Idempotency-Key": claim.record.key, "X-Correlation-ID": claim.record.op_id}
        connection.request("POST", "/deployments", body, headers)
        connection.getresponse().read()
    except Exception as problem:
        return problem
    finally:
        connection.close()
    return None


def attempted(ledger: Ledger, claim: Claim | None, url: str | None, *, too_late: bool = False) -> Record:
    """The attempt, with what its client saw written down as any client would: an error says nothing of the effect.

    `url` None: nothing is sent. `too_late`: whatever is answered, its client has not waited for it.
    """
    assert claim is not None
    problem = send(url, claim) if url is not None else None
    if problem is None and url is not None and not too_late:
        return ledger.finish(claim, Outcome(State.SUCCEEDED))
    observation = repr(problem or TimeoutError("no answer in time"))
    return ledger.finish(claim, Outcome(State.UNKNOWN, phase="await_response", observation=observation))


def lost(ledger: Ledger, declared: Effect, url: str | None = None, tool: str = "deploy", **more: Any) -> Record:
    """One whose attempt has ended without an answer: UNKNOWN, and due."""
    record = attempted(ledger, begun(ledger, declared, tool, more.pop("binding", None)).claim, url, **more)
    assert record.state in (State.UNKNOWN, State.NEEDS_HUMAN), record
    return record


def kinds(ledger: Ledger, op_id: str) -> list[str]:
    return [each.kind for each in ledger.trail(op_id)]


def told(ledger: Ledger, op_id: str, kind: str) -> list[dict[str, Any]]:
    """The bodies of its entries of that kind."""
    return [json.loads(each.body) for each in ledger.trail(op_id) if each.kind == kind]


def later(ledger: Ledger, seconds: float) -> None:
    """Let that time pass on the ledger's clock (of SQLite, of this process)."""
    ledger.store._zero += seconds  # type: ignore[attr-defined]


def eventually(condition: Callable[[], Any], within: float = 15.0) -> Any:
    """What the condition gives as soon as that is true."""
    end = time.monotonic() + within
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.005)
    return found
