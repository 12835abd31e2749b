# SPDX-License-Identifier: Apache-2.0
"""The proof that a log only grew: that the longer of two logs begins with the shorter one, as it was.

For somebody who kept an old checkpoint, and wants to know whether today's log is that one's continuation, without the
entries of either.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from ..errors import LedgerError, UsageError
from .checkpoints import Keys, check_notes, ring_of, trusted
from .export import text_of, usable
from .merkle import Tiles, consistency_proof, follows
from .notary import stored
from .reader import Reader, opened
from .report import Problem, Problems
from .rotation import Ring
from .signing import Checkpoint, PublicKey, Trust, origin_of, parse_note

if TYPE_CHECKING:
    from .store import Tx

__all__ = ["CONSISTENCY", "growth_proof", "verify_growth_proof"]

CONSISTENCY = "deadstop.consistency/1"


def growth_proof(
    source: Any, first: int, size: int | None = None, *, checkpoints: str | None = None, key: Keys = None
) -> dict[str, Any]:
    """What leads from the root of the first `first` entries to that of the first `size` (default: of the last
    checkpoint), with the checkpoints of these sizes.

    Both must be sizes that were signed: a root that nobody signed proves nothing. Raises LedgerError otherwise.
    """
    with opened(source) as reader:
        return reader.read(lambda tx: _proof(reader, tx, first, size, checkpoints, key))


def _proof(reader: Reader, tx: Tx, first: int, size: int | None, path: str | None, key: Keys) -> dict[str, Any]:
    row, head = tx.one("meta", name="ledger_id"), tx.one("log_head")
    ledger_id, most = str(row[0]) if row else "", int(head[0]) if head else 0
    ring = ring_of(reader, tx, ledger_id, key)
    if not ring.keys:
        raise LedgerError("no public key of this ledger is known here, so no checkpoint can be handed out: name one")
    signed = {each.size: each for each in usable(reader, tx, ledger_id, path, most, ring)}
    size = max(signed, default=0) if size is None else size
    if not 0 < first <= size:
        raise UsageError(f"a log of {size} entries does not begin with one of {first}: name a smaller size first")
    for each in (first, size):
        if each not in signed:
            near = sorted(signed, key=lambda other: abs(other - each))[:4]
            raise LedgerError(f"no checkpoint of {each} entries was signed; near it: {sorted(near) or 'none'}")
    tiles = Tiles(size, lambda *span: stored(tx, *span))
    proof = [base64.b64encode(each).decode() for each in consistency_proof(tiles, first, size)]
    return {"format": CONSISTENCY, "origin": origin_of(ledger_id), "first": first, "size": size, "proof": proof,
            "checkpoints": [signed[first].note, signed[size].note],
            "keys": [str(each) for each in ring.keys.values()]}  # fmt: skip


def verify_growth_proof(document: Any, key: Keys = None, checkpoints: str | None = None) -> tuple[Problem, ...]:
    """Check what `growth_proof` gave, with nothing else at hand; what is wrong, empty if nothing is.

    With `checkpoints`, a file of them that was kept elsewhere, the one of the smaller size must be in it, and no root
    in it may be another one. Without `key` the keys in the document are taken, which shows only that it agrees with
    itself. Raises UsageError for what is no such document.
    """
    if not isinstance(document, dict) or document.get("format") != CONSISTENCY:
        raise UsageError(f"this is not a proof that a log only grew ({CONSISTENCY})")
    problems = Problems()
    try:
        keys = trusted("", key) if key is not None else [PublicKey.parse(str(each)) for each in document["keys"]]
        before, after = [parse_note(each) for each in document["checkpoints"]]
        proof = [base64.b64decode(each, validate=True) for each in document["proof"]]
        origin, sizes = document["origin"], (document["first"], document["size"])
    except (KeyError, TypeError, ValueError) as problem:
        raise UsageError(f"this proof cannot be read: {problem}") from None
    for each, size in zip((before, after), sizes, strict=True):
        if (each.origin, each.size) != (origin, size) or not Trust(keys).accepts(each):
            text = "it was not signed with a trusted key, is another one, or was changed afterwards"
            problems.add("checkpoint", f"checkpoint of {each.size}", text)
    if not follows(before.size, before.root, after.size, after.root, proof):
        text = "the log was rewritten, or the proof was changed: the longer one does not begin with the shorter one"
        problems.add("fork", f"leaves 0 to {before.size - 1}", text)
    if checkpoints is not None:
        _compare(check_notes(text_of(checkpoints), checkpoints, origin, Ring(keys), problems), before, after, problems)
    return problems.found()


def _compare(kept: tuple[Checkpoint, ...], before: Checkpoint, after: Checkpoint, problems: Problems) -> None:
    for each in kept:
        for ours in (before, after):
            if each.size == ours.size and each.root != ours.root:
                problems.add(
                    "fork", f"leaves 0 to {each.size - 1}", "another root was signed for them: see your own file"
                )
    if before.size not in {each.size for each in kept}:
        problems.add("checkpoint", f"checkpoint of {before.size}", "it is not in your own file of checkpoints")
