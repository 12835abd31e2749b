# SPDX-License-Identifier: Apache-2.0
"""When a signing key takes the place of another: an entry of the log says so, signed by both of them.

The old key vouches for the new one by its signature over a statement that names it. That a checkpoint of the old key
covers the entry says nothing: whoever writes to the database can add an entry, and it will be covered. Where the old
key is lost nobody can vouch: such a rotation counts only for those who know the new key from elsewhere.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import LedgerUnavailable, UsageError
from .alerts import LEDGER
from .canonical import canonical, leaf_hash
from .entries import add
from .records import Evidence
from .signing import Checkpoint, PublicKey, SigningKey, Trust, install, known_keys

if TYPE_CHECKING:
    from .store import Tx

__all__ = ["MOST_TEXT", "ROTATED", "Change", "Ring", "Rotation", "rotation_of", "rotations_of"]

ROTATED = "key.rotated"
_STATEMENT = "deadstop.rotation/1"
MOST_TEXT = 500


@dataclass(frozen=True, slots=True)
class Rotation:
    """One entry of the log. `seq` is its leaf: the old key signs logs of at most so many leaves, the new one longer."""

    seq: int
    old: PublicKey | None  # None: nothing at all is left of it
    new: PublicKey
    by: str
    reason: str
    signed: bytes  # by the new key
    vouched: bytes | None  # by the old one

    @property
    def where(self) -> str:
        return f"leaf {self.seq}, rotation of the signing key"

    @property
    def is_signed(self) -> bool:
        return self.new.verifies(self._statement, self.signed)

    @property
    def is_vouched(self) -> bool:
        return self.old is not None and self.vouched is not None and self.old.verifies(self._statement, self.vouched)

    @property
    def _statement(self) -> str:
        return statement(self.old, self.new, self.by, self.reason)

    def to_dict(self) -> dict[str, Any]:
        return {"leaf": self.seq, "old": self.old and str(self.old), "new": str(self.new), "by": self.by,
                "reason": self.reason, "vouched": self.is_vouched}  # fmt: skip


def statement(old: PublicKey | None, new: PublicKey, by: str, reason: str) -> str:
    """What both sign. The name of a key is that of its ledger, so it is of no use for another one."""
    told = {"statement": _STATEMENT, "old": old and str(old), "new": str(new), "by": by, "reason": reason}
    return canonical(told).decode()


@dataclass(frozen=True, slots=True)
class Change:
    """What a rotation is about to do on this host."""

    path: str
    old: SigningKey | None
    lost: PublicKey | None  # what is known of an old one that can sign no more
    new: SigningKey
    is_recorded: bool  # by a call that was broken off

    @classmethod
    def of(cls, path: str, origin: str, last: Checkpoint | None, rotations: Sequence[Rotation], lost: bool) -> Change:
        """The new key is made, beside the old one. Raises UsageError, LedgerUnavailable."""
        if last is None:
            raise UsageError("nothing was signed here yet, so there is no key to replace")
        made, old = f"{path}.next", _signer(path, origin, last, rotations)
        if old is not None and lost:
            raise UsageError(f"the key in {path} is not lost: let it vouch for the new one, without --lost")
        if old is None and not lost:
            text = "the key that signed the last checkpoint is not in it"
            raise LedgerUnavailable(path, text, "bring that one back; if it is lost for good, say so with --lost")
        new = SigningKey.open(made, origin, public=False)
        known = next((each for each in known_keys(f"{path}.pub") if Trust([each]).accepts(last)), None)
        return cls(path, old, known, new, any(each.new == new.public for each in rotations))

    def record(self, tx: Tx, by: str, reason: str) -> None:
        trail = tx.all("trail", op_id=LEDGER)
        n, prev = (trail[-1][1] + 1, trail[-1][6]) if trail else (1, "")
        before = self.lost if self.old is None else self.old.public
        text = statement(before, self.new.public, by, reason)
        body = canonical({
            "op": LEDGER, "n": n, "kind": ROTATED, "at": tx.now, "prev": prev, "old": before and str(before),
            "new": str(self.new.public), "by": by, "reason": reason, "signed": _text(self.new.sign_text(text)),
            "vouched": None if self.old is None else _text(self.old.sign_text(text)),
        })  # fmt: skip
        add(tx, Evidence(LEDGER, n, ROTATED, tx.now, body.decode(), prev, leaf_hash(body)))

    def install(self) -> str:
        """Where the key that was there is kept."""
        before = self.lost if self.old is None else self.old.public
        return install(self.path, f"{self.path}.next", before, self.new.public)


def _signer(path: str, origin: str, last: Checkpoint, rotations: Sequence[Rotation]) -> SigningKey | None:
    """The key in the file, if it goes on from the last checkpoint, or has handed over to the one beside it."""
    try:
        key = SigningKey.open(path, origin, make=False, public=False)
    except LedgerUnavailable:
        return None
    ring = Ring([key.public], rotations)
    replaced = ring.retired(key.public)
    return key if ring.knows(last) and (replaced is None or replaced.new in known_keys(f"{path}.next")) else None


def rotations_of(tx: Tx) -> list[Rotation]:
    """Those that have their place in the log, in its order. What cannot be read is left out: hashes tell of it."""
    found = [rotation_of(row[4], row[7]) for row in tx.all("trail", op_id=LEDGER) if isinstance(row[7], int)]
    return sorted([each for each in found if each is not None], key=lambda each: each.seq)


def rotation_of(body: Any, seq: int) -> Rotation | None:
    """None for an entry that is no rotation, or cannot be read."""
    try:
        said = json.loads(body)
        if (said["op"], said["kind"]) != (LEDGER, ROTATED):
            return None
        old, vouched = said["old"], said["vouched"]
        return Rotation(
            seq, None if old is None else PublicKey.parse(old), PublicKey.parse(said["new"]), str(said["by"]),
            str(said["reason"]), _bytes(said["signed"]), None if vouched is None else _bytes(vouched),
        )  # fmt: skip
    except (AttributeError, KeyError, RecursionError, TypeError, UsageError, ValueError):
        return None


class Ring(Trust):
    """The keys that are known, and those that a rotation leads to from them, each for its part of the log.

    Forward, from an old key to a new one, only by the old one's word. Backward, because the new one has signed what it
    followed. `refused` are those that do not count, and why; `strange` are between keys that are all unknown, as other
    hosts' keys are; `counted` are the others.
    """

    def __init__(self, keys: Iterable[PublicKey], rotations: Iterable[Rotation] = ()) -> None:
        super().__init__(keys)
        self.counted, self.refused, self.strange = list[Rotation](), list[tuple[Rotation, str]](), list[Rotation]()
        self._until = dict[PublicKey, int]()  # at most so many leaves
        self._after = dict[PublicKey, int]()  # more than so many
        left = sorted(rotations, key=lambda each: each.seq)
        while (count := len(left)) and (left := [each for each in left if not self._take(each)]) and len(left) < count:
            pass
        for each in left:
            if each.old is not None and {each.old, each.new}.isdisjoint(self.keys.values()):
                self.strange.append(each)
            else:
                self.refused.append((each, _UNVOUCHED.format(by=each.by, reason=each.reason, new=each.new)))
        self.counted.sort(key=lambda each: each.seq)

    def _take(self, each: Rotation) -> bool:
        """Whether anything can be said of it already."""
        known = self.keys.values()
        if each.new not in known and not (each.old in known and each.is_vouched):
            return False
        if not each.is_signed:
            self.refused.append((each, "it is not signed with the key that it names: it was forged, or changed"))
        elif each.old == each.new or each.new in self._after or self._until.get(each.new, each.seq + 1) <= each.seq:
            self.refused.append((each, f"the key {each.new.id.hex()} was in use before"))
        elif each.old in self._until:
            self.refused.append((each, "the old key had been replaced already: who made this has an old key"))
        else:
            self.counted.append(each)
            self._after[each.new] = each.seq
            self._add(each.new)
            if each.old is not None:
                self._until[each.old] = each.seq
                self._add(each.old)
        return True

    def _add(self, key: PublicKey) -> None:
        self.keys[key.name, key.id] = self.keys.get((key.name, key.id), key)

    def retired(self, key: PublicKey) -> Rotation | None:
        return next((each for each in self.counted if each.old == key), None)

    def in_turn(self, checkpoint: Checkpoint) -> bool:
        """Whether one of those that signed it was in use for a log of that size."""
        signers = [self.keys[name, key_id] for name, key_id, _ in checkpoint.signatures if (name, key_id) in self.keys]
        return any(
            self._after.get(each, -1) < checkpoint.size <= self._until.get(each, checkpoint.size) for each in signers
        )

    def counts(self, checkpoint: Checkpoint) -> bool:
        return self.accepts(checkpoint) and self.in_turn(checkpoint)

    def signers(self, checkpoints: Iterable[Checkpoint]) -> tuple[str, ...]:
        """The keys of those that these checkpoints were signed with, by their first one."""
        named = [self.keys.get((name, key_id)) for each in checkpoints for name, key_id, _ in each.signatures]
        return tuple(dict.fromkeys(str(each) for each in named if each is not None))


_UNVOUCHED = (
    "UNVOUCHED ROTATION, by {by} ({reason}): no known key vouches for the new one, and what it signs does not count. "
    "If you know from elsewhere that this is the right key, name it, too, with --key: {new}"
)


def _text(signature: bytes) -> str:
    return base64.b64encode(signature).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
