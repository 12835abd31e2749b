# SPDX-License-Identifier: Apache-2.0
"""Deadlines only shrink on the way down, and the nearest one says where it comes from."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deadstop.clock import VirtualClock
from deadstop.deadlines import (
    NESTED_KILL_MARGIN_S,
    NESTED_MARGIN_S,
    VARIABLE,
    deadline,
    inherited,
    remaining,
    resolve,
)
from deadstop.errors import InvalidLimit, UsageError


@pytest.fixture(autouse=True)
def no_outer_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def time() -> Iterator[VirtualClock]:
    with VirtualClock(1000.0) as clock:
        yield clock


def test_without_any_limit_there_is_no_deadline(time: VirtualClock) -> None:
    assert resolve(None, "given") == (None, None, None)
    assert remaining() is None


def test_its_own_timeout(time: VirtualClock) -> None:
    for source in ("given", "default"):
        end, hard_end, limit = resolve(3.0, source)
        assert (end, hard_end) == (1003.0, None)
        assert limit and (limit.which, limit.seconds, limit.source) == ("call", 3.0, source)


def test_a_block_that_is_nearer_wins_and_says_so(time: VirtualClock) -> None:
    with deadline(2.0):
        time.advance(0.5)
        assert remaining() == 1.5
        end, _, limit = resolve(10.0, "given")
        assert end == 1002.0
        assert limit and (limit.which, limit.seconds, limit.source) == ("parent", 2.0, "inherited")
        end, _, limit = resolve(None, "given")
        assert end == 1002.0 and limit and limit.which == "parent"
        end, _, limit = resolve(1.0, "given")
        assert end == 1001.5 and limit and limit.which == "call"
    assert remaining() is None


def test_blocks_nest_and_only_shrink(time: VirtualClock) -> None:
    with deadline(5.0):
        with deadline(60.0):
            assert remaining() == 5.0
        with deadline(1.0):
            assert remaining() == 1.0
        assert remaining() == 5.0


def test_remaining_never_goes_below_zero(time: VirtualClock) -> None:
    with deadline(1.0):
        time.advance(3.0)
        assert remaining() == 0.0
        assert resolve(9.0, "given")[0] == 1001.0


def test_a_block_is_left_also_by_an_exception(time: VirtualClock) -> None:
    with pytest.raises(RuntimeError), deadline(1.0):
        raise RuntimeError
    assert remaining() is None


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf"), True, "5", None, [], 1j])
def test_a_block_refuses_what_is_no_limit(bad: object) -> None:
    with pytest.raises(InvalidLimit, match=r"^deadline") as caught, deadline(bad):  # type: ignore[arg-type]
        pytest.fail("the block was entered")
    assert "\n" not in str(caught.value)


def test_the_environment_of_a_parent_command(time: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1004.0")
    assert inherited() == 1004.0
    assert remaining() == 4.0
    end, hard_end, limit = resolve(60.0, "given")
    assert end == pytest.approx(1004.0 - NESTED_MARGIN_S)
    assert hard_end == pytest.approx(1004.0 - NESTED_KILL_MARGIN_S)
    assert limit and (limit.which, limit.source) == ("parent", "inherited")


def test_the_hard_end_of_a_parent_holds_for_a_nearer_call_too(
    time: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own deadline comes first, but its grace must not reach past the parent's kill."""
    monkeypatch.setenv(VARIABLE, "1004.0")
    end, hard_end, limit = resolve(3.8, "given")
    assert end == 1003.8
    assert hard_end == pytest.approx(1004.0 - NESTED_KILL_MARGIN_S)
    assert limit and limit.which == "call"


@pytest.mark.parametrize("text", ["0", "999.5", "1000"])
def test_a_parent_whose_time_is_over_leaves_none(
    time: VirtualClock, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv(VARIABLE, text)
    assert remaining() == 0.0
    end, _, limit = resolve(5.0, "given")
    assert end is not None and end < 1000.0
    assert limit and limit.seconds == 0.0


@pytest.mark.parametrize("text", ["", "soon", "nan", "inf", "-1", "-inf", "1e999", "12 s"])
def test_an_environment_that_is_no_time_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(UsageError, match=VARIABLE) as caught:
        resolve(5.0, "given")
    assert "\n" not in str(caught.value) and repr(text) in str(caught.value)


def test_a_block_is_not_seen_by_another_thread_but_by_a_task() -> None:
    seen: list[float | None] = []

    async def ask() -> float | None:
        return remaining()

    async def both() -> list[float | None]:
        return list(await asyncio.gather(ask(), ask()))

    with deadline(30.0):
        other = threading.Thread(target=lambda: seen.append(remaining()))
        other.start()
        other.join(5)
        in_tasks = asyncio.run(both())
    assert seen == [None]
    assert all(left is not None and 29 < left <= 30 for left in in_tasks)


@given(own=st.none() | st.floats(0.001, 1e6), blocks=st.lists(st.floats(0.001, 1e6), max_size=5))
def test_a_child_never_ends_after_its_nearest_parent(own: float | None, blocks: list[float]) -> None:
    from contextlib import ExitStack

    with VirtualClock(1000.0), ExitStack() as stack:
        for seconds in blocks:
            stack.enter_context(deadline(seconds))
        end = resolve(own, "given")[0]
        wanted = [1000.0 + seconds for seconds in [*blocks, *([own] if own else [])]]
        assert end == min(wanted, default=None)
