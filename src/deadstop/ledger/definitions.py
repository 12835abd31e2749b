# SPDX-License-Identifier: Apache-2.0
"""What tools have declared, as the ledger keeps it: numbered versions; the one declared last is the current one."""

from __future__ import annotations

import json
from dataclasses import replace

from .canonical import canonical
from .definition import Definition
from .store import Tx

__all__ = ["define", "definition_of"]


def define(tx: Tx, definition: Definition) -> int:
    """Its version: the one it was registered as before, or a new one. What is declared last is the current one."""
    found = tx.one("definition_by_digest", tool=definition.tool, digest=definition.digest)
    if found is None:
        body = canonical(definition.to_dict()).decode()
        tx.run("add_definition", tool=definition.tool, digest=definition.digest, body=body, at_ms=tx.now)
        found = tx.one("definition_by_digest", tool=definition.tool, digest=definition.digest)
        if found is None:  # two at once took the same number: the transaction is done again
            return define(tx, definition)
    version: int = found[0]
    current = tx.one("last_definition", tool=definition.tool)
    if current is not None and current[0] != version:
        tx.run("declare", tool=definition.tool, version=version, at_ms=tx.now)
    return version


def definition_of(tx: Tx, tool: str, version: int) -> Definition:
    """That version, never laxer than the current one."""
    row, newest = tx.one("definition", tool=tool, version=version), tx.one("last_definition", tool=tool)
    assert row is not None
    assert newest is not None
    stored = Definition.from_dict(json.loads(row[1]), row[0])
    if newest[0] == row[0]:
        return stored
    return replace(stored.tightened(Definition.from_dict(json.loads(newest[1]), newest[0])), version=row[0])
