# SPDX-License-Identifier: Apache-2.0
"""What verifying gives: the problems that were found, and what was looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["CHANGED", "Problem", "Problems", "Report"]

MOST = 1000
CHANGED = "changed, reordered, or another history"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is not as it was written. `kind` is what it is about, `where` the place, `text` one sentence."""

    kind: str  #: evidence, leaf, order, fork, head, node, checkpoint, key, chain, column, operation, payload, ...
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


class Problems:
    """Collects them; after a thousand only counts."""

    def __init__(self) -> None:
        self._found, self._more = dict[Problem, None](), 0

    def add(self, kind: str, where: str, text: str) -> None:
        if len(self._found) < MOST:
            self._found[Problem(kind, where, text)] = None
        else:
            self._more += 1

    def take(self, others: Problems) -> None:
        """Theirs after those that are here."""
        for each in others._found:
            self.add(each.kind, each.where, each.text)
        self._more += others._more

    def __bool__(self) -> bool:
        return bool(self._found)

    def found(self) -> tuple[Problem, ...]:
        more = (Problem("more", "elsewhere", f"{self._more} more problems are not listed"),) if self._more else ()
        return (*self._found, *more)


@dataclass(frozen=True, slots=True)
class Report:
    """What `verify` has seen. `anchored_size` leaves are covered by a checkpoint that fits, `unanchored` come after it;
    `waiting` entries have no place in the log yet, which is no problem. `full` is whether the log was played again."""

    ledger: str
    leaves: int
    operations: int
    checkpoints: int
    problems: tuple[Problem, ...]
    anchored_size: int
    unanchored: int
    waiting: int = 0
    full: bool = True
    log_s: float = 0.0
    replay_s: float = 0.0
    keys: tuple[str, ...] = ()  #: public keys that signed the checkpoints that count, in the order of their use
    rotations: tuple[
        dict[str, Any], ...
    ] = ()  #: of signing keys, those that count: leaf, old, new, by, reason, vouched

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok, "ledger": self.ledger, "leaves": self.leaves, "operations": self.operations,
            "checkpoints": self.checkpoints, "anchored_size": self.anchored_size, "unanchored": self.unanchored,
            "waiting": self.waiting, "full": self.full,
            "keys": list(self.keys), "rotations": list(self.rotations),
            "log_s": round(self.log_s, 6), "replay_s": round(self.replay_s, 6),
            "problems": [{"kind": each.kind, "where": each.where, "text": each.text} for each in self.problems],
        }  # fmt: skip
