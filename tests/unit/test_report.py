# SPDX-License-Identifier: Apache-2.0
"""How much a command printed lately, from sizes that are remembered coarsely."""

from __future__ import annotations

import pytest

from deadstop.supervisor.report import RATE_WINDOW_S, Record


@pytest.fixture
def record() -> Record:
    return Record(command=None, started=0.0, started_at="", gap_before=0.0)  # type: ignore[arg-type]


def test_nothing_printed_is_a_rate_of_zero(record: Record) -> None:
    assert record.rate(100.0) == 0


def test_a_burst_counts_while_it_is_recent_and_not_after(record: Record) -> None:
    record.flow(100.0, 1000)
    assert record.rate(100.0) == record.rate(100.0 + RATE_WINDOW_S * 0.9) == 1000 / RATE_WINDOW_S
    assert record.rate(100.0 + RATE_WINDOW_S * 1.1) == 0


@pytest.mark.parametrize("interval", [0.0001, 0.001, 0.01, 0.1])
def test_a_steady_flow_has_its_rate_however_finely_it_comes(record: Record, interval: float) -> None:
    size, chunks = 10, int(2 / interval)
    for number in range(chunks):
        record.flow(100 + number * interval, size)
    assert record.rate(100 + (chunks - 1) * interval) == pytest.approx(size / interval, rel=0.25)


def test_old_output_does_not_count_and_memory_is_bounded(record: Record) -> None:
    record.flow(1.0, 1 << 30)
    for number in range(1000):
        record.flow(100.0 + number, 5)
    assert record.rate(1099.0) == 5 / RATE_WINDOW_S
    assert len(record._flow) <= 16
