# SPDX-License-Identifier: Apache-2.0
"""`deadstop.reconcile`: ask about one operation, now."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..ledger.ledger import Ledger
    from ..ledger.records import Record

__all__ = ["reconcile"]


def reconcile(op_id: str, *, ledger: Ledger | None = None, force: bool = False, operator: str | None = None) -> Record:
    """Ask the authority of one operation now, once, and apply what it says; the operation as it is afterwards.

    Only an UNKNOWN operation is asked about, when its time has come. `force`: before that too, and what waits for a
    person. `operator`, who wanted it, is written down. `ledger` is this process's own if it is not given.

    Blocks for at most the tool's reconcile_timeout and a few seconds. Raises OperationNotFound, LedgerUnavailable.
    """
    from ..ledger.ledger import default
    from .settlement import reconcile as reconcile_in

    return reconcile_in(default() if ledger is None else ledger, op_id, force=force, operator=operator)
