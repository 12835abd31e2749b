# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: the log's size and root, signed with Ed25519. The one file that imports cryptography.

The text is a C2SP tlog-checkpoint in a C2SP signed note, keys are in the note's own one-line form, so that tools of
others read both. The private key lives in a file outside the database: whoever can write the database only cannot sign.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

from ..errors import LedgerUnavailable, MissingExtra, UsageError

try:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
except ImportError:
    raise MissingExtra("the ledger", "ledger") from None

__all__ = [
    "Checkpoint",
    "PublicKey",
    "SigningKey",
    "Trust",
    "install",
    "known_keys",
    "origin_of",
    "parse_note",
    "parsed",
    "public_keys",
]

_ED25519 = b"\x01"
_NOTE = re.compile(r"([^\n]+)\n(0|[1-9][0-9]{0,18})\n([A-Za-z0-9+/]{43}=)\n\n((?:\u2014 [^\s+]+ [A-Za-z0-9+/=]+\n)+)")
_SECRET = "PRIVATE+KEY+"


def origin_of(ledger_id: str) -> str:
    """The name of a ledger's log, which is also the name of its key."""
    return f"deadstop/{ledger_id}"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One signed note. Nothing is known of its signatures until `Trust` has looked at them."""

    origin: str
    size: int
    root: bytes
    signatures: tuple[tuple[str, bytes, bytes], ...]  # name, key id, signature
    note: str

    @property
    def text(self) -> str:
        """What is signed."""
        return _text(self.origin, self.size, self.root)


def parse_note(note: str) -> Checkpoint:
    """Raises ValueError for what is not a checkpoint."""
    match = _NOTE.fullmatch(note)
    if match is None:
        raise ValueError("this is not a signed checkpoint")
    signatures = []
    for line in match[4].splitlines():
        _, name, words = line.split(" ")
        raw = base64.b64decode(words, validate=True)
        if len(raw) < 4 + 64 or base64.b64encode(raw).decode() != words:  # or with bits that mean nothing
            raise ValueError("this signature is not whole")
        signatures.append((name, raw[:4], raw[4:]))
    root = base64.b64decode(match[3], validate=True)
    found = Checkpoint(match[1], int(match[2]), root, tuple(signatures), note)
    if not note.startswith(found.text):
        raise ValueError("this is not a signed checkpoint")  # base64 with bits that mean nothing
    return found


def parsed(note: str) -> Checkpoint | None:
    """None for what is not a checkpoint."""
    try:
        return parse_note(note)
    except (TypeError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class PublicKey:
    name: str
    raw: bytes

    @property
    def id(self) -> bytes:
        return sha256(self.name.encode() + b"\n" + _ED25519 + self.raw).digest()[:4]

    def __str__(self) -> str:
        """One line, as other tools for signed notes want it."""
        return f"{self.name}+{self.id.hex()}+{base64.b64encode(_ED25519 + self.raw).decode()}"

    @classmethod
    def parse(cls, line: str) -> PublicKey:
        """Raises UsageError for what is not a public key in that form."""
        name, raw = _key_line(line, "public")
        return cls(name, raw)

    def verifies(self, text: str, signature: bytes) -> bool:
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, text.encode())
        except (InvalidSignature, ValueError):
            return False
        return True


class Trust:
    """The keys that a checkpoint may have been signed with."""

    def __init__(self, keys: Iterable[PublicKey]) -> None:
        self.keys = {(each.name, each.id): each for each in keys}

    def knows(self, checkpoint: Checkpoint) -> bool:
        """Whether it says that one of these keys signed it."""
        return any((name, key_id) in self.keys for name, key_id, _ in checkpoint.signatures)

    def accepts(self, checkpoint: Checkpoint) -> bool:
        """Whether one of these keys has signed it. No signature of theirs may be wrong."""
        ours = [(self.keys[name, key_id], signature) for name, key_id, signature in checkpoint.signatures
                if (name, key_id) in self.keys]  # fmt: skip
        return bool(ours) and all(key.verifies(checkpoint.text, signature) for key, signature in ours)


class SigningKey:
    """The private key of one signer of one ledger's log."""

    def __init__(self, name: str, seed: bytes) -> None:
        self.name, self._seed = name, seed
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = PublicKey(name, self._key.public_key().public_bytes_raw())

    def __repr__(self) -> str:
        return f"<SigningKey of {self.name}>"

    def sign(self, size: int, root: bytes, also: SigningKey | None = None) -> Checkpoint:
        """`also`: an older key of the same log that signs it, too, for those who know only that one."""
        text = _text(self.name, size, root)
        keys = [self] if also is None else [self, also]
        signatures = tuple((self.name, each.public.id, each.sign_text(text)) for each in keys)
        lines = [
            f"\u2014 {name} {base64.b64encode(key_id + signature).decode()}\n" for name, key_id, signature in signatures
        ]
        return Checkpoint(self.name, size, root, signatures, f"{text}\n{''.join(lines)}")

    def sign_text(self, text: str) -> bytes:
        return self._key.sign(text.encode())

    @classmethod
    def open(cls, path: str, origin: str, *, make: bool = True, public: bool = True) -> SigningKey:
        """The key in a file; made there on first use, readable for its owner alone, with PATH.pub beside it for others.

        Raises LedgerUnavailable if it can be neither read nor made, or belongs to another ledger.
        """
        try:
            try:
                text = _read(path)
            except FileNotFoundError:
                if not make:
                    raise
                _make(path, origin)
                text = _read(path)
            name, seed = _key_line(text, "private")
            key = cls(name, seed)
            if public and not os.path.exists(f"{path}.pub"):
                with contextlib.suppress(OSError):  # it follows from the private one
                    _place(f"{path}.pub", f"{key.public}\n", 0o644)
        except OSError as problem:
            raise LedgerUnavailable(path, f"its signing key: {problem.strerror or problem}", _FIX) from problem
        except UsageError as problem:
            raise LedgerUnavailable(path, f"its signing key: {problem}", _FIX) from problem
        if name != origin:
            raise LedgerUnavailable(path, f"this signing key is that of {name}, not of {origin}", _FIX)
        return key


