# SPDX-License-Identifier: Apache-2.0
"""Which of the checkpoints that are there may be relied on, and what is wrong with the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import LedgerUnavailable, UsageError
from .anchor import checkpoints_path, key_path, read_anchors
from .reader import Reader
from .report import Problems
from .rotation import Ring, rotations_of
from .signing import Checkpoint, PublicKey, origin_of, parse_note, public_keys
from .store import MEMORY

if TYPE_CHECKING:
    from .store import Tx

__all__ = ["Anchors", "Keys", "anchors_of", "check_notes", "check_ring", "ring_of", "trusted"]

Keys = str | PublicKey | Iterable[PublicKey] | None


@dataclass(frozen=True, slots=True)
class Anchors:
    """Checkpoints that may be relied on, by size: those of the file, whose signatures are right, and of the table."""

    files: tuple[Checkpoint, ...]
    table: tuple[Checkpoint, ...]
    late: frozenset[int] = frozenset()  # sizes that were written into the file after this reading began
    ring: Ring = field(default_factory=lambda: Ring(()))


def trusted(path: str, key: Keys) -> list[PublicKey]:
    """The keys that were named, or those of the ledger's own key file or the public one beside it, if there is one."""
    if isinstance(key, str):
        try:
            return public_keys(key)
        except OSError as problem:
            raise UsageError(f"key: {key}: {problem.strerror or problem}") from None
    if key is not None:
        return [key] if isinstance(key, PublicKey) else list(key)
    for each in (f"{path}.pub", path):
        try:
            return public_keys(each)
        except (OSError, UsageError):
            continue
    return []


def ring_of(reader: Reader, tx: Tx, ledger_id: str, key: Keys) -> Ring:
    """The keys that were named, or are known on this host, and what the log says of others that followed them."""
    return Ring(trusted(key_path(reader.where, reader.dialect, ledger_id), key), rotations_of(tx))


def anchors_of(
    reader: Reader, tx: Tx, ledger_id: str, checkpoints: str | None, before: int, key: Keys, problems: Problems
) -> Anchors:
    """`before`: how long the file was before the state of the database was taken that `tx` reads."""
    table, path = _of_table(tx, problems), checkpoints or checkpoints_path(reader.where, reader.dialect, ledger_id)
    if reader.where == MEMORY and checkpoints is None:
        return Anchors((), table)
    data = _read(path)
    if data is None and checkpoints is not None:
        raise UsageError(f"checkpoints: {path}: there is no such file")
    # Only now: a key that somebody put in the place of the old one is known before it signs into the file.
    ring, shared = ring_of(reader, tx, ledger_id, key), reader.dialect == "postgresql"
    check_ring(ring, shared, problems)
    if data is None:
        if table or ring.keys:
            problems.add("checkpoint", path, "the file of checkpoints is gone")
        return Anchors((), table)
    origin = origin_of(ledger_id)
    late = frozenset(each.checkpoint.size for each in read_anchors(_decoded(data[before:])) if each.checkpoint)
    found = Anchors(check_notes(_decoded(data), path, origin, ring, problems), table, late, ring)
    _compare(found, path, origin, shared, problems)
    return found


def check_ring(ring: Ring, shared: bool, problems: Problems) -> None:
    for each, text in ring.refused:
        problems.add("rotation", each.where, text)
    for each in () if shared or not ring.keys else ring.strange:
        problems.add("rotation", each.where, "it is between two keys that are both not known here")


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise LedgerUnavailable(path, f"checkpoints: {problem.strerror or problem}") from problem


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def check_notes(text: str, path: str, origin: str, ring: Ring, problems: Problems) -> tuple[Checkpoint, ...]:
    """Those of a file of checkpoints that were signed with a key whose turn it was and contradict none before."""
    sound, last, anchored = list[Checkpoint](), -1, read_anchors(text)
    if anchored and not ring.keys:
        problems.add("key", path, "no public key is known, so no checkpoint could be checked: name one")
        return ()
    for each in anchored:
        where, found = f"{path}, line {each.line}", each.checkpoint
        if found is None:
            if not each.torn:
                problems.add("checkpoint", where, "this is not a signed checkpoint any more")
        elif found.origin != origin:
            problems.add("checkpoint", where, f"this checkpoint is that of {found.origin}, not of {origin}")
        elif not ring.knows(found):
            problems.add("checkpoint", where, "this checkpoint was signed with a key that is not trusted here")
        elif not ring.accepts(found):
            problems.add(
                "checkpoint", where, f"the signature is wrong: it was changed, or never signed ({found.size} leaves)"
            )
        elif not ring.in_turn(found):
            problems.add("checkpoint", where, _OUT_OF_TURN)
        elif found.size < last:
            problems.add("checkpoint", where, f"it is of {found.size} leaves, after one of {last}: lines were moved")
            sound.append(found)
        else:
            last = found.size
            sound.append(found)
    return tuple(sorted(sound, key=lambda each: each.size))


_OUT_OF_TURN = "it was signed with a key that had been replaced, or was not in use yet: see the rotations"


def _of_table(tx: Tx, problems: Problems) -> tuple[Checkpoint, ...]:
    found = []
    for size, note in tx.all("log_checkpoints"):
        try:
            checkpoint = parse_note(note)
        except (TypeError, ValueError):
            problems.add("checkpoint", f"table checkpoint, size {size}", "this is not a signed checkpoint any more")
            continue
        if checkpoint.size != size:
            problems.add(
                "checkpoint", f"table checkpoint, size {size}", f"the note in it is of {checkpoint.size} leaves"
            )
        found.append(checkpoint)
    return tuple(sorted(found, key=lambda each: each.size))


def _compare(anchors: Anchors, path: str, origin: str, shared: bool, problems: Problems) -> None:
    """What is signed here is written into the file before the table: the table has nothing that the file has not.

    `shared`: other hosts sign in the same table, with keys of their own, and keep their own files.
    """
    known, ring = {each.size for each in anchors.files}, anchors.ring
    for each in anchors.table:
        where, names = f"table checkpoint, size {each.size}", {each.origin, *(name for name, _, _ in each.signatures)}
        if names != {origin}:
            problems.add("checkpoint", where, f"this checkpoint is that of {' and '.join(sorted(names - {origin}))}")
        elif ring.knows(each) and not ring.accepts(each):
            problems.add("checkpoint", where, "the signature is wrong: it was changed, or never signed")
        elif ring.knows(each) and not ring.in_turn(each):
            problems.add("checkpoint", where, _OUT_OF_TURN)
        elif ring.knows(each) and each.size not in known:
            other = ", or another host signs with the same key into another file" if shared else ""
            problems.add("checkpoint", where, f"{path} does not have this checkpoint: it was removed there{other}")
        elif not ring.knows(each) and not shared and ring.keys:
            problems.add("checkpoint", where, "this checkpoint was signed with a key that is not trusted here")
