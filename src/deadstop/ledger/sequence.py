# SPDX-License-Identifier: Apache-2.0
"""The order of the whole log: entries get their places, and the tree over them its new right edge."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..errors import LedgerBroken
from .merkle import Frontier, Node
from .records import Evidence

if TYPE_CHECKING:
    from .store import Tx

__all__ = ["sequence"]


def sequence(tx: Tx, entries: Iterable[Evidence] | None = None, limit: int = 4096) -> int:
    """Give places to `entries`, just written in this transaction, in their order; how many have got one.

    Without entries: to at most `limit` of those that have none yet, by time, those of one operation in their own order
    (where many wait, by time only among 4096 of them, of the operations that were begun first). That is for a database
    with several writers: whoever does it holds the log's end until the commit, others wait.
    Raises LedgerBroken if the log's end is not one.
    """
    if entries is not None:
        placed = [(each.op_id, each.n, each.hash) for each in entries]
        if not placed:
            return 0
    head = tx.one("log_lock")
    if entries is None:  # only now: what the one before us placed is no longer waiting
        placed = [(op_id, n, leaf) for op_id, n, leaf in tx.all("log_take", limit=limit)]
        if not placed:
            return 0
    frontier, nodes = _frontier(head), list[Node]()
    rows = []
    for seq, (op_id, n, leaf) in enumerate(placed, frontier.size):
        rows.append({"seq": seq, "op_id": op_id, "n": n, "hash": leaf})
        frontier.append(bytes.fromhex(leaf), nodes)
    tx.many("log_add", rows)
    if nodes:
        tx.many("log_add_node", [{"level": a, "place": b, "hash": c.hex()} for a, b, c in nodes])
    tx.run("log_set_head", size=frontier.size, frontier=frontier.text)
    return len(rows)


def _frontier(head: tuple[int, str] | None) -> Frontier:
    try:
        if head is not None:
            return Frontier.parse(*head)
        problem = "the row of its end is missing"
    except ValueError as error:
        problem = f"the row of its end is no end: {error}"
    raise LedgerBroken("log", (problem,))
