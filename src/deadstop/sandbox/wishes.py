# SPDX-License-Identifier: Apache-2.0
"""What is asked for: a sandbox, or a command in one. Frozen data, checked before anything is made."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import InvalidLimit, UsageError

MIB = 1 << 20
DEFAULT_EXEC_S = 300.0
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
VARIABLE = re.compile(r"[^=\0]+")
METADATA_BYTES = 16 << 10


def check_seconds(name: str, value: float) -> float:
    """A finite number above zero, or InvalidLimit."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise InvalidLimit(f"{name}: {value!r:.60} is not a finite number above zero")
    return float(value)


def check_variables(env: Mapping[str, str]) -> None:
    for name, value in env.items():
        if not VARIABLE.fullmatch(name) or "\0" in value:
            raise UsageError(f"env: {name!r:.60} cannot be the name of a variable, or its value has a NUL byte")


def _check_count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise InvalidLimit(f"{name}: {value!r:.60} is not a whole number above zero")


@dataclass(frozen=True, slots=True)
class Hooks:
    """Commands run inside by the server, each with `seconds` of its own. What they do, or fail to do, delays nothing.

    `on_timeout` when the buffer before the end begins, `on_extended` after each extension, `before_stop` before every
    end that leaves the time for it.
    """

    on_timeout: str | None = None
    on_extended: str | None = None
    before_stop: str | None = None
    seconds: float = 10.0

    def __post_init__(self) -> None:
        check_seconds("hooks.timeout_s", self.seconds)


@dataclass(frozen=True, slots=True)
class Wish:
    """A sandbox as asked for. Seconds and bytes. Raises UsageError (InvalidLimit)."""

    template: str = "base"
    ttl_s: float = 3600.0
    idle_s: float | None = None
    name: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    attached: bool = False
    persistent: bool = False
    on_expiry: str = "kill"
    from_snapshot: str | None = None
    memory: int = 512 * MIB
    pids: int = 512
    cpus: float | None = None
    disk: int = 1024 * MIB
    net: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    hooks: Hooks = Hooks()
    buffer_s: float = 30.0
    defaulted: tuple[str, ...] = ("memory", "pids", "disk")  # the ceilings that nobody asked for

    def __post_init__(self) -> None:
        check_seconds("ttl_seconds", self.ttl_s)
        check_seconds("buffer_s", self.buffer_s)
        if self.idle_s is not None:
            check_seconds("idle_timeout_s", self.idle_s)
        if self.cpus is not None:
            check_seconds("cpus", self.cpus)
        for name in ("memory", "pids", "disk"):
            _check_count(name, getattr(self, name))
        if self.memory < 16 * MIB:
            raise UsageError(f"memory: {self.memory} bytes is too little to start anything; at least 16 MiB")
        if self.on_expiry not in ("kill", "snapshot"):
            raise UsageError(f"on_expiry: {self.on_expiry!r} is neither 'kill' nor 'snapshot'")
        if self.name is not None and not NAME.fullmatch(self.name):
            raise UsageError(f"name: {self.name!r:.80} is not a name: letters, digits, '_', '.' and '-', at most 63")
        if sum(len(key) + len(value) for key, value in self.metadata.items()) > METADATA_BYTES:
            raise UsageError(f"metadata: more than {METADATA_BYTES} characters")
        check_variables(self.env)


@dataclass(frozen=True, slots=True)
class ExecWish:
    """A command in a sandbox. `timeout_s` None is the default, 0 is a limit that is over already.

    `stdin` is given at once and closed, unless `keep_stdin` leaves it open for more. `on_timeout`: kill (the
    command's own processes), destroy (the sandbox), or snapshot_destroy.
    """

    argv: tuple[str, ...]
    timeout_s: float | None = None
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    stdin: bytes | None = None
    keep_stdin: bool = False
    background: bool = False
    on_timeout: str = "kill"
    rlimits: Mapping[str, float] = field(default_factory=dict)
    tail: int = 65536
    shown: str = ""

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0]:
            raise UsageError("cmd: it is empty")
        if any("\0" in word for word in self.argv):
            raise UsageError("cmd: it has a NUL byte in it")
        if self.timeout_s is not None and self.timeout_s != 0:
            check_seconds("timeout_seconds", self.timeout_s)
        if self.on_timeout not in ("kill", "destroy", "snapshot_destroy"):
            raise UsageError(f"on_timeout: {self.on_timeout!r} is not one of kill, destroy, snapshot_destroy")
        if self.user not in (None, "agent"):
            raise UsageError(f"user: {self.user!r:.60}: a sandbox has one user, agent")
        if self.cwd is not None and (not self.cwd.startswith("/") or "\0" in self.cwd):
            raise UsageError(f"cwd: {self.cwd!r:.80} is not an absolute path")
        for name in self.rlimits:
            if name not in ("cpu_s", "file_bytes", "open_files"):
                raise UsageError(f"rlimits: {name!r:.60} is not one of cpu_s, file_bytes, open_files")
            check_seconds(f"rlimits.{name}", self.rlimits[name])
        if not 0 <= self.tail <= 8 * MIB:
            raise UsageError(f"tail: {self.tail} is not a number of bytes up to {8 * MIB}")
        check_variables(self.env)
