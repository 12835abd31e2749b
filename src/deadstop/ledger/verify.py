# SPDX-License-Identifier: Apache-2.0
"""Whether the ledger still is what was written, and where it is not.

What a checkpoint covers that was signed and written outside the database can be neither changed nor dropped nor cut off
without it being found here. Not covered: what came after the last checkpoint, if all of it was rewritten to fit; and a
signer's key in wrong hands.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from .anchor import checkpoints_path
from .checkpoints import Anchors, Keys, anchors_of
from .logcheck import LogCheck, Progress
from .reader import Reader, opened
from .replay import replay
from .report import Problem, Problems, Report

if TYPE_CHECKING:
    from .store import Tx

__all__ = ["Problem", "Report", "verify"]


def verify(
    source: Any,
    checkpoints: str | None = None,
    key: Keys = None,
    *,
    full: bool = True,
    progress: Progress | None = None,
) -> Report:
    """Check everything, and say what was found; a broken ledger is a report, not an error.

    `source` is a Ledger, a Store, the path of a file or a postgresql:// URL. `checkpoints` and `key` (a file, or public
    keys) are by default those that this host writes for it. `full=False` leaves out the second pass, in which the log
    is played again and compared with the tables that say how operations stand.

    Raises LedgerUnavailable if it cannot be read, UsageError for a key file that is none.
    """
    with opened(source) as reader:
        path = reader.read(lambda tx: _path(reader, tx, checkpoints))
        before = os.path.getsize(path) if os.path.exists(path) else 0
        told = progress or (lambda *_: None)
        return reader.read(lambda tx: _verify(reader, tx, checkpoints, before, key, full, told))


def _path(reader: Reader, tx: Tx, checkpoints: str | None) -> str:
    row = tx.one("meta", name="ledger_id")
    return checkpoints or checkpoints_path(reader.where, reader.dialect, str(row[0]) if row else "")


def _verify(
    reader: Reader, tx: Tx, checkpoints: str | None, before: int, key: Keys, full: bool, progress: Progress
) -> Report:  # fmt: skip
    problems = Problems()
    row = tx.one("meta", name="ledger_id")
    ledger_id = str(row[0]) if row else ""
    if not ledger_id:
        problems.add("meta", "meta", "the ledger has no id, so no checkpoint can be its own")
    anchors = anchors_of(reader, tx, ledger_id, checkpoints, before, key, problems)
    log, operations, log_s, replay_s = _checked(tx, anchors, full, problems, progress)
    anchored = max((each.size for each in anchors.files if each.size <= log.sound.size), default=0)
    return Report(
        ledger=ledger_id, leaves=log.leaves, operations=operations, checkpoints=len(anchors.files),
        problems=problems.found(), anchored_size=anchored, unanchored=max(0, log.leaves - anchored),
        waiting=len(tx.all("log_waiting")), full=full, log_s=log_s, replay_s=replay_s,
        keys=anchors.ring.signers(anchors.files), rotations=tuple(each.to_dict() for each in anchors.ring.counted),
    )  # fmt: skip


def _checked(
    tx: Tx, anchors: Anchors, full: bool, problems: Problems, progress: Progress
) -> tuple[LogCheck, int, float, float]:
    """The log, how many operations were compared, and how long either took.

    Where the log is played again, too, each body is read and hashed once, there. Should anything at all not be in its
    place, the log is looked at a second time, for what it is and where.
    """
    begun = time.perf_counter()
    log = LogCheck(tx, anchors, problems if not full else Problems(), progress)
    if not full:
        log.run()
        return log, _count(tx), time.perf_counter() - begun, 0.0
    right = log.run_quickly()
    read, found = time.perf_counter(), Problems()
    played = replay(tx, found, progress)
    end = time.perf_counter()
    took = read - begun
    if not (right and played.hashed and played.placed == log.leaves):
        log = LogCheck(tx, anchors, problems, progress)
        log.run()
        took += time.perf_counter() - end
    problems.take(found)
    return log, played.operations, took, end - read


def _count(tx: Tx) -> int:
    row = tx.one("log_count_operations")
    return int(row[0]) if row else 0
