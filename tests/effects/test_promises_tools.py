# SPDX-License-Identifier: Apache-2.0
"""What a tool declares as `redact` is written down nowhere: not even a digest is, in which it could be guessed at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import deadstop
from deadstop import Call, Effect
from deadstop.ledger.ledger import Ledger


@pytest.fixture
def ledger(own_ledger: Ledger) -> Ledger:
    return own_ledger


def charge(amount: int, note: str, pin: str) -> int:
    return amount


@pytest.mark.filterwarnings("ignore:tool 'charge'")
@pytest.mark.parametrize("fingerprint", [["amount"], None])
def test_what_is_redacted_is_in_no_digest_of_a_call(
    ledger: Ledger, tmp_path: Path, fingerprint: list[str] | None
) -> None:
    tool = deadstop.tool(charge, timeout=5, isolation="inline", effect=Effect(fingerprint=fingerprint, redact=["pin"]),
                         name="charge")  # fmt: skip

    def told(key: str, note: str, pin: str) -> tuple[str, str]:
        result = deadstop.call(Call(tool, 5, note, pin).options(key=key))
        assert result.operation is not None
        intent = json.loads(ledger.trail(result.operation["id"])[0].body)
        return intent["digest"], intent["fingerprint"]

    first = told("a", "shoes", "canary-1234")
    assert first[0]
    assert told("b", "shoes", "canary-5678") == first
    assert told("c", "shirt", "canary-1234")[0] != first[0]
    ledger.close()
    assert b"canary" not in b"".join(each.read_bytes() for each in tmp_path.rglob("*") if each.is_file())
