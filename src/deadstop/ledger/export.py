# SPDX-License-Identifier: Apache-2.0
"""The log as a file that is verified without the database, and the proof of one operation without the rest of the log.

Both are JSON, one document a line for the log. Bodies are there as they were written, so that whoever reads the file
can hash them himself; what was sealed is not in them, only its digest.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import IO, TYPE_CHECKING, Any

from ..errors import LedgerError, OperationNotFound, UsageError
from .alerts import LEDGER
from .anchor import checkpoints_path, read_anchors
from .checkpoints import Keys, check_notes, check_ring, ring_of, trusted
from .logcheck import Progress
from .merkle import Frontier, Tiles, included, inclusion_proof
from .notary import stored
from .reader import Reader, opened, pages
from .report import CHANGED, Problem, Problems, Report
from .rotation import Ring, Rotation, rotation_of
from .signing import Checkpoint, PublicKey, Trust, origin_of, parse_note, parsed

if TYPE_CHECKING:
    from .store import Tx

__all__ = ["EXPORT", "PROOF", "export", "operation_proof", "verify_export", "verify_operation_proof"]

_TAIL = 1 << 16
EXPORT, PROOF = "deadstop.ledger/1", "deadstop.proof/1"


# -- the whole log ---------------------------------------------------------------------------------------------------


def export(
    source: Any, to: IO[str], *, checkpoints: str | None = None, key: Keys = None, progress: Progress | None = None
) -> int:
    """Write the log to a text stream: a header, every entry in its order, every checkpoint. How many entries.

    What has no place in the log yet is not in it. Raises LedgerUnavailable, OSError of the stream.
    """
    with opened(source) as reader:
        return reader.read(lambda tx: _export(reader, tx, to, checkpoints, key, progress or (lambda *_: None)))


def _export(reader: Reader, tx: Tx, to: IO[str], path: str | None, key: Keys, progress: Progress) -> int:
    ledger_id, head = _ledger_id(tx), tx.one("log_head")
    size = int(head[0]) if head else 0
    ring = ring_of(reader, tx, ledger_id, key)
    keys = [str(each) for each in ring.keys.values()]
    _line(to, {"format": EXPORT, "origin": origin_of(ledger_id), "size": size, "keys": keys})
    count = 0
    for rows in pages(tx, "log_entries", 0):
        for seq, _, _, leaf, _, body, _ in rows:
            _line(to, {"seq": seq, "body": body, "hash": leaf})
        count += len(rows)
        progress("entries", count, size)
    for note in _notes(reader, tx, ledger_id, path, size, ring):
        _line(to, {"checkpoint": note})
    return count


def _line(to: IO[str], document: dict[str, Any]) -> None:
    to.write(json.dumps(document, separators=(",", ":")) + "\n")


def _ledger_id(tx: Tx) -> str:
    row = tx.one("meta", name="ledger_id")
    return str(row[0]) if row else ""


def _notes(reader: Reader, tx: Tx, ledger_id: str, path: str | None, size: int, ring: Ring) -> list[str]:
    """Those of the file and of the table that are ours, by size. What is wrong with others is for `verify` to say."""
    found = {(each.size, each.note): None for each in usable(reader, tx, ledger_id, path, size, ring)}
    return [note for _, note in sorted(found)]


def usable(reader: Reader, tx: Tx, ledger_id: str, path: str | None, size: int, ring: Ring) -> list[Checkpoint]:
    """Checkpoints of at most that size, from the file and the table, that the known keys have signed in their turn."""
    every = (
        *_of_file(path or checkpoints_path(reader.where, reader.dialect, ledger_id)),
        *_parsed_notes(tx.all("log_checkpoints")),
    )
    return [each for each in every if each.size <= size and (not ring.keys or ring.counts(each))]


def _of_file(path: str, most: int | None = None) -> list[Checkpoint]:
    """All of them, or those in the last `most` bytes."""
    try:
        with open(path, "rb") as file:
            if most is not None:
                file.seek(max(0, os.fstat(file.fileno()).st_size - most))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [each.checkpoint for each in read_anchors(text) if each.checkpoint]


def _parsed_notes(rows: Iterable[tuple[Any, ...]]) -> list[Checkpoint]:
    return [each for each in (parsed(note) for _, note in rows) if each is not None]


def verify_export(
    path: str, key: Keys = None, checkpoints: str | None = None, *, progress: Progress | None = None
) -> Report:
    """Check a file that `export` wrote, without the database: every hash, every operation's chain, the order, and every
    checkpoint in it and in `checkpoints`, a file of them that was kept elsewhere.

    Without `key` (a file, or public keys) the keys in the file itself are taken: then it shows only that the file
    agrees with itself. Raises UsageError for what is no such file.
    """
    begun = time.perf_counter()
    problems = Problems()
    log = _Log(problems)
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            header = log.read(file, path, progress or (lambda *_: None))
    except OSError as problem:
        raise UsageError(f"{path}: {problem.strerror or problem}") from None
    keys = trusted("", key) if key is not None else _own_keys(header, problems)
    origin = header["origin"]
    ring = Ring(keys, log.rotations)
    check_ring(ring, False, problems)
    sound = list(check_notes("\n".join(log.notes), f"{path}, checkpoints", origin, ring, problems))
    if checkpoints is not None:
        sound += check_notes(text_of(checkpoints), checkpoints, origin, ring, problems)
    anchored = log.check(sound)
    return Report(
        ledger=origin.removeprefix("deadstop/"), leaves=log.tree.size, operations=len(log.heads.keys() - {LEDGER}),
        checkpoints=len({each.size for each in sound}), problems=problems.found(), anchored_size=anchored,
        unanchored=log.tree.size - anchored, full=False, log_s=time.perf_counter() - begun,
        keys=ring.signers(sound), rotations=tuple(each.to_dict() for each in ring.counted),
    )  # fmt: skip


def _own_keys(header: dict[str, Any], problems: Problems) -> list[PublicKey]:
    try:
        return [PublicKey.parse(str(each)) for each in header["keys"]]
    except (TypeError, UsageError) as problem:
        problems.add("key", "line 1", str(problem))
        return []


def text_of(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
            return file.read()
    except OSError as problem:
        raise UsageError(f"checkpoints: {path}: {problem.strerror or problem}") from None


class _Log:
    """What is read of an export: the tree, the end of every operation's chain, the notes."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.tree, self.leaves = Frontier(), list[bytes]()
        self.heads = dict[str, tuple[int, str]]()
        self.notes = list[str]()
        self.rotations = list[Rotation]()

    def read(self, file: Iterable[str], path: str, progress: Progress) -> dict[str, Any]:
        lines = enumerate(file, 1)
        header = _parsed(next(lines, (0, ""))[1])
        if (
            header.get("format") != EXPORT
            or not isinstance(header.get("origin"), str)
            or not isinstance(header.get("size"), int)
        ):
            raise UsageError(f"{path}: this is not an exported ledger ({EXPORT})")
        for number, line in lines:
            document = _parsed(line)
            if "checkpoint" in document:
                self.notes.append(str(document["checkpoint"]))
            elif "body" in document:
                self._entry(f"line {number}", document)
            else:
                self.problems.add("evidence", f"line {number}", "this is neither an entry nor a checkpoint")
            if not number % 4096:
                progress("entries", number, header["size"])
        if len(self.leaves) != header["size"]:
            text = f"{len(self.leaves)} entries, but its first line says {header['size']}: some were cut off or added"
            self.problems.add("leaf", f"leaf {min(len(self.leaves), header['size'])}", text)
        header.setdefault("keys", [])
        return header

    def _entry(self, line: str, document: dict[str, Any]) -> None:
        body, expected = document.get("body"), len(self.leaves)
        where = f"{line}, leaf {expected}"
        if document.get("seq") != expected:
            self.problems.add(
                "order", where, f"it is numbered {document.get('seq')}: entries were moved, added or removed"
            )
        if not isinstance(body, str):
            self.problems.add("evidence", where, "its body is missing")
            body = ""
        leaf = sha256(b"\0" + body.encode("utf-8", "surrogatepass")).digest()
        if leaf.hex() != document.get("hash"):
            self.problems.add("evidence", where, "the body is not what was written: it does not have its hash")
        if f'"{LEDGER}"' in body and (rotation := rotation_of(body, expected)) is not None:
            self.rotations.append(rotation)
        self.leaves.append(leaf)
        self._chain(where, _parsed(body), leaf.hex())

    def _chain(self, where: str, body: dict[str, Any], leaf: str) -> None:
        op_id = str(body.get("op"))
        n, prev = self.heads.get(op_id, (0, ""))
        if body.get("n") != n + 1 or body.get("prev") != prev:
            self.problems.add("chain", where, f"it does not follow entry {n} of operation {op_id}")
        self.heads[op_id] = (n + 1, leaf)

    def check(self, sound: Sequence[Checkpoint]) -> int:
        """As many leaves as a checkpoint covers."""
        anchored = 0
        for each in sorted(sound, key=lambda each: each.size):
            if each.size > len(self.leaves):
                text = f"the end of the log was cut off: a checkpoint of {each.size} leaves was signed"
                self.problems.add("leaf", f"leaves {len(self.leaves)} to {each.size - 1}", text)
                break
            self.tree.extend(self.leaves[self.tree.size : each.size])
            if self.tree.root() != each.root:
                text = f"not the leaves over which the root of {each.size} was signed: {CHANGED}"
                self.problems.add("fork", f"leaves {anchored} to {each.size - 1}", text)
                break
            anchored = each.size
        self.tree.extend(self.leaves[self.tree.size :])
        return anchored


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


