# SPDX-License-Identifier: Apache-2.0
"""A command for another host, made into what is sent and what the ledger is told before. Raises UsageError."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import clock
from ..errors import UsageError
from ..executor.effects import binding_of, task_id
from ..ledger.canonical import canonical, digest, fingerprint, selected
from ..ledger.definition import Definition
from ..ledger.records import Intent, Record
from ..operation import acting_now

__all__ = ["RemoteCommand", "seconds"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")  # as the helper takes it
MOST_BYTES = 100_000  # of the whole: the kernel takes 128 KiB for the one word that ssh is given


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCommand:
    """What a program asks for, checked; `argv` by check_argv."""

    host: str
    argv: tuple[str, ...]
    key: str | None = None
    lock: str | None = None
    lock_ttl: float = 3600.0
    limit: float | None = None
    cwd: str | None = None
    target: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    correlation: str | None = None
    asked_by: str | None = None
    authorised_by: str | None = None

    def __post_init__(self) -> None:
        if sum(len(word.encode("utf-8", "surrogatepass")) + 8 for word in self.argv) > MOST_BYTES:
            raise UsageError(f"the command has more than {MOST_BYTES} bytes: put what is long into a file there")
        if self.lock is not None and not _NAME.match(self.lock):
            raise UsageError(f"lock={self.lock!r:.60} is not 1 to 128 of A-Z a-z 0-9 _ . -")
        if self.cwd is not None and (not isinstance(self.cwd, str) or not self.cwd or "\0" in self.cwd):
            raise UsageError(f"cwd={self.cwd!r:.60} is not a folder's name")
        seconds("lock_ttl", self.lock_ttl)
        clock.check_limit("limit", self.limit)

    @property
    def request(self) -> dict[str, Any]:
        """What a fingerprint can be made of."""
        own = {"host": self.host, "argv": list(self.argv), "cwd": self.cwd, "lock": self.lock, "limit": self.limit}
        return {**self.fields, **own}

    def intent(self, definition: Definition, watch: float, call_id: str, name: str) -> Intent:
        """What is durable before a connection is made: the words of the command are sealed apart, its name is not.
        `name` is what keys are unique for: the same for one host, whatever is declared."""
        same = selected(self.request, definition.fingerprint)
        print_of = fingerprint(name, same)
        acting = acting_now()
        correlation = self.correlation or acting.correlation or task_id()
        binding, holds = binding_of(self.key, correlation, print_of)
        shown = {"host": self.host, "program": self.argv[0], "lock": self.lock}
        return Intent(
            scope=f"{definition.scope}/{name}", binding=binding, fingerprint=print_of, tool=definition.tool,
            definition=definition.version, correlation=correlation or call_id, target=self._target(definition),
            holds=holds, digest=digest(canonical(self.request)),
            arguments={name: value for name, value in shown.items() if value and name not in definition.redact},
            sealed={"request": {name: value for name, value in same.items() if name not in definition.redact}},
            asked_by=self.asked_by or acting.asked_by, authorised_by=self.authorised_by or acting.authorised_by,
            request_s=watch, recovery_s=definition.recovery_s,
        )  # fmt: skip

    def _target(self, definition: Definition) -> str:
        if self.target is not None or definition.target is None:
            return self.target or self.host
        try:
            return definition.target.format_map(self.request)[:200]
        except (LookupError, ValueError, AttributeError, TypeError):
            return self.host

    def words(self, record: Record, nonzero: str) -> list[str]:
        """For the helper."""
        words = ["run", "--op", record.op_id, "--fence", str(record.fence), f"--key={record.key}"]
        words.append(f"--nonzero={nonzero}")
        if self.lock is not None:
            words += [f"--lock={self.lock}", f"--lock-ttl={self.lock_ttl}"]
        if self.limit is not None:
            words.append(f"--limit={self.limit}")
        if self.cwd is not None:
            words.append(f"--cwd={self.cwd}")
        return [*words, "--", *self.argv]


def seconds(name: str, value: float) -> float:
    checked = clock.check_limit(name, value)
    if checked is None:
        raise UsageError(f"{name}=None is not allowed: an operation always ends")
    return float(checked)
