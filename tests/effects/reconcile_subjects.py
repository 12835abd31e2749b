# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

from deadstop.ledger.handle import Operation


def operation(**changes: Any) -> Operation:
    """One that has been sent once, to ask about."""
    first: dict[str, Any] = {
        "id": "op_1",
        "key": "op_1",
        "correlation": "run_42",
        "attempt": 1,
        "fence": 2,
        "tool": "deploy",
        "target": "staging",
        "fingerprint": "f" * 64,
    }
    return Operation(**{**first, **changes})
