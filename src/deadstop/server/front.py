# SPDX-License-Identifier: Apache-2.0
"""What all requests share, and what one request is to its handler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .metrics import Metrics
from .settings import Settings

if TYPE_CHECKING:
    from aiohttp import web

    from ..sandbox.host import Host
    from ..sandbox.sandbox import Sandbox
    from .operations import Operations

__all__ = ["Call", "Front"]

B = TypeVar("B")
Q = TypeVar("Q")


@dataclass(slots=True)
class Front:
    """One server: the host whose sandboxes it serves, and whether it is about to stop.

    `background` holds the work whose client has gone and that is brought to its end nevertheless; `busy` counts the
    requests that are being answered.
    """

    host: Host
    settings: Settings
    metrics: Metrics
    token: str | None = field(default=None, repr=False)
    operations: Operations | None = None
    document: bytes = b""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    background: set[asyncio.Future[Any]] = field(default_factory=set)
    busy: int = 0

    def finish(self, work: asyncio.Future[Any]) -> None:
        """See to it that `work` ends, though nobody waits for it."""
        self.background.add(work)
        work.add_done_callback(self._finished)

    def _finished(self, work: asyncio.Future[Any]) -> None:
        self.background.discard(work)
        if not work.cancelled():
            work.exception()  # looked at: whoever wanted to know has gone


@dataclass(slots=True, kw_only=True)
class Call(Generic[B, Q]):
    """One request, read and checked. `gone` becomes true when its client has gone before it was answered."""

    front: Front
    path: Mapping[str, str]
    body: B
    query: Q
    key: str | None
    request: web.Request
    uploaded: Callable[[int], AsyncIterator[bytes]]
    same_user: bool = False
    gone: bool = False

    @property
    def host(self) -> Host:
        return self.front.host

    @property
    def settings(self) -> Settings:
        return self.front.settings

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox that the path names by its id or name. Raises NotFound."""
        return self.host.find(self.path["ref"])


Handler = Callable[[Call[Any, Any]], Awaitable[Any]]
