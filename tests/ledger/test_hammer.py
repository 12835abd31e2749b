# SPDX-License-Identifier: Apache-2.0
"""Eight processes that all want the same fifty things done, some of which are killed on the way."""

from __future__ import annotations

import signal

import pytest
import stores

pytest.importorskip("httpx2", reason="deadstop[ledger] is not installed")

from crash_matrix import matrix_of

from deadstop.testing import Authority

PROCESSES, KEYS = 8, 50
#: Where three of them die, on the second of the keys that they begin with.
ENDS = {"w0": "claim.committed", "w1": "http.written", "w2": "finish.in_transaction"}


@pytest.mark.parametrize("kind", stores.LASTING)
def test_eight_processes_that_want_fifty_things_get_each_of_them_once(
    kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The authority would do a thing as often as it was asked to; afterwards all eight have been told the same."""
    first = [f"{name} {number}" for name in ENDS for number in range(3)]
    keys = (*first, *(f"key {number}" for number in range(KEYS - len(first))))
    with matrix_of(kind, request, tmp_path_factory) as made, Authority("duplicate_intolerant") as authority:
        made.warm_up()
        ended = made.hammer(authority.url, PROCESSES, keys, ENDS)
        for name, point in ENDS.items():
            assert ended[name]["exit"] == -signal.SIGKILL and ended[name]["points"][-1] == point, ended[name]
        answers = [each["result"] for each in ended.values() if each["exit"] == 0]
        assert len(ended) == PROCESSES + len(ENDS) and len(answers) == PROCESSES
        assert all(each == answers[0] for each in answers)
        assert len(answers[0]) == KEYS and {each[2] for each in answers[0].values()} == {"SUCCEEDED"}
        assert [authority.effects(each[1]) for each in answers[0].values()] == [1] * KEYS
        assert authority.effects() == len(authority.requests(writes=True)) == KEYS
        told = made.check()[made.where]
        assert told["problems"] == [] and told["conservation"]["states"]["SUCCEEDED"] == KEYS + 1, told
        assert told["conservation"]["holds"] and told["conservation"]["open"] == 0
