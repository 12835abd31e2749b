# SPDX-License-Identifier: Apache-2.0
"""What a server is told when it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..places import socket_path
from ..sandbox.settings import Settings as HostSettings

__all__ = ["MIB", "LedgerSettings", "Settings"]

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSettings:
    """Which ledger, who is told of what was settled (`webhooks`), and who of what needs a person (`alert_...`).

    With `required` a server whose packages for it are missing does not start. `secret` signs every webhook. The
    reconciler asks every `every_s` seconds, at most `parallel` authorities at once. Events that were sent are known, by
    their `dedup`, for `keep_events_s`.
    """

    place: str = field(repr=False)
    required: bool = False
    webhooks: tuple[str, ...] = field(default=(), repr=False)
    secret: str | None = field(default=None, repr=False)
    alert_webhooks: tuple[str, ...] = field(default=(), repr=False)
    alert_commands: tuple[tuple[str, ...], ...] = ()
    alert_urls: tuple[str, ...] = field(default=(), repr=False)
    every_s: float = 1.0
    parallel: int = 8
    keep_events_s: float = 30 * 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where it listens, what it lets in, and what a sandbox gets whose client could not ask.

    `host` is how the sandboxes are kept, `ledger` where operations with effects are. `listen` is (host, port) for TCP,
    which needs `token` (one is made where it is None). `templates` (name or "*" -> keys of the create body) are what a
    sandbox of that template gets where the request does not say.
    """

    host: HostSettings = field(default_factory=HostSettings)
    ledger: LedgerSettings | None = None
    socket: str | None = field(default_factory=socket_path)
    listen: tuple[str, int] | None = None
    token: str | None = field(default=None, repr=False)
    allowed_hosts: frozenset[str] = frozenset()
    templates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    json_bytes: int = MIB
    file_bytes: int = 32 * MIB
    tree_bytes: int = 1024 * MIB
    header_bytes: int = 16 << 10
    connections: int = 1024
    body_s: float = 30.0
    upload_s: float = 600.0
    keepalive_s: float = 15.0
    interim_s: float = 20.0
    ping_s: float = 10.0
    shutdown_s: float = 10.0

    def defaults_for(self, template: str | None) -> dict[str, Any]:
        """The keys of a create body that stand for what a request leaves out."""
        host = self.host
        template = template or host.template
        return {
            "template": template,
            "ttl_seconds": min(host.default_ttl_s, host.max_ttl_s),
            "network": host.net,
            "memory_mb": host.memory // MIB,
            "pids": host.pids,
            "disk_mb": host.disk // MIB,
            **self.templates.get("*", {}),
            **self.templates.get(template, {}),
        }
