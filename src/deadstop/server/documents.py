# SPDX-License-Identifier: Apache-2.0
"""Every answer's shape, for the OpenAPI document alone: what is sent is made by the core. Clients ignore new keys."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

__all__ = ["COMPONENTS"]

RESULT = "#/components/schemas/Result"

Result = Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": RESULT})]
Receipt = Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": f"{RESULT}/$defs/receipt"})]
Status = Literal["creating", "running", "paused", "expiring", "ended"]
Reason = Literal["killed", "ttl", "idle", "owner_gone", "resource", "host_lost", "failed"]
Instant = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class Document(msgspec.Struct, kw_only=True):
    """What every answer is: a JSON object that may get new keys, never lose one."""


class Problem(Document):
    """RFC 9457 problem details. `error` is `detail` once more; `kind` is for programs."""

    type: str
    title: str
    status: int
    detail: str
    error: str
    kind: str


class End(Document):
    reason: Reason
    detail: str
    at: Instant
    receipt: Receipt | None


class Limits(Document):
    memory: int | None
    pids: int | None
    cpus: float | None
    disk: int | None


class Sandbox(Document):
    """A sandbox as it is now; `end` once it has ended."""

    id: str
    template: str
    status: Status
    created_at: Instant
    expires_at: Instant | None
    name: str | None
    end: End | None
    ttl_seconds: float
    ttl_clamped: bool
    time_left_s: float
    idle_timeout_s: float | None
    persistent: bool
    on_expiry: Literal["kill", "snapshot"]
    attached: bool
    owner: dict[str, int | str]  # uid of a unix peer, or address of a TCP one
    metadata: dict[str, str]
    cpu: int
    memory_mb: int
    limits: Limits
    network: Literal["off", "host"]
    from_snapshot: str | None
    parent: str | None
    tree_id: str | None
    last_snapshot: str | None
    resumed_as: str | None
    resumed_from: str | None
    boot_ms: float | None
    boot_mode: Literal["cold", "warm", "fork", "snapshot"]
    guest_ip: str
    layer: Literal["btrfs", "overlay", "folder", ""]  # empty until it has one
    execs_running: int


class Sandboxes(Document):
    items: list[Sandbox]


class ExecDone(Document):
    """A command that ended by itself. `exit_code` is 128 + N where signal N ended it, 126 or 127 without a start."""

    exec_id: str
    stdout: str
    stderr: str
    exit_code: int
    duration_ms: int
    truncated: bool
    status: Literal["completed", "signaled", "error"]
    result: Result | None


class ExecStarted(Document):
    exec_id: str
    status: Literal["running", "ended"]


class Exec(Document):
    exec_id: str
    cmd: str
    status: Literal["running", "ended"]
    background: bool
    started_at: Instant
    exit_code: int | None
    stdout_tail: str
    stdout_bytes: int
    stderr_tail: str
    stderr_bytes: int
    result: Result | None


class ExecSeen(Document):
    """A command in a list; `outcome` is the status of its result."""

    exec_id: str
    cmd: str
    status: Literal["running", "ended"]
    background: bool
    started_at: Instant
    exit_code: int | None
    outcome: str | None


class Execs(Document):
    items: list[ExecSeen]


class Extended(Document):
    expires_at: Instant
    time_left_s: float
    added_s: float
    clamped: bool


class Lifecycle(Document):
    ttl_seconds: float
    persistent: bool
    idle_seconds: float | None
    expires_at: Instant | None
    time_left_s: float
    status: Status


class Snapshot(Document):
    id: str
    snapshot_id: str
    sandbox_id: str
    template: str
    created_at: Instant
    name: str | None
    size_bytes: int | None
    how: str | None
    pause_ms: float | None


class Snapshots(Document):
    snapshots: list[Snapshot]


class Forked(Document):
    sandbox: Sandbox
    tree_id: str | None
    how: str | None
    pause_ms: float | None


class ForkedTree(Document):
    children: list[Sandbox]
    tree_id: str | None
    how: str | None
    pause_ms: float | None


class Promoted(Document):
    winner: str
    tree_id: str | None
    deleted: list[str]
    failures: dict[str, str]
    receipts: dict[str, Any]


class Ports(Document):
    ports: list[int]


class Session(Document):
    """`generation` counts the interpreters it has had: a new one knows nothing of the last."""

    id: str
    language: Literal["python", "bash"]


class Sessions(Document):
    items: list[Session]


class SessionRun(Document):
    results: list[dict[str, Any]]
    stdout: str
    stderr: str
    error: Any
    exit: int
    duration_ms: float
    session_ended: bool
    result: Result | None


class FileWritten(Document):
    path: str
    bytes: int


class Entry(Document):
    name: str
    path: str
    is_dir: bool
    size: int
    mode: str
    mtime: int
    type: str


class Entries(Document):
    """`truncated`: there are more than these."""

    entries: list[Entry]
    truncated: bool


class Template(Document):
    name: str
    description: str
    size_bytes: int | None
    created_at: Instant | float | None
    builtin: bool


class Templates(Document):
    items: list[Template]


class Anything(Document):
    """Any JSON object."""


class Health(Document):
    """`ledger` is "off" where none is kept. A ledger that is away holds up no sandbox."""

    status: Literal["ok", "degraded", "stopping"]
    version: str
    sandboxes: int
    problem: str | None
    ledger: Literal["ok", "off", "away"]


State = Literal[
    "PREPARED", "DISPATCHING", "SUCCEEDED", "FAILED", "UNKNOWN", "RECONCILING", "NEEDS_HUMAN", "ABANDONED"
]  # fmt: skip


class Operation(Document):
    """One intended effect. FAILED: shown not to have happened, or failed by the authority. `ver` counts its changes."""

    id: str
    state: State
    tool: str
    definition: int
    scope: str
    key: str
    fingerprint: str
    correlation_id: str | None
    target: str | None
    reference: str | None
    verdict: str | None
    effect: Literal["applied", "not_applied", "unknown"]
    attempts: int
    queries: int
    ver: int
    fence: int
    owner: str | None
    lease_until: Instant | None
    request_deadline: Instant | None
    recovery_deadline: Instant | None
    created_at: Instant
    created_ms: int
    updated_at: Instant
    evidence: dict[str, Any]


class Operations(Document):
    """`next_before`: there are more, before this. Those of one millisecond are never parted, so that a page may have a
    few more than its limit."""

    items: list[Operation]
    next_before: int | None


class Settling(Document):
    """The decisions that a person can take now, at this `ver`, and the query that would show the truth.

    `retry_allowed`: whoever asked for it may send it again, under its own key.
    """

    decisions: list[Literal["succeeded", "failed", "abandoned", "retry"]]
    query: dict[str, Any] | None
    retry_allowed: bool
    ver: int


class OperationSeen(Operation):
    """With everything that was tried, found and written down, in order."""

    attempts_made: list[dict[str, Any]]
    trail: list[dict[str, Any]]
    findings: list[dict[str, Any]]
    settle: Settling


class Alert(Document):
    kind: str
    op_id: str
    meaning: str
    detail: str
    first_at: Instant
    last_at: Instant
    count: int
    delivered_at: Instant | None
    acknowledged_at: Instant | None
    acknowledged_by: str | None


class Alerts(Document):
    items: list[Alert]


class Audit(Document):
    """The conservation sum: what was started has ended, or is open with a deadline. `holds` says whether it does."""

    started: int
    ended: int
    open: int
    holds: bool
    states: dict[str, int]
    outbox: dict[str, int]
    alerts: dict[str, int]


COMPONENTS: tuple[type[Document], ...] = (
    *(Problem, Sandbox, Sandboxes, ExecDone, ExecStarted, Exec, ExecSeen, Execs, Extended, Lifecycle),
    *(Snapshot, Snapshots, Forked, ForkedTree, Promoted, Ports, Session, Sessions, SessionRun),
    *(FileWritten, Entry, Entries, Template, Templates, Health, Anything),
    *(Operation, Operations, Settling, OperationSeen, Alert, Alerts, Audit),
)