_FIX = "name a file for it with DEADSTOP_LEDGER_KEY"


def public_keys(path: str) -> list[PublicKey]:
    """Those in a file, one a line; a private key stands for its public one. Raises UsageError, OSError."""
    found = []
    for line in _read(path).splitlines():
        if line.startswith(_SECRET):
            found.append(SigningKey(*_key_line(line, "private")).public)
        elif line.strip():
            found.append(PublicKey.parse(line))
    if not found:
        raise UsageError(f"{path}: there is no key in it")
    return found


def install(path: str, made: str, old: PublicKey | None, new: PublicKey) -> str:
    """The key in the file `made` takes the place of the one in `path`, and is known beside the older ones in PATH.pub.
    Gives where the one that was there is kept, "" if there was none. Raises OSError."""
    known = [*known_keys(f"{path}.pub"), *([] if old is None else [old]), new]
    _place(f"{path}.pub", "".join(f"{each}\n" for each in dict.fromkeys(known)), 0o644, over=True)
    kept = ""
    if os.path.exists(path):
        kept = f"{path}.{'-'.join(each.id.hex() for each in known_keys(path)) or 'unreadable'}"
        with contextlib.suppress(FileExistsError):
            os.link(path, kept)
    os.rename(made, path)
    _flush_folder(path)
    return kept


def known_keys(path: str) -> list[PublicKey]:
    """As `public_keys`; none for a file that cannot be read."""
    try:
        return public_keys(path)
    except (OSError, UsageError):
        return []


def _text(origin: str, size: int, root: bytes) -> str:
    return f"{origin}\n{size}\n{base64.b64encode(root).decode()}\n"


def _key_line(text: str, kind: str) -> tuple[str, bytes]:
    line = text.strip()
    if line.startswith(_SECRET) != (kind == "private"):
        raise UsageError(f"this is not a {kind} key of a signed note")
    words = line.removeprefix(_SECRET).split("+", 2)
    try:
        name, key_id, raw = words[0], bytes.fromhex(words[1]), base64.b64decode(words[2], validate=True)
    except (IndexError, ValueError):
        raise UsageError(f"this is not a {kind} key of a signed note") from None
    if not name or raw[:1] != _ED25519 or len(raw) != 33:
        raise UsageError(f"this is not an Ed25519 {kind} key of a signed note")
    public = PublicKey(name, raw[1:]) if kind == "public" else SigningKey(name, raw[1:]).public
    if public.id != key_id:
        raise UsageError(f"this {kind} key has been changed: its id does not fit")
    return name, raw[1:]


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(1 << 20)


def _make(path: str, origin: str) -> None:
    """All of it or nothing, and never over another one: of several processes the first one's key stays."""
    seed = Ed25519PrivateKey.generate().private_bytes_raw()
    key = SigningKey(origin, seed)
    secret = f"{_SECRET}{origin}+{key.public.id.hex()}+{base64.b64encode(_ED25519 + seed).decode()}\n"
    os.makedirs(os.path.dirname(os.path.abspath(path)), mode=0o700, exist_ok=True)
    _place(path, secret, 0o600)


def _place(path: str, text: str, mode: int, *, over: bool = False) -> None:
    made = f"{path}.{os.urandom(6).hex()}"
    fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if over:
            os.rename(made, path)
        else:
            with contextlib.suppress(FileExistsError):
                os.link(made, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(made)
        _flush_folder(path)


def _flush_folder(path: str) -> None:
    fd = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
