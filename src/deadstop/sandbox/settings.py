# SPDX-License-Identifier: Apache-2.0
"""How a server keeps its sandboxes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from ..errors import UsageError
from ..places import state_folder
from .wishes import MIB, check_seconds

HARD_MAX_TTL_S = 18_000.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Of one server. Seconds and bytes. Raises UsageError (InvalidLimit).

    `max_ttl_s` bounds every life, extensions included. `max_memory` bounds the sum of all sandboxes' memory ceilings
    (None: only the host's free memory is looked at, and `spare_memory` of it is left alone). `spare_disk` is left free
    on the state folder's file system. `net` and `template` are what a client gets that does not say. `retention_s` is
    how long what an ended sandbox left (its record, its output) can be read. `warm` sandboxes of `warm_template` are
    held ready. `layers` forces a kind of layer (btrfs, overlay, folder).
    """

    state: str = field(default_factory=state_folder)
    template: str = "base"
    default_ttl_s: float = 3600.0
    max_ttl_s: float = HARD_MAX_TTL_S
    max_sandboxes: int = 512
    max_memory: int | None = None
    spare_memory: int = 256 * MIB
    spare_disk: int = 256 * MIB
    net: bool = False
    net_allowed: bool = True  # False: not even to those who ask
    memory: int = 512 * MIB
    pids: int = 512
    disk: int = 1024 * MIB
    retention_s: float = 3600.0
    warm: int = 0
    warm_template: str = "base"
    layers: str | None = None
    image_size: int | None = None
    attach_grace_s: float = 10.0

    def __post_init__(self) -> None:
        for name in ("default_ttl_s", "max_ttl_s", "retention_s", "attach_grace_s"):
            check_seconds(name, getattr(self, name))
        if self.max_sandboxes < 1 or self.warm < 0:
            raise UsageError("max_sandboxes must be above zero and warm not below it")
        if self.layers not in (None, "btrfs", "overlay", "folder"):
            raise UsageError(f"layers: {self.layers!r} is not one of btrfs, overlay, folder")

    def path(self, *names: str) -> str:
        """A place in the state folder."""
        return os.path.join(self.state, *names)
