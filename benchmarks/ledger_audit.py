# SPDX-License-Identifier: Apache-2.0
"""What it takes to show that a log of a million leaves is what was written, and that one entry is in it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from deadstop.ledger.export import operation_proof
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.merkle import Tiles, inclusion_proof
from deadstop.ledger.notary import stored
from deadstop.ledger.store import Tx
from deadstop.ledger.verify import verify

from .harness import Bench, Figure, Series, in_turn, milliseconds

MOST_US, MOST_PROOF_MS = 5.0, 5.0
ROUNDS = 2


def audited(bench: Bench, path: str, ids: list[str]) -> Iterator[Figure]:
    with Ledger.open(path) as ledger:
        if ledger.notary is not None:
            ledger.notary.checkpoint()
    alone, played = [verify(path, full=False) for _ in range(ROUNDS)], [verify(path) for _ in range(ROUNDS)]
    reports = [*alone, *played]
    if problems := [str(problem) for report in reports for problem in report.problems]:
        raise RuntimeError(f"the log is not in order: {problems[:3]}")
    leaves = reports[0].leaves
    log = Series(tuple(report.log_s * 1e6 / leaves for report in alone))
    whole = Series(tuple((report.log_s + report.replay_s) * 1e6 / leaves for report in played)).p50
    note = f"{leaves:,} leaves, {1e6 / log.p50:,.0f}/s"
    yield Figure("audit verify, the log, time per leaf", Series((log.p50,)), (MOST_US,), unit="us", note=note)
    note = f"{1e6 / whole:,.0f}/s, {whole * leaves / 1e6:.1f} s in all"
    yield Figure("  and played again, compared with the tables", Series((whole,)), (MOST_US,), unit="us", note=note)
    yield from _proofs(bench, path, ids, leaves)


def _proofs(bench: Bench, path: str, ids: list[str], leaves: int) -> Iterator[Figure]:
    chance = random.Random(leaves)
    with Ledger.open(path) as ledger:

        def one() -> float:
            index = chance.randrange(leaves)
            start = time.monotonic()
            if not ledger.read(lambda tx: _proof(tx, index, leaves)):
                raise RuntimeError("the proof is empty")
            return milliseconds(start)

        def operation() -> float:
            op_id = chance.choice(ids)
            start = time.monotonic()
            operation_proof(path, op_id)
            return milliseconds(start)

        results = in_turn({"leaf": one, "operation": operation}, rounds=30 if bench.quick else 200, seconds=5)
    target = (MOST_PROOF_MS, MOST_PROOF_MS)
    yield Figure(f"proof that a leaf is among {leaves:,}", results["leaf"], target, note="nothing read before")
    yield Figure("  all entries of an operation, with checkpoint", results["operation"])


def _proof(tx: Tx, index: int, size: int) -> list[bytes]:
    return inclusion_proof(Tiles(size, lambda *span: stored(tx, *span)), index, size)
