# SPDX-License-Identifier: Apache-2.0
"""Clocks, durations, sizes and limits."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deadstop.clock import (
    VirtualClock,
    check_count,
    check_limit,
    format_duration,
    monotonic,
    now_iso,
    parse_duration,
    parse_size,
)
from deadstop.errors import InvalidLimit


def test_monotonic_is_the_clock_of_the_host() -> None:
    before = time.clock_gettime(time.CLOCK_MONOTONIC)
    assert before <= monotonic() <= time.clock_gettime(time.CLOCK_MONOTONIC)


def test_a_virtual_clock_stands_in_only_while_entered() -> None:
    with VirtualClock(50.0) as clock:
        assert monotonic() == 50.0
        assert clock.advance(2.5) == monotonic() == 52.5
        with VirtualClock(7.0):
            assert monotonic() == 7.0
        assert monotonic() == 52.5
    assert abs(monotonic() - time.monotonic()) < 5


def test_a_virtual_clock_never_goes_back() -> None:
    clock = VirtualClock()
    for step in (-1.0, float("nan")):
        with pytest.raises(InvalidLimit):
            clock.advance(step)
    assert clock.now == 1000.0


def test_now_iso_is_utc_with_milliseconds() -> None:
    text = now_iso()
    read = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    assert len(text) == 24
    assert abs((datetime.now(UTC) - read).total_seconds()) < 5


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("30s", 30.0),
        ("5m", 300.0),
        ("2h", 7200.0),
        ("1.5", 1.5),
        ("NONE", None),
        (" 1.5 m ", 90.0),
    ],
)
def test_durations_that_are_read(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "0ms",
        "-1",
        "+1",
        "inf",
        "nan",
        "1e3",
        "5d",
        "5 m s",
        "1_0",
        ".",
        ".5",
        "5.",
        "٣s",
        "9" * 400,
        "s",
    ],
)
def test_durations_that_are_refused(text: str) -> None:
    with pytest.raises(InvalidLimit, match="is not allowed: give a duration above zero"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (5, "5s"),
        (1.5, "1.5s"),
        (0.3, "300ms"),
        (300.0, "5m"),
        (7200, "2h"),
        (90, "90s"),
        (30.004, "30.004s"),
        (0.9999999, "1s"),
        (0, "0ms"),
        (1e-9, "0.001ms"),
        (-2.0, "-2s"),
        (float("inf"), "inf"),
    ],
)
def test_durations_as_people_read_them(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@settings(deadline=None)
@given(st.floats(min_value=1e-6, max_value=1e7))
def test_a_formatted_duration_reads_back(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, abs=6e-4 if seconds >= 0.9 else 6e-7)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512M", 536870912),
        ("1G", 1 << 30),
        ("64KiB", 65536),
        ("64kb", 65536),
        ("1000", 1000),
        ("7 b", 7),
        ("none", None),
    ],
)
def test_sizes_that_are_read(text: str, size: int | None) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-5", "1.5G", "5kk", "5bib", "5ib", "M", "1e3", "٣", "9" * 20, "9999999T"])
def test_sizes_that_are_refused(text: str) -> None:
    with pytest.raises(InvalidLimit, match="is not allowed: give a whole size above zero"):
        parse_size(text)


@settings(deadline=None)
@given(st.integers(1, 1 << 20), st.sampled_from(["", "K", "MiB", "gb"]))
def test_a_size_is_its_number_times_its_unit(number: int, unit: str) -> None:
    power = {"": 0, "K": 1, "MiB": 2, "gb": 3}[unit]
    assert parse_size(f"{number}{unit}") == number * 1024**power


def test_limits_that_are_allowed() -> None:
    assert check_limit("timeout", None) is None
    assert check_limit("timeout", 5) == 5.0
    assert check_limit("timeout", Fraction(1, 2)) == 0.5
    assert isinstance(check_limit("timeout", 5), float)
    assert check_count("pids", None) is None
    assert check_count("pids", 3) == 3


@pytest.mark.parametrize(
    "value",
    [
        True,
        False,
        0,
        0.0,
        -1,
        "5",
        b"5",
        float("nan"),
        float("inf"),
        -float("inf"),
        10**400,
        1j,
        [],
        object(),
    ],
)
def test_limits_that_are_refused_are_named(value: object) -> None:
    with pytest.raises(InvalidLimit, match=r"^timeout=.* is not allowed: give a finite number above zero, or None$"):
        check_limit("timeout", value)


@pytest.mark.parametrize("value", [True, 0, -1, 1.0, "5", float("nan"), pytest.param(-(10**5000), id="long")])
def test_counts_that_are_refused_are_named(value: object) -> None:
    with pytest.raises(InvalidLimit, match=r"^pids=.* is not allowed: give a whole number above zero, or None$"):
        check_count("pids", value)


def test_a_value_that_cannot_be_shown_is_still_refused_clearly() -> None:
    class Rude:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    with pytest.raises(InvalidLimit, match="timeout=<Rude> is not allowed"):
        check_limit("timeout", Rude())
    with pytest.raises(InvalidLimit) as long:
        check_limit("timeout", "x" * 10_000)
    assert len(str(long.value)) < 200
