# SPDX-License-Identifier: Apache-2.0
"""Whole operations of ours: the intent durable before anything would be sent, the outcome durable after it."""

from __future__ import annotations

import itertools
import secrets
from typing import Any

from deadstop.ledger.definition import Effect
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.records import Intent, Outcome
from deadstop.ledger.states import State

TOOL = "bench.pay"
LEASE_S = 60.0


class Operations:
    """A ledger and a tool in it. Any thread may call `whole`."""

    def __init__(self, where: str) -> None:
        self.ledger = Ledger.open(where)
        effect = Effect(retry="if_not_accepted", fingerprint=["account", "amount"], target="{account}")
        self._definition = self.ledger.define(effect.define(TOOL)).version
        self._run, self._turn = secrets.token_hex(8), itertools.count()

    def whole(self) -> None:
        """Begin one, and finish it: two commits."""
        begun = self.ledger.begin(self.intent(), LEASE_S)
        if begun.claim is None:
            raise RuntimeError(f"the operation is not ours: {begun.why}")
        value: Any = {"id": begun.record.op_id, "paid": 10}
        record = self.ledger.finish(begun.claim, Outcome(State.SUCCEEDED, phase="decode", value=value, has_value=True))
        if record.state is not State.SUCCEEDED:
            raise RuntimeError(f"the operation is {record.state}")

    def intent(self) -> Intent:
        name = f"{self._run}-{next(self._turn)}"
        arguments = {"account": name, "amount": 10}
        return Intent(
            scope="default", binding=name, fingerprint=f"{hash(name) & (1 << 63) - 1:064x}", tool=TOOL,
            definition=self._definition, target=name, arguments=arguments, digest=f"{hash(name) & (1 << 63) - 1:064x}",
        )  # fmt: skip

    def close(self) -> None:
        self.ledger.close()