# -- one operation ---------------------------------------------------------------------------------------------------


def operation_proof(source: Any, op_id: str, *, checkpoints: str | None = None, key: Keys = None) -> dict[str, Any]:
    """The entries of one operation, the last checkpoint, and the hashes that lead from each entry to its root.

    Raises OperationNotFound, and LedgerError if no checkpoint covers the operation's entries yet.
    """
    with opened(source) as reader:
        return reader.read(lambda tx: _proof(reader, tx, op_id, checkpoints, key))


def _proof(reader: Reader, tx: Tx, op_id: str, path: str | None, key: Keys) -> dict[str, Any]:
    ledger_id, head = _ledger_id(tx), tx.one("log_head")
    trail = tx.all("trail", op_id=op_id)
    if not trail or head is None:
        raise OperationNotFound(op_id)
    ring = ring_of(reader, tx, ledger_id, key)
    if not ring.keys:
        raise LedgerError("no public key of this ledger is known here, so no checkpoint can be handed out: name one")
    last = _last(reader, tx, ledger_id, path, int(head[0]), ring)
    missing = [n for _, n, *_, seq in trail if last is None or seq is None or seq >= last.size]
    if last is None or missing:
        raise LedgerError(f"no checkpoint covers entry {missing[0]} of {op_id} yet; one is made within about a second")
    tiles = Tiles(last.size, lambda *span: stored(tx, *span))
    entries = [{"seq": seq, "body": body, "proof": [_text(each) for each in inclusion_proof(tiles, seq, last.size)]}
               for _, _, _, _, body, _, _, seq in trail]  # fmt: skip
    return {"format": PROOF, "origin": last.origin, "operation": op_id, "entries": entries, "checkpoint": last.note,
            "keys": [str(each) for each in ring.keys.values()]}  # fmt: skip


