# SPDX-License-Identifier: Apache-2.0
"""Asking a host's markers about an operation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..ledger.queries import SshQuery
from ..ledger.records import Finding
from ..ledger.states import Verdict
from ..results import Status
from .ssh_client import Heard, Host, talk

if TYPE_CHECKING:
    from ..operation import Operation

__all__ = ["ended_as", "status", "verdict_of"]


def status(query: SshQuery, operation: Operation, timeout: float) -> Finding:
    """What the markers on `query.host` say of the operation, within `timeout` seconds.

    The fence of the one who asks is left there as a seal: an attempt that was on its way all the time can then no
    longer start, and only so is absence definite. Where nobody answers, the verdict is UNREACHABLE; nothing is raised.
    """
    words = [query.helper, "status", "--op", operation.id, "--key", operation.key, "--json"]
    if operation.fence > 0:
        words += ["--seal", str(operation.fence)]
    host = Host(query.host, query.helper, tuple(query.options))
    heard = talk(host, words, timeout=timeout, tool="ssh status")
    source = f"ssh {query.host} {query.helper} status"
    document = _document(heard)
    if document is None:
        return Finding(Verdict.UNREACHABLE, source, detail=heard.problem)
    verdict, detail = verdict_of(document)
    return Finding(verdict, source, detail=detail, raw=heard.result.stdout.raw)


def verdict_of(document: Mapping[str, Any]) -> tuple[Verdict, str]:
    """What an answer of the helper means, and why."""
    state, detail = document.get("state"), str(document.get("detail") or "")
    phase = f" (phase {document['phase']})" if document.get("phase") else ""
    match state:
        case "finished":
            return ended_as(document)
        case "running":
            return Verdict.IN_PROGRESS, f"it is running{phase}" + (f": {detail}" if detail else "")
        case "absent" | "not_started":
            if document.get("definite") is True:
                return Verdict.DEFINITELY_ABSENT, detail or "the host has no trace of it, and it can no longer start"
            why = document.get("why_not") or "it may still start"
            return Verdict.INCONCLUSIVE, f"not found, which proves nothing: {why}"
        case "contradiction":
            return Verdict.CONTRADICTION, detail
        case "unknown" | "interrupted":
            return Verdict.INCONCLUSIVE, f"{detail}{phase}"
    return Verdict.INCONCLUSIVE, f"the helper says {state!r:.40}: {detail}"


def ended_as(document: Mapping[str, Any]) -> tuple[Verdict, str]:
    """A command that ended with anything but 0 has failed by its own word, and may have done half of it: only one that
    was started with nonzero="failed" is believed to have done nothing then."""
    code, number = document.get("code"), document.get("signal")
    if code == 0:
        return Verdict.APPLIED, "it ended with 0"
    if document.get("ran") is False:
        return Verdict.APPLIED_FAILED, f"it could not be started: {document.get('error')}"
    how = f"by signal {number}" if number is not None else f"with {code}"
    if document.get("error"):
        how += f" ({document['error']})"
    if document.get("nonzero") == "failed" and number is None:
        return Verdict.APPLIED_FAILED, f"it ended {how}"
    phase = f" in phase {document['phase']}" if document.get("phase") not in (None, "started") else ""
    return Verdict.INCONCLUSIVE, f"it ended {how}{phase}; what it had done by then, nobody here can say"


def _document(heard: Heard) -> dict[str, Any] | None:
    if heard.result.status is not Status.COMPLETED or heard.result.exit_code != 0:
        return None
    try:
        document = json.loads(heard.result.stdout.tail)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
