# SPDX-License-Identifier: Apache-2.0
"""A ledger whose signing key is replaced, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from audit_ground import Copy, history

from deadstop.ledger.anchor import read_anchors
from deadstop.ledger.ledger import Ledger
from deadstop.ledger.notary import Notary
from deadstop.ledger.report import Report
from deadstop.ledger.rotation import Rotation
from deadstop.ledger.signing import PublicKey
from deadstop.ledger.store import open_store


def key_file(copy: Copy) -> Path:
    return copy.path.with_name("ledger.db.key")


def with_notary(copy: Copy, work: Callable[[Ledger, Notary], Any]) -> Any:
    ledger = Ledger(open_store(str(copy.path)), notary=False)
    try:
        return work(ledger, Notary(ledger))
    finally:
        ledger.close()


def go_on(copy: Copy, first: int) -> None:
    def work(ledger: Ledger, notary: Notary) -> None:
        history(ledger, first, 3)
        assert notary.checkpoint() is not None

    with_notary(copy, work)


def rotated(copy: Copy, **options: Any) -> Rotation:
    made: Rotation = with_notary(copy, lambda _, notary: notary.rotate("ann", "the laptop is gone", **options))[0]
    return made


def says(report: Report, kind: str, *words: str) -> bool:
    return any(each.kind == kind and all(word in str(each) for word in words) for each in report.problems)


def sizes(copy: Copy) -> list[int]:
    return [each.checkpoint.size for each in read_anchors(copy.checkpoints.read_text()) if each.checkpoint]


def beside(copy: Copy, name: str, *keys: PublicKey) -> str:
    path = copy.path.with_name(name)
    path.write_text("".join(f"{each}\n" for each in keys))
    return str(path)
