# SPDX-License-Identifier: Apache-2.0
"""The body of a create, from what a caller gave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import clock
from ..errors import UsageError
from .asks import given
from .execs import check_seconds
from .hooks import Hook, Hooks

MIB = 1 << 20


def create(
    template: str, ttl: float, *, detached: bool, idle_timeout: float | None = None, name: str | None = None,
    metadata: Mapping[str, str] | None = None, from_snapshot: str | None = None, persistent: bool | None = None,
    on_expiry: str | None = None, memory: int | None = None, cpus: float | None = None, pids: int | None = None,
    disk: int | None = None, network: bool | str | None = None, env: Mapping[str, str] | None = None,
    on_timeout: Hook = None, on_extended: Hook = None, before_stop: Hook = None, hook_seconds: float = 10.0,
    buffer: float | None = None,
) -> tuple[dict[str, Any], Hooks]:  # fmt: skip
    """The body, and the hooks that are called here. Raises UsageError; None leaves the choice to the server."""
    seconds = check_seconds("hook_seconds", hook_seconds)
    hooks = Hooks(seconds, on_timeout=on_timeout, on_extended=on_extended, before_stop=before_stop)
    body = given(
        template=template, ttl_seconds=check_seconds("ttl", ttl), attached=not detached, name=name,
        idle_timeout_s=clock.check_limit("idle_timeout", idle_timeout), metadata=_texts("metadata", metadata),
        from_snapshot=from_snapshot, persistent=persistent, on_expiry=on_expiry, memory_mb=_mib("memory", memory),
        cpus=clock.check_limit("cpus", cpus), pids=clock.check_count("pids", pids), disk_mb=_mib("disk", disk),
        network=network, env=_texts("env", env), hooks=hooks.body, buffer_s=clock.check_limit("buffer", buffer),
    )  # fmt: skip
    return body, hooks


def _mib(name: str, value: int | None) -> int | None:
    size = clock.check_count(name, value)
    return None if size is None else max(1, -(-size // MIB))


def _texts(name: str, given: Mapping[str, str] | None) -> dict[str, str] | None:
    if given is None:
        return None
    if not isinstance(given, Mapping) or not all(isinstance(word, str) for pair in given.items() for word in pair):
        raise UsageError(f"{name}: give a mapping of text to text, not {given!r:.80}")
    return dict(given)


def of_fork(metadata: Mapping[str, str] | None, detached: bool) -> dict[str, Any]:
    """What a fork says of its children, besides their number or name."""
    return {**({"metadata": dict(metadata)} if metadata else {}), **({"attached": False} if detached else {})}
