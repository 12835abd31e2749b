# SPDX-License-Identifier: Apache-2.0
"""What happened: operations, attempts, evidence. Knows nothing of processes, and nothing of HTTP.

`default()` is this process's own ledger, which its tools with effects use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .ledger import Ledger as Ledger
    from .ledger import default as default

__all__ = ["Ledger", "default"]


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(importlib.import_module("deadstop.ledger.ledger"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
