# SPDX-License-Identifier: Apache-2.0
"""Functions that answer for an authority, by name, in a worker of their own."""

from __future__ import annotations

import http.client
import json
import os
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from deadstop.ledger.records import Finding
from deadstop.ledger.states import Verdict
from deadstop.operation import Operation


def finds_it(op: Any) -> Finding:
    return Finding(
        Verdict.APPLIED, reference=f"of {op.key}", detail=f"attempt {op.attempt}", value={"id": 7}, has_value=True
    )


def says_a_verdict(op: Any) -> Verdict:
    return Verdict.DEFINITELY_ABSENT


def says_a_word(op: Any) -> str:
    return "in_progress"


def says_something_else(op: Any) -> bool:
    return True


def raises(op: Any) -> Finding:
    raise ValueError("two of them, and neither is ours")


def is_refused(op: Any) -> Finding:
    raise ConnectionRefusedError("nobody there")


def hangs(op: Any) -> Finding:
    """Writes who hangs to the file that is its target."""
    Path(op.target).write_text(str(os.getpid()))
    time.sleep(600)
    raise AssertionError


def exits(op: Any) -> Finding:
    os._exit(3)


def hangs_for_good(op: Any) -> Finding:
    time.sleep(600)
    raise AssertionError


def answers_oddly(op: Any) -> Finding:
    """What the types of a Finding forbid and Python does not."""
    odd: dict[str, Any] = {"verdict": "in_progress", "reference": 42, "detail": None, "raw": "text"}
    return Finding(**odd, retry_after_s=float("nan"))


def create_deployment(op: Operation, url: str, revision: str) -> str:
    """A tool as anybody writes it: its client's exceptions are let through."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=5)
    try:
        connection.request("POST", f"/deployments/{revision}", headers=op.headers())
        return json.loads(connection.getresponse().read())["operation_id"]  # type: ignore[no-any-return]
    finally:
        connection.close()
