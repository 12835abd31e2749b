# SPDX-License-Identifier: Apache-2.0
"""Asking the remote helper for the markers of an operation. How a connection is made and ended is in ssh_status."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ssh_status import status

if TYPE_CHECKING:
    from ..ledger.queries import SshQuery
    from ..ledger.records import Finding
    from ..operation import Operation

__all__ = ["ask_ssh"]


def ask_ssh(query: SshQuery, operation: Operation, timeout: float) -> Finding:
    """What the markers on that host say. Raises OSError and TimeoutError where nobody could be asked."""
    return status(query, operation, timeout)
