# SPDX-License-Identifier: Apache-2.0
"""The writable files of sandboxes: /home/agent and /tmp in one layer, images of it, and new layers from those.

Three kinds of store do this. `btrfs` snapshots a running sandbox in milliseconds; `overlay` gives an ordinary user the
same for an idle one; `folder` works everywhere and copies. `open_store` takes the best that the host gives and says in
`remarks` why it is not a better one.
"""

from __future__ import annotations

from .choice import open_store
from .store import OWNER_UID, Capture, Image, Layer, Store
from .volume import private_mounts

__all__ = ["OWNER_UID", "Capture", "Image", "Layer", "Store", "open_store", "private_mounts"]