def _last(reader: Reader, tx: Tx, ledger_id: str, path: str | None, size: int, ring: Ring) -> Checkpoint | None:
    row = tx.one("log_last_checkpoint")
    found = _of_file(path or checkpoints_path(reader.where, reader.dialect, ledger_id), _TAIL)
    found += _parsed_notes([row] if row else [])
    for each in sorted(found, key=lambda each: -each.size):
        if each.size <= size and each.origin == origin_of(ledger_id) and ring.counts(each):
            return each
    return None


def verify_operation_proof(document: dict[str, Any], key: Keys = None) -> tuple[Problem, ...]:
    """Check what `operation_proof` gave, with nothing else at hand; what is wrong, empty if nothing is.

    It shows that these entries were in the log, as they are, when the checkpoint was signed, and that they are the
    operation's first ones without a gap; not that there are no later ones. Without `key` the key in the document is
    taken, which shows only that it agrees with itself. Raises UsageError for what is no such document.
    """
    problems = Problems()
    if not isinstance(document, dict) or document.get("format") != PROOF:
        raise UsageError(f"this is not the proof of an operation ({PROOF})")
    try:
        keys = trusted("", key) if key is not None else [PublicKey.parse(str(each)) for each in document["keys"]]
        checkpoint = parse_note(document["checkpoint"])
        entries = list(_proved(document["entries"]))
    except (KeyError, TypeError, ValueError) as problem:
        raise UsageError(f"this proof cannot be read: {problem}") from None
    if checkpoint.origin != document.get("origin") or not Trust(keys).accepts(checkpoint):
        problems.add("checkpoint", "checkpoint", "it was not signed with a trusted key, or changed afterwards")
    n, prev = 0, ""
    for seq, body, proof in entries:
        where, data = f"leaf {seq}", b"\0" + body.encode("utf-8", "surrogatepass")
        leaf, said = sha256(data), _parsed(body)
        if not included(leaf.digest(), seq, checkpoint.size, proof, checkpoint.root):
            problems.add("leaf", where, "this entry is not in the log that was signed")
        if (said.get("op"), said.get("n"), said.get("prev")) != (document.get("operation"), n + 1, prev):
            problems.add("chain", where, f"it does not follow entry {n} of this operation")
        n, prev = n + 1, leaf.hexdigest()
    if not entries:
        problems.add("leaf", "entries", "there are none")
    return problems.found()


def _proved(entries: Iterable[dict[str, Any]]) -> Iterator[tuple[int, str, list[bytes]]]:
    for each in entries:
        if not isinstance(each["seq"], int) or not isinstance(each["body"], str):
            raise ValueError("an entry without a place or a body")
        yield each["seq"], each["body"], [base64.b64decode(one, validate=True) for one in each["proof"]]


def _text(node: bytes) -> str:
    return base64.b64encode(node).decode()
