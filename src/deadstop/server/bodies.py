# SPDX-License-Identifier: Apache-2.0
"""Every request body and query, checked as it is read. They say what the OpenAPI document says: it is made from them.

A number is a number: true is none, and seconds may be whole. Unknown keys are refused, so that a misspelt limit is
not silently no limit.
"""

from __future__ import annotations

import os
from base64 import b64decode
from functools import cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ..sandbox.wishes import ExecWish, Hooks, Wish
from .problems import Problem
from .settings import MIB

__all__ = [
    "AcknowledgeAlert",
    "AlertsQuery",
    "Build",
    "CreateSandbox",
    "ExecCommand",
    "Extend",
    "Fork",
    "ForkTree",
    "Move",
    "NoQuery",
    "OpenSession",
    "OperationsQuery",
    "PatchLifecycle",
    "Promote",
    "Resolve",
    "RunCode",
    "Signal",
    "StreamCommand",
    "TakeSnapshot",
]

_YEARS = 1e9  # seconds; more is a mistake
_TAIL_BYTES = 8 * MIB
_NO_NUL = r"^[^\x00]*$"
_BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"

Seconds = Annotated[float, Meta(gt=0, le=_YEARS)]
_INTEGER = {"type": "integer"}  # JSON has one kind of number: 5.0 is one, too, and 5.5 is none
Count = Annotated[float, Meta(ge=1, le=1 << 22, multiple_of=1, extra_json_schema=_INTEGER)]
SignalNumber = Annotated[float, Meta(ge=1, le=64, multiple_of=1, extra_json_schema=_INTEGER)]
Mebibytes = Annotated[float, Meta(ge=16, le=1 << 30, multiple_of=1, extra_json_schema=_INTEGER)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
Identifier = Annotated[str, Meta(min_length=1, max_length=128)]
Words = Annotated[str, Meta(pattern=_NO_NUL)]
Command = Annotated[str, Meta(min_length=1, pattern=_NO_NUL)]
Base64 = Annotated[str, Meta(pattern=_BASE64)]
Path = Annotated[str, Meta(min_length=1, max_length=4096, pattern=_NO_NUL)]
Metadata = Annotated[dict[str, str], Meta(max_length=64)]
Variables = dict[Annotated[str, Meta(pattern=r"^[^=\x00]+$")], Words]
Volume = dict[str, Any]


class Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What every body is: a JSON object of exactly these keys."""


class HookCommands(Body):
    """Commands run inside at points of the sandbox's life, each with `timeout_s` of its own."""

    on_timeout: Command | None = None
    on_extended: Command | None = None
    before_stop: Command | None = None
    timeout_s: Seconds = 10.0


class CreateSandbox(Body):
    """A sandbox. What is left out is the server's choice."""

    template: Annotated[str, Meta(min_length=1, max_length=128)] | UnsetType = UNSET
    ttl_seconds: Annotated[Seconds, Meta(description="its whole life; only extend moves it")] | UnsetType = UNSET
    idle_timeout_s: Seconds | UnsetType | None = UNSET
    metadata: Metadata = {}
    name: Name | None = None
    persistent: bool | UnsetType = UNSET
    from_snapshot: Identifier | None = None
    volumes: Annotated[list[Volume], Meta(max_length=0, description="not supported")] = []
    attached: bool | UnsetType = UNSET
    memory_mb: Mebibytes | UnsetType = UNSET
    cpus: Annotated[float, Meta(gt=0, le=4096)] | UnsetType | None = UNSET
    pids: Count | UnsetType = UNSET
    disk_mb: Mebibytes | UnsetType = UNSET
    network: bool | Literal["off", "host"] | UnsetType = UNSET
    env: Variables = {}
    hooks: HookCommands | UnsetType = UNSET
    buffer_s: Seconds | UnsetType = UNSET
    on_expiry: Literal["kill", "snapshot"] | UnsetType = UNSET

    def wish(self, defaults: dict[str, Any]) -> Wish:
        """What is asked for, with `defaults` (keys of this body) where nothing was said. Raises UsageError."""
        asked = msgspec.convert({**defaults, **_said(self)}, CreateSandbox)
        plain: dict[str, Any] = {
            "template": asked.template,
            "ttl_s": asked.ttl_seconds,
            "idle_s": asked.idle_timeout_s,
            "persistent": asked.persistent,
            "attached": asked.attached,
            "cpus": asked.cpus,
            "pids": _whole(asked.pids),
            "buffer_s": asked.buffer_s,
            "on_expiry": asked.on_expiry,
            "memory": _whole(asked.memory_mb, MIB),
            "disk": _whole(asked.disk_mb, MIB),
        }
        if not isinstance(asked.hooks, UnsetType):
            hooks = asked.hooks
            plain["hooks"] = Hooks(hooks.on_timeout, hooks.on_extended, hooks.before_stop, hooks.timeout_s)
        return Wish(
            metadata=asked.metadata,
            name=asked.name,
            from_snapshot=asked.from_snapshot,
            net=asked.network in (True, "host"),
            env=asked.env,
            defaulted=tuple(name for name in ("memory", "pids", "disk") if plain[name] is UNSET),
            **{key: value for key, value in plain.items() if value is not UNSET},
        )


class ResourceLimits(Body):
    """Limits of one command, beside the sandbox's own."""

    cpu_seconds: Seconds | None = None
    file_mb: Annotated[float, Meta(gt=0, le=1 << 30)] | None = None
    open_files: Count | None = None

    def named(self) -> dict[str, float]:
        file_bytes = None if self.file_mb is None else self.file_mb * MIB
        found = {"cpu_s": self.cpu_seconds, "file_bytes": file_bytes, "open_files": self.open_files}
        return {name: value for name, value in found.items() if value is not None}


class StreamCommand(Body):
    """A command. `cmd` as text is run by bash (sh where there is none), as a list it is started as it stands.

    `timeout_seconds` 0 is a time that is over already; without one the limit is the server's default.
    """

    cmd: Command | Annotated[list[Words], Meta(min_length=1, max_length=4096)]
    timeout_seconds: Annotated[float, Meta(ge=0, le=_YEARS)] | None = None
    cwd: Annotated[str, Meta(pattern=r"^/[^\x00]*$")] | None = None
    env: Variables = {}
    user: Literal["agent"] | None = None
    stdin: str | None = None
    stdin_base64: Base64 | None = None
    on_timeout: Literal["kill", "destroy", "snapshot_destroy"] = "kill"
    rlimits: ResourceLimits = msgspec.field(default_factory=ResourceLimits)
    tail_bytes: Annotated[float, Meta(ge=0, le=_TAIL_BYTES, multiple_of=1, extra_json_schema=_INTEGER)] = 65536

    def wish(self, *, background: bool = False, keep_stdin: bool = False) -> ExecWish:
        """What is asked for. Raises UsageError, or Problem where stdin is given twice."""
        return ExecWish(
            argv=(_shell(), "-c", self.cmd) if isinstance(self.cmd, str) else tuple(self.cmd),
            timeout_s=self.timeout_seconds,
            cwd=self.cwd,
            env=self.env,
            user=self.user,
            stdin=self._stdin(),
            keep_stdin=keep_stdin,
            background=background,
            on_timeout=self.on_timeout,
            rlimits=self.rlimits.named(),
            tail=int(self.tail_bytes),
            shown=self.cmd if isinstance(self.cmd, str) else "",
        )

    def _stdin(self) -> bytes | None:
        if self.stdin_base64 is None:
            return None if self.stdin is None else self.stdin.encode()
        if self.stdin is not None:
            raise Problem(422, "usage", "stdin and stdin_base64: give one of the two")
        return b64decode(self.stdin_base64)


class ExecCommand(StreamCommand):
    """The same; in the background it runs on, and its stdin can be kept open for more."""

    background: bool = False
    keep_stdin: Annotated[bool, Meta(description="of a background command")] = False
    session: Annotated[Identifier, Meta(description="a bash session that runs it")] | None = None


class Extend(Body):
    """More life. Finite and above zero; clamped to the server's maximum."""

    seconds: Seconds


class PatchLifecycle(Body):
    """Another life or persistence. `ttl_seconds` counts from now on."""

    ttl_seconds: Seconds | UnsetType = UNSET
    persistent: bool | UnsetType = UNSET


class TakeSnapshot(Body):
    name: Name | None = None


class Fork(Body):
    metadata: Metadata = {}
    name: Name | None = None
    attached: Annotated[bool | None, Meta(description="whether it needs an owner; else as its parent")] = None


class ForkTree(Body):
    count: Annotated[float, Meta(ge=1, le=16, multiple_of=1, extra_json_schema=_INTEGER)]
    metadata: Metadata = {}
    attached: bool | None = None


class Promote(Body):
    cleanup_siblings: bool = False
    tree_id: Identifier | None = None


class Signal(Body):
    """A signal by its name (SIGINT or INT) or its number."""

    signal: Annotated[str, Meta(pattern=r"^(SIG)?[A-Z0-9]{2,12}$")] | SignalNumber


class OpenSession(Body):
    language: Literal["python", "python3", "py", "bash", "sh", "shell"] = "python"

    @property
    def kind(self) -> str:
        return "python" if self.language.startswith("py") else "bash"


class RunCode(Body):
    code: str
    timeout_ms: Annotated[float, Meta(ge=0, le=_YEARS * 1000)] | None = 30000


class Move(Body):
    source: Path = msgspec.field(name="from")
    target: Path = msgspec.field(name="to")


class Build(Body):
    """A template from a base, and a folder of this machine or packages. `folder` is for the server's own user alone."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_.-]{0,62}$")]
    base: Annotated[str, Meta(min_length=1, max_length=128)] = "base"
    folder: Path | None = None
    pypi: list[Annotated[str, Meta(min_length=1, max_length=256)]] = []
    debian: list[Annotated[str, Meta(min_length=1, max_length=256)]] = []


class Resolve(Body):
    """A person's decision. `operator` is who decided, if that is not who asks; `ver` the version that they saw."""

    decision: Literal["succeeded", "failed", "abandoned", "retry"]
    reason: Annotated[str, Meta(min_length=1, max_length=2000, pattern=r"^[^\x00]*[^\s\x00][^\x00]*$")]
    operator: Annotated[str, Meta(min_length=1, max_length=200, pattern=_NO_NUL)] | None = None
    ver: Annotated[float, Meta(ge=1, le=1 << 53, multiple_of=1, extra_json_schema=_INTEGER)] | None = None


class AcknowledgeAlert(Body):
    """`by` is who has seen it, if that is not who asks."""

    kind: Annotated[str, Meta(pattern=r"^[a-z_]{1,64}$")]
    op_id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
    by: Annotated[str, Meta(min_length=1, max_length=200, pattern=_NO_NUL)] | None = None


class Query(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of a request: words, read as what is asked for here."""


class NoQuery(Query):
    pass


class ListQuery(Query):
    state: Literal["present", "live", "ended", "all"] = "present"
    metadata: dict[str, str] = {}


Limit = Annotated[float, Meta(ge=1, le=1000, multiple_of=1, extra_json_schema=_INTEGER)]


class OperationsQuery(Query):
    """`open` is every state that is not an end. `before` is a `created_ms`: the last one's, for those before it."""

    state: Literal[
        "PREPARED", "DISPATCHING", "SUCCEEDED", "FAILED", "UNKNOWN", "RECONCILING", "NEEDS_HUMAN", "ABANDONED", "open"
    ] | None = None  # fmt: skip
    tool: Annotated[str, Meta(min_length=1, max_length=200, pattern=_NO_NUL)] | None = None
    limit: Limit = 100
    before: Annotated[float, Meta(ge=0, le=1 << 53, multiple_of=1, extra_json_schema=_INTEGER)] | None = None


class AlertsQuery(Query):
    """Those that wait for a person, or all that there ever were."""

    all: bool = False
    limit: Limit = 100


class OfSandbox(Query):
    sandbox_id: Identifier | None = None


class PathQuery(Query):
    path: Path = "/"


class NeededPath(Query):
    path: Path


class WriteQuery(NeededPath):
    mode: Annotated[str, Meta(pattern=r"^[0-7]{3,4}$")] | None = None

    @property
    def bits(self) -> int | None:
        return None if self.mode is None else int(self.mode, 8)


class RecursivePath(PathQuery):
    recursive: bool = False


class RemoveQuery(NeededPath):
    recursive: bool = False


class OutputQuery(Query):
    stream: Literal["both", "stdout", "stderr"] = "both"
    follow: bool = False


class StdinQuery(Query):
    close: bool = False


class WaitQuery(Query):
    timeout_s: Annotated[float, Meta(ge=0, le=_YEARS)] | None = None


def _said(body: CreateSandbox) -> dict[str, Any]:
    """The keys that the request gave, as plain data."""
    said: dict[str, Any] = msgspec.to_builtins(body)
    return said


def _whole(count: float | UnsetType, unit: int = 1) -> int | UnsetType:
    return count if isinstance(count, UnsetType) else int(count) * unit


@cache
def _shell() -> str:
    """A sandbox sees the programs of this host."""
    return "bash" if any(os.path.exists(f"{folder}/bash") for folder in ("/bin", "/usr/bin")) else "sh"
