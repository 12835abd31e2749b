# SPDX-License-Identifier: Apache-2.0
"""The statements of sql/*.sql by name, in the words of either database, and the numbered migrations."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

__all__ = ["Migration", "migrations", "statements"]

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)\b")
_SECTION = re.compile(r"^-- name: (\w+)(?: (\w+))?$", re.MULTILINE)


@cache
def statements(dialect: str) -> dict[str, str]:
    """Every statement by its name. PostgreSQL's driver wants %(name)s where SQLite's wants :name."""
    found: dict[str, str] = {}
    special: dict[str, str] = {}
    for each in sorted(files(__package__).joinpath("sql").iterdir(), key=lambda each: each.name):
        if each.name.endswith(".sql"):
            parts = _SECTION.split(each.read_text(encoding="utf-8"))[1:]
            for name, only, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
                if only in (None, dialect):
                    (special if only else found)[name] = text.strip()
    found |= special
    if dialect == "postgresql":
        return {name: _PARAMETER.sub(r"%(\1)s", text.replace("%", "%%")) for name, text in found.items()}
    return found


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    text: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


@cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    """In their order; the first makes a ledger out of an empty database."""
    folder = files(__package__).joinpath("sql", dialect)
    found = [
        Migration(int(each.name[:4]), each.name[:-4], each.read_text(encoding="utf-8"))
        for each in folder.iterdir()
        if each.name.endswith(".sql")
    ]
    return tuple(sorted(found, key=lambda each: each.number))
