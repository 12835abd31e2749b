# SPDX-License-Identifier: Apache-2.0
"""Real commands that do not end: is the kind right, and is the right process blamed."""

from __future__ import annotations

import pytest
from zoo_cases import ALL, HELD_OUT, Zoo
from zoo_field import Field, Servers, look, missing

pytestmark = pytest.mark.alone  # a dozen programs at a time, and each is looked at in a given moment

QUIET_AT_A_TIME, BUSY_AT_A_TIME = 12, 3
LOOKS = 3  # a look catches one moment: a pipeline that works is now here, now there


@pytest.fixture(scope="module")
def ground(request):
    """The cases under way; only those that were selected are ever started."""
    chosen = [
        item.callspec.params["case"]
        for item in request.session.items
        if getattr(item, "module", None) is request.module and "case" in item.fixturenames
    ]

    def batch_of(case: Zoo) -> list[Zoo]:
        alike = [other for other in chosen if other.busy == case.busy]
        size = BUSY_AT_A_TIME if case.busy else QUIET_AT_A_TIME
        start = alike.index(case) // size * size
        return alike[start : start + size]

    servers = Servers()
    field = Field(servers.ports, batch_of)
    yield field
    field.close()
    servers.close()


def is_right(case: Zoo, found: dict) -> bool:
    diagnosis = found["diagnosis"]
    kinds = (case.kinds,) if isinstance(case.kinds, str) else case.kinds
    commands = {entry["pid"]: entry["cmd"] for entry in found["processes"]}
    blamed = not case.blamed or case.blamed in commands.get(diagnosis["pid"], "")
    return diagnosis["kind"] in kinds and blamed


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_diagnosis_of(case: Zoo, ground: Field) -> None:
    if reason := missing(case):
        pytest.skip(reason)
    running = ground.take(case)
    try:
        for _ in range(LOOKS):
            found = look(running)
            if is_right(case, found):
                break
    finally:
        ground.end(case)
    diagnosis = found["diagnosis"]
    if diagnosis["detail"] == "no process is left inside":
        pytest.skip(f"{case.name}: it ended by itself here")
    assert is_right(case, found), diagnosis
    assert found["complete"] is True
    assert diagnosis["hint"]


def test_zoo_names_are_unique() -> None:
    assert len({case.name for case in ALL}) == len(ALL)
    assert len(HELD_OUT) >= 20
