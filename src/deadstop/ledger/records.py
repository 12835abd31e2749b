# SPDX-License-Identifier: Apache-2.0
"""What the ledger takes and gives, as frozen data. Times are milliseconds since 1970 on the ledger's own clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import clock
from .states import OPEN, State, Verdict

__all__ = [
    "Alert",
    "Attempt",
    "Begun",
    "Claim",
    "Evidence",
    "Finding",
    "Intent",
    "Message",
    "Outcome",
    "Record",
]


@dataclass(frozen=True, slots=True)
class Intent:
    """One intended effect, before anything is sent. Everything in it comes from the host program, nothing from a model.

    `binding` is what binds retries to one operation within its scope: the key is made from it. `digest` is that of the
    request, `arguments` what may be written down of it, `sealed` what is kept apart so that it can be shredded.
    `holds` says how long the binding does: "always"; "success" (a failed or abandoned operation is followed by a new
    one); "open" (any ended one is).
    """

    scope: str
    binding: str
    fingerprint: str
    tool: str
    definition: int
    correlation: str | None = None
    target: str | None = None
    holds: str = "always"
    digest: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    sealed: Mapping[str, Any] = field(default_factory=dict)
    asked_by: str | None = None
    authorised_by: str | None = None
    request_s: float = 60.0
    recovery_s: float = 300.0
    declared: str | None = None  # the definition's digest; looked up if it is not given


@dataclass(frozen=True, slots=True)
class Record:
    """One operation as it stands. `ver` counts its changes, `fence` its claims."""

    op_id: str
    scope: str
    key: str
    fingerprint: str
    tool: str
    definition: int
    correlation: str | None
    target: str | None
    state: State
    ver: int
    fence: int
    owner: str | None
    lease_ms: int | None
    attempts: int
    request_ms: int
    recovery_ms: int
    next_ms: int
    queries: int
    verdict: Verdict | None
    reference: str | None
    first_sent_ms: int | None
    last_sent_ms: int | None
    created_ms: int
    updated_ms: int
    evidence: int
    head: str

    @property
    def open(self) -> bool:
        return self.state in OPEN


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to act on an operation: it ends with the lease, or when anybody else settles the operation."""

    record: Record
    attempt: int
    lease_s: float
    until: float  # CLOCK_BOOTTIME here: nothing may be sent after it

    def is_over(self) -> bool:
        return clock.boottime() >= self.until

    @property
    def op_id(self) -> str:
        return self.record.op_id

    @property
    def fence(self) -> int:
        return self.record.fence


@dataclass(frozen=True, slots=True)
class Begun:
    """What became of an intent. `claim` is there for the one who may send now; otherwise `why` says who has it.

    why: begun, busy (somebody is sending it), unknown, reconciling, needs_human, settled, conflict.
    """

    record: Record
    claim: Claim | None
    why: str
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended, as seen from here. `to` is SUCCEEDED, FAILED, UNKNOWN, or PREPARED (surely not sent).

    `reference` is the authority's own name for it. `value` is kept (sealed) so that whoever asks again gets it.
    """

    to: State
    phase: str | None = None
    certain: bool = True
    observation: str = ""
    reference: str | None = None
    value: Any = None
    has_value: bool = False
    receipt: Mapping[str, Any] | None = None
    retry_after_s: float | None = None
    events: tuple[Message, ...] = ()
    followed: bool = False  # the authority took it, and the one who tells goes on asking where it was told to


@dataclass(frozen=True, slots=True)
class Finding:
    """What asking once has shown. `source` names the query; `raw` is only digested, never kept."""

    verdict: Verdict
    source: str = ""
    reference: str | None = None
    detail: str = ""
    value: Any = None
    has_value: bool = False
    raw: bytes | None = None
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    op_id: str
    n: int
    fence: int
    owner: str
    started_ms: int
    ended_ms: int | None = None
    outcome: str | None = None
    phase: str | None = None
    certain: bool | None = None
    observation: str | None = None
    receipt: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """One entry of the log. `hash` is the leaf: SHA-256 of 0x00 and the body's bytes, in hex; `prev` the one before it
    of the same operation ("" for the first). `seq` is its place in the whole log, None until it has been given one."""

    op_id: str
    n: int
    kind: str
    at_ms: int
    body: str
    prev: str
    hash: str
    seq: int | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One event to be delivered by something that outlives its sender. `group` orders: one after another per group."""

    kind: str  # CloudEvents type
    dedup: str
    data: Mapping[str, Any]
    group: str = ""
    url: str | None = None  # None: to every configured webhook
    op_id: str | None = None


@dataclass(frozen=True, slots=True)
class Alert:
    kind: str
    op_id: str
    detail: str
    first_ms: int
    last_ms: int
    count: int
    delivered_ms: int | None
    ack_ms: int | None
    ack_by: str | None
